"""Encyclopedias and searches for tests."""

from __future__ import annotations

import copy
import json
from functools import cache
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from agentrl_cli.core.types import Step, Task
from agentrl_cli.envs.wiki.env import Wiki
from tests.paths import CONF

PROMPTED = ("_target_", "instructions")


@cache
def settings(name: str = "wiki") -> dict[str, Any]:
    file: Any = OmegaConf.to_container(OmegaConf.load(CONF / "env" / f"{name}.yaml"))
    below = [settings(one) for one in file.get("defaults", []) if one != "_self_"]
    node = {key: value for key, value in file["env"].items() if key not in PROMPTED}
    return {key: value for found in [*below, node] for key, value in found.items()}


def wiki(name: str = "wiki", **changes: Any) -> Wiki:
    return Wiki(**{**settings(name), **changes})


def begun(env: Wiki, task: Task | None = None) -> Wiki:
    """A fresh episode of a task, the first one to train on where none is given."""
    env = copy.copy(env)
    env.reset(task or env.tasks("train")[0], 0)
    return env


def shown(env: Wiki, *actions: str) -> str:
    """What is shown after the last of these actions, without the turns that are left."""
    text = ""
    for action in actions:
        text = env.step(action).messages[0].content
    return text.rpartition("left.")[0].rstrip("0123456789 ").rstrip() or text


def expert_steps(env: Wiki, task: Task) -> list[tuple[str, Step]]:
    env = begun(env, task)
    return [(action, env.step(action)) for action in env.expert(task)]


DATA = json.loads((Path(__file__).parent / "wiki_data.json").read_text())
PAGES: dict[str, Any] = DATA["PAGES"]
ROWS: list[dict[str, Any]] = DATA["ROWS"]
PARAGRAPHS, HOTPOT, TWO_WIKI = DATA["PARAGRAPHS"], DATA["HOTPOT"], DATA["TWO_WIKI"]


def write_folder(root: Path, pages: dict[str, Any] | None = None, rows: Any = ROWS) -> Path:
    for name, content in (PAGES if pages is None else pages).items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        raw = content if isinstance(content, bytes) else content.encode()
        (root / name).write_bytes(raw)
    lines = rows if isinstance(rows, str) else "\n".join(map(json.dumps, rows))
    (root / "questions.jsonl").write_text(lines)
    return root
