"""`agentrl train` and `agentrl resume`: from a command to a run that trains."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from omegaconf import DictConfig

from agentrl_cli.algos.base import Algorithm
from agentrl_cli.cli.dry import dry_run
from agentrl_cli.config.compose import build, check, chosen_option, compose, load
from agentrl_cli.core.errors import UserError
from agentrl_cli.core.one_process import refuse_several_processes
from agentrl_cli.models.template import template_text
from agentrl_cli.report.summary import final_table
from agentrl_cli.rollout.demos import fingerprint
from agentrl_cli.runs.checkpoints import Checkpoint
from agentrl_cli.runs.find import find_run
from agentrl_cli.runs.loggers import Console
from agentrl_cli.runs.run import Run
from agentrl_cli.train import interruptible, train
from agentrl_cli.training.assemble import Parts, assemble
from agentrl_cli.training.memory_limit import RESUMABLE, refuse_too_little_memory
from agentrl_cli.training.memory_plan import plan_memory


def start(
    overrides: list[str],
    *,
    config_dir: Path | None = None,
    dry: bool = False,
    file: Path | None = None,
) -> None:
    """`agentrl train`: compose, make the run's folder, train, and say how it went."""
    refuse_several_processes()
    cfg = check(load(file, overrides) if file else compose(overrides, config_dir))
    if chosen_option(cfg, "search"):
        raise UserError("search needs a trained critic; train without it, then agentrl eval RUN")
    if cfg.model.get("chat_template"):  # the run keeps the text, whatever becomes of the file
        cfg.model.chat_template = template_text(cfg.model.chat_template)
    if dry:
        dry_run(cfg)
        return
    refuse_unplanned(cfg)
    run = Run.create(cfg, command=" ".join(["agentrl", *sys.argv[1:]]), overrides=overrides)
    with delete_unbuilt_run(run):
        parts = assemble(cfg, run.folder)
    with interruptible() as interrupted:
        with delete_unbuilt_run(run):
            print(f"run {run.folder}", file=sys.stderr)
            attach_loggers(run, cfg, parts)
        train(cfg, run, parts, interrupted)
    print(final_table(run))


def resume(ref: str, overrides: list[str] | None = None) -> None:
    """`agentrl resume`: go on from the last checkpoint, with `steps=N` further than was planned,
    and with less memory by the keys RESUMABLE. UserError where nothing is left to do, anything else
    is to change, or the run is training."""
    refuse_several_processes()
    run = find_run(ref)
    for override in overrides or []:
        if override.partition("=")[0] not in ("steps", *RESUMABLE):
            remedy = "start a new run from its weights with agentrl train init=RUN"
            line = f"'{override}' cannot change in a run, only steps and what memory hangs on can"
            raise UserError(f"{line} ({', '.join(RESUMABLE)}); {remedy}")
    with run.lock():
        resume_run(run, overrides)
    print(final_table(run))


def resume_run(run: Run, overrides: list[str] | None) -> None:
    """Restore a run's last checkpoint, put its logs back to there, and train, or do what remains
    where its process died after the last update."""
    cfg = check(load(run.config_file, overrides or []))
    checkpoint = run.whole_checkpoint()
    refuse_to_resume(run, cfg, checkpoint)
    refuse_unplanned(cfg)
    parts = assemble(cfg, run.folder, restored=True)
    refuse_other_template(run, cfg, parts)
    parts.restore(checkpoint)
    with interruptible() as interrupted:
        run.truncate_logs(checkpoint)
        run.record_resume(cfg, checkpoint.step)
        print(f"run {run.folder}, from step {checkpoint.step}", file=sys.stderr)
        attach_loggers(run, cfg, parts)
        train(cfg, run, parts, interrupted)


def refuse_unplanned(cfg: DictConfig) -> None:
    """Raise UserError where the run will need more memory than there is, before it loads any."""
    algo: Algorithm = build(cfg.algo)
    refuse_too_little_memory(cfg, algo, plan_memory(cfg, algo))


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


def attach_loggers(run: Run, cfg: DictConfig, parts: Parts) -> None:
    """Give the run its loggers: the console, and the chosen one."""
    read = {"demos": fingerprint(cfg.data.demos), "chat_template": parts.chat.fingerprint}
    run.update_meta(threads=torch.get_num_threads(), **read)
    run.attach([Console(), build(cfg.logger)], cfg)


def refuse_other_demos(run: Run, cfg: DictConfig) -> None:
    """Raise UserError where a run's demonstrations are not those that it began with."""
    original = run.meta.get("demos")
    if original is not None and fingerprint(cfg.data.demos) != original:
        remedy = "put the file back, or start a new run"
        raise UserError(f"demonstrations '{cfg.data.demos}' have changed; {remedy}")


def refuse_other_template(run: Run, cfg: DictConfig, parts: Parts) -> None:
    """Raise UserError where a model's chat template is not the one that its run began with."""
    if run.meta.get("chat_template", parts.chat.fingerprint) != parts.chat.fingerprint:
        line = f"the chat template of '{cfg.model.path}' has changed"
        raise UserError(f"{line}; put it back, or start a new run with init={run.quoted_folder}")


@contextmanager
def delete_unbuilt_run(run: Run) -> Iterator[None]:
    """Delete a new run that cannot be built as configured, or that somebody stops before it can
    save anything; record any other error."""
    try:
        yield
    except (UserError, KeyboardInterrupt):
        shutil.rmtree(run.folder)
        raise
    except BaseException as error:
        run.set_status("failed", f"{type(error).__name__}: {error}")
        raise
