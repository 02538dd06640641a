"""One episode in the terminal: a person's, or a trained model's. Rules are the environment's."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterable
from pathlib import Path

from agentrl_cli.config import build, check, compose, load
from agentrl_cli.envs.base import Env
from agentrl_cli.errors import UserError
from agentrl_cli.report.episode import render
from agentrl_cli.report.text import labelled, safe
from agentrl_cli.run import find_run
from agentrl_cli.schema import nearest
from agentrl_cli.types import Message, Task

SPLIT = "test"


def play(overrides: list[str], run: str | None, task: str | None, config_dir: Path | None) -> None:
    """Play a test task, a random one where none is named."""
    if run is not None:
        _play_model(overrides, run, task)
        return
    cfg = check(compose(overrides, config_dir), skip=("algo", "hardware", "model", "rollout"))
    play_person(build(cfg.env), task, cfg.seed)


def play_person(env: Env, task_id: str | None, seed: int) -> None:
    """Show what the world says and send it lines of stdin until the episode or the input ends."""
    task = find_task(env, task_id)
    first = env.reset(task, seed)
    _show([Message("system", env.system()), *first])
    reward = 0.0
    for line in _lines():
        step = env.step(line)
        reward += step.reward
        _show(step.messages)
        if step.done or step.truncated:
            won = "success" if step.info.get("success") else "no success"
            print(f"{won}, reward {reward:g}, task {safe(task.id)}")
            break
    else:
        print("stopped", file=sys.stderr)
    env.close()


def find_task(env: Env, task_id: str | None) -> Task:
    """The named task of the test split, or any of them."""
    tasks = {task.id: task for task in env.tasks(SPLIT)}
    if task_id is None:
        return random.choice(list(tasks.values()))
    if task_id not in tasks:
        raise UserError(f"task '{task_id}' not found{nearest(task_id, tasks)}")
    return tasks[task_id]


def _play_model(overrides: list[str], ref: str, task_id: str | None) -> None:
    from agentrl_cli.evaluate import play_one

    run = find_run(ref)
    cfg = check(load(run.config_file, overrides))
    task = find_task(build(cfg.env), task_id)
    print("\n".join(render(play_one(cfg, run, task.id), run.name)))


def _lines() -> Iterable[str]:
    """Lines that a person types; empty ones are asked for again."""
    while True:
        print("> ", end="", file=sys.stderr, flush=True)
        line = sys.stdin.readline()
        if not line:
            return
        if line.strip():
            yield line.strip()


def _show(messages: list[Message]) -> None:
    for message in messages:
        print("\n".join(labelled(message.role, message.content)))
