"""One point of a sweep: trained by `agentrl train` in a process of its own, so that one that dies
takes nothing with it."""

from __future__ import annotations

import re
import subprocess
import sys
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING

from filelock import FileLock

from agentrl_cli.core.files import try_lock
from agentrl_cli.report.listing import row
from agentrl_cli.runs.run import Run

if TYPE_CHECKING:
    from omegaconf import DictConfig

LONGEST = 120  # letters of a run's name


def run_point(cfg: DictConfig) -> float:
    """One point, wherever the launcher has put it: train it unless it is done.

    Returns the last evaluated success, which a sweeper may maximise; NaN where there is none.
    """
    from hydra.core.hydra_config import HydraConfig

    hydra_cfg = HydraConfig.get()
    folder = Path(cfg.runs)
    name = point_name(hydra_cfg.job.override_dirname)
    search = [str(path).removeprefix("file://") for path in hydra_cfg.searchpath or []]
    claim = folder / f"{name}.lock"
    with try_lock(FileLock(claim, fallback_to_soft=False)) as free:
        verb = todo(folder / name) if free else None
        idle = "nothing to do:" if free else "another sweep runs"
        print(f"{verb or idle} {name}", file=sys.stderr, flush=True)
        log = folder / f"{name}.log"
        if verb == "resume":
            _call(["resume", str(folder / name)], log)
        elif verb == "train":
            more = ["--config-dir", search[0]] if search else []
            given = map(str, hydra_cfg.overrides.task)
            _call(["train", *more, *given, f"name='{name}'"], log)
        if free:
            claim.unlink(missing_ok=True)
    return score(folder / name)


def point_name(overrides: str) -> str:
    """A folder's name from `algo=nlac,seed=0`: `algo-nlac_seed-0`; too long a one is cut and told
    apart by a digest."""
    plain = overrides.replace("++", "").replace(",", "_")
    name = re.sub(r"[^\w.+-]+", "-", plain).strip("-_.") or "run"
    if len(name) <= LONGEST:
        return name
    return f"{name[:LONGEST]}-{blake2b(overrides.encode(), digest_size=4).hexdigest()}"


def score(run: Path) -> float:
    """The last evaluated success of a run; NaN where there is none."""
    if not (run / "meta.json").is_file():
        return float("nan")
    found = row(Run(run))["eval"]
    return float("nan") if found is None else float(found)


def todo(run: Path) -> str | None:
    """`train` or `resume` for a point, None where it is done. A run that was interrupted goes on
    from its checkpoint; what failed, or has none, is moved aside and done anew."""
    if not run.exists():
        return "train"
    found = Run(run) if (run / "meta.json").is_file() else None
    status = found.meta["status"] if found else "failed"
    if found is not None and status != "failed" and (status == "done" or found.checkpoints()):
        return None if status == "done" else "resume"
    failed = run.parent / "failed"
    failed.mkdir(exist_ok=True)
    run.rename(failed / f"{run.name}-{len(list(failed.iterdir()))}")
    return "train"


def _call(arguments: list[str], log: Path) -> None:
    """An agentrl command in a process of its own, its words in the log."""
    command = [sys.executable, "-m", "agentrl_cli.cli", *arguments]
    with log.open("w") as file:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=file, stderr=file)
    if done.returncode == 130:
        raise KeyboardInterrupt
    if done.returncode:
        name = log.name.removesuffix(".log")
        print(f"failed: {name}, see {log}", file=sys.stderr, flush=True)
