"""An evaluation at work, from a checked configuration: built, played, shown and kept. What can be
refused without models stands in `evaluate`, which imports this last."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

from omegaconf import DictConfig

from agentrl_cli.algos.base import PlayOnly
from agentrl_cli.config.compose import build, chosen_option
from agentrl_cli.core.errors import UserError
from agentrl_cli.core.terminal import echo
from agentrl_cli.generators.endpoint import outside_chats
from agentrl_cli.runs.best import played_checkpoint
from agentrl_cli.runs.run import PLAYED_PARTS, Run
from agentrl_cli.training.assemble import Parts, assemble
from agentrl_cli.training.endpoint import PATH, assemble_endpoint
from agentrl_cli.training.evaluate import compare_search, count_episodes, evaluate

Record = dict[str, Any]
Show = Callable[[Record], None]


def evaluate_model(cfg: DictConfig, show: Show, *, has_algorithm: bool) -> Record:
    """Play with the model as it begins, and with nothing else unless it `has_algorithm`, which then
    adds what it monitors."""
    if cfg.model.path == PATH:
        return evaluate_endpoint(cfg, show)
    parts = assemble(cfg, None, learns=False, algorithm=None if has_algorithm else PlayOnly())
    with tell_requests(cfg, parts):
        record = {"model": "base", **evaluate_as_chosen(cfg, parts, 0)}
        show(record)
    return record


def evaluate_endpoint(cfg: DictConfig, show: Show) -> Record:
    """Play with a model behind a server; the record also has the tokens that it took."""
    if chosen_option(cfg, "search"):
        raise UserError("model=endpoint has no critic that a search could ask; leave search out")
    parts = assemble_endpoint(cfg)
    with tell_requests(cfg, cast("Parts", parts)):
        found = evaluate(cast("Parts", parts), None, 0)
        record = {"model": cfg.model.name, **found, **parts.generator.usage()}
        show(record)
    return record


def evaluate_run(run: Run, cfg: DictConfig, show: Show, *, is_elsewhere: bool) -> Record:
    """Play with the checkpoint that a run keeps and append the record, which names the environment
    where that is not the run's own (`is_elsewhere`), to the run's."""
    parts = assemble(cfg, None, learns=False, restored=True)
    checkpoint = played_checkpoint(run, *PLAYED_PARTS)
    parts.restore_models(checkpoint.folder)
    where = {"env": cfg.choices.env} if is_elsewhere else {}
    with tell_requests(cfg, parts):
        found = evaluate_as_chosen(cfg, parts, checkpoint.step)
        record = {"run": run.name, "step": checkpoint.step, **where, **found}
        show(record)
    run.write_evaluation(record)
    return record


def evaluate_as_chosen(cfg: DictConfig, parts: Parts, step: int) -> Record:
    """With a search where one is chosen, else as in training."""
    if chosen_option(cfg, "search"):
        return compare_search(parts, build(cfg.search))
    return evaluate(parts, None, step)


@contextmanager
def tell_requests(cfg: DictConfig, parts: Parts) -> Iterator[None]:
    """Say on stderr how many requests models outside of this process will get at most, before, and
    how many they got, after; nothing where the world asks none."""
    chats = outside_chats(parts.make_env())
    for chat in chats:
        episodes, each = count_episodes(parts), requests_per_episode(cfg)
        line = f"{chat.name} is asked: {episodes:,} episodes, up to {each:,} requests each"
        fewer = "fewer with eval.tasks=N and eval.episodes_per_task=N"
        echo(f"{line}, {episodes * each:,} in all; {fewer}", err=True)
    try:
        yield
    finally:
        for chat in chats:
            echo(f"{chat.name} was asked {chat.requests:,} times", err=True)


def requests_per_episode(cfg: DictConfig) -> int:
    """At most how often a world asks an outside model in an episode: once to begin, and once for
    each of its turns, or of the actions that fit into the context where it has no limit."""
    turns = cfg.env.get("turns")
    most = cfg.rollout.max_seq_len // cfg.rollout.max_new_tokens
    return 1 + (turns if isinstance(turns, int) else most)
