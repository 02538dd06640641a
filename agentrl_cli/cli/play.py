"""`agentrl play`: play one episode in the terminal, or replay a file of actions."""

from __future__ import annotations

import json
import random
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from agentrl_cli.config.compose import ConfigDirs, build, check, compose, load, not_found
from agentrl_cli.core.errors import UserError
from agentrl_cli.core.terminal import safe
from agentrl_cli.core.types import Episode, Message, Task
from agentrl_cli.envs.base import Env
from agentrl_cli.envs.check import answer, first_messages, opening
from agentrl_cli.report.episode import labelled, render
from agentrl_cli.runs.checkpoints import played_checkpoint
from agentrl_cli.runs.find import find_run
from agentrl_cli.runs.run import PLAYED_PARTS, Run

SPLITS = ("test", "train", "val")  # in the order in which a task is searched


def play_command(
    overrides: list[str],
    ref: str | None,
    task_id: str | None,
    config_dirs: ConfigDirs,
    script: Path | None = None,
    *,
    as_json: bool = False,
) -> None:
    """Play a task, by default a random test task, with the user, a run or a script as the agent."""
    if script is None and as_json:
        raise UserError("--json needs a file of actions; give --script FILE", code="no-script")
    if ref is not None:
        run = find_run(ref)
        cfg = check(load(run.config_file, overrides))
        episode = play_with_policy(cfg, run, find_task(build(cfg.env), task_id))
        print("\n".join(render(episode, run.name)))
        return
    cfg = check(compose(overrides, config_dirs), skip=("algo", "hardware", "model", "rollout"))
    env: Env = build(cfg.env)
    task = find_task(env, task_id)
    if script is None:
        play_interactively(env, task, cfg.seed)
        return
    record = replay(env, task, read_script(script), cfg.seed)
    if as_json:
        print(json.dumps(record))
        return
    _print([Message(**row) for row in record["first"]])
    for step in record["steps"]:
        _print([Message("agent", step["action"]), *(Message(**row) for row in step["messages"])])
    print(f"{record['stop']}, reward {record['reward']:g}, state {record['digest']}")


def play_interactively(env: Env, task: Task, seed: int) -> None:
    """Play with lines of stdin as actions until the episode or the input ends."""
    reward = 0.0
    _print(opening(env, task, seed))
    while True:
        print("> ", end="", file=sys.stderr, flush=True)
        if not (line := sys.stdin.readline()):
            print("stopped", file=sys.stderr)
            break
        if not line.strip():
            continue
        step = answer(env, line.strip())
        reward += step.reward
        _print(step.messages)
        if step.done or step.truncated:
            won = "success" if step.info.get("success") else "no success"
            print(f"{won}, reward {reward:g}, task {safe(task.id)}")
            break
    env.close()


def find_task(env: Env, task_id: str | None) -> Task:
    """Return the task with this ID, or a random task of the first split that has any.

    Raises UserError for an unknown task and for an environment without tasks.
    """
    by_id: dict[str, Task] = {}
    for split in SPLITS:
        try:
            tasks = env.tasks(split)
        except UserError:
            if split == "val":  # the only split that an environment may lack
                continue
            raise
        if task_id is None and tasks:
            return random.choice(tasks)
        by_id |= {task.id: task for task in tasks}
    if task_id is None:
        raise UserError("the environment has no tasks; check its data", code="no-tasks")
    if task_id not in by_id:
        raise not_found("task", task_id, by_id, "unknown-task")
    return by_id[task_id]


def read_script(file: Path) -> list[str]:
    """Return the actions of a file: a JSON list, or one action per line, as JSON or plain text.

    Values that are not strings become their JSON text. Raises UserError for an unreadable file.
    """
    try:
        text = file.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        line = f"script '{file}' cannot be read ({error}); name a text file"
        raise UserError(line, code="unreadable-script") from None
    content = _json(text)
    actions = content if isinstance(content, list) else map(_json, text.splitlines())
    return [a if isinstance(a, str) else json.dumps(a) for a in actions if a != ""]


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def replay(env: Env, task: Task, actions: list[str], seed: int) -> dict[str, Any]:
    """Play `actions` until the episode ends. Returns JSON values.

    `stop` is done, truncated, or open if the script ended first. `left` counts unused actions.
    `digest` is the hash of the final state, or None if the environment has none.
    """
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


def play_with_policy(cfg: DictConfig, run: Run, task: Task) -> Episode:
    """Return an annotated episode, played by the policy of a run."""
    from agentrl_cli.training.build import build_parts
    from agentrl_cli.training.evaluate import task_starts

    parts = build_parts(cfg, None, learns=False, restored=True)
    parts.restore_models(played_checkpoint(run, *PLAYED_PARTS).folder)
    collector = parts.collector
    episodes = collector.play(task_starts(collector.seed, task, 1), collector.sampling)
    parts.algo.annotate(episodes)
    return episodes[0]


def _print(messages: list[Message]) -> None:
    for message in messages:
        print("\n".join(labelled([(message.role, message.content)])))
