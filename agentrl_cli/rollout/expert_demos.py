"""Demonstrations by an environment's own expert, as a file of episodes; demos.py reads them."""

from __future__ import annotations

import copy
import random

from agentrl_cli.core import files
from agentrl_cli.core.errors import EpisodeError, UserError
from agentrl_cli.core.types import Episode, Message, Task, Turn, derive_seed
from agentrl_cli.envs.base import Env, train_tasks

EXPERT_PREFIX = "expert:"  # how data.demos asks for the environment's own expert


def expert_episodes(env: Env, count: int, seed: int) -> list[Episode]:
    """`count` episodes of the expert on tasks of the train split, all tasks once before any comes
    again. Those that it loses or that break are no demonstrations: UserError where these are more
    than ten and a tenth, or where there are no tasks."""
    tasks, found, lost = train_tasks(env), [], 0
    while len(found) < count:
        place = len(found) + lost
        epoch, at = divmod(place, len(tasks))
        order = random.Random(derive_seed(seed, "demos", epoch)).sample(tasks, len(tasks))
        task, name = order[at], f"demo-{place:06d}"
        try:
            played = expert_episode(copy.copy(env), task, derive_seed(seed, "demos", place), name)
        except EpisodeError:
            lost += 1
        else:
            found += [played] if played.success else []
            lost += not played.success
        if lost > max(10, count // 10):
            raise UserError(f"the expert lost {lost} of {place + 1} episodes; mend it first")
    return found


def expert_lines(source: str, env: Env) -> list[str]:
    """The lines of `agentrl demos seed=0` for a source `expert:N`: N episodes, the same for every
    run. Raises UserError where N is no number or the environment's expert cannot."""
    asked = source.removeprefix(EXPERT_PREFIX)
    if not asked.isdecimal() or int(asked) < 1:
        raise UserError(
            f"data.demos is '{source}'; give a file, or {EXPERT_PREFIX}128 for 128 episodes"
        )
    return [
        files.json_line(episode.to_json()) for episode in expert_episodes(env, int(asked), seed=0)
    ]


def expert_episode(env: Env, task: Task, seed: int, name: str) -> Episode:
    """One episode as text, without ids; what is privileged is not kept. UserError where the
    environment has no expert."""
    seen = env.reset(task, seed)
    seen = [Message("system", env.system()), *seen] if env.system() else seen
    actions, turns, over, stop = env.expert(task), [], False, "truncated"
    if actions is None:
        raise UserError("the environment has no expert; give it one, or demonstrations of your own")
    while not over and (action := next(actions, None)) is not None:
        step = env.step(action)
        info = {key: value for key, value in step.info.items() if key != "privileged"}
        turns.append(Turn(seen, action, [], [], [], step.reward, step.done, info=info))
        seen, over = step.messages, step.done or step.truncated
        stop = "done" if step.done else "truncated"
    env.close()
    return Episode(name, task, name, seed, turns, stop=stop, closing=seen)
