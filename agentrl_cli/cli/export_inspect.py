"""`agentrl export RUN --inspect DIR`: write the last evaluation as a log for Inspect (inspect_ai).

The file has version 2 of the format of its EvalLog and is written without its package. Each
episode is a sample with messages, reward, success and the texts of a critic.
"""

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
from agentrl_cli.core.types import Episode
from agentrl_cli.report.records import read_record
from agentrl_cli.runs import episode_files
from agentrl_cli.runs.find import find_run
from agentrl_cli.runs.run import Run, step_of

LOG_VERSION = 2
STOPS = {"done": "stop", "context": "model_length", "truncated": "unknown", "error": "unknown"}
Json = dict[str, Any]


def export_inspect(ref: str, folder: Path) -> tuple[Path, int]:
    """Write the log. Returns its file and the number of samples.

    Raises UserError for an unknown run, a run without an evaluation, and a file that exists or
    cannot be written.
    """
    run = find_run(ref)
    found = run.episode_files("eval")
    if not found:
        line = f"run '{run.name}' has no evaluation yet; wait for its first one"
        raise UserError(line, code="no-evaluation")
    record = read_record(run)
    kept = record.final_step if record.config.get("save_best") else None
    source = next((file for file in found if step_of(file) == kept), found[-1])
    episodes, step = episode_files.read_all(source), step_of(source)
    parts = (run.meta["created"][:19], run.meta.get("choices", {}).get("env"), run.name)
    name = "_".join(re.sub(r"[^A-Za-z0-9]+", "-", str(part)) for part in parts)
    file = folder / f"{name}-{step}.json"
    if files.is_file(file):
        raise UserError(f"'{file}' exists; give another folder", code="exists")
    with files.explain_write_errors(folder, "give another folder"):
        folder.mkdir(parents=True, exist_ok=True)
        files.write_json(file, eval_log(run, step, episodes))
    return file, len(episodes)


def eval_log(run: Run, step: int, episodes: list[Episode]) -> Json:
    """Return the evaluation of a step as an EvalLog."""
    choices, model, count = run.meta.get("choices", {}), f"agentrl/{run.name}", len(episodes)
    history, created = run.meta["history"], run.meta["created"]
    means = {
        "success": mean(e.success for e in episodes),
        "reward": mean(e.reward for e in episodes),
    }
    return {
        "version": LOG_VERSION,
        "status": "success",
        "eval": {
            "run_id": run.name, "created": created, "task": str(choices.get("env")),
            "model": model, "task_id": f"{run.name}-step-{step}",
            "dataset": {"name": str(choices.get("env"))},
            "config": {"epochs": max(Counter(e.task.id for e in episodes).values(), default=1)},
            "packages": {"agentrl-cli": __version__},
            "metadata": {"step": step, "command": run.meta.get("command"), "choices": choices},
        },
        "plan": {},
        "results": {
            "total_samples": count, "completed_samples": count,
            "scores": [
                {"name": name, "scorer": name, "metrics": {"mean": {"name": "mean", "value": x}}}
                for name, x in means.items()
            ],
        },
        "stats": {
            "started_at": created,
            "completed_at": history[-1].get("time", created) if history else created,
        },
        "samples": list(samples(episodes, model)),
    }  # fmt: skip


def samples(episodes: list[Episode], model: str) -> Iterator[Json]:
    """Yield every episode as a sample; episodes of one task are its epochs."""
    seen: Counter[str] = Counter()
    for episode in episodes:
        seen[episode.task.id] += 1
        messages = list(dialogue(episode))
        last = next((m for m in reversed(messages) if m["role"] == "assistant"), None)
        stop = STOPS.get(episode.stop, "unknown")
        choices = [{"message": last, "stop_reason": stop}] if last else []
        error = {"message": episode.error, "traceback": "", "traceback_ansi": ""}
        yield {
            "id": episode.task.id, "epoch": seen[episode.task.id],
            "input": next((m["content"] for m in messages if m["role"] == "user"), ""),
            "target": "", "messages": messages, "output": {"model": model, "choices": choices},
            "scores": {
                "success": {"value": "C" if episode.success else "I"},
                "reward": {"value": float(episode.reward)},
            },
            "metadata": {
                "episode": episode.id, "seed": episode.seed, "stop": episode.stop,
                "turns": [{"reward": turn.reward, **turn.info} for turn in episode.turns],
            },
            "total_time": episode.seconds,
            **({"error": error} if episode.error else {}),
        }  # fmt: skip


def dialogue(episode: Episode) -> Iterator[Json]:
    """Yield all messages of an episode in order, with the actions of the agent."""
    for turn in episode.turns:
        yield from ({"role": m.role, "content": m.content} for m in turn.observation)
        yield {"role": "assistant", "content": turn.action, "source": "generate"}
    yield from ({"role": m.role, "content": m.content} for m in episode.final_observation)
