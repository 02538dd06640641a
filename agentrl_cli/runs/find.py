"""Which runs lie in a folder, and which run a name means. What is in a run, `run` knows."""

from __future__ import annotations

import difflib
from collections import Counter
from functools import cache
from pathlib import Path

from agentrl_cli.core import files
from agentrl_cli.core.errors import UserError
from agentrl_cli.core.terminal import say
from agentrl_cli.runs.run import Run

RUNS = Path("runs")
MAX_NAMED = 3  # runs or folders in a hint


def list_runs(root: Path) -> list[Run]:
    """All runs under `root`, oldest first. One that cannot be read is left out and named once on
    stderr."""
    runs = []
    for file in {file.resolve(): file for file in sorted(root.glob("*/meta.json"))}.values():
        try:
            runs.append(Run(file.parent))
        except UserError as error:
            _warn_once(f"left out: {error}")
    return sorted(runs, key=lambda run: run.meta["created"])


def folders_of_runs(root: Path) -> dict[Path, int]:
    """The folders under `root` that hold runs themselves, a sweep's say, and how many each."""
    runs = sorted(file.parent for file in root.glob("*/*/meta.json"))
    return dict(Counter(run.parent for run in runs if not (run.parent / "meta.json").exists()))


def is_run(folder: Path) -> bool:
    """Whether a folder says that it is a run's."""
    return files.is_folder(folder) and (folder / "meta.json").is_file()


def find_run(ref: str, root: Path = RUNS) -> Run:
    """The run that a folder, a unique prefix of its name, its last four letters or `last` means."""
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
        raise UserError(f"run '{ref}' is ambiguous; give more letters of {', '.join(matches)}")
    if not matches:
        raise UserError(f"run '{ref}' not found{_hint(ref, names, root)}")
    return runs[names.index(matches[0])]


def _hint(ref: str, names: list[str], root: Path) -> str:
    """Where the reference or else the root leads: runs inside, close names, folders of runs."""
    if files.is_folder(Path(ref)) and (inside := list_runs(Path(ref))):
        examples = ", ".join(run.quoted_folder for run in inside[:MAX_NAMED])
        return f": it is a folder with runs in it; name one of the {len(inside)}, like {examples}"
    close = difflib.get_close_matches(ref, names, n=1, cutoff=0.3)
    if close:
        return f" in '{root}'; did you mean '{close[0]}'?"
    if folders := folders_of_runs(root):
        examples = ", ".join(map(str, list(folders)[:MAX_NAMED]))
        return f" in '{root}'; there are folders of runs in it, see agentrl ls FOLDER: {examples}"
    if names:
        return f" in '{root}'; see agentrl ls"
    return f": no runs in '{root}'; start one with agentrl train"


@cache
def _warn_once(sentence: str) -> None:
    """To stderr, once in a process however often the same folder is listed."""
    say(sentence, err=True)
