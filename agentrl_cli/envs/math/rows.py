"""Rows of MATH from a JSONL or Parquet file, a folder of such files, or a Hugging Face data set.

A row has `problem`, `level` (5 or "Level 5"), `subject` (or `type`), `solution`, and `answer` (or
a box in its solution). Nothing of a row is run.
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
VAL_NAMES = ("val", "validation", "dev")  # a data set's own split for choosing
BLANK_LINES = re.compile(r"\n\s*\n")
EXTRA = "pip install 'agentrl-cli[math]'"
OFFLINE = "use env.data=FILE with rows of your own, or env=arithmetic, which needs no data"


@lru_cache(maxsize=4)
def read_splits(
    data: str, test_data: str | None, test_share: float, seed: int, val_share: float = 0.0
) -> dict[str, list[Row]]:
    """The rows of `train`, `val` and `test`. Those of test: the data's own split; or all of
    `test_data`; or a share of the rows, drawn by problem. Those of val: the data's own, or a share
    of the others. Raises UserError for what cannot be read."""
    splits = _parse_splits(data)
    val: list[Row] = []
    if test_data is None and {"train", "test"} <= splits.keys():
        rows, test = splits["train"], splits["test"]
        own = [row for name in VAL_NAMES for row in splits.get(name, [])]
        val = _without(own, [*rows, *test])
    else:
        rows = list(chain(*splits.values()))
        if test_data is None:
            test = _drawn(rows, test_share, "row", seed)
        else:
            test = list(chain(*_parse_splits(test_data).values()))
        rows = _without(rows, test)
    val = val or _drawn(rows, val_share, "val", seed)
    return {"train": _without(rows, val), "val": val, "test": test}


def _without(rows: list[Row], others: list[Row]) -> list[Row]:
    """The rows whose problems are none of the others'."""
    known = {row["problem"] for row in others}
    return [row for row in rows if row["problem"] not in known] if known else rows


def parse_rows(source: str, rows: Iterable[tuple[int, Any]]) -> Iterable[Row]:
    """Rows in one form. UserError names the first line that is none."""
    ids: set[str] = set()
    for number, row in rows:
        try:
            parsed = _parse_row(number, row)
        except ValueError as error:
            raise _unreadable(source, number, str(error)) from None
        if parsed["id"] in ids:
            raise _unreadable(source, number, f"a second one with the id '{parsed['id']}'")
        ids.add(parsed["id"])
        yield parsed


def _parse_splits(data: str) -> dict[str, list[Row]]:
    """Every split's rows; where there are several, the ids of one begin with its name."""
    splits = {name: list(parse_rows(data, rows)) for name, rows in _numbered_rows(data).items()}
    if len(splits) > 1:
        for name, rows in splits.items():
            splits[name] = [row | {"id": f"{name}-{row['id']}"} for row in rows]
    return splits


def solution_steps(row: Row) -> list[str]:
    """A solution's paragraphs, or its lines where it has one paragraph; the last has the box."""
    text = row["solution"].strip()
    parts = [part.strip() for part in BLANK_LINES.split(text) if part.strip()]
    if len(parts) == 1:
        parts = [line.strip() for line in text.splitlines() if line.strip()]
    return parts if boxed(text) is not None else [*parts, rf"\boxed{{{row['answer']}}}"]


def _parse_row(number: int, row: Any) -> Row:
    """ValueError says what is missing."""
    if not isinstance(row, dict):
        raise ValueError("not an object")
    problem, solution = row.get("problem"), row.get("solution") or ""
    if not isinstance(problem, str) or not problem.strip():
        raise ValueError("no 'problem'")
    if not isinstance(solution, str):
        raise ValueError("its 'solution' is no text")
    answer = row.get("answer")
    is_given = answer is not None and str(answer).strip()
    answer = str(answer) if is_given else boxed(solution)
    if not answer:
        raise ValueError("no 'answer' and no box in its 'solution'")
    level = re.search(r"\d", str(row.get("level", "")))
    return {
        "id": str(row.get("unique_id") or number),
        "problem": problem,
        "level": int(level[0]) if level else 0,
        "subject": str(row.get("subject") or row.get("type") or "none"),
        "solution": solution,
        "answer": answer,
    }


def _drawn(rows: list[Row], share: float, name: str, seed: int) -> list[Row]:
    """A share of the rows, which for each hangs on its problem alone."""
    draws = [derive_seed("math", name, seed, row["problem"]) % 10**6 for row in rows]
    return [row for row, drawn in zip(rows, draws, strict=True) if drawn < share * 10**6]


def _numbered_rows(data: str) -> dict[str, list[tuple[int, Any]]]:
    """(line number, raw row) of every split; a single file has one split without a name."""
    path = Path(data)
    if path.suffix in (".jsonl", ".json"):
        return {"": _json_lines(path)}
    if path.suffix == ".parquet":
        return {"": list(enumerate(_parquet(path), start=1))}
    return {name: list(enumerate(rows, start=1)) for name, rows in _dataset(data).items()}


def _json_lines(path: Path) -> list[tuple[int, Any]]:
    rows: list[tuple[int, Any]] = []
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise UserError(f"cannot read '{path}' ({error.strerror}); give a file of rows") from None
    for number, line in enumerate(lines, start=1):
        if line.strip():
            try:
                rows.append((number, json.loads(line)))
            except (ValueError, RecursionError):
                raise _unreadable(str(path), number, "no JSON") from None
    return rows


def _parquet(path: Path) -> list[Any]:
    try:
        from pyarrow import ArrowException, parquet  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise UserError(f"Parquet files need pyarrow: {EXTRA}", code="missing-extra") from None
    try:
        return parquet.read_table(path).to_pylist()
    except (OSError, ArrowException) as error:
        why = _first_line(error)
        raise UserError(f"cannot read '{path}' ({why}); give a Parquet file") from None


def _dataset(data: str) -> dict[str, Iterable[Any]]:
    """A folder or `owner/name`, `owner/name:config`, through `datasets`; offline where it is in its
    cache."""
    try:
        from datasets import load_dataset  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise UserError(
            f"'{data}' needs the package datasets ({EXTRA}); {OFFLINE}", code="missing-extra"
        ) from None
    name, _, config = data.partition(":")
    try:
        splits: Any = load_dataset(name, config or None)
        return {split: list(rows) for split, rows in splits.items()}
    except Exception as error:  # the network, the cache and the data format can raise anything
        raise UserError(
            f"cannot read data set '{data}' ({_first_line(error)}); {OFFLINE}",
            code="unreadable-data",
        ) from None


def _unreadable(source: str, number: int, reason: str) -> UserError:
    return UserError(f"line {number} of '{source}' is no row of MATH ({reason}); mend or delete it")


def _first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0][:200].rstrip(".")
