"""`agentrl sweep`: a grid of runs through Hydra's own multirun, with its launchers and sweepers.
Hydra splits the overrides into points and hands each to `run_point`, here, in a worker process or
on a cluster. What a sweep has finished is not done again."""

from __future__ import annotations

import itertools
import math
import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import TypeVar

import hydra
import psutil
from hydra.core.override_parser.types import Override

from agentrl_cli.cli.sweep_table import shown_table
from agentrl_cli.cli.sweep_worker import PROGRAM, point_name, refuse_other_run, run_point
from agentrl_cli.config import compose as config
from agentrl_cli.core import files
from agentrl_cli.core.errors import UserError
from agentrl_cli.core.one_process import refuse_several_processes
from agentrl_cli.report.summary import cell, run_row, table
from agentrl_cli.runs.find import list_runs
from agentrl_cli.runs.loggers import SWEEP_FOLDER
from agentrl_cli.runs.run import is_folder_name

T = TypeVar("T")
STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
MAX_NAMED = 5  # runs that are refused one by one
MANY_RUNS = 100  # from here on a person is asked first
QUIET = ("hydra/job_logging=disabled", "hydra/hydra_logging=disabled", "hydra.output_subdir=null")
PLUGINS = {  # the extra that brings a launcher or sweeper
    "joblib": "sweep", "submitit_local": "slurm", "submitit_slurm": "slurm", "optuna": "optuna",
    "ray": "ray",
}  # fmt: skip


class Sweep:
    """A parsed sweep: its runs' overrides, those of Hydra itself, and its runs' folder."""

    def __init__(self, overrides: list[str], config_dir: Path | None, name: str | None) -> None:
        """Raises UserError for overrides that cannot be read and for names that a sweep gives."""
        self.config_dir = config_dir
        parsed = config.parse_overrides(overrides, is_sweep=True)
        self.hydra_overrides = [_text(item) for item in parsed if _is_of_hydra(item)]
        own = [item for item in parsed if not _is_of_hydra(item)]
        if any(item.key_or_group == "name" for item in own):
            raise UserError("a sweep names its runs by what varies; give its folder as --name")
        root = next((str(item.value()) for item in own if item.key_or_group == "runs"), "runs")
        self.overrides = [item for item in own if item.key_or_group != "runs"]
        self.fixed = [item for item in self.overrides if not item.is_sweep_override()]
        self.varying = [item for item in self.overrides if item.is_sweep_override()]
        # the same for the same overrides in any order, so that the same command goes on
        text = "\n".join(sorted(map(_text, self.overrides)))
        digest = blake2b(text.encode(), digest_size=3).hexdigest()
        self.folder = Path(root) / (name or f"sweep_{digest}")
        if not is_folder_name(self.folder.name) or self.folder.parent != Path(root):
            raise UserError(f"--name '{name}' is not a folder name; use letters, digits, . _ -")

    def count_runs(self) -> int | None:
        """How many runs the grid has; None where a sweeper chooses them."""
        is_grid = all(item.is_discrete_sweep() for item in self.varying)
        if not is_grid or self._chosen_plugin("sweeper"):
            return None
        return math.prod(len(_values(item)) for item in self.varying)

    def check(self) -> None:
        """Check every choice of groups and every single value before anything starts. Raises one
        UserError with one line for each mistake."""

        def check_point(overrides: list[str]) -> None:
            config.compose_checked(overrides, self.config_dir)

        _raise_together(check_point, self.points_to_check())
        self._check_plugins()

    def points_to_check(self) -> Iterator[list[str]]:
        """Points that together hold every combination of group options and every single value."""
        fixed = [_text(item) for item in self.fixed]
        discrete = [item for item in self.varying if item.is_discrete_sweep()]
        values = {item.get_key_element(): _values(item) for item in discrete}
        choices = [key for key in values if key in config.groups(self.config_dir)]
        first = {key: of_key[0] for key, of_key in values.items() if of_key}
        products = itertools.product(*(values[key] for key in choices))
        points = [dict(zip(choices, options, strict=True)) for options in products]
        points += [{k: v} for k in values if k not in choices for v in values[k][1:]]
        for point in points:
            yield [*fixed, *(f"{key}={value}" for key, value in (first | point).items())]

    def refuse_other_runs(self) -> None:
        """Raise one UserError with one line for each run that is there, would stay or go on, and
        has another configuration. Where a sweeper chooses points they are known only later."""
        if self.count_runs() is None:
            return
        mistakes: list[str] = []
        for overrides, name in self.named_points() if self.folder.is_dir() else ():
            if not (self.folder / name).is_dir():
                continue
            try:
                compose = partial(config.compose_checked, overrides, self.config_dir)
                refuse_other_run(self.folder / name, compose)
            except UserError as error:
                mistakes.append(str(error))
        if mistakes:
            rest = len(mistakes) - MAX_NAMED
            more = [f"{rest} runs more have another configuration"] if rest > 0 else []
            raise UserError("\n".join([*mistakes[:MAX_NAMED], *more]))

    def named_points(self) -> Iterator[tuple[list[str], str]]:
        """Every point of the grid: its overrides, and its folder's name."""
        forced = [config.forced(item, self.config_dir) for item in self.varying]
        varying = config.parse_overrides(forced, is_sweep=True)
        fixed = [_text(item) for item in self.fixed]
        for values in itertools.product(*map(_values, varying)):
            keys = [item.get_key_element() for item in varying]
            point = [f"{key}={value}" for key, value in zip(keys, values, strict=True)]
            name = point_name(",".join(sorted(point)))
            yield [*fixed, *point], name

    def _check_plugins(self) -> None:
        """Raises UserError where a launcher or sweeper is not installed or is set wrongly."""
        fixed = [_text(item) for item in self.fixed]
        try:
            config.compose_with_hydra([*self.hydra_overrides, *fixed], self.config_dir)
        except UserError as error:
            for part in ("launcher", "sweeper"):
                plugin = self._chosen_plugin(part)
                if plugin and f"hydra/{part}" in str(error):
                    extra = PLUGINS.get(plugin)
                    install = f"pip install 'agentrl-cli[{extra}]'"
                    remedy = install if extra else "install its plugin"
                    raise UserError(f"{part} '{plugin}' is not installed; {remedy}") from None
            raise

    def start(self) -> None:
        """Run all points by Hydra's multirun."""
        with files.explain_write_errors(self.folder, "choose another place with runs="):
            self.folder.mkdir(parents=True, exist_ok=True)
        config.register_sections(self.config_dir)
        folder = str(config.conf_folder())
        main = hydra.main(version_base=None, config_path=folder, config_name="config")
        names = [] if self.count_runs() is None else [name for _, name in self.named_points()]
        with (
            _command_line(["agentrl", "--multirun", *self.arguments()]),
            stop_runs_on_signals(),
            shown_table(self.folder, names),
        ):
            main(run_point)()

    def arguments(self) -> list[str]:
        """The overrides as Hydra gets them, the runs' folder and names among them."""
        varying = {item.key_or_group for item in self.varying}
        keys = [item.key_or_group for item in self.overrides]
        is_parallel = self._chosen_plugin("launcher") not in (None, "basic")
        one_thread = is_parallel and "hardware.threads" not in keys
        unnamed = [key for key in keys if key not in varying] + ["runs"]
        unnamed += ["hardware.threads"] if one_thread else []
        return [
            *QUIET, f"hydra.sweep.dir={self.folder}/{SWEEP_FOLDER}", "hydra.job.chdir=false",
            f"hydra.job.config.override_dirname.exclude_keys=[{','.join(unnamed)}]",
            *config.search_path(self.config_dir), *self.hydra_overrides, f"runs={self.folder}",
            *(["hardware.threads=1"] if one_thread else []),
            *(config.forced(item, self.config_dir) for item in self.overrides),
        ]  # fmt: skip

    def _chosen_plugin(self, part: str) -> str | None:
        """The launcher or sweeper that an override chooses."""
        key = f"hydra/{part}="
        chosen = (text.removeprefix(key) for text in self.hydra_overrides if text.startswith(key))
        return next(chosen, None)


def sweep(
    overrides: list[str],
    config_dir: Path | None,
    name: str | None,
    jobs: int,
    confirm: Callable[[str], bool],
) -> tuple[Path, set[str] | None]:
    """Check the sweep, run what is not done, and return its folder and the names of its points
    (None: its sweeper alone knows them). Where there are many points
    `confirm(question)` answers whether to go on. Raises UserError for mistakes and for no
    points."""
    refuse_several_processes()
    local = ["hydra/launcher=joblib", f"hydra.launcher.n_jobs={jobs}"] if jobs > 1 else []
    grid = Sweep([*local, *overrides], config_dir, name)
    count = grid.count_runs()
    if count == 0:
        raise UserError("the sweep has no points; give each key that varies at least one value")
    is_large = count is not None and count >= MANY_RUNS
    if is_large and not confirm(f"start {count} runs in {grid.folder}?"):
        raise UserError(f"{count} runs were not started; narrow the sweep, or say --yes")
    grid.check()
    grid.refuse_other_runs()
    print(f"sweep {grid.folder}: {count or 'as many as its sweeper says'} runs", file=sys.stderr)
    grid.start()
    return grid.folder, None if count is None else {name for _, name in grid.named_points()}


def summary(folder: Path, points: set[str] | None = None) -> tuple[list[str], int]:
    """A line for each run of a sweep, and how many are not done; of these `points` alone where they
    are known, for a folder may hold those of another grid."""
    rows = [run_row(run) for run in list_runs(folder)]
    rows = [row for row in rows if points is None or row["run"] in points]
    for row in rows:
        log = folder / f"{row['run']}.log"
        is_explained = row["status"] == "failed" and log.is_file()
        row["status"] += f", see {log}" if is_explained else ""
    header = ["run", "status", "step", "eval"]
    cells = [[cell(row[name]) for name in header] for row in rows]
    logged = {log.name.removesuffix(".log") for log in folder.glob("*.log")}
    logged &= logged if points is None else points
    never_begun = sorted(logged - {row["run"] for row in rows})
    cells += [[name, f"failed, see {folder / name}.log", "", ""] for name in never_begun]
    unfinished = sum(row["status"] != "done" for row in rows) + len(never_begun)
    return table([header, *cells]), unfinished


@contextmanager
def stop_runs_on_signals() -> Iterator[None]:
    """Inside, Ctrl-C, SIGTERM and SIGHUP end the sweep: the runs of this process, wherever a
    launcher has put them on this machine, finish their step and save, and are waited for before the
    launcher hears of it, which may kill what it has started. A second Ctrl-C stops at once."""
    is_stopping = False

    def on_signal(number: int, frame: object) -> None:
        nonlocal is_stopping
        if is_stopping and number != signal.SIGINT:
            return
        is_waiting, is_stopping = not is_stopping, True
        if is_waiting:
            psutil.wait_procs(terminated_runs())
        raise KeyboardInterrupt

    handled = [number for number in STOPPING if signal.getsignal(number) != signal.SIG_IGN]
    before = {number: signal.signal(number, on_signal) for number in handled}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def terminated_runs() -> list[psutil.Process]:
    """The processes that train, below this one, which have been told to save and to end."""
    found: list[psutil.Process] = []
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            if PROGRAM in process.cmdline():
                process.terminate()
                found.append(process)
    return found


def _raise_together(check: Callable[[T], object], items: Iterable[T]) -> None:
    """Check all items. Raises one UserError with one line for each mistake that any of them has."""
    mistakes: dict[str, None] = {}
    for item in items:
        try:
            check(item)
        except UserError as error:
            mistakes |= dict.fromkeys(str(error).splitlines())
    if mistakes:
        raise UserError("\n".join(mistakes))


@contextmanager
def _command_line(arguments: list[str]) -> Iterator[None]:
    """The process's own inside, since Hydra's entry point reads it."""
    before, sys.argv = sys.argv, arguments
    os.environ.setdefault("HYDRA_FULL_ERROR", "1")
    try:
        yield
    finally:
        sys.argv = before


def _is_of_hydra(item: Override) -> bool:
    return item.key_or_group.partition(".")[0].partition("/")[0] == "hydra"


def _text(item: Override) -> str:
    return item.input_line or ""


def _values(item: Override) -> list[str]:
    return list(item.sweep_string_iterator())
