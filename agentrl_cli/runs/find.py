"""Lookup of runs by name, prefix or folder."""

from __future__ import annotations

import difflib
from collections import Counter
from functools import cache
from pathlib import Path

from agentrl_cli.core import files
from agentrl_cli.core.errors import UserError
from agentrl_cli.core.terminal import echo
from agentrl_cli.runs.run import Run

RUNS = Path("runs")
MAX_NAMED = 3  # runs or folders in a hint


def list_runs(root: Path) -> list[Run]:
    """Return all runs in `root`, oldest first. An unreadable one is skipped with a warning."""
    runs = []
    for file in {file.resolve(): file for file in sorted(root.glob("*/meta.json"))}.values():
        try:
            runs.append(Run(file.parent))
        except UserError as error:
            _warn_once(f"left out: {error}")
    return sorted(runs, key=lambda run: run.meta["created"])


def folders_of_runs(root: Path) -> dict[Path, int]:
    """Return the folders in `root` that hold runs, such as sweeps, with the number of runs."""
    runs = sorted(file.parent for file in root.glob("*/*/meta.json"))
    return dict(Counter(run.parent for run in runs if not (run.parent / "meta.json").exists()))


def is_run(folder: Path) -> bool:
    return files.is_folder(folder) and (folder / "meta.json").is_file()


def find_run(ref: str, root: Path = RUNS) -> Run:
    """Return the run of a folder, a unique prefix of its name, its last four letters or `last`.
    Raises UserError if there is none or more than one."""
    for folder in (Path(ref), root / ref):
        if is_run(folder):
            return Run(folder)
    runs = list_runs(root)
    if ref == "last" and runs:
        return runs[-1]
    names = [run.name for run in runs]
    similar = [name for name in names if name.startswith(ref) or name.endswith("_" + ref)]
    matches = [name for name in names if name == ref] or similar
    if len(matches) > 1:
        line = f"run '{ref}' is ambiguous; give more letters of {', '.join(matches)}"
        raise UserError(line, code="ambiguous-run")
    if not matches:
        raise UserError(f"run '{ref}' not found{_hint(ref, names, root)}", code="unknown-run")
    return runs[names.index(matches[0])]


def _hint(ref: str, names: list[str], root: Path) -> str:
    if files.is_folder(Path(ref)) and (inside := list_runs(Path(ref))):
        examples = ", ".join(run.quoted_folder for run in inside[:MAX_NAMED])
        return f": it is a folder with runs in it; name one of the {len(inside)}, like {examples}"
    if close := difflib.get_close_matches(ref, names, n=1, cutoff=0.5):
        return f" in '{root}'; did you mean '{close[0]}'?"
    if folders := folders_of_runs(root):
        examples = ", ".join(map(str, list(folders)[:MAX_NAMED]))
        return f" in '{root}'; there are folders of runs in it, see agentrl ls FOLDER: {examples}"
    return f" in '{root}'; see agentrl ls, or start a run with agentrl train"


@cache
def _warn_once(message: str) -> None:
    echo(message, err=True)
