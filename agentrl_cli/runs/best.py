"""`keep=best`: which evaluation of a run won most of the split `val`, and that step's checkpoint,
which stays beside those that training goes on from."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from agentrl_cli.core import files
from agentrl_cli.core.errors import UserError
from agentrl_cli.runs import checkpoints
from agentrl_cli.runs.checkpoints import Checkpoint
from agentrl_cli.runs.run import Run, step_of

VAL = "val"
VAL_SUCCESS = f"eval/{VAL}_success"
Row = dict[str, Any]


def best_evaluation(rows: Iterable[Row]) -> Row | None:
    """The line of metrics with the highest success on `val`, of equal ones the earliest; None where
    no line has one."""
    found = [row for row in rows if _is_share(row.get(VAL_SUCCESS))]
    return max(found, key=lambda row: (row[VAL_SUCCESS], -row["step"]), default=None)


def kept_evaluation(rows: list[Row], keep: Any) -> Row:
    """Of a run's lines of evaluation the one that tells how good it is: the best, where that is
    what it keeps, else the last."""
    return (best_evaluation(rows) if keep == "best" else None) or rows[-1]


def is_best(run: Run, step: int) -> bool:
    """Whether the evaluation of this step, the last one, is the best."""
    best = best_evaluation(run.metrics())
    return best is not None and best["step"] == step and not _is_whole(_folder(run, step))


def keep(run: Run, step: int) -> None:
    """Let the saved checkpoint of this step be the best. Its files are shared, not copied, where
    the disk can do that."""
    saved = next(folder for folder in run.checkpoints() if step_of(folder) == step)
    final = _folder(run, step)
    partial = final.with_name(f".{final.name}.partial")
    with files.explain_write_errors(run.folder):
        shutil.copytree(saved, partial, copy_function=_share)
        for folder in [path for path in partial.rglob("*") if path.is_dir()] + [partial]:
            files.sync(folder)
        files.replace_folder(partial, final)
        for old in _kept(run):
            if old != final:
                shutil.rmtree(old)


def forget_later(run: Run, step: int) -> None:
    """Delete a best checkpoint of a later step than a run goes on from: what follows is played
    again."""
    for folder in _kept(run):
        if step_of(folder) > step:
            shutil.rmtree(folder)


def played_checkpoint(run: Run, *parts: str) -> Checkpoint:
    """What a run is played with: its best checkpoint where it keeps one, else the newest whose
    files are as they were saved (with `parts`, those whose names begin so). Raises UserError where
    there is none."""
    kept = _kept(run) if _keeps_best(run) else []
    for folder in reversed(kept):
        found = checkpoints.read(folder)
        found.verify(*parts)
        return found
    return run.whole_checkpoint(*parts)


def _keeps_best(run: Run) -> bool:
    """Whether the run's configuration says so."""
    try:
        text = run.config_file.read_text(encoding="utf-8")
    except (OSError, ValueError):
        return False
    return re.search(r"^keep: best$", text, re.MULTILINE) is not None


def _is_share(value: Any) -> bool:
    return type(value) in (int, float) and 0 <= value <= 1


def _is_whole(folder: Path) -> bool:
    try:
        checkpoints.read(folder).verify()
    except UserError:
        return False
    return True


def _kept(run: Run) -> list[Path]:
    """One, or two where a process died between the new one and the old."""
    found = (run.folder / "checkpoints").glob("best-*")
    return sorted((f for f in found if re.fullmatch(r"best-\d+", f.name, re.ASCII)), key=step_of)


def _folder(run: Run, step: int) -> Path:
    return run.folder / "checkpoints" / f"best-{step:06d}"


def _share(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # a disk without hard links
        shutil.copy2(source, target)
        files.sync(Path(target))
