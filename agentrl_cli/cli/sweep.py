"""`agentrl sweep`: a grid of runs through Hydra's multirun, with its launchers and sweepers.

Hydra passes each point to `run_point`, in this process, in a worker or on a cluster. A point runs
`agentrl train` in a new process, so that a crash affects no other. Finished ones are not repeated.
"""

from __future__ import annotations

import itertools
import math
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Any

import hydra
import psutil
from filelock import FileLock
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.types import Override
from omegaconf import DictConfig, OmegaConf

from agentrl_cli.config import compose as config
from agentrl_cli.config.compose import ConfigDirs
from agentrl_cli.config.settings import RESUMABLE
from agentrl_cli.core import files
from agentrl_cli.core.errors import UserError
from agentrl_cli.core.launch import require_single_process
from agentrl_cli.core.terminal import echo, echo_err
from agentrl_cli.report.summary import cell, run_row, runs_table
from agentrl_cli.runs.find import list_runs
from agentrl_cli.runs.loggers import SWEEP_FOLDER
from agentrl_cli.runs.run import Run, is_folder_name

PROGRAM = "agentrl_cli.cli"  # the module that `python -m` runs
MAX_NAME = 120  # characters of a run's name
MAX_NAMED = 20  # mistakes that an error lists
MANY_RUNS = 100  # from here on the sweep needs a confirmation
MAX_KEYS = 6  # that an error lists
MAY_DIFFER = tuple(  # keys and nodes without an effect on results, if a sweep is continued
    f"{key}."
    for key in (
        "name", "runs", "logger", "choices.logger", "save_every", "save_interval_minutes",
        "hardware.threads", *RESUMABLE,
    )
)  # fmt: skip
QUIET = ("hydra/job_logging=disabled", "hydra/hydra_logging=disabled", "hydra.output_subdir=null")
EXTRAS = {  # the extra with a launcher or sweeper
    "joblib": "sweep", "submitit_local": "slurm", "submitit_slurm": "slurm", "optuna": "optuna",
    "ray": "ray",
}  # fmt: skip


class Sweep:
    """A parsed sweep: the overrides of its runs and of Hydra, and the folder of its runs."""

    def __init__(self, overrides: list[str], config_dirs: ConfigDirs, name: str | None) -> None:
        """Parse the overrides. Raises UserError for invalid overrides and names."""
        self.config_dirs = config_dirs
        parsed = config.parse_overrides(overrides, is_sweep=True)

        def is_of_hydra(item: Override) -> bool:
            return re.match(r"hydra\b", item.key_or_group) is not None

        self.hydra_overrides = [_text(item) for item in filter(is_of_hydra, parsed)]
        own = list(itertools.filterfalse(is_of_hydra, parsed))
        if any(item.key_or_group == "name" for item in own):
            line = "the runs of a sweep are named by the keys that vary; give --name for its folder"
            raise UserError(line, code="sweep-name")
        root = next((str(item.value()) for item in own if item.key_or_group == "runs"), "runs")
        root = os.path.expanduser(root)
        self.overrides = [item for item in own if item.key_or_group != "runs"]
        self.fixed = [_text(item) for item in self.overrides if not item.is_sweep_override()]
        self.varying = [item for item in self.overrides if item.is_sweep_override()]
        # equal overrides in any order give the same folder, so that the sweep continues there
        text = "\n".join(sorted(map(_text, self.overrides)))
        digest = blake2b(text.encode(), digest_size=3).hexdigest()
        self.folder = Path(root) / (name or f"sweep_{digest}")
        if not is_folder_name(self.folder.name) or self.folder.parent != Path(root):
            line = f"--name '{name}' is not a folder name; use letters, digits, . _ -"
            raise UserError(line, code="folder-name")

    def count_runs(self) -> int | None:
        """Return the number of runs of the grid; None if a sweeper chooses the points."""
        if self._plugin("sweeper") or not all(item.is_discrete_sweep() for item in self.varying):
            return None
        return math.prod(len(_values(item)) for item in self.varying)

    def check(self) -> None:
        """Check all choices and values. Raises one UserError with a line for each mistake."""
        _raise_together(
            lambda point: config.compose_checked(point, self.config_dirs), self._points_to_check()
        )
        try:
            config.compose_with_hydra([*self.hydra_overrides, *self.fixed], self.config_dirs)
        except UserError as error:
            for part in ("launcher", "sweeper"):
                plugin = self._plugin(part)
                if plugin and f"hydra/{part}" in str(error):
                    fix = "install it"
                    if plugin in EXTRAS:
                        fix = f"run pip install 'agentrl-cli[{EXTRAS[plugin]}]'"
                    line = f"{part} '{plugin}' is not installed; {fix}"
                    raise UserError(line, code="missing-package") from None
            raise

    def _points_to_check(self) -> Iterator[list[str]]:
        """Yield points that contain all combinations of group choices and all single values."""
        discrete = [item for item in self.varying if item.is_discrete_sweep()]
        values = {item.get_key_element(): _values(item) for item in discrete}
        known = config.groups(self.config_dirs)
        first = {key: found[0] for key, found in values.items() if found}
        groups = {key: found for key, found in values.items() if key in known}
        points = [dict(zip(groups, p, strict=True)) for p in itertools.product(*groups.values())]
        points += [{k: v} for k in values if k not in groups for v in values[k][1:]]
        for point in points:
            yield [*self.fixed, *(f"{key}={value}" for key, value in (first | point).items())]

    def named_points(self) -> Iterator[tuple[list[str], str]]:
        """Yield the overrides and the folder name of every point of the grid."""
        forced = [config.forced(item, self.config_dirs) for item in self.varying]
        varying = config.parse_overrides(forced, is_sweep=True)
        keys = [item.get_key_element() for item in varying]
        for values in itertools.product(*map(_values, varying)):
            point = [f"{key}={value}" for key, value in zip(keys, values, strict=True)]
            yield [*self.fixed, *point], point_name(",".join(sorted(point)))

    def validate_existing_runs(self) -> None:
        """Raise UserError if finished or unfinished runs in the folder are of other points."""
        if self.count_runs() is None or not self.folder.is_dir():
            return  # the points of a sweeper are known only when they run

        def refuse(point: tuple[list[str], str]) -> None:
            composed = partial(config.compose_checked, point[0], self.config_dirs)
            validate_existing_run(self.folder / point[1], composed)

        _raise_together(refuse, self.named_points())

    def start(self) -> None:
        """Run all points with Hydra's multirun."""
        with files.explain_write_errors(self.folder, "choose another folder with runs="):
            self.folder.mkdir(parents=True, exist_ok=True)
        config.register_sections(self.config_dirs)
        folder = str(config.conf_folder())
        main = hydra.main(version_base=None, config_path=folder, config_name="config")
        before, sys.argv = sys.argv, ["agentrl", "--multirun", *self.arguments()]
        os.environ.setdefault("HYDRA_FULL_ERROR", "1")
        try:
            with stop_runs_on_signals():
                main(run_point)()
        finally:
            sys.argv = before

    def arguments(self) -> list[str]:
        """Return the command line for Hydra, with the folder and the names of the runs."""
        fixed = [item.key_or_group for item in self.overrides if not item.is_sweep_override()]
        is_parallel = self._plugin("launcher") not in (None, "basic")
        has_threads = any(item.key_or_group == "hardware.threads" for item in self.overrides)
        threads = ["hardware.threads=1"] if is_parallel and not has_threads else []
        unnamed = [*fixed, "runs", *(["hardware.threads"] if threads else [])]
        place = config.quoted(f"hydra.sweep.dir={self.folder}/{SWEEP_FOLDER}")
        return [
            *QUIET, place, "hydra.job.chdir=false", config.quoted(f"runs={self.folder}"),
            f"hydra.job.config.override_dirname.exclude_keys=[{','.join(unnamed)}]",
            *config.search_path(self.config_dirs), *self.hydra_overrides, *threads,
            *(config.forced(item, self.config_dirs) for item in self.overrides),
        ]  # fmt: skip

    def _plugin(self, part: str) -> str | None:
        """Return the launcher or sweeper that an override chooses."""
        key = f"hydra/{part}="
        chosen = (text.removeprefix(key) for text in self.hydra_overrides if text.startswith(key))
        return next(chosen, None)


def sweep(
    overrides: list[str],
    config_dirs: ConfigDirs,
    name: str | None,
    jobs: int,
    confirm: Callable[[str], bool],
) -> tuple[Path, set[str] | None]:
    """Check and run a sweep. Returns its folder and the names of its points, if known.

    `confirm` is called with a question before a large sweep. Raises UserError for mistakes.
    """
    require_single_process()
    local = ["hydra/launcher=joblib", f"hydra.launcher.n_jobs={jobs}"] if jobs > 1 else []
    grid = Sweep([*local, *overrides], config_dirs, name)
    count = grid.count_runs()
    if count == 0:
        line = "the sweep has no points; give at least one value for each key that varies"
        raise UserError(line, code="no-points")
    is_large = count is not None and count >= MANY_RUNS
    if is_large and not confirm(f"start {count} runs in {grid.folder}?"):
        raise UserError(f"{count} runs were not started; confirm with --yes", code="many-runs")
    grid.check()
    grid.validate_existing_runs()
    echo(f"sweep {grid.folder}: {count or 'an unknown number of'} runs", err=True)
    grid.start()
    return grid.folder, None if count is None else {name for _, name in grid.named_points()}


def summary(folder: Path, points: set[str] | None = None) -> tuple[list[str], int]:
    """Return a table of the runs of a sweep, or of its `points`, and how many are not done."""
    rows = [run_row(run) for run in list_runs(folder)]
    names = {row["run"] for row in rows}
    logs = sorted(log.name.removesuffix(".log") for log in folder.glob("*.log"))
    rows += [{"run": name, "status": "failed"} for name in logs if name not in names]
    rows = [row for row in rows if points is None or row["run"] in points]
    unfinished = sum(row["status"] != "done" for row in rows)
    for row in rows:
        if row["status"] == "failed" and row["run"] in logs:
            row["status"] += f", see {folder / row['run']}.log"
    return runs_table(rows, ["run", "status", "step", "eval"]), unfinished


@contextmanager
def stop_runs_on_signals() -> Iterator[None]:
    """Save and stop all runs of this sweep on Ctrl-C, SIGTERM and SIGHUP.

    The runs finish their step and save before the launcher is interrupted, since it may kill
    them. A second Ctrl-C stops immediately.
    """
    is_stopping = False

    def on_signal(number: int, frame: object) -> None:
        nonlocal is_stopping
        if is_stopping and number != signal.SIGINT:
            return
        is_waiting, is_stopping = not is_stopping, True
        if is_waiting:
            stopped: list[psutil.Process] = []
            for process in psutil.Process().children(recursive=True):
                with suppress(psutil.Error):
                    if PROGRAM in process.cmdline():
                        process.terminate()
                        stopped.append(process)
            psutil.wait_procs(stopped)
        raise KeyboardInterrupt

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    handled = [number for number in numbers if signal.getsignal(number) != signal.SIG_IGN]
    before = {number: signal.signal(number, on_signal) for number in handled}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


# one point


def run_point(cfg: DictConfig) -> float:
    """Train one point unless it is done. Returns its last success rate, or NaN without one."""
    hydra_cfg = HydraConfig.get()
    chosen, name = hydra_cfg.runtime.choices, point_name(hydra_cfg.job.override_dirname)
    folder = Path(cfg.runs) / name
    lock, log = folder.with_name(f"{name}.lock"), folder.with_name(f"{name}.log")
    with files.try_lock(FileLock(lock, fallback_to_soft=False)) as is_free:
        if is_free:
            search = [str(path).removeprefix("file://") for path in hydra_cfg.searchpath or []]
            point: Any = OmegaConf.create(OmegaConf.to_container(cfg, resolve=False))
            config.complete(point, chosen, [Path(path) for path in search])
            validate_existing_run(folder, lambda: config.check(point))
            verb = next_verb(folder)
            echo_err(f"{verb or 'already done:'} {name}")
            command = ["resume", str(folder)]
            if verb == "train":
                own = [word for path in search for word in ("--config-dir", path)]
                command = [verb, *own, *map(str, hydra_cfg.overrides.task), f"name='{name}'"]
            if verb is not None:
                is_local = chosen["hydra/launcher"] == "joblib" and cfg.hardware.device == "cuda"
                with reserved_gpu(folder.parent, visible_gpus() if is_local else []) as gpu:
                    code = run_agentrl(command, log, gpu)
                if code == 130:
                    raise KeyboardInterrupt
                if code:
                    echo_err(f"failed: {name}, see {log}")
                row = run_row(Run(folder)) if (folder / "meta.json").is_file() else {}
                step, success = (cell(row.get(key)) or "–" for key in ("step", "eval"))
                status = row.get("status", "failed")
                echo_err(f"{status:<9} step {step:>6}  success {success:>6}  {name}")
            lock.unlink(missing_ok=True)
        else:
            echo_err(f"running in another sweep: {name}")
    success = run_row(Run(folder))["eval"] if (folder / "meta.json").is_file() else None
    return math.nan if success is None else float(success)


def point_name(overrides: str) -> str:
    """Return a folder name such as `algo-nlac_seed-0`; long names are cut and get a digest."""
    plain = overrides.replace("++", "").replace(",", "_")
    name = re.sub(r"[^\w.+-]+", "-", plain).strip("-_.") or "run"
    if len(name) <= MAX_NAME:
        return name
    return f"{name[:MAX_NAME]}-{blake2b(overrides.encode(), digest_size=4).hexdigest()}"


def validate_existing_run(folder: Path, composed: Callable[[], DictConfig]) -> None:
    """Raise UserError if the run in a folder has another configuration than the composed one."""
    if (run := kept_run(folder)) is None:
        return
    there, here = config.load(run.config_file, []), composed()
    if here.model.get("chat_template"):  # a run stores the text
        from agentrl_cli.models.template import template_text

        here.model.chat_template = template_text(here.model.chat_template)
    old, new = (files.flatten(OmegaConf.to_container(c, resolve=True)) for c in (there, here))
    keys = [key for key in {**new, **old} if old.get(key) != new.get(key)]
    keys = [key for key in keys if not f"{key}.".startswith(MAY_DIFFER)]
    keys.sort(key=lambda key: not key.startswith("choices."))  # options first
    if keys:
        listed = [f"{k} {old.get(k, 'unset')} there and {new.get(k, 'unset')} here" for k in keys]
        if len(keys) > MAX_KEYS:
            listed[MAX_KEYS:] = [f"and {len(keys) - MAX_KEYS} keys more"]
        line = f"run '{folder}' has another configuration: {', '.join(listed)}"
        raise UserError(f"{line}; give another --name, or move that run", code="other-run")


def kept_run(folder: Path) -> Run | None:
    """Return the run of a point if it is done or can be resumed."""
    run = Run(folder) if (folder / "meta.json").is_file() else None
    if run is None or run.is_done:
        return run
    return run if run.meta["status"] != "failed" and run.checkpoints() else None


def next_verb(folder: Path) -> str | None:
    """Return `train` or `resume`, or None if the run is done. Other runs are moved to `failed/`.
    Raises UserError if another process trains the run."""
    if not folder.exists():
        return "train"
    if (run := kept_run(folder)) is not None:
        return None if run.is_done else "resume"
    failed = folder.parent / "failed"
    failed.mkdir(exist_ok=True)
    places = (failed / f"{folder.name}-{number}" for number in itertools.count())
    with Run(folder).lock() if (folder / "meta.json").is_file() else nullcontext():
        folder.rename(next(place for place in places if not place.exists()))
    return "train"


def run_agentrl(arguments: list[str], log: Path, gpu: str | None = None) -> int:
    """Run `agentrl ARGUMENTS` in a new process that writes to `log`. Returns its exit code."""
    variables = os.environ | ({} if gpu is None else {"CUDA_VISIBLE_DEVICES": gpu})
    command = [sys.executable, "-m", PROGRAM, *arguments]
    with (
        log.open("w") as file,
        subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=file, stderr=file, env=variables
        ) as process,
    ):
        try:
            return process.wait()
        except KeyboardInterrupt:
            process.terminate()  # it saves; no effect if Ctrl-C has reached it already
            process.wait()
            raise


@contextmanager
def reserved_gpu(folder: Path, gpus: list[str]) -> Iterator[str | None]:
    """Reserve one of several GPUs within a sweep; None if there is only one or none is free."""
    for number, gpu in enumerate(gpus if len(gpus) > 1 else []):
        lock = FileLock(folder / f".gpu-{number}.lock", fallback_to_soft=False)
        with files.try_lock(lock) as is_free:
            if is_free:
                yield gpu
                return
    yield None


def visible_gpus() -> list[str]:
    """Return the CUDA devices of this process, as in CUDA_VISIBLE_DEVICES."""
    if (named := os.environ.get("CUDA_VISIBLE_DEVICES")) is not None:
        return list(filter(None, named.split(",")))
    import torch

    return list(map(str, range(torch.cuda.device_count())))


def _raise_together(check: Callable[[Any], object], items: Iterable[Any]) -> None:
    """Check all items. Raises one UserError with a line for each mistake, up to MAX_NAMED."""
    mistakes: dict[str, None] = {}
    for item in items:
        try:
            check(item)
        except UserError as error:
            mistakes |= dict.fromkeys(str(error).splitlines())
    if mistakes:
        rest = len(mistakes) - MAX_NAMED
        more = [f"and {rest} more mistakes; correct these first"] if rest > 0 else []
        raise UserError("\n".join([*list(mistakes)[:MAX_NAMED], *more]), code="sweep")


def _text(item: Override) -> str:
    return item.input_line or ""


def _values(item: Override) -> list[str]:
    return list(item.sweep_string_iterator())
