"""Rows of MATH from a JSONL or Parquet file, a folder of such files, or a Hugging Face data set.

A row has `problem`, `level` (5 or "Level 5"), `subject` (or `type`), `solution`, and `answer` (or
a box in its solution). No content of a row is executed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any

from agentrl_cli.core.errors import UserError
from agentrl_cli.core.hub import prepare_hub
from agentrl_cli.core.types import derive_seed
from agentrl_cli.envs.math.answers import boxed

MAX_NAMED = 10  # lines that an error names
MAX_LENGTH = 2000  # characters of an answer
NOT_JSON = object()

Row = dict[str, Any]
VAL_NAMES = ("val", "validation", "dev")  # splits of a data set used as `val`
BLANK_LINES = re.compile(r"\n\s*\n")
EXTRA = "pip install 'agentrl-cli[math]'"
OFFLINE = "use env.data=FILE with rows of your own, or env=arithmetic, which needs no data"


@lru_cache(maxsize=4)
def read_splits(
    data: str, test_data: str | None, test_share: float, seed: int, val_share: float = 0.0,
    parse: Callable[[int, Any], Row] | None = None,
) -> dict[str, list[Row]]:  # fmt: skip
    """Return the rows of `train`, `val` and `test`. `parse(number, row)` makes a row with "id" and
    "problem", or raises ValueError with the reason; by default rows are those of MATH.

    Test rows are all of `test_data`; else the split `test`, if there is also a `train`; else a
    share of the rows, drawn by problem. With `test_data` the split `test` is for training, as usual
    with MATH-500. Val rows are the data's own split or a share of the others. Raises UserError for
    unreadable data."""
    parse = parse or _parse_row
    splits = _parse_splits(data, parse)
    has_splits, own = {"train", "test"} <= splits.keys(), []
    if has_splits or (test_data is not None and "train" in splits):
        own = [row for name in VAL_NAMES for row in splits.pop(name, [])]
    if test_data is None and has_splits:
        rows, test = splits["train"], splits["test"]
    else:
        rows = list(chain(*splits.values()))
        if test_data is None:
            test = _draw(rows, test_share, "row", seed)
        else:
            test = list(chain(*_parse_splits(test_data, parse).values()))
    rows = _without(rows, test)
    val = _without(own, [*rows, *test])
    val = val or _draw(rows, val_share, "val", seed)
    return {"train": _without(rows, val), "val": val, "test": test}


def solution_steps(row: Row) -> list[str]:
    """Return a solution's paragraphs, or its lines if it has one paragraph. One step has the box,
    which follows if the solution has none."""
    text = row["solution"].strip()
    parts = [part.strip() for part in BLANK_LINES.split(text) if part.strip()]
    if len(parts) == 1:
        parts = [line.strip() for line in text.splitlines() if line.strip()]
    return parts if boxed(text) is not None else [*parts, rf"\boxed{{{row['answer']}}}"]


def _without(rows: list[Row], others: list[Row]) -> list[Row]:
    known = {row["problem"] for row in others}
    return [row for row in rows if row["problem"] not in known] if known else rows


def _draw(rows: list[Row], share: float, name: str, seed: int) -> list[Row]:
    """Return a share of the rows. Equal problems are drawn together."""
    drawn = {r["problem"]: derive_seed("math", name, seed, r["problem"]) % 10**6 for r in rows}
    return [row for row in rows if drawn[row["problem"]] < share * 10**6]


def _parse_splits(data: str, parse: Callable[[int, Any], Row]) -> dict[str, list[Row]]:
    """Return the parsed rows of each split. With several splits, ids begin with the split."""
    numbered = _numbered_rows(data)
    splits, bad = dict[str, list[Row]](), list[str]()
    for name, rows in numbered.items():
        by_id: dict[str, Row] = {}
        for number, row in rows:
            try:
                parsed = parse(number, row)
                if parsed["id"] in by_id:
                    raise ValueError(f"the id '{parsed['id']}' occurs twice")
            except ValueError as error:
                bad.append(f"line {number} of '{data}' cannot be used ({error})")
                continue
            prefix = f"{name}-" if len(numbered) > 1 else ""
            by_id[parsed["id"]] = parsed | {"id": prefix + parsed["id"]}
        splits[name] = list(by_id.values())
    if bad:
        more = [f"and {len(bad) - MAX_NAMED} more"] if len(bad) > MAX_NAMED else []
        lines = [f"{line}; fix or delete it" for line in bad[:MAX_NAMED]]
        raise UserError("\n".join([*lines, *more]), code="bad-row")
    return splits


def _parse_row(number: int, row: Any) -> Row:
    """Return a row in the form described above. Raises ValueError with the reason."""
    if not isinstance(row, dict):
        raise ValueError("not JSON" if row is NOT_JSON else "not an object")
    problem, solution = row.get("problem"), row.get("solution") or ""
    if not isinstance(problem, str) or not problem.strip():
        raise ValueError("no 'problem'")
    if not isinstance(solution, str):
        raise ValueError("'solution' is not text")
    answer = row.get("answer")
    is_given = answer is not None and str(answer).strip()
    answer = str(answer) if is_given else boxed(solution)
    if not answer:
        raise ValueError("no 'answer' and no box in 'solution'")
    if len(answer) > MAX_LENGTH:
        raise ValueError(
            f"an answer of {len(answer):,} characters; at most {MAX_LENGTH:,} are read"
        )
    level = re.search(r"\d", str(row.get("level", "")))
    return {
        "id": str(row.get("unique_id") or number),
        "problem": problem,
        "level": int(level[0]) if level else 0,
        "subject": str(row.get("subject") or row.get("type") or "none"),
        "solution": solution,
        "answer": answer,
    }


def _numbered_rows(data: str) -> dict[str, list[tuple[int, Any]]]:
    """Return (line number, raw row) of each split. A single file has one split without a name.
    Folders, `owner/name` and `owner/name:config` are loaded with `datasets`, offline if cached."""
    path = Path(data)
    try:
        if path.suffix in (".jsonl", ".json"):
            lines = enumerate(path.read_bytes().splitlines(), start=1)
            return {"": [(n, _json(line)) for n, line in lines if line.strip()]}
        if path.suffix == ".parquet":
            from pyarrow import parquet  # pyright: ignore[reportMissingImports]

            splits: Any = {"": parquet.read_table(path).to_pylist()}
        else:
            from datasets import load_dataset  # pyright: ignore[reportMissingImports]

            if not path.is_dir():
                prepare_hub()
            name, _, config = data.partition(":")
            splits = load_dataset(name, config or None)
        return {name: list(enumerate(rows, start=1)) for name, rows in splits.items()}
    except UserError:
        raise
    except ModuleNotFoundError as error:
        line = f"'{data}' needs the package {error.name} ({EXTRA}); {OFFLINE}"
        raise UserError(line, code="missing-extra") from None
    except Exception as error:  # the network, the cache and the data format can raise anything
        text = getattr(error, "strerror", None) or str(error) or type(error).__name__
        reason = text.splitlines()[0][:200].rstrip(".")
        line = f"cannot read '{data}' ({reason}); {OFFLINE}"
        raise UserError(line, code="unreadable-data") from None


def _json(line: bytes) -> Any:
    """Return the value of a line, or NOT_JSON."""
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return NOT_JSON
