"""One point of a sweep: trained by `agentrl train` in a process of its own, so that one that dies
takes nothing with it, and, of several that run side by side, on a GPU of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path

from filelock import FileLock
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from agentrl_cli.config import compose as config
from agentrl_cli.config.difference import differences
from agentrl_cli.config.settings import RESUMABLE
from agentrl_cli.core.errors import UserError
from agentrl_cli.core.files import try_lock
from agentrl_cli.core.terminal import echo_err
from agentrl_cli.report.summary import cell, run_row
from agentrl_cli.runs.run import Run

PROGRAM = "agentrl_cli.cli"  # as `python -m` knows it
HAS_TABLE = "AGENTRL_SWEEP_HAS_TABLE"  # set where the terminal shows a table in place of lines
MAX_NAME = 120  # letters of a run's name
MAY_DIFFER = (  # in a sweep that is begun again: what changes no number, or only by rounding
    "name",
    "runs",
    "logger",
    "choices.logger",
    "save_every",
    "save_interval_minutes",
    "hardware.threads",
    *RESUMABLE,
)


def run_point(cfg: DictConfig) -> float:
    """One point, wherever the launcher has put it: train it unless it is done. Returns the last
    evaluated success, which a sweeper may maximise; NaN where there is none."""
    hydra_cfg = HydraConfig.get()
    folder = Path(cfg.runs)
    name = point_name(hydra_cfg.job.override_dirname)
    lock_file, log = folder / f"{name}.lock", folder / f"{name}.log"
    with try_lock(FileLock(lock_file, fallback_to_soft=False)) as is_free:
        search = [str(path).removeprefix("file://") for path in hydra_cfg.searchpath or []]
        overrides = list(map(str, hydra_cfg.overrides.task))
        groups, chosen = Path(search[0]) if search else None, hydra_cfg.runtime.choices
        if is_free:
            refuse_other_run(folder / name, lambda: checked_point(cfg, chosen, groups))
        verb = next_verb(folder / name) if is_free else None
        idle = "nothing to do:" if is_free else "another sweep runs"
        tell_point(f"{verb or idle} {name}")
        if verb is not None:
            config_dir = ["--config-dir", search[0]] if search else []
            train = ["train", *config_dir, *overrides, f"name='{name}'"]
            is_local = hydra_cfg.runtime.choices["hydra/launcher"] == "joblib"
            gpus = visible_gpus() if is_local and cfg.hardware.device == "cuda" else []
            with own_gpu(folder, gpus) as gpu:
                _run_logged(train if verb == "train" else ["resume", str(folder / name)], log, gpu)
                tell_point(point_line(folder / name))
        if is_free:
            lock_file.unlink(missing_ok=True)
    return score(folder / name)


def tell_point(line: str) -> None:
    """Print to stderr, unless the sweep's terminal shows all of that as a table."""
    if HAS_TABLE not in os.environ:
        echo_err(line)


def point_line(run: Path) -> str:
    """A row of the table that fills while a sweep runs: status, step, success and name."""
    row = run_row(Run(run)) if (run / "meta.json").is_file() else {"status": "failed"}
    cells = [cell(row.get(name)) for name in ("status", "step", "eval")]
    return f"{cells[0]:<9} step {cells[1] or '–':>6}  success {cells[2] or '–':>6}  {run.name}"


def visible_gpus() -> list[str]:
    """The CUDA devices that this process may use, as CUDA_VISIBLE_DEVICES names them."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is not None:
        return [name for name in named.split(",") if name]
    import torch

    return list(map(str, range(torch.cuda.device_count())))


@contextmanager
def own_gpu(folder: Path, gpus: list[str]) -> Iterator[str | None]:
    """One of several GPUs, which no other point of the sweep in this folder gets until the end;
    None, so that points share what there is, where all are taken or there are not several."""
    for number, gpu in enumerate(gpus if len(gpus) > 1 else []):
        lock = FileLock(folder / f".gpu-{number}.lock", fallback_to_soft=False)
        with try_lock(lock) as is_free:
            if is_free:
                yield gpu
                return
    yield None


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


def refuse_other_run(folder: Path, composed: Callable[[], DictConfig]) -> None:
    """Raise UserError, with the keys that differ, where the run there, which would stay or go on,
    was made with another configuration than the one that is checked and `composed` for it now."""
    run = kept_run(folder)
    if run is None:
        return
    there, here = config.load(run.config_file, []), composed()
    if here.model.get("chat_template"):  # a run keeps the text
        from agentrl_cli.models.template import template_text

        here.model.chat_template = template_text(here.model.chat_template)
    plain = [OmegaConf.to_container(cfg, resolve=True) for cfg in (there, here)]
    if found := differences(*plain, ignored=MAY_DIFFER):  # pyright: ignore[reportArgumentType]
        remedy = "give another --name, or move that run away"
        raise UserError(f"run '{folder}' has another configuration: {found}; {remedy}")


def checked_point(
    cfg: DictConfig, options_of: Mapping[str, str | None], config_dir: Path | None
) -> DictConfig:
    """A point as Hydra has composed it, checked, with what it chose; Hydra composes nothing else in
    the meantime."""
    point = OmegaConf.create(OmegaConf.to_container(cfg, resolve=False))
    assert isinstance(point, DictConfig)
    config.complete(point, options_of, config_dir)
    return config.check(point)


def kept_run(folder: Path) -> Run | None:
    """The run in a point's folder that is done or can go on; None where it is made anew."""
    run = Run(folder) if (folder / "meta.json").is_file() else None
    if run is None or run.is_done:
        return run
    return run if run.meta["status"] != "failed" and run.checkpoints() else None


def next_verb(folder: Path) -> str | None:
    """`train` or `resume` for a point, None where it is done. A run that was interrupted goes on
    from its checkpoint; what failed, or has none, is moved aside and done anew."""
    if not folder.exists():
        return "train"
    if (run := kept_run(folder)) is not None:
        return None if run.is_done else "resume"
    failed = folder.parent / "failed"
    failed.mkdir(exist_ok=True)
    folder.rename(failed / f"{folder.name}-{len(list(failed.iterdir()))}")
    return "train"


def run_agentrl(arguments: list[str], log: Path, gpu: str | None = None) -> int:
    """Run `agentrl ARGUMENTS` in a process of its own with its output in `log`, and with one GPU
    where one is named; its exit code. What interrupts this process interrupts that one as well,
    which is waited for while it saves."""
    command = [sys.executable, "-m", PROGRAM, *arguments]
    seen = {} if gpu is None else {"CUDA_VISIBLE_DEVICES": gpu}
    nothing = subprocess.DEVNULL
    with (
        log.open("w") as file,
        subprocess.Popen(
            command, stdin=nothing, stdout=file, stderr=file, env=os.environ | seen
        ) as process,
    ):
        try:
            return process.wait()
        except KeyboardInterrupt:
            process.terminate()  # one that Ctrl-C has reached already goes on saving
            process.wait()
            raise


def _run_logged(arguments: list[str], log: Path, gpu: str | None) -> None:
    """A point's command; one that fails is named, and the sweep goes on."""
    code = run_agentrl(arguments, log, gpu)
    if code == 130:
        raise KeyboardInterrupt
    if code:
        name = log.name.removesuffix(".log")
        tell_point(f"failed: {name}, see {log}")
