"""Checkpoints: the record run.json with a digest of every file, and `save_best=true`, which keeps
the checkpoint with the highest success on the split `val`."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentrl_cli.core import files
from agentrl_cli.core.errors import UserError
from agentrl_cli.core.files import is_count

if TYPE_CHECKING:
    from agentrl_cli.runs.run import Run

RECORD = "run.json"
VERSION = 2  # 1, of agentrl 0.1, has byte lengths of logs and no digests
KEYS = {"version", "step", "metric_lines", "files", "digest"}
VAL = "val"
VAL_SUCCESS = f"eval/{VAL}_success"
Row = dict[str, Any]


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint. `metric_lines` is None if it can be played but not trained, as in version 1.
    `digests` maps file names to SHA-256."""

    folder: Path
    step: int
    metric_lines: int | None
    digests: dict[str, str]

    def verify(self, *parts: str) -> None:
        """Raise UserError for the first file that changed after it was saved. `parts` are prefixes
        that limit the check to some files."""
        for name, digest in self.digests.items():
            if (not parts or name.startswith(parts)) and not _matches(self.folder / name, digest):
                line = f"'{self.folder / name}' is not as it was saved"
                message = f"{line}; restore it, or remove this checkpoint"
                raise UserError(message, code="changed-checkpoint")


def write(folder: Path, step: int, metric_lines: int) -> None:
    """Write the record of a complete folder and flush the folder to disk."""
    digests = {str(file.relative_to(folder)): digest_of_file(file) for file in _files(folder)}
    record: Row = {"version": VERSION, "step": step, "metric_lines": metric_lines, "files": digests}
    files.write_json(folder / RECORD, record | {"digest": digest_of_record(record)})
    for path in [*_files(folder), *_folders(folder)]:
        files.sync(path)


def read(folder: Path) -> Checkpoint:
    """Return the checkpoint of a folder, which may come from elsewhere. Raises UserError if its
    record is missing, damaged or not a record of this program."""
    record = files.read_json(folder / RECORD)
    if record.get("version") == 1 and is_count(record.get("step")):
        return Checkpoint(folder, record["step"], None, {})
    content = {key: value for key, value in record.items() if key != "digest"}
    digests = record.get("files")
    is_valid = (
        record.keys() == KEYS
        and record["version"] == VERSION
        and record["digest"] == digest_of_record(content)
        and is_count(record["step"])
        and is_count(record["metric_lines"])
        and isinstance(digests, dict)
        and all(isinstance(digest, str) for digest in digests.values())
        and all("\0" not in n and files.is_inside(folder / n, folder) for n in digests)
    )
    if not is_valid:
        line = f"'{folder}' is not a checkpoint of this version, or its {RECORD} is damaged"
        raise UserError(f"{line}; name one that a run wrote", code="invalid-checkpoint")
    return Checkpoint(folder, record["step"], record["metric_lines"], record["files"])


def step_of(path: Path) -> int:
    """Return the step in the name of a checkpoint or an episode file."""
    return int(path.stem.rpartition("-")[2])


def digest_of_file(file: Path) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def digest_of_record(record: Row) -> str:
    """Return the digest of the record itself, since its numbers decide how logs are cut."""
    return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()


def _files(folder: Path) -> Iterator[Path]:
    return (file for file in sorted(folder.rglob("*")) if file.is_file() and file.name != RECORD)


def _folders(folder: Path) -> list[Path]:
    return [*(path for path in folder.rglob("*") if path.is_dir()), folder]


def _matches(file: Path, digest: str) -> bool:
    try:
        return file.is_file() and digest_of_file(file) == digest
    except OSError:
        return False


# the best checkpoint


def best_evaluation(rows: Iterable[Row]) -> Row | None:
    """Return the row of metrics with the highest success on `val`, the earliest of equal ones, or
    None if no row has it."""
    known = [row for row in rows if type(row.get(VAL_SUCCESS)) in (int, float)]
    found = [row for row in known if 0 <= row[VAL_SUCCESS] <= 1]
    return max(found, key=lambda row: (row[VAL_SUCCESS], -row["step"]), default=None)


def kept_evaluation(rows: list[Row], save_best: bool) -> Row:
    """Return the evaluation that represents the run: the best with save_best=true, else the
    last."""
    return (best_evaluation(rows) if save_best else None) or rows[-1]


def is_best(run: Run, step: int) -> bool:
    """Return whether the evaluation of the current step is the best and not kept yet."""
    best = best_evaluation(run.metrics())
    if best is None or best["step"] != step:
        return False
    try:
        read(_best_folder(run, step)).verify()
    except UserError:
        return True
    return False


def keep_best(run: Run, step: int) -> None:
    """Keep the checkpoint of this step as the best. Its files are hard links if possible."""
    saved = next(folder for folder in run.checkpoints() if step_of(folder) == step)
    final = _best_folder(run, step)
    partial = final.with_name(f".{final.name}.partial")
    with files.explain_write_errors(run.folder):
        shutil.copytree(saved, partial, copy_function=_link)
        for folder in _folders(partial):
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
    try:
        text = run.config_file.read_text(encoding="utf-8")
    except (OSError, ValueError):
        text = ""
    keeps_best = re.search(r"^(save_best: true|keep: best)$", text, re.MULTILINE)
    kept = _kept(run) if keeps_best else []
    if not kept:
        found = run.whole_checkpoint(*parts)
        if found.step == 0 and not run.is_done:  # from before the first update
            line = f"run '{run.folder}' ended before its first update was saved"
            raise UserError(f"{line}; agentrl resume {run.folder}", code="no-checkpoint")
        return found
    found = read(kept[-1])
    found.verify(*parts)
    return found


def _kept(run: Run) -> list[Path]:
    """Return the best checkpoint; two if a process died before it deleted the older one."""
    found = (run.folder / "checkpoints").glob("best-*")
    return sorted((f for f in found if re.fullmatch(r"best-\d+", f.name, re.ASCII)), key=step_of)


def _best_folder(run: Run, step: int) -> Path:
    return run.folder / "checkpoints" / f"best-{step:06d}"


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # a disk without hard links
        shutil.copy2(source, target)
        files.sync(Path(target))
