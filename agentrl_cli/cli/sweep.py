"""`agentrl sweep`: a grid of runs through Hydra's own multirun, with its launchers and sweepers.

Hydra splits the overrides into points and hands each to `run_point`, here, in a worker process or
on a cluster. What a sweep has finished is not done again.
"""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentrl_cli.cli.sweep_worker import run_point
from agentrl_cli.config.compose import check, compose, compose_with_hydra, conf_folder, groups
from agentrl_cli.core import files
from agentrl_cli.core.errors import UserError
from agentrl_cli.report.listing import row
from agentrl_cli.report.text import table
from agentrl_cli.runs.find import list_runs

if TYPE_CHECKING:
    from hydra.core.override_parser.types import Override

MANY = 100  # points from which a person is asked first
QUIET = ("hydra/job_logging=disabled", "hydra/hydra_logging=disabled", "hydra.output_subdir=null")
PLUGINS = {  # the extra that brings a launcher or sweeper
    "joblib": "sweep", "submitit_local": "slurm", "submitit_slurm": "slurm", "optuna": "optuna",
    "ray": "ray",
}  # fmt: skip


class Sweep:
    """What was asked for: the sweep's own overrides, those of Hydra, and the folder of its runs."""

    def __init__(self, overrides: list[str], config_dir: Path | None, name: str | None) -> None:
        """Raises UserError for overrides that cannot be read and for names that a sweep gives."""
        self.config_dir = config_dir
        parsed = [(item, item.input_line or "") for item in _parse(overrides)]
        self.machinery = [text for item, text in parsed if _is_hydras(item)]
        self.parsed = [item for item, _ in parsed if not _is_hydras(item)]
        if any(item.key_or_group == "name" for item in self.parsed):
            raise UserError("a sweep names its runs by what varies; give its folder as --name")
        root = next((str(i.value()) for i in self.parsed if i.key_or_group == "runs"), "runs")
        self.parsed = [item for item in self.parsed if item.key_or_group != "runs"]
        self.folder = Path(root) / (name or self._default_name())

    @property
    def varying(self) -> list[Override]:
        """The overrides that name several values."""
        return [item for item in self.parsed if item.is_sweep_override()]

    def points(self) -> int | None:
        """How many runs the grid has; None where a sweeper chooses them."""
        if any(not item.is_discrete_sweep() for item in self.varying) or self._chosen("sweeper"):
            return None
        count = 1
        for item in self.varying:
            count *= len(list(item.sweep_string_iterator()))
        return count

    def check(self) -> None:
        """Check every choice of groups and every single value before anything is started.

        Raises one UserError with one line for each mistake.
        """
        wrong: dict[str, None] = {}
        for overrides in self._cover():
            try:
                check(compose(overrides, self.config_dir))
            except UserError as error:
                wrong |= dict.fromkeys(str(error).splitlines())
        if wrong:
            raise UserError("\n".join(wrong))
        self._check_plugins()

    def start(self) -> None:
        """Run all points by Hydra's multirun."""
        import hydra

        with files.explain_write_errors(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
        main = hydra.main(version_base=None, config_path=str(conf_folder()), config_name="config")
        with _arguments(["agentrl", "--multirun", *self.arguments()]):
            main(run_point)()

    def arguments(self) -> list[str]:
        """The overrides as Hydra gets them, the runs' folder and names among them."""
        varying = {item.key_or_group for item in self.varying}
        fixed = [item.key_or_group for item in self.parsed if item.key_or_group not in varying]
        search = [f"hydra.searchpath=['{_uri(self.config_dir)}']"] if self.config_dir else []
        threads = ["hardware.threads=1"] if self._is_parallel() else []
        aside = ",".join([*fixed, "runs", *(["hardware.threads"] if threads else [])])
        return [
            *QUIET, f"hydra.sweep.dir={self.folder}/.multirun", "hydra.job.chdir=false",
            f"hydra.job.config.override_dirname.exclude_keys=[{aside}]", *search,
            *self.machinery, f"runs={self.folder}", *threads,
            *(_forced(item, self.config_dir) for item in self.parsed),
        ]  # fmt: skip

    def _is_parallel(self) -> bool:
        told = any(item.key_or_group == "hardware.threads" for item in self.parsed)
        return self._chosen("launcher") not in (None, "basic") and not told

    def _chosen(self, part: str) -> str | None:
        """The launcher or sweeper that an override chooses."""
        key = f"hydra/{part}="
        return next((t.removeprefix(key) for t in self.machinery if t.startswith(key)), None)

    def _cover(self) -> Iterator[list[str]]:
        """Points that together hold every combination of group options and every single value."""
        fixed = [item.input_line or "" for item in self.parsed if not item.is_sweep_override()]
        discrete = [item for item in self.varying if item.is_discrete_sweep()]
        values = {_key(item): list(item.sweep_string_iterator()) for item in discrete}
        chosen = [key for key in values if key in groups(self.config_dir)]
        first = {key: row[0] for key, row in values.items() if row}
        for combination in itertools.product(*(values[key] for key in chosen)):
            point = first | dict(zip(chosen, combination, strict=True))
            yield [*fixed, *(f"{key}={value}" for key, value in point.items())]
        for key in [key for key in values if key not in chosen]:
            for value in values[key][1:]:
                yield [*fixed, *(f"{k}={v}" for k, v in (first | {key: value}).items())]

    def _check_plugins(self) -> None:
        """Raises UserError where a launcher or sweeper is not there, or is not told as it is."""
        fixed = [item.input_line or "" for item in self.parsed if not item.is_sweep_override()]
        try:
            compose_with_hydra([*self.machinery, *fixed], self.config_dir)
        except UserError as error:
            for part in ("launcher", "sweeper"):
                chosen = self._chosen(part)
                if chosen and f"hydra/{part}" in str(error):
                    extra = PLUGINS.get(chosen)
                    remedy = (
                        f"pip install 'agentrl-cli[{extra}]'" if extra else "install its plugin"
                    )
                    raise UserError(f"{part} '{chosen}' is not installed; {remedy}") from None
            raise

    def _default_name(self) -> str:
        """The same for the same question, so that asking again goes on."""
        lines = sorted(item.input_line or "" for item in self.parsed)
        digest = blake2b("\n".join(lines).encode(), digest_size=3).hexdigest()
        return f"sweep_{digest}"


def sweep(
    overrides: list[str], config_dir: Path | None, name: str | None, jobs: int, ask: Any
) -> Path:
    """Check, ask where there are many points, run what is not done, say how it went; the folder.

    `ask(question)` answers whether to go on. Raises UserError for mistakes and for no points.
    """
    local = ["hydra/launcher=joblib", f"hydra.launcher.n_jobs={jobs}"] if jobs > 1 else []
    asked = Sweep([*local, *overrides], config_dir, name)
    count = asked.points()
    if count == 0:
        raise UserError("the sweep has no points; give each key that varies at least one value")
    if count is not None and count >= MANY and not ask(f"start {count} runs in {asked.folder}?"):
        raise UserError(f"{count} runs were not started; narrow the sweep, or say --yes")
    asked.check()
    print(f"sweep {asked.folder}: {count or 'as many as its sweeper says'} runs", file=sys.stderr)
    asked.start()
    return asked.folder


def summary(folder: Path) -> tuple[list[str], int]:
    """A line for each run of a sweep, and how many are not done."""
    rows = [row(run) for run in list_runs(folder)]
    cells = [[one["run"], one["status"], str(one["step"]), _score(one)] for one in rows]
    tried = {log.name.removesuffix(".log") for log in folder.glob("*.log")}
    lost = sorted(tried - {one["run"] for one in rows})
    cells += [[name, f"failed, see {folder / name}.log", "", ""] for name in lost]
    undone = sum(one["status"] != "done" for one in rows) + len(lost)
    return table(["run", "status", "step", "eval"], cells), undone


@contextmanager
def _arguments(arguments: list[str]) -> Iterator[None]:
    """Hydra's entry point reads the command line."""
    before, sys.argv = sys.argv, arguments
    os.environ.setdefault("HYDRA_FULL_ERROR", "1")
    try:
        yield
    finally:
        sys.argv = before


def _parse(overrides: list[str]) -> list[Override]:
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    parser, parsed, errors = OverridesParser.create(), [], []
    for text in overrides:
        try:
            parsed.append(parser.parse_override(text))
        except HydraException:
            errors.append(f"override '{text}' cannot be read; write it as key=value or key=a,b")
    if errors:
        raise UserError("\n".join(errors))
    return parsed


def _is_hydras(item: Override) -> bool:
    return item.key_or_group.partition(".")[0].partition("/")[0] == "hydra"


def _uri(folder: Path) -> str:
    """As Hydra and `run_point` read it: a path behind the scheme, nothing percent-encoded."""
    return f"file://{folder.resolve()}"


def _key(item: Override) -> str:
    return item.get_key_element()


def _forced(item: Override, config_dir: Path | None) -> str:
    """As a plain run takes it: keys that the YAML does not name are allowed, `check` has seen
    them."""
    text = item.input_line or ""
    is_plain = text[0] not in "+~" and item.key_or_group not in groups(config_dir)
    return f"++{text}" if is_plain else text


def _score(one: dict[str, Any]) -> str:
    return "" if one["eval"] is None else f"{one['eval']:.3f}"
