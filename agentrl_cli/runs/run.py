"""Run: one folder that holds everything about one training, as JSON lines, YAML and safetensors.
`meta.json` comes first with status `started`, so that a dead machine leaves the truth. Nothing
outside the folder is needed to read it; what a metric or a checkpoint means is not known here."""

from __future__ import annotations

import re
import secrets
import shlex
import shutil
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock

from agentrl_cli.core import files
from agentrl_cli.core.errors import StoppedRun, UserError
from agentrl_cli.core.types import Episode
from agentrl_cli.runs import episode_files, provenance

if TYPE_CHECKING:
    from omegaconf import DictConfig


KEPT_CHECKPOINTS = 2
REQUIRED_META: dict[str, Any] = {"status": str, "created": str, "history": list}
OPTIONAL_META: dict[str, Any] = {"choices": dict, "seed": int, "git": dict | None}
LOGS = ("metrics.jsonl", "buffer.jsonl")


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
        if not re.fullmatch(r"\w[\w.=,+-]*", folder.name) or folder.parent != Path(cfg.runs):
            raise UserError(f"name '{cfg.name}' is not a folder name; use letters, digits, . _ -")
        with files.explain_write_errors(folder):
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
    def config_file(self) -> Path:
        """The stored configuration; `agentrl train --config` repeats it."""
        return self.folder / "config.yaml"

    @property
    def has_metrics(self) -> bool:
        """Whether anything was logged yet."""
        return (self.folder / "metrics.jsonl").exists()

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

        more = {"step": step, "steps": cfg.steps, "git": provenance.git_state()}
        with files.explain_write_errors(self.folder):
            OmegaConf.save(cfg, self.config_file, resolve=True)
        self.update_meta(resumed=[*self.meta.get("resumed", []), more])

    def set_status(self, status: str, error: str | None = None) -> None:
        """started, running, done, failed or stopped, with the time of the change."""
        change = status_change(status, error)
        self.update_meta(**{**change, "history": self.meta["history"] + change["history"]})

    @contextmanager
    def lock(self) -> Iterator[None]:
        """No other process trains this run inside; may be nested. Raises UserError where one does
        already. A copy of the folder is not locked, nor is a run whose process has died."""
        with files.explain_write_errors(self.folder):
            (self.folder / ".lock").touch()
        with files.try_lock(self._lock) as free:
            if not free:
                line = f"run '{self.name}' is still training in another process"
                raise UserError(f"{line}; wait for its end, or stop it with Ctrl-C there")
            yield

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
                self.append_log(traceback.format_exc())
                self._finish("failed", f"{type(error).__name__}: {error}")
                raise
            self._finish("done")

    def _finish(self, status: str, error: str | None = None) -> None:
        self.set_status(status, error)
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
            files.append_jsonl(self.folder / "metrics.jsonl", [row])
        for logger in self.loggers:
            logger.log(step, metrics)

    def metrics(self) -> list[dict[str, Any]]:
        """All logged lines, oldest first. Raises UserError where one of them cannot be read."""
        rows, lost = self.readable_metrics()
        if lost:
            damage = f"is damaged (unreadable lines: {lost}); restore it or remove them"
            raise UserError(f"'{self.folder / 'metrics.jsonl'}' {damage}")
        return rows

    def readable_metrics(self) -> tuple[list[dict[str, Any]], int]:
        """The logged lines that can be read, oldest first, and how many others there are."""
        if not self.has_metrics:
            return [], 0
        rows, lost = files.read_jsonl_leniently(self.folder / "metrics.jsonl")
        kept = [row for row in rows if isinstance(row, dict) and isinstance(row.get("step"), int)]
        return kept, lost + len(rows) - len(kept)

    def write_evaluation(self, record: dict[str, Any]) -> None:
        """Append what `agentrl eval` measured to evaluations.jsonl."""
        with files.explain_write_errors(self.folder):
            files.append_jsonl(self.folder / "evaluations.jsonl", [record])

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
    def checkpoint(self, step: int) -> Iterator[Path]:
        """Yield a folder to fill; it becomes checkpoints/step-STEP only when nothing was raised.
        run.json is written last with the lengths of the logs. The last two checkpoints are kept."""
        final = self.folder / "checkpoints" / f"step-{step:06d}"
        partial = final.with_name(f".{final.name}.partial")
        with files.explain_write_errors(self.folder):
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir(parents=True)
            try:
                yield partial
                state = {"version": 1, "step": step, "offsets": self._offsets()}
                files.write_json(partial / "run.json", state)
                files.replace_folder(partial, final)
            finally:
                shutil.rmtree(partial, ignore_errors=True)
            for old in self.checkpoints()[:-KEPT_CHECKPOINTS]:
                shutil.rmtree(old)

    def checkpoints(self) -> list[Path]:
        """Complete checkpoints, oldest first."""
        return sorted(_numbered((self.folder / "checkpoints").glob("step-*")), key=step_of)

    def latest_checkpoint(self) -> Path:
        """The newest checkpoint. Raises UserError where there is none."""
        found = self.checkpoints()
        if not found:
            again = f"agentrl train --config {self.config_file}"
            raise UserError(f"run '{self.name}' has no checkpoint; repeat it with {again}")
        return found[-1]

    def truncate_logs(self, checkpoint: Path) -> None:
        """Put logs and episode files back to where they were when the checkpoint was written."""
        state = read_checkpoint(checkpoint)
        for name, length in state["offsets"].items():
            files.truncate(self.folder / name, length)
        for file in self.episode_files():
            if step_of(file) > state["step"]:
                episode_files.remove(file)

    def _offsets(self) -> dict[str, int]:
        files = [self.folder / name for name in LOGS]
        return {file.name: file.stat().st_size if file.exists() else 0 for file in files}


def read_checkpoint(folder: Path) -> dict[str, Any]:
    """The run.json of a checkpoint: step and log lengths. Raises UserError for a foreign folder."""
    state = files.read_json(folder / "run.json")
    if state.keys() != {"version", "step", "offsets"} or state["version"] != 1:
        line = f"'{folder}' is not a checkpoint of this version"
        raise UserError(f"{line}; name one that a run wrote")
    return state


def step_of(path: Path) -> int:
    """The step in the name of a checkpoint or an episode file."""
    return int(path.stem.rpartition("-")[2])


def _numbered(paths: Iterable[Path]) -> Iterator[Path]:
    """Those whose name ends with a step."""
    return (path for path in paths if re.fullmatch(r".*-\d+", path.stem, re.ASCII))


def _new_name(cfg: DictConfig) -> str:
    parts = (cfg.choices.env, cfg.choices.algo, cfg.choices.model)
    letters = "".join(secrets.choice("abcdefghijkmnpqrstuvwxyz23456789") for _ in range(4))
    return f"{datetime.now():%Y-%m-%d}_{'-'.join(map(str, parts))}_s{cfg.seed}_{letters}"


def read_meta(file: Path) -> dict[str, Any]:
    """A run's meta.json. Raises UserError for a file that cannot be read or says too little."""
    meta = files.read_json(file)
    wrong = [key for key, kind in REQUIRED_META.items() if not isinstance(meta.get(key), kind)]
    given = {key: kind for key, kind in OPTIONAL_META.items() if key in meta}
    wrong += [key for key, kind in given.items() if not isinstance(meta[key], kind)]
    if wrong:
        missing = ", ".join(wrong)
        raise UserError(f"'{file}' does not say a run's {missing}; name a folder that a run wrote")
    return meta


def status_change(status: str, error: str | None = None) -> dict[str, Any]:
    """The entries that a change of status sets, the new part of the history among them."""
    return {"status": status, "error": error, "history": [{"status": status, "time": now()}]}


def now() -> str:
    """The time, to the microsecond."""
    return datetime.now(UTC).isoformat(timespec="microseconds")
