"""`save_best=true`: the evaluation with the highest success on the split `val`, and its
checkpoint."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from agentrl_cli.core import files
from agentrl_cli.core.errors import UserError
from agentrl_cli.runs import checkpoint_digest
from agentrl_cli.runs.checkpoint_digest import Checkpoint
from agentrl_cli.runs.run import Run, step_of

VAL = "val"
VAL_SUCCESS = f"eval/{VAL}_success"
Row = dict[str, Any]


def best_evaluation(rows: Iterable[Row]) -> Row | None:
    """Return the row of metrics with the highest success on `val`, the earliest of equal ones, or
    None if no row has it."""
    found = [row for row in rows if _is_share(row.get(VAL_SUCCESS))]
    return max(found, key=lambda row: (row[VAL_SUCCESS], -row["step"]), default=None)


def kept_evaluation(rows: list[Row], save_best: bool) -> Row:
    """Return the evaluation that represents the run: the best with save_best=true, else the
    last."""
    return (best_evaluation(rows) if save_best else None) or rows[-1]


def is_best(run: Run, step: int) -> bool:
    """Return whether the evaluation of the current step is the best and not kept yet."""
    best = best_evaluation(run.metrics())
    return best is not None and best["step"] == step and not _is_whole(_folder(run, step))


def keep(run: Run, step: int) -> None:
    """Keep the checkpoint of this step as the best. Its files are hard links if possible."""
    saved = next(folder for folder in run.checkpoints() if step_of(folder) == step)
    final = _folder(run, step)
    partial = final.with_name(f".{final.name}.partial")
    with files.explain_write_errors(run.folder):
        shutil.copytree(saved, partial, copy_function=_link)
        for folder in [path for path in partial.rglob("*") if path.is_dir()] + [partial]:
            files.sync(folder)
        files.replace_folder(partial, final)
        for old in _kept(run):
            if old != final:
                shutil.rmtree(old)


def forget_later(run: Run, step: int) -> None:
    """Delete a best checkpoint that is later than the step from which the run resumes."""
    for folder in _kept(run):
        if step_of(folder) > step:
            shutil.rmtree(folder)


def played_checkpoint(run: Run, *parts: str) -> Checkpoint:
    """Return the checkpoint that represents the run: the best if it keeps one, else the newest that
    is intact. `parts` are prefixes of the files to verify. Raises UserError if there is none."""
    kept = _kept(run) if _keeps_best(run) else []
    if not kept:
        return run.whole_checkpoint(*parts)
    found = checkpoint_digest.read(kept[-1])
    found.verify(*parts)
    return found


def _keeps_best(run: Run) -> bool:
    try:
        text = run.config_file.read_text(encoding="utf-8")
    except (OSError, ValueError):
        return False
    return re.search(r"^(save_best: true|keep: best)$", text, re.MULTILINE) is not None


def _is_share(value: Any) -> bool:
    return type(value) in (int, float) and 0 <= value <= 1


def _is_whole(folder: Path) -> bool:
    try:
        checkpoint_digest.read(folder).verify()
    except UserError:
        return False
    return True


def _kept(run: Run) -> list[Path]:
    """Return the best checkpoint; two if a process died before it deleted the older one."""
    found = (run.folder / "checkpoints").glob("best-*")
    return sorted((f for f in found if re.fullmatch(r"best-\d+", f.name, re.ASCII)), key=step_of)


def _folder(run: Run, step: int) -> Path:
    return run.folder / "checkpoints" / f"best-{step:06d}"


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # a disk without hard links
        shutil.copy2(source, target)
        files.sync(Path(target))
