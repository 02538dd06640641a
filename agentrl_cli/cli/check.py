"""`agentrl check`: whether an environment keeps its contract, how a random and an expert agent fare
in it, and whether their episodes fit the budgets of tokens. No model is loaded."""

from __future__ import annotations

import copy
import inspect
import random
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from agentrl_cli.config.compose import as_dataclass, build, check, compose
from agentrl_cli.config.settings import ModelConfig
from agentrl_cli.core.errors import UserError
from agentrl_cli.core.terminal import echo
from agentrl_cli.core.types import Episode, Message, Task, derive_seed, evenly_spaced
from agentrl_cli.envs.base import Env, train_tasks
from agentrl_cli.envs.check import MAX_ACTIONS, check_env
from agentrl_cli.envs.contract import where
from agentrl_cli.generators.endpoint import outside_chats
from agentrl_cli.rollout.expert_demos import text_episode

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from agentrl_cli.rollout.chat_template import Chat

EPISODES = 5
WORDS = 6  # of a random action at most
Rows = Iterator[tuple[str, str]]
RANDOM, EXPERT = "random agent", "expert"


@dataclass(frozen=True)
class Budget:
    """How many tokens an action and an episode may have."""

    max_tokens: int
    max_seq_len: int


def check_command(overrides: list[str], config_dir: Path | None = None) -> None:
    """Print one table. Raises UserError with a line for each fault where the contract is broken, or
    an episode breaks."""
    skipped = ("algo", "hardware", "logger", "search", "eval", "data")
    cfg = check(compose(overrides, config_dir), skip=skipped)
    env: Env = build(cfg.env)
    faults = contract_faults(env)
    for name, text in [] if faults else rows(cfg, env):
        echo(f"{name:<14} {text}")
    if faults:
        raise UserError("\n".join(faults))


def rows(cfg: DictConfig, env: Env) -> Rows:
    """What there is to say of an environment that keeps its contract."""
    from agentrl_cli.models.load import load_tokenizer
    from agentrl_cli.rollout.chat_template import Chat

    yield "environment", place_of(env)
    yield "contract", contract_row(env)
    yield "tasks", ", ".join(f"{len(env.tasks(s)):,} {s}" for s in ("train", "test"))
    chat = Chat(load_tokenizer(as_dataclass(cfg.model, ModelConfig)))
    chat.check(env.tools)
    budget = Budget(cfg.rollout.max_new_tokens, cfg.rollout.max_seq_len)
    tasks = train_tasks(env)
    for agent in (RANDOM, EXPERT):
        played = [play(env, task, agent) for task in evenly_spaced(tasks, EPISODES)]
        episodes = [episode for episode in played if episode is not None]
        yield agent, result_row(episodes)
        if episodes:
            yield "  turns", spread([len(episode.turns) for episode in episodes])
            yield "  tokens", token_row(env, chat, episodes, budget)


def contract_faults(env: Env) -> list[str]:
    """A sentence for each fault of the environment, its file before it; none where a model outside
    of this process would be asked by trying."""
    if outside_chats(env):
        return []
    return [f"{place_of(env)}: {text}" for text in check_env(partial(copy.copy, env))]


def contract_row(env: Env) -> str:
    """Whether the contract was tried."""
    chats = outside_chats(env)
    return f"not tried, since {chats[0].name} would be asked" if chats else "kept"


def place_of(env: Env) -> str:
    """The class of an environment and its file."""
    cls = type(env)
    try:
        file = inspect.getsourcefile(cls)
    except TypeError:  # made by hand
        file = None
    return f"{cls.__module__}.{cls.__qualname__}" + (f" ({file})" if file else "")


def random_actions(seen: list[Message], seed: int) -> Iterator[str]:
    """Actions of a few words, each drawn from all that the world has said so far."""
    draw = random.Random(seed)
    for _ in range(MAX_ACTIONS):
        words = " ".join(message.content for message in seen).split() or ["yes"]
        yield " ".join(draw.choices(words, k=draw.randint(1, WORDS)))


def play(env: Env, task: Task, agent: str) -> Episode | None:
    """One episode of the random agent or the expert as text; None where there is no expert. Raises
    UserError where it breaks, with the place in the environment's file."""
    env, seed = copy.copy(env), derive_seed(0, "check", task.id)

    def actions(seen: list[Message]) -> Iterator[str] | None:
        return random_actions(seen, seed) if agent == RANDOM else env.expert(task)

    try:
        return text_episode(env, task, seed, task.id, actions)
    except UserError:
        raise
    except Exception as error:
        line = f"task {task.id} breaks with {type(error).__name__}: {error} ({where(error, env)})"
        raise UserError(f"{line}; mend the environment") from error


def result_row(episodes: list[Episode]) -> str:
    """How an agent's episodes ended."""
    if not episodes:
        return "the environment has none"
    won = sum(episode.success for episode in episodes)
    reward = sum(episode.reward for episode in episodes) / len(episodes)
    return f"{won} of {len(episodes)} episodes won, mean reward {reward:.2f}"


def token_row(env: Env, chat: Chat, episodes: list[Episode], budget: Budget) -> str:
    """The longest action and the longest episode beside what they may have, and what to raise."""
    actions, totals = [0], [0]
    for episode in episodes:
        turns = chat.encode_turns(list(episode.turns), env.tools)
        actions += [len(turn.action_ids) for turn in turns]
        totals.append(sum(len(turn.observation_ids) + len(turn.action_ids) for turn in turns))
    parts = [
        _budgeted("longest action", max(actions), "rollout.max_new_tokens", budget.max_tokens),
        _budgeted("longest episode", max(totals), "rollout.max_seq_len", budget.max_seq_len),
    ]
    return "; ".join(parts)


def _budgeted(name: str, tokens: int, key: str, most: int) -> str:
    raise_it = f": raise it to {tokens} or more" if tokens > most else ""
    return f"{name} {tokens:,} of {key} {most:,}{raise_it}"


def spread(counts: list[int]) -> str:
    """`3 to 12`, or one number."""
    low, high = min(counts), max(counts)
    return f"{low}" if low == high else f"{low} to {high}"
