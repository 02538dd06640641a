"""Run: one folder that holds everything about one training, as JSON lines, YAML and safetensors.
`meta.json` comes first with status `started`, so that a dead machine leaves the truth. Nothing
outside the folder is needed to read it; what a metric or a checkpoint means is not known here."""

from __future__ import annotations

import re
import secrets
import shlex
import shutil
import sys
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock

from agentrl_cli.config.renames import renamed_metrics
from agentrl_cli.core import files
from agentrl_cli.core.errors import StoppedRun, UserError
from agentrl_cli.core.terminal import say
from agentrl_cli.core.types import Episode
from agentrl_cli.runs import checkpoints, episode_files, provenance
from agentrl_cli.runs.checkpoints import Checkpoint
from agentrl_cli.runs.meta import now, read_meta, status_change

if TYPE_CHECKING:
    from omegaconf import DictConfig


KEPT_CHECKPOINTS = 2
PLAYED_PARTS = ("models/", "state.json")  # what of a checkpoint is read to play with it
LOGS = ("metrics.jsonl", "buffer.jsonl")  # what is only appended to while a run trains
WANDB_LINK = "debug-core.log"  # in a session of W&B: a link to where its process writes


class Logger(ABC):
    """Receives what a run logs; the run's own files are written whether or not there is one."""

    def start(self, run: Run, cfg: DictConfig) -> None:
        """Called once before the first step, also when a run is resumed."""

    @abstractmethod
    def log(self, step: int, metrics: dict[str, float]) -> None:
        """The metrics of a step."""

    def episodes(self, step: int, kind: str, episodes: list[Episode]) -> None:
        """Episodes that were written; kind is train or eval."""

    def finish(self, status: str) -> None:
        """Called once at the end: done, stopped or failed."""


class Run:
    """An open run folder. `meta` is meta.json, `loggers` get what is logged besides the files."""

    def __init__(self, folder: Path) -> None:
        """Raises UserError where the folder's meta.json cannot be read or is not a run's."""
        self.folder = folder
        self.meta = read_meta(folder / "meta.json")
        self.loggers: list[Logger] = []
        self._lock = FileLock(folder / ".lock", fallback_to_soft=False)

    @classmethod
    def create(cls, cfg: DictConfig, *, command: str, overrides: list[str]) -> Run:
        """Make the folder of a new run. Raises UserError where it exists or cannot be written."""
        from omegaconf import OmegaConf

        folder = Path(cfg.runs) / (cfg.name or _new_name(cfg))
        if not is_folder_name(folder.name) or folder.parent != Path(cfg.runs):
            raise UserError(f"name '{cfg.name}' is not a folder name; use letters, digits, . _ -")
        with files.explain_write_errors(folder, "choose another place with runs="):
            folder.parent.mkdir(parents=True, exist_ok=True)
            try:
                folder.mkdir()
            except FileExistsError:
                raise UserError(f"run folder '{folder}' exists; choose another name=") from None
            meta = {
                "version": 1,
                **status_change("started"),
                "created": now(),
                "wandb_id": None,
                "command": command,
                "overrides": overrides,
                "seed": cfg.seed,
                "choices": dict(cfg.choices),
                **provenance.facts(),
            }
            try:
                files.write_json(folder / "meta.json", meta)
                OmegaConf.save(cfg, folder / "config.yaml", resolve=True)
                (folder / "episodes").mkdir()
                (folder / "checkpoints").mkdir()
            except OSError:
                shutil.rmtree(folder)
                raise
        return cls(folder)

    @property
    def name(self) -> str:
        """The folder's name, which is how a person refers to the run."""
        return self.folder.resolve().name

    @property
    def quoted_folder(self) -> str:
        """The folder, quoted for a shell."""
        return shlex.quote(str(self.folder))

    @property
    def resume_command(self) -> str:
        """What goes on with this run, by the path of this program where a shell would not find it
        by its name, as that of an environment that is not active."""
        program = sys.argv[0]
        known = Path(program).name != "agentrl" or shutil.which("agentrl")
        return f"{'agentrl' if known else shlex.quote(program)} resume {self.quoted_folder}"

    @property
    def is_done(self) -> bool:
        """Whether it has come to its planned end."""
        return self.meta["status"] == "done"

    @property
    def config_file(self) -> Path:
        """The stored configuration; `agentrl train --config` repeats it."""
        return self.folder / "config.yaml"

    @property
    def metrics_file(self) -> Path:
        """Every logged line of metrics."""
        return self.folder / "metrics.jsonl"

    @property
    def has_metrics(self) -> bool:
        """Whether anything was logged yet."""
        return files.count_lines(self.metrics_file) > 0

    def attach(self, loggers: list[Logger], cfg: DictConfig) -> None:
        """Start the loggers, which from now on get every metric and every written episode."""
        self.loggers = loggers
        for logger in loggers:
            logger.start(self, cfg)

    def update_meta(self, **facts: Any) -> None:
        """Set entries of meta.json."""
        self.meta |= facts
        with files.explain_write_errors(self.folder):
            files.write_json(self.folder / "meta.json", self.meta)

    def record_resume(self, cfg: DictConfig, step: int) -> None:
        """Record that training goes on from `step`, by which code, and to how many steps."""
        from omegaconf import OmegaConf

        more = {"step": step, "steps": cfg.steps, **provenance.code()}
        with files.explain_write_errors(self.folder):
            files.replace_text(self.config_file, OmegaConf.to_yaml(cfg, resolve=True))
        self.update_meta(resumed=[*self.meta.get("resumed", []), more])

    def set_status(self, status: str, error: str | None = None) -> None:
        """started, running, done, failed or stopped, with the time of the change."""
        change = status_change(status, error)
        self.update_meta(**{**change, "history": self.meta["history"] + change["history"]})

    @contextmanager
    def lock(self) -> Iterator[None]:
        """No other process trains this run inside; may be nested. Raises UserError where one does
        already, or where the folder has links that lead out. A copy of the folder is not locked,
        nor is a run whose process has died."""
        self.refuse_links()
        with files.explain_write_errors(self.folder):
            (self.folder / ".lock").touch()
        with files.try_lock(self._lock) as free:
            if not free:
                line = f"run '{self.name}' is still training in another process"
                raise UserError(f"{line}; wait for its end, or stop it with Ctrl-C there")
            yield

    @property
    def status(self) -> str:
        """started, running, done, stopped or failed, as its process last wrote it, and killed where
        that was running and holds the run no more; nothing is written."""
        status, lock = str(self.meta.get("status", "started")), self.folder / ".lock"
        was_killed = status == "running" and lock.is_file() and files.is_free(lock)
        return "killed" if was_killed else status

    def refuse_links(self) -> None:
        """Raise UserError where something in the folder leads out of it: what is written or cut
        there would be a file of somebody else. W&B's own link to its log is never written through:
        each of its sessions makes a new one."""
        for path in self.folder.rglob("*"):
            is_of_wandb = path.relative_to(self.folder).match(f"wandb/*run-*/logs/{WANDB_LINK}")
            if path.is_symlink() and not is_of_wandb and not files.is_inside(path, self.folder):
                remedy = "put what it leads to in its place, or remove it"
                raise UserError(f"'{path}' is a link that leads out of the run; {remedy}")

    @contextmanager
    def track(self) -> Iterator[None]:
        """Running inside; afterwards done, stopped (interrupted, or by something outside) or failed
        with the reason. Raises UserError where another process trains the run."""
        with self.lock():
            self.set_status("running")
            try:
                yield
            except KeyboardInterrupt:
                self._finish("stopped")
                raise
            except StoppedRun as error:
                self.append_log(str(error))
                self._finish("stopped", str(error))
                raise
            except BaseException as error:
                with suppress(UserError):  # of a disk: `error` says more
                    self.append_log(traceback.format_exc())
                with suppress(UserError):
                    self._finish("failed", f"{type(error).__name__}: {error}")
                raise
            self._finish("done")

    def _finish(self, status: str, error: str | None = None) -> None:
        try:
            self.set_status(status, error)
        finally:
            for logger in self.loggers:
                logger.finish(status)

    def append_log(self, text: str) -> None:
        """Append to log.txt."""
        with files.explain_write_errors(self.folder), (self.folder / "log.txt").open("a") as file:
            file.write(text.rstrip("\n") + "\n")

    def log(self, step: int, metrics: dict[str, float]) -> None:
        """Append one line to metrics.jsonl and hand on; numbers that are not finite become null."""
        row = {"step": step, "time/clock": round(time.time(), 3), **metrics}
        with files.explain_write_errors(self.folder):
            files.append_jsonl(self.metrics_file, [row])
        for logger in self.loggers:
            logger.log(step, metrics)

    def metrics(self) -> list[dict[str, Any]]:
        """All logged lines, oldest first. Raises UserError where one of them cannot be read."""
        rows, lost = self.readable_metrics()
        if lost:
            damage = f"is damaged (unreadable lines: {lost}); restore it or remove them"
            raise UserError(f"'{self.metrics_file}' {damage}")
        return rows

    def readable_metrics(self) -> tuple[list[dict[str, Any]], int]:
        """The logged lines that can be read, oldest first, and how many others there are."""
        if not self.has_metrics:
            return [], 0
        rows, lost = files.read_jsonl_leniently(self.metrics_file)
        kept = [row for row in rows if isinstance(row, dict) and _is_step(row.get("step"))]
        return [renamed_metrics(row) for row in kept], lost + len(rows) - len(kept)

    def is_evaluated(self, step: int) -> bool:
        """Whether an evaluation of that step is logged."""
        rows = (row for row in self.metrics() if row["step"] == step)
        return any(key.startswith("eval/") for row in rows for key in row)

    def write_evaluation(self, record: dict[str, Any]) -> None:
        """Append what `agentrl eval` measured to evaluations.jsonl. Raises UserError where that
        cannot be written."""
        self.refuse_links()
        file, instead = self.folder / "evaluations.jsonl", "evaluate a copy of the run"
        with files.explain_write_errors(file, f"{instead}; the result is shown, but not stored"):
            files.append_jsonl(file, [record])

    def write_episodes(self, kind: str, step: int, episodes: list[Episode]) -> Path:
        """Write episodes/KIND-STEP.jsonl and its index (kind: train or eval), and hand on."""
        file = self.folder / "episodes" / f"{kind}-{step:06d}.jsonl"
        with files.explain_write_errors(self.folder):
            episode_files.write(file, episodes)
        for logger in self.loggers:
            logger.episodes(step, kind, episodes)
        return file

    def episode_files(self, kind: str = "*") -> list[Path]:
        """The written episode files in the order of their steps; no copies under other names."""
        files = _numbered((self.folder / "episodes").glob(f"{kind}-*.jsonl"))
        return sorted(files, key=lambda file: (step_of(file), file.name))

    def read_episodes(self, kind: str, step: int) -> list[Episode]:
        """The episodes that `write_episodes` wrote."""
        return episode_files.read_all(self.folder / "episodes" / f"{kind}-{step:06d}.jsonl")

    @contextmanager
    def checkpoint(self, step: int, *, planned: bool = True) -> Iterator[Path]:
        """Yield a folder to fill; it becomes checkpoints/step-STEP only when nothing was raised and
        its bytes and those of the logs are on the disk. The last two are kept. One that is not
        planned becomes last-STEP, which is kept until there is a newer one."""
        final = self.folder / "checkpoints" / f"{'step' if planned else 'last'}-{step:06d}"
        partial = final.with_name(f".{final.name}.partial")
        with files.explain_write_errors(self.folder):
            self._remove_leftovers()
            partial.mkdir(parents=True)
            try:
                yield partial
                for log in filter(Path.exists, (self.folder / name for name in LOGS)):
                    files.sync(log)
                checkpoints.write(partial, step, files.count_lines(self.metrics_file))
                files.replace_folder(partial, final)
            finally:
                shutil.rmtree(partial, ignore_errors=True)
            self._prune_checkpoints(final)

    def _remove_leftovers(self) -> None:
        """Delete what a process that was killed while it saved has left."""
        for folder in (self.folder / "checkpoints").glob(".*-*"):
            shutil.rmtree(folder)

    def _prune_checkpoints(self, newest: Path) -> None:
        found = [folder for folder in self.checkpoints() if folder != newest]
        planned = [folder for folder in found if folder.name.startswith("step-")]
        kept = KEPT_CHECKPOINTS - newest.name.startswith("step-")
        for old in [*planned[:-kept], *(folder for folder in found if folder not in planned)]:
            shutil.rmtree(old)

    def checkpoints(self) -> list[Path]:
        """Complete checkpoints, oldest first."""
        folder = self.folder / "checkpoints"
        found = _numbered([*folder.glob("last-*"), *folder.glob("step-*")])
        return sorted(found, key=step_of)

    def whole_checkpoint(self, *parts: str) -> Checkpoint:
        """The newest checkpoint whose files are as they were saved (with `parts`, those whose names
        begin so); newer ones are named on stderr. Raises UserError where there is none."""
        refusals: list[str] = []
        for folder in reversed(self.checkpoints()):
            try:
                found = checkpoints.read(folder)
                found.verify(*parts)
            except UserError as error:
                refusals.append(str(error))
                continue
            for refusal in refusals:
                line = refusal.rpartition(";")[0]
                say(f"{line}; checkpoint '{folder}' is used instead", err=True)
            return found
        raise UserError(refusals[0]) if refusals else self._no_checkpoint()

    def latest_checkpoint(self) -> Path:
        """The newest checkpoint. Raises UserError where there is none."""
        found = self.checkpoints()
        if not found:
            raise self._no_checkpoint()
        return found[-1]

    def _no_checkpoint(self) -> UserError:
        again = f"agentrl train --config {shlex.quote(str(self.config_file))} name=null"
        return UserError(f"run '{self.name}' has no checkpoint; repeat it with {again}")

    def truncate_logs(self, checkpoint: Checkpoint) -> None:
        """Put metrics and episode files back to where they were when the checkpoint was written."""
        files.truncate(self.metrics_file, checkpoint.metric_lines or 0)
        for file in self.episode_files():
            if step_of(file) > checkpoint.step:
                episode_files.remove(file)


def is_folder_name(name: str) -> bool:
    """Whether a run or a sweep may have this name."""
    return re.fullmatch(r"\w[\w.=,+-]*", name) is not None


def step_of(path: Path) -> int:
    """The step in the name of a checkpoint or an episode file."""
    return int(path.stem.rpartition("-")[2])


def _is_step(value: Any) -> bool:
    return isinstance(value, int) and 0 <= value < 2**53


def _numbered(paths: Iterable[Path]) -> Iterator[Path]:
    """Those whose name ends with a step."""
    return (path for path in paths if re.fullmatch(r".*-\d+", path.stem, re.ASCII))


def _new_name(cfg: DictConfig) -> str:
    parts = (cfg.choices.env, cfg.choices.algo, cfg.choices.model)
    letters = "".join(secrets.choice("abcdefghijkmnpqrstuvwxyz23456789") for _ in range(4))
    return f"{datetime.now():%Y-%m-%d}_{'-'.join(map(str, parts))}_s{cfg.seed}_{letters}"
