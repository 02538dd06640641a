"""A run folder: everything about one training, as JSON lines, YAML and safetensors. `meta.json` is
written first, so that a crash leaves a correct status."""

from __future__ import annotations

import hashlib
import os
import platform
import re
import secrets
import shlex
import shutil
import subprocess
import sys
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock

from agentrl_cli import __version__
from agentrl_cli.config.renames import renamed_metrics
from agentrl_cli.core import files
from agentrl_cli.core.errors import RunAborted, UserError
from agentrl_cli.core.terminal import echo
from agentrl_cli.core.types import Episode
from agentrl_cli.runs import checkpoints, episode_files
from agentrl_cli.runs.checkpoints import Checkpoint, step_of

if TYPE_CHECKING:
    from omegaconf import DictConfig


KEPT_CHECKPOINTS = 2
PLAYED_PARTS = ("models/", "state.json")  # files of a checkpoint that playing needs
LOGS = ("metrics.jsonl", "buffer.jsonl")  # files that training only appends to
WANDB_LINK = "debug-core.log"  # in a session of W&B: a link to the log of its process
META_TYPES: dict[str, Any] = {"status": str, "created": str, "history": list}
OPTIONAL_META: dict[str, Any] = {"choices": dict, "seed": int, "git": dict | None}
PACKAGES = (
    "torch", "transformers", "tokenizers", "peft", "accelerate", "safetensors", "numpy",
    "hydra-core", "omegaconf", "wandb",
)  # fmt: skip
OWN_CODE = (".py", ".yaml", ".yml", ".jinja")  # files that can change a run
MAX_FILES = 50  # uncommitted ones in meta.json
MAX_NAME = 200  # bytes


class Logger(ABC):
    """A destination of metrics and episodes in addition to the files of the run."""

    def check(self) -> None:
        """Raise UserError if a package is missing, before anything is built."""

    def start(self, run: Run, cfg: DictConfig) -> None:
        """Prepare for logging, before the first step of a new or resumed run."""

    @abstractmethod
    def log(self, step: int, metrics: dict[str, float]) -> None:
        """Log the metrics of a step."""

    def episodes(self, step: int, kind: str, episodes: list[Episode]) -> None:
        """Log episodes of kind train or eval that the run has written."""

    def finish(self, status: str) -> None:
        """Close the logger. `status` is done, stopped or failed."""


class Run:
    """A run folder. `meta` is the content of meta.json; `loggers` also receive what is logged."""

    def __init__(self, folder: Path) -> None:
        """Open a folder. Raises UserError if its meta.json is missing or not that of a run, or if a
        record is a link out of the folder."""
        for name in ("meta.json", "config.yaml", "metrics.jsonl"):
            files.require_own(folder / name, folder)
        self.folder = folder
        self.meta = read_meta(folder / "meta.json")
        self.loggers: list[Logger] = []
        self._lock = FileLock(folder / ".lock", fallback_to_soft=False)

    @classmethod
    def create(cls, cfg: DictConfig, *, command: str, overrides: list[str]) -> Run:
        """Create the folder of a new run. Raises UserError if it exists or cannot be written."""
        from omegaconf import OmegaConf

        folder, made_with = cls.new_folder(cfg), facts()
        with files.explain_write_errors(folder, "choose another place with runs="):
            folder.parent.mkdir(parents=True, exist_ok=True)
            try:
                folder.mkdir()
            except FileExistsError:  # created since
                raise _run_exists(folder) from None
            meta = {
                "version": 1,
                "status": "started",
                "error": None,
                "history": [{"status": "started", "time": now()}],
                "created": now(),
                "wandb_id": None,
                "command": command,
                "overrides": overrides,
                "seed": cfg.seed,
                "choices": dict(cfg.choices),
                **made_with,
            }
            try:
                files.write_json(folder / "meta.json", meta)
                OmegaConf.save(cfg, folder / "config.yaml", resolve=True)
                (folder / "episodes").mkdir()
                (folder / "checkpoints").mkdir()
            except BaseException:  # an interrupt, too
                shutil.rmtree(folder)
                raise
        return cls(folder)

    @staticmethod
    def new_folder(cfg: DictConfig) -> Path:
        """Return the folder of a new run. Raises UserError if it cannot be created."""
        letters = "".join(secrets.choice("abcdefghijkmnpqrstuvwxyz23456789") for _ in range(4))
        what = f"{cfg.choices.env}-{cfg.choices.algo}-{cfg.choices.model}"
        new_name = f"{datetime.now():%Y-%m-%d}_{what}_s{cfg.seed}_{letters}"
        folder = Path(cfg.runs) / (cfg.name or new_name)
        if not is_folder_name(folder.name) or folder.parent != Path(cfg.runs):
            remedy = f"use letters, digits, . _ - and at most {MAX_NAME} bytes"
            raise UserError(
                f"name '{cfg.name}' is not a folder name; {remedy}", code="invalid-name"
            )
        if files.is_folder(folder):
            raise _run_exists(folder)
        files.require_no_file(folder, "choose another place with runs=")
        return folder

    @property
    def name(self) -> str:
        return self.folder.resolve().name

    @property
    def quoted_folder(self) -> str:
        """The folder, quoted for a shell."""
        return shlex.quote(str(self.folder))

    @property
    def resume_command(self) -> str:
        """The command that resumes this run, with the path of this program unless it is on PATH."""
        program = sys.argv[0]
        known = Path(program).name != "agentrl" or shutil.which("agentrl")
        return f"{'agentrl' if known else shlex.quote(program)} resume {self.quoted_folder}"

    @property
    def is_done(self) -> bool:
        return self.meta["status"] == "done"

    @property
    def config_file(self) -> Path:
        return self.folder / "config.yaml"

    @property
    def metrics_file(self) -> Path:
        return self.folder / "metrics.jsonl"

    @property
    def has_metrics(self) -> bool:
        return files.count_lines(self.metrics_file) > 0

    def attach(self, loggers: list[Logger], cfg: DictConfig) -> None:
        self.loggers = loggers
        for logger in loggers:
            logger.start(self, cfg)

    def update_meta(self, **facts: Any) -> None:
        self.meta |= facts
        with files.explain_write_errors(self.folder):
            files.write_json(self.folder / "meta.json", self.meta)

    def record_resume(self, cfg: DictConfig, step: int) -> None:
        """Record a resume: its step, the planned steps and the code; store the configuration."""
        from omegaconf import OmegaConf

        more = {"step": step, "steps": cfg.steps, **code()}
        with files.explain_write_errors(self.folder):
            files.replace_text(self.config_file, OmegaConf.to_yaml(cfg, resolve=True))
        self.update_meta(resumed=[*self.meta.get("resumed", []), more])

    def set_status(self, status: str, error: str | None = None) -> None:
        """Set the status: started, running, done, failed or stopped."""
        history = [*self.meta["history"], {"status": status, "time": now()}]
        self.update_meta(status=status, error=error, history=history)

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the lock of the run; calls may be nested. Raises UserError if another process trains
        the run, or if the folder has links that lead out of it."""
        self.validate_links()
        with files.explain_write_errors(self.folder):
            (self.folder / ".lock").touch()
        with files.try_lock(self._lock) as free:
            if not free:
                line = f"run '{self.name}' is still training in another process"
                message = f"{line}; wait for its end, or stop it with Ctrl-C there"
                raise UserError(message, code="run-locked")
            yield

    @property
    def status(self) -> str:
        """The stored status, or killed if it is running and no process holds the lock."""
        status, lock = str(self.meta.get("status", "started")), self.folder / ".lock"
        was_killed = status == "running" and lock.is_file() and files.is_free(lock)
        return "killed" if was_killed else status

    def validate_links(self) -> None:
        """Raise UserError if a link leads out of the folder, since writing through it would change
        foreign files. W&B never writes through its own link."""
        for path in self.folder.rglob("*"):
            is_of_wandb = path.relative_to(self.folder).match(f"wandb/*run-*/logs/{WANDB_LINK}")
            if path.is_symlink() and not is_of_wandb and not files.is_inside(path, self.folder):
                remedy = "put what it leads to in its place, or remove it"
                line = f"'{path}' is a link that leads out of the run; {remedy}"
                raise UserError(line, code="link-out-of-run")

    @contextmanager
    def track(self) -> Iterator[None]:
        """Hold the lock, with the status running inside, and afterwards done, stopped or failed."""
        with self.lock():
            self.set_status("running")
            try:
                yield
            except KeyboardInterrupt:
                self._finish("stopped")
                raise
            except RunAborted as error:
                self.append_log(str(error))
                self._finish("stopped", str(error))
                raise
            except BaseException as error:
                with suppress(UserError):  # a full disk must not hide `error`
                    self.append_log(traceback.format_exc())
                with suppress(UserError):
                    self._finish("failed", f"{type(error).__name__}: {error}")
                raise
            self._finish("done")

    def _finish(self, status: str, error: str | None = None) -> None:
        try:
            self.set_status(status, error)
        finally:
            self._tell(lambda logger: logger.finish(status))

    def append_log(self, text: str) -> None:
        with (
            files.explain_write_errors(self.folder),
            (self.folder / "log.txt").open("a", encoding="utf-8", errors="backslashreplace") as log,
        ):
            log.write(text.rstrip("\n") + "\n")

    def log(self, step: int, metrics: dict[str, float]) -> None:
        """Append a line to metrics.jsonl, with null for numbers that are not finite, and log it."""
        row = {"step": step, "time/timestamp": round(time.time(), 3), **metrics}
        with files.explain_write_errors(self.folder):
            files.append_jsonl(self.metrics_file, [row])
        self._tell(lambda logger: logger.log(step, metrics))

    def _tell(self, call: Callable[[Logger], None]) -> None:
        """Call each logger. One that fails does not stop the run and is not called again, except
        that a UserError about the files of the run is raised."""
        for logger in list(self.loggers):
            try:
                call(logger)
            except UserError:
                raise
            except Exception as error:
                self.loggers.remove(logger)
                reason = f"{type(error).__name__}: {error}".splitlines()[0]
                name = type(logger).__name__
                echo(f"the logger {name} failed ({reason}); the run goes on without it", err=True)
                with suppress(UserError):  # of a full disk
                    self.append_log(traceback.format_exc())

    def metrics(self) -> list[dict[str, Any]]:
        """Return all logged rows, oldest first. Raises UserError if a line is damaged."""
        rows, lost = self.readable_metrics()
        if lost:
            damage = f"is damaged (unreadable lines: {lost}); restore it or remove them"
            raise UserError(f"'{self.metrics_file}' {damage}", code="damaged-file")
        return rows

    def readable_metrics(self) -> tuple[list[dict[str, Any]], int]:
        """Return the readable rows, oldest first, and the number of damaged lines."""
        if not self.has_metrics:
            return [], 0
        rows, lost = files.read_jsonl_leniently(self.metrics_file)
        dicts = [row for row in rows if isinstance(row, dict) and isinstance(row.get("step"), int)]
        kept = [row for row in dicts if 0 <= row["step"] < 2**53]
        return [renamed_metrics(row) for row in kept], lost + len(rows) - len(kept)

    def is_evaluated(self, step: int) -> bool:
        """Return whether an evaluation of the step is logged."""
        rows = (row for row in self.metrics() if row["step"] == step)
        return any(key.startswith("eval/") for row in rows for key in row)

    def write_evaluation(self, record: dict[str, Any]) -> None:
        """Append the result of `agentrl eval` to evaluations.jsonl."""
        self.validate_links()
        file, instead = self.folder / "evaluations.jsonl", "evaluate a copy of the run"
        with files.explain_write_errors(file, f"{instead}; the result is shown, but not stored"):
            files.append_jsonl(file, [record])

    def write_episodes(self, kind: str, step: int, episodes: list[Episode]) -> Path:
        """Write episodes/KIND-STEP.jsonl (kind: train or eval), and log them."""
        file = self.folder / "episodes" / f"{kind}-{step:06d}.jsonl"
        with files.explain_write_errors(self.folder):
            episode_files.write(file, episodes)
        self._tell(lambda logger: logger.episodes(step, kind, episodes))
        return file

    def episode_files(self, kind: str = "*") -> list[Path]:
        """Return the episode files in the order of their steps. Raises UserError for a link out of
        the run."""
        found = [*_numbered((self.folder / "episodes").glob(f"{kind}-*.jsonl"))]
        for file in found:
            files.require_own(file, self.folder)
        return sorted(found, key=lambda file: (step_of(file), file.name))

    def read_episodes(self, kind: str, step: int) -> list[Episode]:
        """Return the episodes that `write_episodes` wrote."""
        return episode_files.read_all(self.folder / "episodes" / f"{kind}-{step:06d}.jsonl")

    @contextmanager
    def checkpoint(self, step: int, *, planned: bool = True) -> Iterator[Path]:
        """Yield a folder to fill. It becomes checkpoints/step-STEP if nothing is raised, after it
        and the logs are flushed to disk; the last two are kept. An unplanned checkpoint becomes
        last-STEP and is deleted when a newer one is complete."""
        final = self.folder / "checkpoints" / f"{'step' if planned else 'last'}-{step:06d}"
        partial = final.with_name(f".{final.name}.partial")
        with files.explain_write_errors(self.folder):
            for leftover in (self.folder / "checkpoints").glob(".*-*"):  # of a killed process
                shutil.rmtree(leftover)
            partial.mkdir(parents=True)
            try:
                yield partial
                for log in filter(Path.exists, (self.folder / name for name in LOGS)):
                    files.sync(log)
                checkpoints.write(partial, step, files.count_lines(self.metrics_file))
                files.replace_folder(partial, final)
            finally:
                shutil.rmtree(partial, ignore_errors=True)
            found = self.checkpoints()
            steps = [folder for folder in found if folder.name.startswith("step-")]
            for old in set(found) - {final, *steps[-KEPT_CHECKPOINTS:]}:
                shutil.rmtree(old)

    def checkpoints(self) -> list[Path]:
        """Return the complete checkpoints, oldest first."""
        folder = self.folder / "checkpoints"
        found = _numbered([*folder.glob("last-*"), *folder.glob("step-*")])
        return sorted(found, key=step_of)

    def whole_checkpoint(self, *parts: str) -> Checkpoint:
        """Return the newest intact checkpoint, with a warning for each newer one. `parts` are
        prefixes of the files to verify. Raises UserError if there is none."""
        errors: list[UserError] = []
        for folder in reversed(self.checkpoints()):
            try:
                found = checkpoints.read(folder)
                found.verify(*parts)
            except UserError as error:
                errors.append(error)
                continue
            for error in errors:
                reason = str(error).rpartition(";")[0]
                echo(f"{reason}; checkpoint '{folder}' is used instead", err=True)
            return found
        again = f"agentrl train --config {shlex.quote(str(self.config_file))} name=null"
        line = f"run '{self.name}' has no checkpoint; repeat it with {again}"
        raise errors[0] if errors else UserError(line, code="no-checkpoint")

    def latest_checkpoint(self) -> Path:
        """Return the newest checkpoint. Raises UserError if there is none."""
        found = self.checkpoints()
        if not found:
            raise UserError(f"run '{self.name}' has no checkpoint", code="no-checkpoint")
        return found[-1]

    def truncate_logs(self, checkpoint: Checkpoint) -> None:
        """Remove metrics and episodes that are later than the checkpoint."""
        files.truncate(self.metrics_file, checkpoint.metric_lines or 0)
        for file in self.episode_files():
            if step_of(file) > checkpoint.step:
                file.unlink()


class NullRun(Run):
    """The run as ranks other than 0 see it: it reads nothing from the folder and writes nothing."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.meta = folder, {}
        self.loggers: list[Logger] = []

    has_metrics = property(lambda self: True)  # rank 0 decides what is missing

    def is_evaluated(self, step: int) -> bool:
        return True

    def checkpoints(self) -> list[Path]:
        return []

    @contextmanager
    def track(self) -> Iterator[None]:
        yield

    def _skip(self, *args: Any, **options: Any) -> None: ...

    attach = append_log = set_status = update_meta = record_resume = truncate_logs = log = _skip

    def write_episodes(self, kind: str, step: int, episodes: list[Episode]) -> Path:
        return self.folder


def read_meta(file: Path) -> dict[str, Any]:
    """Return a run's meta.json. Raises UserError if it is unreadable or lacks required entries."""
    meta = files.read_json(file)
    types = META_TYPES | {key: kind for key, kind in OPTIONAL_META.items() if key in meta}
    if wrong := [key for key, kind in types.items() if not isinstance(meta.get(key), kind)]:
        line = f"'{file}' does not say a run's {', '.join(wrong)}; name a folder that a run wrote"
        raise UserError(line, code="invalid-meta")
    return meta


def now() -> str:
    """Return the current time in ISO format."""
    return datetime.now(UTC).isoformat(timespec="microseconds")


def _run_exists(folder: Path) -> UserError:
    return UserError(f"run folder '{folder}' exists; choose another name=", code="run-exists")


def is_folder_name(name: str) -> bool:
    """Return whether a run or a sweep may have this name."""
    return len(name.encode()) <= MAX_NAME and re.fullmatch(r"\w[\w.=,+-]*", name) is not None


def _numbered(paths: Iterable[Path]) -> Iterator[Path]:
    return (path for path in paths if re.fullmatch(r".*-\d+", path.stem, re.ASCII))


def facts() -> dict[str, Any]:
    """Return the code, packages and machine of a run. The version of a missing package is None."""
    packages: dict[str, str | None] = dict.fromkeys(PACKAGES)
    for name in PACKAGES:
        with suppress(PackageNotFoundError):
            packages[name] = version(name)
    python = platform.python_version()
    machine = {"platform": platform.platform(), "python": python, "cpus": os.cpu_count()}
    return {"agentrl": __version__, **code(), "packages": packages, "machine": machine}


def code() -> dict[str, Any]:
    """Return the states of this package (`git`, None without a checkout) and of the working folder,
    with digests of its uncommitted Python, YAML and Jinja files."""
    root, folder = Path(__file__).parents[2], Path.cwd()
    state = _git_state(folder)
    if state is not None:
        changed = _git(folder, "ls-files", "-z", "--modified", "--others", "--exclude-standard")
        own = {name for name in (changed or "").split("\0") if Path(name).suffix in OWN_CODE}
        digests: dict[str, str] = {}
        for name in sorted(own)[:MAX_FILES]:
            with suppress(OSError):
                content = (folder / name).read_bytes()
                digests[name] = hashlib.blake2b(content, digest_size=8).hexdigest()
        state["files"] = digests
    git = _git_state(root) if (root / ".git").exists() else None
    return {"git": git, "working_folder": {"folder": str(folder), "git": state}}


def _git_state(folder: Path) -> dict[str, Any] | None:
    if (commit := _git(folder, "rev-parse", "HEAD")) is None:
        return None
    status = _git(folder, "status", "--porcelain", "-uno", "--ignore-submodules=dirty")
    return {"commit": commit, "dirty": bool(status)}


def _git(root: Path, *arguments: str) -> str | None:
    """Return the output of git, or None if it fails. Git must not start programs named in the
    repository's config: monitors, hooks or filters."""
    off = {"core.fsmonitor": "false", "core.hooksPath": os.devnull}
    listed = _run_git(root, off, "config", "--includes", "--name-only", "--list", "-z") or ""
    for name in {key.rpartition(".")[0] for key in listed.split("\0") if key.startswith("filter.")}:
        off |= {f"{name}.clean": "", f"{name}.process": "", f"{name}.required": "false"}
    return _run_git(root, off, *arguments)


def _run_git(root: Path, settings: dict[str, str], *arguments: str) -> str | None:
    names = {f"GIT_CONFIG_KEY_{i}": name for i, name in enumerate(settings)}
    values = {f"GIT_CONFIG_VALUE_{i}": value for i, value in enumerate(settings.values())}
    environment = {**os.environ, **names, **values, "GIT_CONFIG_COUNT": str(len(settings))}
    command = ["git", "--no-optional-locks", "-C", str(root), *arguments]
    options: dict[str, Any] = {"capture_output": True, "text": True, "errors": "surrogateescape"}
    try:
        found = subprocess.run(command, check=True, timeout=20, env=environment, **options)
        return found.stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None
