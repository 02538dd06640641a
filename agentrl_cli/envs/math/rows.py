"""Rows of MATH from a JSONL or Parquet file, a folder of such files, or a Hugging Face data set.

A row has `problem`, `level` (5 or "Level 5"), `subject` (or `type`), `solution`, and `answer` (or
a box in its solution). No content of a row is executed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any

from agentrl_cli.core.errors import UserError
from agentrl_cli.core.types import derive_seed
from agentrl_cli.envs.math.answers import boxed

Row = dict[str, Any]
VAL_NAMES = ("val", "validation", "dev")  # splits of a data set used as `val`
BLANK_LINES = re.compile(r"\n\s*\n")
EXTRA = "pip install 'agentrl-cli[math]'"
OFFLINE = "use env.data=FILE with rows of your own, or env=arithmetic, which needs no data"


@lru_cache(maxsize=4)
def read_splits(
    data: str, test_data: str | None, test_share: float, seed: int, val_share: float = 0.0
) -> dict[str, list[Row]]:
    """Return the rows of `train`, `val` and `test`.

    Test rows are the data's own split, all of `test_data`, or a share of the rows drawn by problem.
    Val rows are the data's own split or a share of the others. Raises UserError for unreadable
    data."""
    splits = _parse_splits(data)
    val: list[Row] = []
    if test_data is None and {"train", "test"} <= splits.keys():
        rows, test = splits["train"], splits["test"]
        own = [row for name in VAL_NAMES for row in splits.get(name, [])]
        val = _without(own, [*rows, *test])
    else:
        rows = list(chain(*splits.values()))
        if test_data is None:
            test = _draw(rows, test_share, "row", seed)
        else:
            test = list(chain(*_parse_splits(test_data).values()))
        rows = _without(rows, test)
    val = val or _draw(rows, val_share, "val", seed)
    return {"train": _without(rows, val), "val": val, "test": test}


def solution_steps(row: Row) -> list[str]:
    """Return a solution's paragraphs, or its lines if it has one paragraph. The last step has the
    box."""
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


def _parse_splits(data: str) -> dict[str, list[Row]]:
    """Return the parsed rows of each split. With several splits, ids begin with the split."""
    splits = _numbered_rows(data)
    return {
        name: [
            row | {"id": f"{name}-{row['id']}"} if len(splits) > 1 else row
            for row in _parse_rows(data, rows)
        ]
        for name, rows in splits.items()
    }


def _parse_rows(source: str, rows: list[tuple[int, Any]]) -> Iterable[Row]:
    ids: set[str] = set()
    for number, row in rows:
        try:
            parsed = _parse_row(number, row)
        except ValueError as error:
            raise _bad_line(source, number, str(error)) from None
        if parsed["id"] in ids:
            raise _bad_line(source, number, f"the id '{parsed['id']}' occurs twice")
        ids.add(parsed["id"])
        yield parsed


def _parse_row(number: int, row: Any) -> Row:
    """Return a row in the form described above. Raises ValueError with the reason."""
    if not isinstance(row, dict):
        raise ValueError("not an object")
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
    """Return (line number, raw row) of each split. A single file has one split without a name."""
    path = Path(data)
    if path.suffix in (".jsonl", ".json"):
        return {"": _json_lines(path)}
    splits = {"": _parquet(path)} if path.suffix == ".parquet" else _dataset(data)
    return {name: list(enumerate(rows, start=1)) for name, rows in splits.items()}


def _json_lines(path: Path) -> list[tuple[int, Any]]:
    rows: list[tuple[int, Any]] = []
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise _unreadable(str(path), error.strerror or "") from None
    for number, line in enumerate(lines, start=1):
        if line.strip():
            try:
                rows.append((number, json.loads(line)))
            except (ValueError, RecursionError):
                raise _bad_line(str(path), number, "not JSON") from None
    return rows


def _parquet(path: Path) -> list[Any]:
    try:
        from pyarrow import ArrowException, parquet  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise UserError(
            f"'{path}' needs the package pyarrow; {EXTRA}", code="missing-extra"
        ) from None
    try:
        return parquet.read_table(path).to_pylist()
    except (OSError, ArrowException) as error:
        raise _unreadable(str(path), error) from None


def _dataset(data: str) -> dict[str, list[Any]]:
    """Load a folder, `owner/name` or `owner/name:config` with `datasets`, offline if cached."""
    try:
        from datasets import load_dataset  # pyright: ignore[reportMissingImports]
    except ImportError:
        line = f"'{data}' needs the package datasets ({EXTRA}); {OFFLINE}"
        raise UserError(line, code="missing-extra") from None
    name, _, config = data.partition(":")
    try:
        splits: Any = load_dataset(name, config or None)
        return {split: list(rows) for split, rows in splits.items()}
    except Exception as error:  # the network, the cache and the data format can raise anything
        raise _unreadable(data, error) from None


def _unreadable(data: str, error: Exception | str) -> UserError:
    reason = (str(error) or type(error).__name__).splitlines()[0][:200].rstrip(".")
    return UserError(f"cannot read '{data}' ({reason}); {OFFLINE}", code="unreadable-data")


def _bad_line(source: str, number: int, reason: str) -> UserError:
    line = f"line {number} of '{source}' is not a row of MATH ({reason}); fix or delete it"
    return UserError(line, code="bad-row")
