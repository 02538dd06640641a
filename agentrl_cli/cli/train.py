"""`agentrl train` and `agentrl resume`, until everything that needs no model is known to be right:
a wrong word is refused before torch is imported. What then trains is `run_training`."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

from omegaconf import DictConfig

from agentrl_cli.config.compose import check, chosen_option, compose, load
from agentrl_cli.config.settings import RESUMABLE, SERVER_KEYS
from agentrl_cli.core.errors import UserError
from agentrl_cli.core.files import is_folder
from agentrl_cli.core.one_process import (
    is_first_process,
    refuse_other_processes,
    refuse_several_processes,
)
from agentrl_cli.rollout.demos import fingerprint
from agentrl_cli.runs.checkpoint_digest import Checkpoint
from agentrl_cli.runs.find import find_run
from agentrl_cli.runs.run import Run

WITHOUT_ACTORS = "hardware.actors=null"  # this process plays its episodes


def start(
    overrides: list[str],
    *,
    config_dir: Path | None = None,
    dry: bool = False,
    file: Path | None = None,
) -> None:
    """`agentrl train`: compose, make the run's folder, train, and say how it went."""
    composed = load(file, overrides) if file else compose(overrides, config_dir)
    cfg = check(composed)
    if cfg.init is not None and not is_folder(Path(cfg.init)):
        find_run(cfg.init, Path(cfg.runs))  # a name that no run has, before all is loaded
    refuse_launch(cfg, dry=dry)
    if chosen_option(cfg, "search"):
        raise UserError("search needs a trained critic; train without it, then agentrl eval RUN")
    from agentrl_cli.cli.run_training import train_new_run

    train_new_run(cfg, overrides, dry=dry)


def resume(ref: str, overrides: list[str] | None = None) -> None:
    """`agentrl resume`: go on from the last checkpoint, with `steps=N` further than was planned,
    with less memory by the keys RESUMABLE, with other servers by SERVER_KEYS, and without actors by
    WITHOUT_ACTORS. UserError where nothing is left to do, anything else is to change, or the run is
    training."""
    run = find_run(ref)
    for override in overrides or []:
        free = ("steps", *RESUMABLE, *SERVER_KEYS)
        if override != WITHOUT_ACTORS and override.partition("=")[0] not in free:
            remedy = "start a new run from its weights with agentrl train init=RUN"
            line = f"'{override}' cannot change in a run, only steps, servers and what memory hangs"
            line += " on can"
            raise UserError(f"{line} ({', '.join(RESUMABLE)}); {remedy}")
    owns = is_first_process()
    with run.lock() if owns else nullcontext():
        cfg = check(load(run.config_file, overrides or []))
        refuse_launch(cfg)
        checkpoint = run.whole_checkpoint() if owns else None
        if checkpoint is not None:
            refuse_to_resume(run, cfg, checkpoint)
        from agentrl_cli.cli.run_training import resume_run

        resume_run(run, cfg, checkpoint)


def refuse_launch(cfg: DictConfig, *, dry: bool = False) -> None:
    """Raise UserError where other processes were started than the configuration asks for; a `dry`
    run is one."""
    if dry:
        refuse_several_processes()
        return
    strategy = cfg.hardware.get("strategy")
    if strategy is not None and cfg.hardware.get("actors") is not None:
        line = f"hardware.actors play for one process, and hardware.strategy is {strategy}"
        raise UserError(f"{line}; give hardware.strategy=null, or hardware.actors=null")
    if strategy is not None and "server" in cfg.hardware.generator:
        line = f"hardware.generator asks servers for one process, and strategy is {strategy}"
        raise UserError(f"{line}; give hardware.strategy=null, or hardware={strategy}")
    refuse_other_processes(strategy, cfg.hardware.get("processes"))


def refuse_to_resume(run: Run, cfg: DictConfig, checkpoint: Checkpoint) -> None:
    """Raise UserError where nothing is left to do, or a run cannot go on from this checkpoint."""
    at = f"run '{run.name}' is at step {checkpoint.step} of {cfg.steps}"
    if checkpoint.step > cfg.steps or (checkpoint.step == cfg.steps and run.is_done):
        further = f"agentrl resume {run.quoted_folder} steps=N trains it further"
        raise UserError(f"{at}: nothing is left to do; {further}")
    if checkpoint.metric_lines is None:
        remedy = f"train from its weights with init={run.quoted_folder}"
        raise UserError(f"checkpoint '{checkpoint.folder}' is of an earlier version; {remedy}")
    refuse_other_demos(run, cfg)


def refuse_other_demos(run: Run, cfg: DictConfig) -> None:
    """Raise UserError where a run's demonstrations are not those that it began with."""
    original = run.meta.get("demos")
    if original is not None and fingerprint(cfg.data.demos) != original:
        remedy = "put the file back, or start a new run"
        raise UserError(f"demonstrations '{cfg.data.demos}' have changed; {remedy}")
