"""Demonstrations by an environment's own expert, as a file of episodes; demos.py reads them."""

from __future__ import annotations

import copy
import random
from pathlib import Path

from agentrl_cli import jsonl
from agentrl_cli.config import build, check, compose
from agentrl_cli.envs.base import Env, train_tasks
from agentrl_cli.errors import EpisodeError, UserError, at_least
from agentrl_cli.types import Episode, Message, Task, Turn, derive_seed

EXPERT = "expert:"  # how data.demos asks for the environment's own expert


def write_demos(overrides: list[str], config_dir: Path | None = None) -> tuple[Path, int]:
    """`agentrl demos env=... n=... out=...`: the file, and how many episodes it holds.

    Raises UserError where `n` or `out` is missing or wrong, or the environment has no expert.
    """
    count, out = _number(_named(overrides, "n")), Path(_named(overrides, "out"))
    rest = [text for text in overrides if not text.startswith(("n=", "out="))]
    cfg = check(compose(rest, config_dir), skip=("algo", "hardware", "model", "rollout"))
    if out.exists():
        raise UserError(f"'{out}' exists; choose another out=")
    episodes = demonstrate(build(cfg.env), count, cfg.seed)
    with jsonl.writing(out.parent, "choose another out="):
        jsonl.write(out, (episode.to_json() for episode in episodes))
    return out, len(episodes)


def demonstrate(env: Env, count: int, seed: int) -> list[Episode]:
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
    asked = source.removeprefix(EXPERT)
    if not asked.isdecimal() or int(asked) < 1:
        raise UserError(f"data.demos is '{source}'; give a file, or {EXPERT}128 for 128 episodes")
    return [jsonl.line(episode.to_json()) for episode in demonstrate(env, int(asked), seed=0)]


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


def _named(overrides: list[str], name: str) -> str:
    values = [text.partition("=")[2] for text in overrides if text.startswith(f"{name}=")]
    if len(values) != 1 or not values[0]:
        raise UserError("say how many episodes and where to; for example n=128 out=demos.jsonl")
    return values[0]


def _number(text: str) -> int:
    if not text.isdecimal():
        raise UserError(f"n is '{text}'; give a whole number")
    at_least(1, n=int(text))
    return int(text)
