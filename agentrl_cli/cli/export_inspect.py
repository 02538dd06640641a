"""`agentrl export RUN --inspect DIR`: a run's last evaluation as a log of Inspect (inspect_ai),
which its viewer opens. The format is that of version 2 of its EvalLog, written without its package:
a sample for each episode, with its messages, its reward and success, and what a critic said."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from agentrl_cli import __version__
from agentrl_cli.core import files
from agentrl_cli.core.errors import UserError
from agentrl_cli.core.statistics import mean
from agentrl_cli.core.types import Episode, Message, Turn
from agentrl_cli.report.records import read_record
from agentrl_cli.runs import episode_files
from agentrl_cli.runs.find import find_run
from agentrl_cli.runs.run import Run, step_of

LOG_VERSION = 2
SUCCESS, REWARD = "success", "reward"  # names of the scores
STOPS = {"done": "stop", "context": "model_length", "truncated": "unknown", "error": "unknown"}
Json = dict[str, Any]


def export_inspect(ref: str, folder: Path) -> tuple[Path, int]:
    """Write the log into a folder; its file, by a name that Inspect lists, and how many samples it
    has. Raises UserError for an unknown run, one without an evaluation, and a log that exists or
    cannot be written."""
    run = find_run(ref)
    found = run.episode_files("eval")
    if not found:
        raise UserError(f"run '{run.name}' has no evaluation yet; wait for its first one")
    record = read_record(run)
    kept = record.final_step if record.config.get("save_best") else None
    file = next((file for file in found if step_of(file) == kept), found[-1])
    episodes, step = episode_files.read_all(file), step_of(file)
    began, task = plain(run.meta["created"][:19]), plain(run.meta.get("choices", {}).get("env"))
    file = folder / f"{began}_{task}_{plain(run.name)}-{step}.json"
    if files.is_file(file):
        raise UserError(f"'{file}' exists; give another folder")
    with files.explain_write_errors(folder, "give another folder"):
        folder.mkdir(parents=True, exist_ok=True)
        files.write_json(file, log_of(run, step, episodes))
    return file, len(episodes)


def plain(name: object) -> str:
    """A name without what separates the parts of a log's file name."""
    return re.sub(r"[^A-Za-z0-9]+", "-", str(name))


def log_of(run: Run, step: int, episodes: list[Episode]) -> Json:
    """The evaluation of a step as one EvalLog."""
    choices, model = run.meta.get("choices", {}), f"agentrl/{run.name}"
    task = str(choices.get("env"))
    history, created = run.meta["history"], run.meta["created"]
    ended = history[-1].get("time", created) if history else created
    return {
        "version": LOG_VERSION,
        "status": "success",
        "eval": {
            "run_id": run.name, "created": created, "task": task, "model": model,
            "task_id": f"{run.name}-step-{step}", "dataset": {"name": task},
            "config": {"epochs": max(Counter(e.task.id for e in episodes).values(), default=1)},
            "packages": {"agentrl-cli": __version__},
            "metadata": {"step": step, "command": run.meta.get("command"), "choices": choices},
        },
        "plan": {},
        "results": results(episodes),
        "stats": {"started_at": created, "completed_at": ended},
        "samples": list(samples(episodes, model)),
    }  # fmt: skip


def results(episodes: list[Episode]) -> Json:
    """Means of success and reward."""
    values = {
        SUCCESS: [float(episode.success) for episode in episodes],
        REWARD: [float(episode.reward) for episode in episodes],
    }
    scores = [
        {"name": name, "scorer": name, "metrics": {"mean": {"name": "mean", "value": mean(row)}}}
        for name, row in values.items()
    ]
    count = len(episodes)
    return {"total_samples": count, "completed_samples": count, "scores": scores}


def samples(episodes: list[Episode], model: str) -> Iterator[Json]:
    """Every episode; those of one task are its epochs."""
    seen: Counter[str] = Counter()
    for episode in episodes:
        seen[episode.task.id] += 1
        messages = list(dialogue(episode))
        last = next((m for m in reversed(messages) if m["role"] == "assistant"), None)
        stop = STOPS.get(episode.stop, "unknown")
        choices = [{"message": last, "stop_reason": stop}] if last else []
        yield {
            "id": episode.task.id, "epoch": seen[episode.task.id],
            "input": next((m["content"] for m in messages if m["role"] == "user"), ""),
            "target": "", "messages": messages, "output": {"model": model, "choices": choices},
            "scores": {
                SUCCESS: {"value": "C" if episode.success else "I"},
                REWARD: {"value": float(episode.reward)},
            },
            "metadata": {"episode": episode.id, "seed": episode.seed, "stop": episode.stop,
                         "turns": [turn_notes(turn) for turn in episode.turns]},
            "total_time": episode.seconds,
            **({"error": error(episode.error)} if episode.error else {}),
        }  # fmt: skip


def dialogue(episode: Episode) -> Iterator[Json]:
    """All messages of an episode in their order, the agent's actions among them."""
    for turn in episode.turns:
        yield from map(message, turn.observation)
        yield {"role": "assistant", "content": turn.action, "source": "generate"}
    yield from map(message, episode.closing)


def message(said: Message) -> Json:
    """A message of the world."""
    return {"role": said.role, "content": said.content}


def turn_notes(turn: Turn) -> Json:
    """A turn's reward, and what the world and the algorithm noted of it."""
    return {"reward": turn.reward, **turn.info}


def error(text: str) -> Json:
    """What broke an episode."""
    return {"message": text, "traceback": "", "traceback_ansi": ""}
