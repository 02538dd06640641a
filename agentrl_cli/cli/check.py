"""`agentrl check`: test the contract of an environment, and two agents and token limits in it.

No model is loaded.
"""

from __future__ import annotations

import copy
import inspect
import random
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from agentrl_cli.config.compose import as_dataclass, build, check, compose
from agentrl_cli.config.settings import ModelConfig
from agentrl_cli.core.errors import UserError
from agentrl_cli.core.terminal import echo
from agentrl_cli.core.types import Episode, Message, Task, derive_seed, evenly_spaced
from agentrl_cli.envs.base import Env, train_tasks
from agentrl_cli.envs.check import MAX_ACTIONS, check_env, where
from agentrl_cli.generators.endpoint import outside_chats
from agentrl_cli.rollout.demos import text_episode

if TYPE_CHECKING:
    from omegaconf import DictConfig

EPISODES = 5
WORDS = 6  # of a random action at most
UNUSED = ("algo", "hardware", "logger", "search", "eval", "data")  # parts of the configuration
RANDOM, EXPERT = "random agent", "expert"


def check_command(overrides: list[str], config_dir: Path | None = None) -> None:
    """Print a table. Raises UserError with a line for each fault of the environment."""
    cfg = check(compose(overrides, config_dir), skip=UNUSED)
    env: Env = build(cfg.env)
    contract = check_contract(env)
    for name, text in (("environment", place_of(env)), ("contract", contract), *rows(cfg, env)):
        echo(f"{name:<14} {text}")


def rows(cfg: DictConfig, env: Env) -> Iterator[tuple[str, str]]:
    """Yield the tasks, and the results of each agent, of an environment without faults."""
    from agentrl_cli.models.load import load_tokenizer
    from agentrl_cli.rollout.chat_template import Chat

    yield "tasks", ", ".join(f"{len(env.tasks(s)):,} {s}" for s in ("train", "test"))
    chat = Chat(load_tokenizer(as_dataclass(cfg.model, ModelConfig)))
    chat.check(env.tools)
    tasks = evenly_spaced(train_tasks(env), EPISODES)
    for agent in (RANDOM, EXPERT):
        episodes = [found for task in tasks if (found := play(env, task, agent)) is not None]
        if not episodes:
            yield agent, "the environment has none"
            continue
        won = sum(episode.success for episode in episodes)
        reward = sum(episode.reward for episode in episodes) / len(episodes)
        yield agent, f"{won} of {len(episodes)} episodes won, mean reward {reward:.2f}"
        turns = [len(episode.turns) for episode in episodes]
        fewest, most = min(turns), max(turns)
        yield "  turns", f"{fewest}" if fewest == most else f"{fewest} to {most}"
        actions, totals = [0], [0]
        for episode in episodes:
            encoded = chat.encode_turns(list(episode.turns), env.tools)
            actions += [len(turn.action_ids) for turn in encoded]
            totals.append(sum(len(t.observation_ids) + len(t.action_ids) for t in encoded))
        action = _limited("longest action", max(actions), "max_new_tokens", cfg)
        episode = _limited("longest episode", max(totals), "max_seq_len", cfg)
        yield "  tokens", f"{action}; {episode}"


def check_contract(env: Env) -> str:
    """Test the contract of an environment, and return whether it was tested.

    Environments that call external models are not tested. Raises UserError with a line for each
    fault and the file of the environment.
    """
    if chats := outside_chats(env):
        return f"not tested, since this would call {chats[0].name}"
    if faults := check_env(partial(copy.copy, env)):
        raise UserError("\n".join(f"{place_of(env)}: {x}" for x in faults), code="contract")
    return "kept"


def place_of(env: Env) -> str:
    """Return the class of an environment and its file."""
    cls = type(env)
    try:
        file = inspect.getsourcefile(cls)
    except TypeError:  # a class without a file
        file = None
    return f"{cls.__module__}.{cls.__qualname__}" + (f" ({file})" if file else "")


def play(env: Env, task: Task, agent: str) -> Episode | None:
    """Play an episode with the random agent or the expert; None without an expert.

    The random agent samples words from all messages so far.

    Raises UserError with the line of the environment's file if it fails.
    """
    env, seed = copy.copy(env), derive_seed(0, "check", task.id)
    draw = random.Random(seed)

    def random_actions(seen: list[Message]) -> Iterator[str]:
        for _ in range(MAX_ACTIONS):
            words = " ".join(message.content for message in seen).split() or ["yes"]
            yield " ".join(draw.choices(words, k=draw.randint(1, WORDS)))

    def actions(seen: list[Message]) -> Iterator[str] | None:
        return random_actions(seen) if agent == RANDOM else env.expert(task)

    try:
        return text_episode(env, task, seed, task.id, actions)
    except UserError:
        raise
    except Exception as error:
        line = f"task {task.id} fails with {type(error).__name__}: {error} ({where(error, env)})"
        raise UserError(f"{line}; correct the environment", code="contract") from error


def _limited(name: str, tokens: int, key: str, cfg: DictConfig) -> str:
    limit = cfg.rollout[key]
    advice = f": raise it to {tokens} or more" if tokens > limit else ""
    return f"{name} {tokens:,} of rollout.{key} {limit:,}{advice}"
