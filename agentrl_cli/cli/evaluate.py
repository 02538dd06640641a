"""`agentrl eval`: evaluate a run, a bare model or a model behind a server.

Invalid settings are refused before torch is imported.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from agentrl_cli.config.compose import EVAL_GROUPS, ConfigDirs, build, check, compose_checked, load
from agentrl_cli.core.activity import Display
from agentrl_cli.core.errors import UserError
from agentrl_cli.core.launch import require_single_process
from agentrl_cli.core.terminal import echo, terminal_width
from agentrl_cli.core.types import Episode
from agentrl_cli.envs.base import episodes_by_task
from agentrl_cli.report.seeds import Outcomes
from agentrl_cli.report.summary import base_result, evaluation_lines
from agentrl_cli.runs.find import find_run
from agentrl_cli.runs.run import PLAYED_PARTS, Run

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from agentrl_cli.training.build import Parts

Record = dict[str, Any]
Show = Callable[[Record, list[str]], None]  # called with the record and its lines for a terminal


def evaluate_command(
    ref: str | None,
    overrides: list[str],
    config_dirs: ConfigDirs = None,
    show: Show | None = None,
) -> Record:
    """Evaluate the last or best checkpoint of a run, or a model if `ref` is None.

    The record is shown, and appended to the evaluations.jsonl of a run. Raises UserError for an
    unknown run and if its folder cannot be written.
    """
    require_single_process()
    if ref is None:
        has_algorithm = _chooses(overrides, "algo", "recipe", "ablation", "experiment")
        cfg = compose_checked(overrides, config_dirs)
        return evaluate_model(cfg, show, has_algorithm=has_algorithm)
    run, is_elsewhere = find_run(ref), _chooses(overrides, "env")
    if config_dirs and not is_elsewhere:
        line = f"run '{ref}' is evaluated with its own configuration"
        remedy = "leave --config-dir out, or choose another environment of it with env=NAME"
        raise UserError(f"{line}; {remedy}", code="conflict")
    cfg = load(run.config_file, overrides, choosable=EVAL_GROUPS, config_dirs=config_dirs)
    return evaluate_run(run, check(cfg), show, is_elsewhere=is_elsewhere)


def _chooses(overrides: list[str], *groups: str) -> bool:
    """Return whether an override chooses an option of one of these groups."""
    return any(re.split("[=@]", text.lstrip("+~"))[0] in groups for text in overrides)


def evaluate_model(
    cfg: DictConfig, show: Show | None = None, *, has_algorithm: bool = False
) -> Record:
    """Evaluate a model without training. With `has_algorithm` the algorithm adds diagnostics."""
    from agentrl_cli.training.endpoint import PATH, assemble_endpoint

    is_endpoint = cfg.model.path == PATH
    if is_endpoint and cfg.choices.get("search"):
        line = "search needs a critic, and model=endpoint has none; leave search out"
        raise UserError(line, code="no-critic")
    if is_endpoint:
        parts: Any = assemble_endpoint(cfg)
    else:
        from agentrl_cli.algos.base import PlayOnly
        from agentrl_cli.training.build import build_parts

        algorithm = None if has_algorithm else PlayOnly()
        parts = build_parts(cfg, None, learns=False, algorithm=algorithm)
    with report_requests(cfg, parts):
        found, _ = _evaluate(cfg, parts)
        record = {"model": cfg.model.name if is_endpoint else "base", **found}
        record |= parts.generator.usage() if is_endpoint else {}
        if show is not None:
            env = str(cfg.choices.env)
            show(record, evaluation_lines(record, env, width=terminal_width()))
    return record


def evaluate_run(run: Run, cfg: DictConfig, show: Show | None, *, is_elsewhere: bool) -> Record:
    """Evaluate the checkpoint that a run keeps, and append the record to the run.

    The record names the environment if it is not the run's own (`is_elsewhere`).
    """
    from omegaconf import OmegaConf

    from agentrl_cli.runs.checkpoints import played_checkpoint
    from agentrl_cli.training.build import build_parts

    parts = build_parts(cfg, None, learns=False, restored=True)
    checkpoint = played_checkpoint(run, *PLAYED_PARTS)
    parts.restore_models(checkpoint.folder)
    environment = {"env": cfg.choices.env} if is_elsewhere else {}
    with report_requests(cfg, parts):
        found, outcomes = _evaluate(cfg, parts)
        record = {"run": run.name, "step": checkpoint.step, **environment, **found}
        if show is not None:
            settings: Any = OmegaConf.to_container(cfg)
            base = base_result(run, settings, record, outcomes) if outcomes else None
            show(record, evaluation_lines(record, str(cfg.choices.env), base, terminal_width()))
    run.write_evaluation(record)
    return record


def _evaluate(cfg: DictConfig, parts: Parts) -> tuple[Record, Outcomes]:
    """Return the metrics, and the success of the episodes of the first split by task; none with a
    search."""
    from agentrl_cli.training.evaluate import compare_search, evaluate

    played: list[Episode] = []
    parts.activity.begin("evaluation")
    with Display(parts.activity):
        if cfg.choices.get("search"):
            return compare_search(parts, build(cfg.search)), {}
        found = evaluate(parts, played.extend)
    by_task = episodes_by_task(played)
    return found, {group[0].task.id: [float(e.success) for e in group] for group in by_task}


@contextmanager
def report_requests(cfg: DictConfig, parts: Parts) -> Iterator[None]:
    """Print the maximum number of requests to external models before, and the number after."""
    from agentrl_cli.generators.endpoint import outside_chats
    from agentrl_cli.training.evaluate import count_episodes

    chats = outside_chats(parts.make_env())
    for chat in chats:
        episodes, turns = count_episodes(parts), cfg.env.get("max_turns")
        if not isinstance(turns, int):
            turns = cfg.rollout.max_seq_len // cfg.rollout.max_new_tokens
        line = f"{chat.name}: {episodes:,} episodes with up to {1 + turns:,} requests each,"
        line += f" {episodes * (1 + turns):,} in total; reduce them with eval.tasks=N and"
        echo(f"{line} eval.episodes_per_task=N", err=True)
    try:
        yield
    finally:
        for chat in chats:
            echo(f"{chat.name}: {chat.requests:,} requests were made", err=True)
