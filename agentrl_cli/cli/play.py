"""One episode in the terminal: a person's, or a trained model's. Rules are the environment's."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from agentrl_cli.config.compose import build, check, compose, load
from agentrl_cli.config.suggestions import nearest
from agentrl_cli.core.errors import UserError
from agentrl_cli.core.terminal import safe
from agentrl_cli.core.types import Episode, Message, Task
from agentrl_cli.envs.base import Env
from agentrl_cli.envs.contract import answer, first_messages, opening
from agentrl_cli.report.episode import labelled, render
from agentrl_cli.runs.best import played_checkpoint
from agentrl_cli.runs.find import find_run
from agentrl_cli.runs.run import PLAYED_PARTS, Run

SPLITS = ("test", "train", "val")  # where a task is searched; an unnamed one is of the first


def play(
    overrides: list[str], ref: str | None, task_id: str | None, config_dir: Path | None
) -> None:
    """Play a test task, a random one where none is named."""
    if ref is None:
        env, seed = _environment(overrides, config_dir)
        play_person(env, find_task(env, task_id), seed)
        return
    run = find_run(ref)
    cfg = check(load(run.config_file, overrides))
    task = find_task(build(cfg.env), task_id)
    print("\n".join(render(play_with_policy(cfg, run, task), run.name)))


def play_person(env: Env, task: Task, seed: int) -> None:
    """Show what the world says and send it lines of stdin until the episode or the input ends."""
    first, reward = opening(env, task, seed), 0.0
    _show(first)
    for line in _typed_lines():
        step = answer(env, line)
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
    """The named task of any split, or any task of the first split that has one. Raises UserError
    where there is none."""
    if task_id is None:
        found = next(filter(None, (_tasks(env, split) for split in SPLITS)), None)
        if found is None:
            raise UserError("the environment has no task in any split; give it one")
        return random.choice(found)
    tasks = {task.id: task for split in SPLITS for task in _tasks(env, split)}
    if task_id not in tasks:
        raise UserError(f"task '{task_id}' not found{nearest(task_id, tasks)}")
    return tasks[task_id]


def _tasks(env: Env, split: str) -> list[Task]:
    """The tasks of a split; none where the environment does not know it, which only val may be."""
    try:
        return env.tasks(split)
    except UserError:
        if split != "val":
            raise
        return []


def replay_command(
    overrides: list[str],
    task_id: str | None,
    script: Path | None,
    config_dir: Path | None,
    as_json: bool,
) -> None:
    """`agentrl play --script FILE`: replay actions and print what the world answered."""
    if script is None:
        raise UserError("--json prints a replay; name the file of its actions with --script FILE")
    env, seed = _environment(overrides, config_dir)
    record = replay(env, find_task(env, task_id), read_script(script), seed)
    if as_json:
        print(json.dumps(record))
        return
    _show([Message(**row) for row in record["first"]])
    for step in record["steps"]:
        _show([Message("agent", step["action"]), *(Message(**row) for row in step["messages"])])
    print(f"{record['stop']}, reward {record['reward']:g}, state {record['digest']}")


def read_script(file: Path) -> list[str]:
    """The actions of a file: a JSON list, or one action a line, as JSON or as it stands. What is
    not a string becomes its JSON text. UserError for a file that cannot be read."""
    try:
        text = file.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"script '{file}' cannot be read ({error}); name a text file") from None
    content = _json(text)
    actions = content if isinstance(content, list) else map(_json, text.splitlines())
    return [a if isinstance(a, str) else json.dumps(a) for a in actions if a != ""]


def replay(env: Env, task: Task, actions: list[str], seed: int) -> dict[str, Any]:
    """Play `actions` until the episode ends. The record, JSON values only: every step, the reward,
    `stop` (done, truncated, or open where the script ended first), how many actions were left, and
    the hash of the final state (None where the environment has none)."""
    first, steps, stop = first_messages(env, task, seed), [], "open"
    for action in actions:
        step = answer(env, action)
        steps.append({"action": action, **asdict(step)})
        if step.done or step.truncated:
            stop = "done" if step.done else "truncated"
            break
    record = {
        "task": task.id, "first": [asdict(message) for message in first], "steps": steps,
        "reward": sum(step["reward"] for step in steps), "stop": stop,
        "success": bool(steps and steps[-1]["info"].get("success", False)),
        "left": len(actions) - len(steps), "digest": env.digest(),
    }  # fmt: skip
    env.close()
    return record


def _json(text: str) -> Any:
    """The JSON value of a text, or the text itself."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _environment(overrides: list[str], config_dir: Path | None) -> tuple[Env, int]:
    """The environment of a configuration, whose other parts are not read, and the seed."""
    cfg = check(compose(overrides, config_dir), skip=("algo", "hardware", "model", "rollout"))
    return build(cfg.env), cfg.seed


def _typed_lines() -> Iterable[str]:
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
        print("\n".join(labelled([(message.role, message.content)])))


def play_with_policy(cfg: DictConfig, run: Run | None, task: Task) -> Episode:
    """One annotated episode of a task by a run's policy, or by the starting one without a run."""
    from agentrl_cli.training.assemble import assemble
    from agentrl_cli.training.evaluate import task_starts

    parts = assemble(cfg, None, learns=False, restored=run is not None)
    if run is not None:
        parts.restore_models(played_checkpoint(run, *PLAYED_PARTS).folder)
    episodes = parts.play(task_starts(parts.seed, task, 1), parts.collector.sampling)
    parts.algo.annotate(episodes)
    return episodes[0]
