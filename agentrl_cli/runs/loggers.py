"""Where metrics and episodes go besides the files of the run: the console, and the trackers of
Accelerate (TensorBoard, MLflow, Weights & Biases). Another tracker needs a file in conf/logger."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from fnmatch import fnmatch
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Literal

from agentrl_cli.core import files
from agentrl_cli.core.activity import Activity
from agentrl_cli.core.errors import UserError, require_above
from agentrl_cli.core.terminal import safe, say, tell
from agentrl_cli.core.types import Episode, Turn
from agentrl_cli.runs.best import played_checkpoint
from agentrl_cli.runs.run import Logger, Run

if TYPE_CHECKING:
    from accelerate.tracking import GeneralTracker
    from omegaconf import DictConfig
    from rich.progress import Progress


SHOWN_METRICS = (
    "reward/*",
    "episodes/success",
    "episodes/failed",
    "*/loss",
    "*/match",
    "eval/*_success",
)
HIDDEN_METRICS = "*/*_to_success"
TAGS = ("algo", "env", "model", "hardware")  # groups whose options tag a run
SWEEP_FOLDER = ".multirun"  # beside the runs of a sweep
EXTRAS = ("tensorboard", "mlflow")  # the trackers whose package is an extra of ours
ARTIFACTS = ("model", "report")  # that W&B may get at the end
Writer = Callable[[Path], object]
COLUMNS = (  # of a table of episodes, which has a row for each turn
    "step", "episode", "task", "success", "stop", "turn", "observation", "action", "reward",
    "value", "advantage", "critique",
)  # fmt: skip


@dataclass(kw_only=True)
class FilesOnly(Logger):
    """Nothing besides the files of the run."""

    def log(self, step: int, metrics: dict[str, float]) -> None:
        """Already in metrics.jsonl."""


@dataclass(kw_only=True)
class Console(Logger):
    """One line a step on stderr and in log.txt; on a terminal one below it that says what is done
    at the moment, how fast, and how long the rest will take."""

    activity: Activity = field(default_factory=Activity)
    run: Run | None = field(default=None, init=False)
    steps: int = field(default=0, init=False)
    progress: Progress | None = field(default=None, init=False)

    def start(self, run: Run, cfg: DictConfig) -> None:
        """Open the bar where stderr is a terminal."""
        self.run, self.steps = run, cfg.steps
        if sys.stderr.isatty():
            self.progress = _bar(cfg.steps, self.activity)

    def log(self, step: int, metrics: dict[str, float]) -> None:
        """Print the step's line above the bar."""
        text = step_line(step, self.steps, metrics)
        if self.run:
            self.run.append_log(text)
        if self.progress is None:
            tell(text)
            return
        with suppress(OSError):  # a terminal that is gone
            self.progress.console.print(text, markup=False, highlight=False)
            self.progress.update(self.progress.task_ids[0], completed=step)

    def finish(self, status: str) -> None:
        """Take the bar away."""
        if self.progress is not None:
            with suppress(OSError):
                self.progress.stop()


@dataclass(kw_only=True)
class Fallible(Logger):
    """A logger whose failures stop no run: the first is said, and `has_failed` from then on."""

    has_failed: bool = field(default=False, init=False)

    def _try(self, call: Callable[[], Any], name: str, loss: str = "") -> None:
        try:
            call()
        except Exception as error:  # of its process, server, file or disk; each has its own errors
            if not self.has_failed:
                reason = str(error).partition("\n")[0]
                say(f"{name} failed ({reason}); the run goes on{loss}", err=True)
            self.has_failed = True


@dataclass(kw_only=True)
class TrackerLogger(Fallible):
    """Any tracker of Accelerate, by its name there: metrics by step, and the configuration.
    `options` go to its class in accelerate.tracking; in them {run} is the run's name and {folder}
    its folder. Nothing that fails once it is open stops the run."""

    tracker: str
    options: dict[str, Any]
    client: Any = field(default=None, init=False)

    def start(self, run: Run, cfg: DictConfig) -> None:
        """Open the tracker; what a resumed run was configured with is there already. Raises
        UserError where the tracker is not installed or refuses."""
        from omegaconf import OmegaConf

        options = {key: _filled(value, run) for key, value in self.options.items()}
        if self.tracker == "mlflow":  # a resumed run goes on under the id that MLflow gave it
            options["run_id"] = run.meta.get("mlflow_id")
        flat = files.flatten(OmegaConf.to_container(cfg, resolve=True))
        settings = {k: v if isinstance(v, int | float | str) else str(v) for k, v in flat.items()}
        new_tracker = tracker_class(self.tracker)
        try:
            self.client = new_tracker(**options)
            self.client.start()
            if not run.meta.get("resumed"):
                self.client.store_init_configuration(settings)
        except Exception as error:  # every tracker has errors of its own
            raise UserError(f"{self.tracker} refused ({error}); see logger.options") from None
        if self.tracker == "mlflow":
            run.update_meta(mlflow_id=self.client.tracker.info.run_id)

    def log(self, step: int, metrics: dict[str, float]) -> None:
        """Hand on."""
        self._try(partial(self.client.log, metrics, step=step), self.tracker)

    def finish(self, status: str) -> None:
        """Close the tracker."""
        self._try(self.client.finish, self.tracker)


@dataclass(kw_only=True)
class WandbLogger(Fallible):
    """Weights & Biases: metrics, configuration, a table of the turns of the first `rows` episodes
    of each file; tags are the chosen options, and the runs of a sweep are one group.
    `mode` null follows WANDB_MODE. Its id is kept in meta.json: a resumed run continues the page.
    Where W&B gives no answer within `timeout` seconds at the start the run is logged offline, and
    at the end it is waited for no longer. Nothing that fails in between stops the run.
    `artifacts` names what of ARTIFACTS a run that is done hands over, its policy as a plain model
    or its report, as its `writers` write them into a new folder (earlier versions have no key).
    """

    project: str
    entity: str | None
    mode: Literal["online", "offline"] | None
    rows: int
    timeout: float
    artifacts: list[str] = field(default_factory=list)
    client: Any = field(default=None, init=False)
    run: Run | None = field(default=None, init=False)
    writers: dict[str, Writer] = field(default_factory=dict, init=False, repr=False)

    def start(self, run: Run, cfg: DictConfig) -> None:
        """Open the page of the run. Raises UserError where W&B refuses."""
        import wandb

        require_above(0, **{"logger.timeout": self.timeout})
        refuse_other_artifacts(self.artifacts)
        self.run = run
        began = time.monotonic()
        try:
            self._open(run, cfg, self.mode)
        except wandb.Error as error:
            if time.monotonic() - began < self.timeout:
                remedy = "log in or give logger.mode=offline"
                raise UserError(f"wandb refused ({error}); {remedy}") from None
            say(f"wandb gave no answer within {self.timeout:g} s; logging offline", err=True)
            self._open(run, cfg, "offline")
        self.client.tracker.define_metric("*", step_metric="step")
        run.update_meta(wandb_id=self.client.tracker.id)

    def _open(self, run: Run, cfg: DictConfig, mode: str | None) -> None:
        import wandb
        from omegaconf import OmegaConf

        identity = run.meta["wandb_id"]
        options = {
            "run_name": self.project,  # as WandBTracker calls W&B's project
            "entity": self.entity,
            "mode": mode,
            "name": run.name,
            "group": sweep_of(run),
            "job_type": "train",
            "tags": [str(cfg.choices[g]) for g in TAGS if cfg.choices.get(g)],
            "id": identity,
            "resume": "allow" if identity else None,
            "dir": str(run.folder),
            "config": OmegaConf.to_container(cfg, resolve=True),
            "settings": wandb.Settings(
                console="off",
                quiet=True,
                init_timeout=self.timeout,
                finish_timeout=self.timeout,
                finish_timeout_raises=True,
            ),
        }
        self.client = tracker_class("wandb")(**options)
        self.client.start()

    def log(self, step: int, metrics: dict[str, float]) -> None:
        """Log against our own step, which may go back when a run is resumed."""
        self._send({"step": step, **metrics})

    def episodes(self, step: int, kind: str, episodes: list[Episode]) -> None:
        """Log the first rows as a table, for which W&B is waited for; not again where it failed."""
        import wandb

        if self.has_failed:
            return
        rows: list[Any] = [
            row for episode in episodes[: self.rows] for row in turn_rows(step, episode)
        ]
        table = wandb.Table(list(COLUMNS), rows, allow_mixed_types=True)
        self._send({"step": step, f"episodes/{kind}": table})

    def _send(self, values: dict[str, Any]) -> None:
        self._try(partial(self.client.log, values), "wandb", ", no episodes are sent")

    def finish(self, status: str) -> None:
        """Hand over the artifacts of a run that is done, and close the page; only a failed run
        counts as crashed. Say how to send what was not."""
        page = self.client.tracker
        for name in self.artifacts if status == "done" and not self.has_failed else ():
            self._send_artifact(name)
        try:
            page.finish(exit_code=int(status == "failed"))
        except Exception:  # it took too long, or its process is gone
            self.has_failed = True
        if self.has_failed or page.offline:
            command = f"wandb sync --include-online {shlex.quote(str(Path(page.dir).parent))}"
            say(f"wandb has not got all of this run; send it with: {command}", err=True)

    def _send_artifact(self, name: str) -> None:
        """Write it beside the run's page, and let W&B take a copy."""
        import wandb

        assert self.run is not None
        page, step = self.client.tracker, played_checkpoint(self.run).step
        say(f"writing the {name} for wandb", err=True)
        try:
            with TemporaryDirectory(dir=self.run.folder, prefix=".artifact-") as folder:
                self.writers[name](Path(folder) / name)
                facts = {"step": step, **self.run.meta["choices"]}
                artifact = wandb.Artifact(f"{name}-{page.id}", type=name, metadata=facts)
                artifact.add_dir(str(Path(folder) / name))
                page.log_artifact(artifact, aliases=["latest", f"step-{step}"])
        except Exception as error:  # of W&B, of a disk, of a model that cannot be merged
            reason = str(error).partition("\n")[0]
            say(f"wandb does not get the {name} ({reason})", err=True)


def refuse_other_artifacts(names: list[str]) -> None:
    """Raise UserError for artifacts that there are not, or that need a package which is not
    installed, before a run that would end without them begins."""
    if wrong := [name for name in names if name not in ARTIFACTS]:
        raise UserError(f"logger.artifacts has '{wrong[0]}'; there is {', '.join(ARTIFACTS)}")
    if "report" in names and not all(map(find_spec, ("matplotlib", "jinja2"))):
        remedy = "pip install 'agentrl-cli[report]', or leave it out of logger.artifacts"
        raise UserError(f"the artifact 'report' needs what reports are drawn with; {remedy}")


def tracker_class(name: str) -> type[GeneralTracker]:
    """A tracker of Accelerate. Raises UserError where there is none of that name, or its package
    is not installed."""
    from accelerate.state import PartialState
    from accelerate.tracking import LOGGER_TYPE_TO_CLASS, get_available_trackers

    if name not in LOGGER_TYPE_TO_CLASS:
        names = ", ".join(LOGGER_TYPE_TO_CLASS)
        raise UserError(f"'{name}' is not a tracker of Accelerate; choose one of {names}")
    if name not in map(str, get_available_trackers()):
        package = f"'agentrl-cli[{name}]'" if name in EXTRAS else name
        raise UserError(f"logging to {name} needs its package; pip install {package}")
    PartialState()  # without it the trackers' own log messages raise
    return LOGGER_TYPE_TO_CLASS[name]


def step_line(step: int, steps: int, metrics: dict[str, float]) -> str:
    """`step 12/100  reward/mean 0.43  policy/loss 0.021  rollout 2.1s  update 3.4s`."""
    shown = [name for name in metrics if not fnmatch(name, HIDDEN_METRICS)]
    chosen = [name for name in shown if any(fnmatch(name, shape) for shape in SHOWN_METRICS)]
    parts = [f"{name} {metrics[name]:.3g}" for name in chosen]
    times = [name for name in metrics if name.startswith("time/")]
    parts += [f"{name.removeprefix('time/')} {metrics[name]:.1f}s" for name in times]
    return safe("  ".join([f"step {step:>{len(str(steps))}}/{steps}", *parts]))


def _bar(steps: int, activity: Activity) -> Progress:
    """The steps that are done, what is done now, and the time since the start and to the end."""
    from rich import progress as bars
    from rich.console import Console as Terminal
    from rich.text import Text

    class Now(bars.ProgressColumn):
        """Read anew at each refresh."""

        def render(self, task: bars.Task) -> Text:
            return Text(activity.text(), overflow="ellipsis", no_wrap=True)

    times = (bars.TimeElapsedColumn(), bars.TimeRemainingColumn())
    steps_done = (bars.BarColumn(bar_width=12), bars.MofNCompleteColumn())
    columns = (bars.SpinnerColumn(), *steps_done, Now(), *times)
    terminal = Terminal(stderr=True)
    progress = bars.Progress(*columns, console=terminal, transient=True, refresh_per_second=4)
    progress.add_task("steps", total=steps)
    progress.start()
    return progress


def sweep_of(run: Run) -> str | None:
    """The name of the sweep that a run is of, by which a tracker may group it; None for none."""
    folder = run.folder.resolve().parent
    return folder.name if (folder / SWEEP_FOLDER).is_dir() else None


def turn_rows(step: int, episode: Episode) -> list[list[Any]]:
    """A row of COLUMNS for each turn; what an algorithm has not recorded is None."""
    head = [step, episode.id, episode.task.id, episode.success, episode.stop]
    return [[*head, number, *_turn(turn)] for number, turn in enumerate(episode.turns, start=1)]


def _turn(turn: Turn) -> list[Any]:
    """What was seen, by whom it was said, what was done, and what that was found to be worth."""
    seen = "\n".join(f"{message.role}: {message.content}" for message in turn.observation)
    numbers = [turn.info.get(name) for name in ("value", "advantage")]
    numbers = [float(value) if files.is_number(value) else None for value in numbers]
    critic = turn.info.get("critic")
    critique = critic.get("critique") if isinstance(critic, dict) else None
    return [seen, turn.action, turn.reward, *numbers, critique]


def _filled(value: Any, run: Run) -> Any:
    """An option with the run's name and folder in their places."""
    if not isinstance(value, str):
        return value
    return value.replace("{run}", run.name).replace("{folder}", str(run.folder))
