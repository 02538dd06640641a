"""`agentrl eval`, until everything that needs no model is known to be right: a wrong word is
refused before torch is imported. What then plays is `run_evaluation`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from agentrl_cli.config.compose import EVAL_GROUPS, check, compose_checked, load
from agentrl_cli.config.groups import chooses
from agentrl_cli.core.errors import UserError
from agentrl_cli.core.one_process import refuse_several_processes
from agentrl_cli.runs.find import find_run

CHOOSE_ALGORITHM = ("algo", "recipe", "ablation", "experiment")


def evaluate_command(
    ref: str | None,
    overrides: list[str],
    config_dir: Path | None = None,
    show: Callable[[dict[str, Any]], None] = lambda record: None,
) -> dict[str, Any]:
    """`agentrl eval`: a run's last checkpoint, or a bare model when `ref` is None, for which no
    algorithm is built unless one is chosen. The record is shown; a run's is then appended to its
    evaluations.jsonl. Raises UserError where there is no such run, or its folder cannot be
    written."""
    refuse_several_processes()
    if ref is None:
        cfg = compose_checked(overrides, config_dir)
        has_algorithm = any(chooses(text, CHOOSE_ALGORITHM) for text in overrides)
        from agentrl_cli.cli.run_evaluation import evaluate_model

        return evaluate_model(cfg, show, has_algorithm=has_algorithm)
    run, other_env = find_run(ref), [text for text in overrides if chooses(text, ("env",))]
    if config_dir is not None and not other_env:
        line = f"run '{ref}' is evaluated by its own configuration"
        raise UserError(f"{line}; leave --config-dir out, or choose another env=NAME of it")
    loaded = load(run.config_file, overrides, choosable=EVAL_GROUPS, config_dir=config_dir)
    cfg = check(loaded)
    from agentrl_cli.cli.run_evaluation import evaluate_run

    return evaluate_run(run, cfg, show, is_elsewhere=bool(other_env))
