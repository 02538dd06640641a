"""Runs that never ran: folders with metrics and episodes of known numbers, for reports."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import yaml

from agentrl_cli.core import files
from agentrl_cli.core.types import Episode, Message, Task, Turn
from agentrl_cli.runs import episode_files

Outcomes = dict[str, list[int]]  # of each task's episodes: 1 won, 0 lost
BASE: Outcomes = {"cat": [1, 0], "dog": [0, 0], "owl": [1, 0], "elk": [0, 0]}
BETTER: Outcomes = {"cat": [1, 1], "dog": [1, 0], "owl": [1, 0], "elk": [0, 1]}


def episode(task: str, number: int, won: int, text: str = "Is it big?", **info: Any) -> Episode:
    asked = Turn([Message("user", "Ask.")], text, [1, 2], [3], [0.0], info=dict(info))
    guessed = Turn([Message("user", "No.")], "A cat.", [4], [5], [0.0], float(won))
    guessed.info = {"success": bool(won)}
    about = Task(f"t-{task}", "test", {"object": task})
    return Episode(f"t-{task}-e{number:02d}", about, task, number, [asked, guessed])


def episodes(outcomes: Outcomes, text: str = "Is it big?", **info: Any) -> list[Episode]:
    rows = [(task, n, won) for task, row in outcomes.items() for n, won in enumerate(row)]
    return [episode(task, n, won, text, **info) for task, n, won in rows]


def write_run(
    folder: Path,
    *,
    algo: str = "grpo",
    seed: int = 0,
    steps: int = 20,
    final: Outcomes | None = None,
    env: str = "twentyq",
    status: str = "done",
    text: str = "Is it big?",
    said: dict[str, Any] | None = None,
    **config: Any,
) -> Path:
    """A run's folder. Training success rises from 0.2 by 0.02 an update; an update plays 10
    episodes, takes 2 gradient steps and 3 seconds; `said` is put into every first turn's info."""
    (folder / "episodes").mkdir(parents=True)
    choices = {"algo": algo, "env": env, "model": "tiny"}
    meta = {
        "version": 1, "status": status, "error": None, "history": [], "seed": seed,
        "created": f"2026-11-21T00:00:{seed:02d}", "command": "agentrl train", "choices": choices,
    }  # fmt: skip
    files.write_json(folder / "meta.json", meta)
    node = {"env": {"name": env}, "eval": {"tasks": None}, "algo": {"name": algo}, **config}
    (folder / "config.yaml").write_text(yaml.safe_dump({"steps": steps, "seed": seed, **node}))
    evaluations = {0: BASE, steps: BETTER if final is None else final}
    rows = [_evaluation(0, BASE), *map(_update, range(1, steps + 1))]
    rows += [_evaluation(steps, evaluations[steps])] if status == "done" else []
    files.write_jsonl(folder / "metrics.jsonl", rows)
    for step, outcomes in evaluations.items():
        file = folder / "episodes" / f"eval-{step:06d}.jsonl"
        episode_files.write(file, episodes(outcomes, text, **(said or {})))
    return folder


def _update(step: int) -> dict[str, Any]:
    return {
        "step": step, "episodes/count": 10.0, "episodes/success": min(1.0, 0.2 + 0.02 * step),
        "episodes/tokens": 100.0, "policy/tokens": 80.0, "policy/steps": 2.0, "time/rollout": 1.0,
        "time/train": 1.5, "time/algorithm": 0.5, "policy/loss": 0.1,
    }  # fmt: skip


def _evaluation(step: int, outcomes: Outcomes) -> dict[str, Any]:
    values = [won for row in outcomes.values() for won in row]
    mean = sum(values) / len(values)
    return {
        "step": step, "eval/test_success": mean, "eval/test_success_low": mean - 0.1,
        "eval/test_success_high": mean + 0.1, "nlac/brier": 0.2, "time/eval": 7.0,
    }  # fmt: skip


def break_lines(folder: Path, *numbers: int) -> None:
    file = folder / "metrics.jsonl"
    lines = file.read_text().splitlines()
    for number in numbers:
        lines[number] = lines[number][: len(lines[number]) // 2]
    file.write_text("\n".join(lines) + "\n")


class Page(HTMLParser):
    """Collects what a browser would act on."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.links: set[str] = set()
        self.ids: list[str] = []
        self.titles: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        for name, value in attrs:
            self.attributes.add(name)
            if name in ("href", "src"):
                self.links.add((value or "")[:90])
            if name == "id":
                self.ids.append(value or "")
            if name == "title":
                self.titles.append(value or "")
