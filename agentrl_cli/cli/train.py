"""`agentrl train` and `agentrl resume`: check everything that needs no model.

Invalid settings are refused before torch is imported. `run_training` does the rest.
"""

from __future__ import annotations

import difflib
import shlex
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from omegaconf import DictConfig, OmegaConf

from agentrl_cli.config.compose import ConfigDirs, check, compose, load, parse_overrides
from agentrl_cli.config.settings import RESUMABLE, SERVER_KEYS
from agentrl_cli.core.errors import UserError
from agentrl_cli.core.files import is_folder
from agentrl_cli.core.launch import is_first_process, require_single_process, validate_processes
from agentrl_cli.core.terminal import echo_err, has_lost_stdout, terminal_width
from agentrl_cli.rollout.demos import fingerprint
from agentrl_cli.runs.checkpoints import Checkpoint
from agentrl_cli.runs.find import RUNS, find_run
from agentrl_cli.runs.run import Run

if TYPE_CHECKING:
    from agentrl_cli.training.loop import Listener

WITHOUT_ACTORS = "hardware.actors=null"  # the only other value that a resumed run may change to


def start(
    overrides: list[str],
    *,
    config_dirs: ConfigDirs = None,
    dry: bool = False,
    file: Path | None = None,
) -> None:
    """Train a new run, configured by overrides or the config.yaml of another run, and print its
    result; with `dry` only plan and try it."""
    try:
        composed = load(file, overrides) if file else compose(overrides, config_dirs)
    except UserError as error:
        if error.code != "invalid-override" or file or not _is_sweep(overrides):
            raise
        line = f"{error}; to train with each value: {sweep_command(overrides, config_dirs)}"
        raise UserError(line, code="use-sweep") from None
    cfg = check(composed)
    validate_new(cfg, dry=dry)
    from agentrl_cli.cli.run_training import dry_run, train_new_run

    if dry:
        dry_run(cfg)
    else:
        print_result(train_new_run(cfg, " ".join(["agentrl", *sys.argv[1:]]), overrides))


def print_result(run: Run) -> None:
    """Print the result in the first process, if stdout can still be written."""
    from agentrl_cli.report.summary import final_lines

    if not is_first_process():
        return
    try:
        print("\n".join(final_lines(run, terminal_width())), flush=True)
    except OSError:
        if not has_lost_stdout():
            raise
        echo_err(f"the result cannot be printed; see agentrl report {run.quoted_folder}")


def validate_new(cfg: DictConfig, *, dry: bool = False) -> None:
    """Raise UserError if a new run cannot have this configuration, as far as no model is needed."""
    if cfg.init is not None and not is_folder(Path(cfg.init)):
        try:
            find_run(cfg.init, Path(cfg.runs))  # refuse an unknown name early
        except UserError as error:
            if error.code != "unknown-run" or not (command := first_command(cfg)):
                raise
            line = f"run '{cfg.init}' not found; train it first with '{command}', or give init=RUN"
            raise UserError(line, code=error.code) from None
    validate_launch(cfg, dry=dry)
    if cfg.choices.get("search"):
        line = "search needs a trained critic; train without it, then run agentrl eval RUN"
        raise UserError(line, code="search-in-training")


def first_command(cfg: DictConfig) -> str | None:
    """Return the command that trains the run from which a recipe starts, if `init` is its name."""
    recipe, name = cfg.choices.get("recipe"), Path(cfg.init).name
    for algo in ("sft", "nlac_role_sft"):
        if recipe and name == f"{recipe}_{algo}_s{cfg.seed}":
            words = [f"recipe={recipe}", f"algo={algo}", f"seed={cfg.seed}", f"name={name}"]
            words += [f"runs={cfg.runs}"] if Path(cfg.runs) != RUNS else []
            return f"agentrl train {shlex.join(words)}"
    return None


def sweep_command(overrides: list[str], config_dirs: ConfigDirs) -> str:
    """Return the command that trains with every combination of the values of overrides."""
    named = [text for text in overrides if text.startswith("name=")]
    words = [text for text in overrides if text not in named] or ["seed=0,1"]
    words += [f"--name={named[-1].removeprefix('name=')}"] if named else []
    words += [word for folder in config_dirs or () for word in ("--config-dir", str(folder))]
    return f"agentrl sweep {shlex.join(words)}"


def _is_sweep(overrides: list[str]) -> bool:
    """Return whether overrides have several values and are correct otherwise."""
    try:
        return any(item.is_sweep_override() for item in parse_overrides(overrides, is_sweep=True))
    except UserError:
        return False


def resume(ref: str, overrides: list[str] | None = None, listener: Listener | None = None) -> Run:
    """Continue a run from its last checkpoint and return it.

    Only `steps`, memory keys (RESUMABLE), server keys (SERVER_KEYS) and WITHOUT_ACTORS may
    change. Raises UserError if nothing is left to do, other keys change, or the run is training.
    """
    run = find_run(ref)
    free = ("steps", *RESUMABLE, *SERVER_KEYS)
    for override in overrides or []:
        key = override.partition("=")[0]
        if override != WITHOUT_ACTORS and key not in free:
            close = difflib.get_close_matches(key, free, 1, cutoff=0.8)
            if close and OmegaConf.select(load(run.config_file, []), key) is None:
                line = f"unknown key '{key}'; did you mean '{close[0]}'?"
                raise UserError(line, code="unknown-key")
            line = f"'{override}' cannot change when a run is resumed; only steps, servers and"
            line += f" memory keys can ({', '.join(RESUMABLE)})"
            remedy = "start a new run from its weights with agentrl train init=RUN"
            raise UserError(f"{line}; {remedy}", code="not-resumable")
    is_first = is_first_process()
    with run.lock() if is_first else nullcontext():
        cfg = check(load(run.config_file, overrides or []))
        validate_launch(cfg)
        checkpoint = run.whole_checkpoint() if is_first else None
        if checkpoint is not None:
            validate_resume(run, cfg, checkpoint)
        from agentrl_cli.cli.run_training import resume_run

        resume_run(run, cfg, checkpoint, listener)
    return run


def validate_launch(cfg: DictConfig, *, dry: bool = False) -> None:
    """Raise UserError if the launched processes do not match the configuration.

    A dry run needs a single process.
    """
    if dry:
        require_single_process()
        return
    strategy = cfg.hardware.get("strategy")
    if strategy is not None and cfg.hardware.get("actors") is not None:
        line = f"hardware.actors needs a single process, and hardware.strategy is {strategy}"
        remedy = "give hardware.strategy=null, or hardware.actors=null"
        raise UserError(f"{line}; {remedy}", code="conflict")
    if strategy is not None and "server" in cfg.hardware.generator:
        line = f"servers need a single process, and hardware.strategy is {strategy}"
        remedy = f"give hardware.strategy=null, or hardware={strategy}"
        raise UserError(f"{line}; {remedy}", code="conflict")
    validate_processes(strategy, cfg.hardware.get("processes"))


def validate_resume(run: Run, cfg: DictConfig, checkpoint: Checkpoint) -> None:
    """Raise UserError if nothing is left to do, or the run cannot continue from the checkpoint."""
    if checkpoint.step > cfg.steps or (checkpoint.step == cfg.steps and run.is_done):
        line = f"run '{run.name}' has finished step {checkpoint.step} of {cfg.steps}"
        further = f"agentrl resume {run.quoted_folder} steps=N trains it further"
        raise UserError(f"{line}; {further}", code="nothing-left")
    if checkpoint.metric_lines is None:
        line = f"checkpoint '{checkpoint.folder}' is from an earlier version"
        remedy = f"train from its weights with init={run.quoted_folder}"
        raise UserError(f"{line}; {remedy}", code="old-checkpoint")
    original = run.meta.get("demos")
    if original is not None and fingerprint(cfg.data.demos) != original:
        line = f"run '{run.name}' has learned from demonstrations other than '{cfg.data.demos}'"
        raise UserError(f"{line}; restore that file, or start a new run", code="other-demos")
