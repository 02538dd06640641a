"""One point of a sweep: trained by `agentrl train` in a process of its own, so that one that dies
takes nothing with it."""

from __future__ import annotations

import re
import subprocess
import sys
from hashlib import blake2b
from pathlib import Path

from filelock import FileLock
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from agentrl_cli.core.files import try_lock
from agentrl_cli.report.listing import run_row
from agentrl_cli.runs.run import Run

MAX_NAME = 120  # letters of a run's name


def run_point(cfg: DictConfig) -> float:
    """One point, wherever the launcher has put it: train it unless it is done. Returns the last
    evaluated success, which a sweeper may maximise; NaN where there is none."""
    hydra_cfg = HydraConfig.get()
    folder = Path(cfg.runs)
    name = point_name(hydra_cfg.job.override_dirname)
    lock_file, log = folder / f"{name}.lock", folder / f"{name}.log"
    with try_lock(FileLock(lock_file, fallback_to_soft=False)) as is_free:
        verb = next_verb(folder / name) if is_free else None
        idle = "nothing to do:" if is_free else "another sweep runs"
        print(f"{verb or idle} {name}", file=sys.stderr, flush=True)
        if verb == "resume":
            _run_logged(["resume", str(folder / name)], log)
        elif verb == "train":
            search = [str(path).removeprefix("file://") for path in hydra_cfg.searchpath or []]
            config_dir = ["--config-dir", search[0]] if search else []
            overrides = map(str, hydra_cfg.overrides.task)
            _run_logged(["train", *config_dir, *overrides, f"name='{name}'"], log)
        if is_free:
            lock_file.unlink(missing_ok=True)
    return score(folder / name)


def point_name(overrides: str) -> str:
    """A folder's name from `algo=nlac,seed=0`: `algo-nlac_seed-0`; too long a one is cut and told
    apart by a digest."""
    plain = overrides.replace("++", "").replace(",", "_")
    name = re.sub(r"[^\w.+-]+", "-", plain).strip("-_.") or "run"
    if len(name) <= MAX_NAME:
        return name
    return f"{name[:MAX_NAME]}-{blake2b(overrides.encode(), digest_size=4).hexdigest()}"


def score(run: Path) -> float:
    """The last evaluated success of a run; NaN where there is none."""
    success = run_row(Run(run))["eval"] if (run / "meta.json").is_file() else None
    return float("nan") if success is None else float(success)


def next_verb(folder: Path) -> str | None:
    """`train` or `resume` for a point, None where it is done. A run that was interrupted goes on
    from its checkpoint; what failed, or has none, is moved aside and done anew."""
    if not folder.exists():
        return "train"
    run = Run(folder) if (folder / "meta.json").is_file() else None
    status = run.meta["status"] if run else "failed"
    if status == "done":
        return None
    if run is not None and status != "failed" and run.checkpoints():
        return "resume"
    failed = folder.parent / "failed"
    failed.mkdir(exist_ok=True)
    folder.rename(failed / f"{folder.name}-{len(list(failed.iterdir()))}")
    return "train"


def run_agentrl(arguments: list[str], log: Path) -> int:
    """Run `agentrl ARGUMENTS` in a process of its own with its output in `log`; its exit code. A
    Ctrl-C reaches that process as well, which is waited for while it saves."""
    command = [sys.executable, "-m", "agentrl_cli.cli", *arguments]
    nothing = subprocess.DEVNULL
    with (
        log.open("w") as file,
        subprocess.Popen(command, stdin=nothing, stdout=file, stderr=file) as process,
    ):
        try:
            return process.wait()
        except KeyboardInterrupt:
            process.wait()
            raise


def _run_logged(arguments: list[str], log: Path) -> None:
    """A point's command; one that fails is named, and the sweep goes on."""
    code = run_agentrl(arguments, log)
    if code == 130:
        raise KeyboardInterrupt
    if code:
        name = log.name.removesuffix(".log")
        print(f"failed: {name}, see {log}", file=sys.stderr, flush=True)
