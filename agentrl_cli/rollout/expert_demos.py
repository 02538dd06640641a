"""Record demonstrations of an environment's own expert as episodes; demos.py reads them."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator
from contextlib import closing

from agentrl_cli.core import files
from agentrl_cli.core.errors import UserError
from agentrl_cli.core.terminal import echo_progress
from agentrl_cli.core.types import Episode, Message, Task, Turn, derive_seed
from agentrl_cli.envs.base import Env, train_tasks
from agentrl_cli.envs.check import answer, opening

TextAgent = Callable[[list[Message]], Iterator[str] | None]
EXPERT_PREFIX = "expert:"  # data.demos=expert:N records N episodes of the expert


def expert_episodes(env: Env, count: int, seed: int) -> list[Episode]:
    """Return `count` successful episodes of the expert on train tasks, each task once per epoch.

    Lost and failed episodes are skipped. Raises UserError for more than max(10, count / 10) of
    them, or without tasks.
    """
    tasks, won, lost, broken = train_tasks(env), [], 0, ""
    while len(won) < count:
        number = len(won) + lost
        epoch, position = divmod(number, len(tasks))
        order = random.Random(derive_seed(seed, "demos", epoch)).sample(tasks, len(tasks))
        episode, episode_seed = None, derive_seed(seed, "demos", number)
        task, name = order[position], f"demo-{number:06d}"
        try:
            episode = expert_episode(copy.copy(env), task, episode_seed, name)
        except UserError:
            raise
        except Exception as error:  # a failed episode counts as lost
            broken = f", the last that broke with {type(error).__name__}: {error}"
        if episode is not None and episode.success:
            won.append(episode)
            echo_progress("episodes of the expert", len(won), count)
        else:
            lost += 1
        if lost > max(10, count // 10):
            line = f"the expert lost {lost} of {number + 1} episodes{broken}"
            raise UserError(f"{line}; correct it first", code="expert-lost")
    return won


def expert_lines(source: str, env: Env) -> list[str]:
    """Return the lines of `agentrl demos seed=0` for a source `expert:N`, the same in every run.
    Raises UserError for an invalid N, or if the expert fails."""
    count = source.removeprefix(EXPERT_PREFIX)
    if not count.isdecimal() or int(count) < 1:
        remedy = f"give a file, or {EXPERT_PREFIX}128 for 128 episodes"
        raise UserError(f"data.demos is '{source}'; {remedy}", code="invalid-demos-source")
    episodes = expert_episodes(env, int(count), seed=0)
    return [files.json_line(episode.to_json()) for episode in episodes]


def expert_episode(env: Env, task: Task, seed: int, name: str) -> Episode:
    """Play one episode as text, without token ids and privileged info. Raises UserError if the
    environment has no expert."""
    episode = text_episode(env, task, seed, name, lambda seen: env.expert(task))
    if episode is None:
        line = "the environment has no expert; add one, or use demonstrations of your own"
        raise UserError(line, code="no-expert")
    return episode


def text_episode(env: Env, task: Task, seed: int, name: str, agent: TextAgent) -> Episode | None:
    """Play one episode of an agent as text, without token ids and privileged info; return None if
    the agent has no actions. The agent receives the list of all messages, which grows."""
    with closing(env):
        observation = opening(env, task, seed)
        seen, turns, ended, stop = list(observation), [], False, "truncated"
        actions = agent(seen)
        if actions is None:
            return None
        while not ended and (action := next(actions, None)) is not None:
            step = answer(env, action)
            info = {key: value for key, value in step.info.items() if key != "privileged"}
            turns.append(Turn(observation, action, [], [], [], step.reward, step.done, info=info))
            observation, ended = step.messages, step.done or step.truncated
            seen += observation
            stop = "done" if step.done else "truncated"
    return Episode(name, task, name, seed, turns, stop=stop, final_observation=observation)
