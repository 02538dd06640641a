"""`agentrl eval`: evaluate a run's last checkpoint, or a bare model, and keep the record."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from agentrl_cli.config.compose import build, check, chosen_option, compose, load
from agentrl_cli.core.one_process import refuse_several_processes
from agentrl_cli.runs.find import find_run
from agentrl_cli.runs.run import PLAYED_PARTS
from agentrl_cli.training.assemble import Parts, assemble
from agentrl_cli.training.evaluate import compare_search, evaluate


def evaluate_command(
    ref: str | None,
    overrides: list[str],
    config_dir: Path | None = None,
    show: Callable[[dict[str, Any]], None] = lambda record: None,
) -> dict[str, Any]:
    """`agentrl eval`: a run's last checkpoint, or a bare model when `ref` is None. The record is
    shown; a run's is then appended to its evaluations.jsonl. Raises UserError where there is no
    such run, or its folder cannot be written."""
    refuse_several_processes()
    run = find_run(ref) if ref is not None else None
    cfg = check(load(run.config_file, overrides) if run else compose(overrides, config_dir))
    parts = assemble(cfg, None, learns=False, restored=run is not None)
    if run is None:
        record = {"model": "base", **evaluate_as_chosen(cfg, parts, 0)}
        show(record)
        return record
    checkpoint = run.whole_checkpoint(*PLAYED_PARTS)
    parts.restore_models(checkpoint.folder)
    found = evaluate_as_chosen(cfg, parts, checkpoint.step)
    record = {"run": run.name, "step": checkpoint.step, **found}
    show(record)
    run.write_evaluation(record)
    return record


def evaluate_as_chosen(cfg: DictConfig, parts: Parts, step: int) -> dict[str, Any]:
    """With a search where one is chosen, else as in training."""
    if chosen_option(cfg, "search"):
        return compare_search(parts, build(cfg.search))
    return evaluate(parts, None, step)
