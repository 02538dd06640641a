"""Loggers in addition to the files of the run: the console and the trackers of Accelerate
(TensorBoard, MLflow, Weights & Biases). Another tracker only needs a file in conf/logger."""

from __future__ import annotations

import json
import os
import shlex
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatch
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from agentrl_cli.core import files
from agentrl_cli.core.activity import Activity, Display
from agentrl_cli.core.errors import UserError
from agentrl_cli.core.terminal import echo, safe
from agentrl_cli.core.types import Episode
from agentrl_cli.runs.checkpoints import played_checkpoint
from agentrl_cli.runs.run import Logger, Run

if TYPE_CHECKING:
    from accelerate.tracking import GeneralTracker
    from omegaconf import DictConfig

SHOWN_METRICS = (
    "reward/*", "episodes/success", "episodes/error_rate", "*/loss", "*/match", "eval/*_success",
)  # fmt: skip
TABLES = ("episodes/train", "episodes/eval")  # keys of tables in W&B
MAX_TAG = 64  # characters
MAX_NAME = 128  # characters of a run's or group's name in W&B
BLOCK, HEADER = 32768, 7  # bytes of a block and of a header in a .wandb file
HIDDEN_METRICS = "*/*_to_success"
TAGS = ("algo", "env", "model", "hardware")  # groups with options that tag a run in W&B
SWEEP_FOLDER = ".multirun"  # next to the runs of a sweep
EXTRAS = ("tensorboard", "mlflow")  # trackers that are extras of this package
COLUMNS: list[Any] = [  # of the table of episodes, which has one row per turn
    "step", "episode", "task", "success", "stop", "turn", "observation", "action", "reward",
    "value", "advantage", "critique",
]  # fmt: skip


@dataclass(kw_only=True)
class JsonlLogger(Logger):
    """Log only to the run's own files, metrics.jsonl and episodes/."""

    def log(self, step: int, metrics: dict[str, float]) -> None: ...


@dataclass(kw_only=True)
class Console(Logger):
    """Print one line per step to stderr and log.txt. Between them a terminal shows a progress bar
    with the current work and the remaining time, and other output gets one line a minute."""

    activity: Activity = field(default_factory=Activity)
    run: Run | None = field(default=None, init=False)
    steps: int = field(default=0, init=False)
    display: Display | None = field(default=None, init=False)

    def start(self, run: Run, cfg: DictConfig) -> None:
        self.run, self.steps = run, cfg.steps
        self.display = Display(self.activity, cfg.steps)
        self.display.start()

    def log(self, step: int, metrics: dict[str, float]) -> None:
        text = step_line(step, self.steps, metrics)
        if self.run:
            self.run.append_log(text)
        if self.display is not None:
            self.display.print(text)
            self.display.step = step

    def finish(self, status: str) -> None:
        if self.display is not None:
            self.display.stop()


@dataclass(kw_only=True)
class Fallible(Logger):
    """A logger that cannot stop a run: its first failure is printed and sets `has_failed`."""

    client: Any = field(default=None, init=False)
    has_failed: bool = field(default=False, init=False)

    def _try(self, call: Callable[[], Any], name: str, loss: str = "") -> None:
        try:
            call()
        except Exception as error:  # every tracker raises its own types
            if not self.has_failed:
                echo(f"{name} failed ({_first_line(error)}); the run goes on{loss}", err=True)
            self.has_failed = True


@dataclass(kw_only=True)
class TrackerLogger(Fallible):
    """Log metrics and the configuration to a tracker of Accelerate. Only `start` can stop a run."""

    tracker: Annotated[str, Field(description="Name of the tracker in Accelerate.")]
    options: Annotated[
        dict[str, Any],
        Field(description="Arguments of its class in Accelerate, with {run} and {folder}."),
    ]

    def check(self) -> None:
        tracker_class(self.tracker)

    def start(self, run: Run, cfg: DictConfig) -> None:
        """Open the tracker. Raises UserError if it is not installed or fails to open."""
        from accelerate.state import PartialState
        from omegaconf import OmegaConf

        options = dict(self.options)
        for key, value in options.items():
            if isinstance(value, str):
                filled = value.replace("{run}", run.name).replace("{folder}", str(run.folder))
                options[key] = filled
        if self.tracker == "mlflow":  # a resumed run keeps the id from MLflow
            options["run_id"] = run.meta.get("mlflow_id")
        flat = files.flatten(OmegaConf.to_container(cfg, resolve=True))
        settings = {k: v if isinstance(v, int | float | str) else str(v) for k, v in flat.items()}
        new_tracker = tracker_class(self.tracker)
        PartialState()  # without it, log messages of the trackers raise
        try:
            self.client = new_tracker(**options)
            self.client.start()
            if not run.meta.get("resumed"):
                self.client.store_init_configuration(settings)
        except Exception as error:  # every tracker raises its own types
            message = f"{self.tracker} refused ({error}); see logger.options"
            raise UserError(message, code="tracker-refused") from None
        if self.tracker == "mlflow":
            run.update_meta(mlflow_id=self.client.tracker.info.run_id)

    def log(self, step: int, metrics: dict[str, float]) -> None:
        self._try(partial(self.client.log, metrics, step=step), self.tracker)

    def finish(self, status: str) -> None:
        self._try(self.client.finish, self.tracker)


@dataclass(kw_only=True)
class WandbLogger(Fallible):
    """Log metrics, the configuration and tables of episodes to Weights & Biases. Tags are the
    chosen options, and the runs of a sweep form a group. WANDB_TAGS, WANDB_RUN_GROUP and
    WANDB_NOTES are respected. A resumed run continues its page, and its steps in W&B. It sends the
    rows of metrics.jsonl that a killed process lost, and no row twice. If W&B does not respond
    within `timeout` seconds at the start, the run is logged offline; failures after that do not
    stop it. `writers` create the artifacts, each in a new folder."""

    project: Annotated[str, Field(description="Project in W&B.")]
    entity: Annotated[str | None, Field(description="User or team. null: the default one.")]
    mode: Annotated[
        Literal["online", "offline"] | None, Field(description="null: follow WANDB_MODE.")
    ]
    rows: Annotated[int, Field(description="Episodes of each file in the table of turns.")]
    timeout: Annotated[float, Field(gt=0, description="Seconds to wait for W&B.")]
    artifacts: Annotated[
        list[Literal["model", "report"]],
        Field(description="Uploaded at the end of a completed run: model, report."),
    ] = field(default_factory=list)
    tags: Annotated[
        list[str], Field(description="Further tags, in addition to the options and WANDB_TAGS.")
    ] = field(default_factory=list)
    run: Run | None = field(default=None, init=False)
    next_step: int = field(default=0, init=False)
    sent: Counter[tuple[int, str]] = field(default_factory=Counter, init=False, repr=False)
    writers: dict[str, Callable[[Path], object]] = field(
        default_factory=dict, init=False, repr=False
    )

    def check(self) -> None:
        if "report" in self.artifacts and not all(map(find_spec, ("matplotlib", "jinja2"))):
            line = "the artifact 'report' needs matplotlib and jinja2"
            remedy = "pip install 'agentrl-cli[report]', or leave it out of logger.artifacts"
            raise UserError(f"{line}; {remedy}", code="missing-package")
        for tag in self._own_tags():
            if not 0 < len(tag) <= MAX_TAG:
                line = f"the tag '{tag[:20]}' for W&B has {len(tag)} characters"
                remedy = f"give 1 to {MAX_TAG} in logger.tags and WANDB_TAGS"
                raise UserError(f"{line}; {remedy}", code="invalid-tag")
        import wandb

        try:
            settings = wandb.Settings()
            settings.update_from_env_vars(dict(os.environ))
            settings.project = self.project
        except (wandb.Error, ValueError) as error:
            line = f"wandb refuses a setting ({' '.join(str(error).split())})"
            remedy = "change it in logger or in the variable WANDB_…"
            raise UserError(f"{line}; {remedy}", code="tracker-refused") from None

    def _own_tags(self) -> list[str]:
        return [*self.tags, *filter(None, os.environ.get("WANDB_TAGS", "").split(","))]

    def start(self, run: Run, cfg: DictConfig) -> None:
        """Open the page of the run. Raises UserError if W&B refuses."""
        import wandb

        self.check()
        self.run = run
        earlier = list(run.folder.glob("wandb/*run-*/run-*.wandb"))
        began = time.monotonic()
        try:
            self._open(run, cfg, self.mode)
        except (wandb.Error, ValueError) as error:  # ValueError: of a setting or WANDB_ variable
            if time.monotonic() - began < self.timeout:
                reason = " ".join(str(error).split())
                remedy = "change that setting, log in or give logger.mode=offline"
                message = f"wandb refused ({reason}); {remedy}"
                raise UserError(message, code="tracker-refused") from None
            echo(f"wandb gave no answer within {self.timeout:g} s; logging offline", err=True)
            self._open(run, cfg, "offline")
        self.client.define_metric("*", step_metric="step")
        sent = run.meta.get("wandb_steps", 2 * files.count_lines(run.metrics_file))
        self.next_step = max(sent if run.meta["wandb_id"] else 0, self.client.step)
        sessions = run.meta.get("wandb_sessions", int(run.meta["wandb_id"] is not None))
        run.update_meta(wandb_id=self.client.id, wandb_sessions=sessions + 1)
        if len(earlier) < sessions:  # `wandb clean` deletes what was uploaded
            return
        self.sent = Counter(row_key(row) for file in earlier for row in stored_rows(file))
        for row in run.readable_metrics()[0]:
            row.pop("time/timestamp", None)
            self.log(row.pop("step"), {k: v for k, v in row.items() if v is not None})

    def _open(self, run: Run, cfg: DictConfig, mode: Any) -> None:
        import wandb
        from omegaconf import OmegaConf

        config: Any = OmegaConf.to_container(cfg, resolve=True)
        identity = run.meta["wandb_id"]
        tags = [str(cfg.choices[group]) for group in TAGS if cfg.choices.get(group)]
        tags += self._own_tags()
        settings = wandb.Settings(
            console="off", quiet=True, init_timeout=self.timeout, finish_timeout=self.timeout,
            finish_timeout_raises=True,
        )  # fmt: skip
        group = os.environ.get("WANDB_RUN_GROUP") or sweep_of(run)
        self.client = wandb.init(
            project=self.project, entity=self.entity, mode=mode, name=run.name[:MAX_NAME],
            group=group and group[:MAX_NAME], job_type="train",
            tags=list(dict.fromkeys(tags)), notes=os.environ.get("WANDB_NOTES"),
            id=identity, resume="allow" if identity else None, dir=str(run.folder), config=config,
            settings=settings,
        )  # fmt: skip

    def log(self, step: int, metrics: dict[str, float]) -> None:
        """Log with our own step, since a resumed run goes back."""
        self._send({"step": step, **metrics})

    def episodes(self, step: int, kind: str, episodes: list[Episode]) -> None:
        """Log the turns of the first `rows` episodes as a table."""
        import wandb

        if not self.has_failed:  # creating a table blocks until W&B responds
            turns: Any = [r for episode in episodes[: self.rows] for r in turn_rows(step, episode)]
            table = wandb.Table(COLUMNS, turns, allow_mixed_types=True)
            self._send({"step": step, f"episodes/{kind}": table})

    def _send(self, values: dict[str, Any]) -> None:
        """Log at the next step of W&B, unless an earlier process sent the row. The step is stored
        first, so that a resumed run, also after a kill, never uses it again: W&B would drop those
        values."""
        if self.sent[key := row_key(values)] > 0:
            self.sent[key] -= 1
            return
        step, self.next_step = self.next_step, self.next_step + 1
        if self.run is not None:
            self.run.update_meta(wandb_steps=self.next_step)
        self._try(partial(self.client.log, values, step=step), "wandb", ", no episodes are sent")

    def finish(self, status: str) -> None:
        """Upload the artifacts of a completed run and close the page. Print the command that sends
        the missing part."""
        for name in self.artifacts if status == "done" and not self.has_failed else ():
            self._send_artifact(name)
        try:
            self.client.finish(exit_code=int(status == "failed"))
        except Exception:  # timeout, or its process ended
            self.has_failed = True
        if self.has_failed or self.client.offline:
            folder = shlex.quote(str(Path(self.client.dir).parent))
            command = f"wandb sync --include-online {folder}"
            echo(f"wandb has not got all of this run; send it with: {command}", err=True)

    def _send_artifact(self, name: str) -> None:
        import wandb

        assert self.run is not None
        step = played_checkpoint(self.run).step
        echo(f"writing the {name} for wandb", err=True)
        try:
            with TemporaryDirectory(dir=self.run.folder, prefix=".artifact-") as folder:
                self.writers[name](Path(folder) / name)
                facts = {"step": step, **self.run.meta["choices"]}
                artifact = wandb.Artifact(f"{name}-{self.client.id}", type=name, metadata=facts)
                artifact.add_dir(str(Path(folder) / name))
                self.client.log_artifact(artifact, aliases=["latest", f"step-{step}"])
        except Exception as error:  # of W&B, the disk, or a model that cannot be merged
            echo(f"wandb does not get the {name} ({_first_line(error)})", err=True)


def row_key(values: dict[str, Any]) -> tuple[int, str]:
    """Return the step of a row in W&B and the name of its table, or "" for metrics."""
    return values["step"], next((name for name in TABLES if name in values), "")


def stored_rows(file: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of a .wandb file, up to its end or the first damage. The file has a header and
    then the log format of LevelDB: records in parts, in blocks of 32 KiB."""
    from google.protobuf.message import DecodeError
    from wandb.proto import wandb_internal_pb2

    parse: Any = wandb_internal_pb2.Record.FromString  # pyright: ignore[reportAttributeAccessIssue]
    data, at, record = file.read_bytes(), HEADER, b""
    while at + HEADER <= len(data):
        if (rest := BLOCK - at % BLOCK) < HEADER:
            at += rest
            continue
        size, kind = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
        at += HEADER + size
        if at > len(data):
            return
        record += data[at - size : at]
        if kind in (1, 4):  # a whole record, or its last part
            try:
                items = parse(record).history.item
                row = {[*x.nested_key, x.key][0]: json.loads(x.value_json) for x in items}
            except (DecodeError, ValueError):
                return
            if isinstance(row.get("step"), int):
                yield row
            record = b""


def tracker_class(name: str) -> type[GeneralTracker]:
    """Return a tracker of Accelerate. Raises UserError if it is unknown or not installed."""
    from accelerate.tracking import LOGGER_TYPE_TO_CLASS, get_available_trackers

    if name not in LOGGER_TYPE_TO_CLASS:
        names = ", ".join(LOGGER_TYPE_TO_CLASS)
        line = f"'{name}' is not a tracker of Accelerate; choose one of {names}"
        raise UserError(line, code="unknown-tracker")
    if name not in map(str, get_available_trackers()):
        package = f"'agentrl-cli[{name}]'" if name in EXTRAS else name
        line = f"logging to {name} needs its package; pip install {package}"
        raise UserError(line, code="missing-package")
    return LOGGER_TYPE_TO_CLASS[name]


def step_line(step: int, steps: int, metrics: dict[str, float]) -> str:
    """Return `step 12/100  reward/mean 0.43  policy/loss 0.021  rollout 2.1s  train 3.4s`."""
    parts = [
        f"{name} {value:.3g}"
        for name, value in metrics.items()
        if any(fnmatch(name, shape) for shape in SHOWN_METRICS)
        and not fnmatch(name, HIDDEN_METRICS)
    ]
    times = [name for name in metrics if name.startswith("time/")]
    parts += [f"{name.removeprefix('time/')} {metrics[name]:.1f}s" for name in times]
    return safe("  ".join([f"step {step:>{len(str(steps))}}/{steps}", *parts]))


def sweep_of(run: Run) -> str | None:
    """Return the name of the sweep that a run belongs to, or None."""
    folder = run.folder.resolve().parent
    return folder.name if (folder / SWEEP_FOLDER).is_dir() else None


def turn_rows(step: int, episode: Episode) -> list[list[Any]]:
    """Return one row of COLUMNS per turn. Values that the algorithm did not record are None."""
    rows: list[list[Any]] = []
    for number, turn in enumerate(episode.turns, start=1):
        seen = "\n".join(f"{message.role}: {message.content}" for message in turn.observation)
        numbers = [turn.info.get(name) for name in ("value", "advantage")]
        critic = turn.info.get("critic")
        rows.append([
            step, episode.id, episode.task.id, episode.success, episode.stop, number,
            seen, turn.action, turn.reward,
            *(float(value) if files.is_number(value) else None for value in numbers),
            critic.get("critique") if isinstance(critic, dict) else None,
        ])  # fmt: skip
    return rows


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]
