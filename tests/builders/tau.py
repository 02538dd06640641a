"""A small retail and a small airline service of our own in τ-bench's formats, as JSON and as a
checkout's Python files; and where the real data lies, if it does."""

from __future__ import annotations

import json
import pprint
from pathlib import Path
from typing import Any

import pytest

from agentrl_cli.envs.tau.data import Domain, load_domain
from agentrl_cli.envs.tau.env import TauBench
from tests import paths

DATA = paths.DATA / "taubench"
needs_data = pytest.mark.skipif(
    not DATA.is_dir(), reason="τ-bench's data is not here; set AGENTRL_DATA to its parent folder"
)

SERVICES = json.loads((Path(__file__).parent / "tau_services.json").read_text())
TABLES, ALL_TASKS, SCHEMA = SERVICES["tables"], SERVICES["tasks"], SERVICES["schema"]
SHOPPERS = TABLES["retail"]["users"]
INSTRUCTION = ALL_TASKS["retail"]["train"][0]["instruction"]


def write_json(folder: Path) -> Path:
    for name, tables in TABLES.items():
        (folder / name).mkdir(parents=True)
        files = {**tables, "tools": [SCHEMA]}
        files |= {f"tasks_{split}": rows for split, rows in ALL_TASKS[name].items()}
        for stem, value in files.items():
            (folder / name / f"{stem}.json").write_text(json.dumps(value))
        (folder / name / "policy.md").write_text(f"The {name} policy.\n")
    return folder


def write_checkout(folder: Path) -> Path:
    for name, tables in TABLES.items():
        root = folder / "tau_bench" / "envs" / name
        for inner in ("data", "tools"):
            (root / inner).mkdir(parents=True)
        for stem, value in tables.items():
            (root / "data" / f"{stem}.json").write_text(json.dumps(value))
        for split, rows in ALL_TASKS[name].items():
            (root / f"tasks_{split}.py").write_text(module(rows))
        (root / "tools" / "think.py").write_text(
            "class Think(Tool):\n    @staticmethod\n    def get_info():\n"
            f"        return {pprint.pformat(SCHEMA)}\n"
        )
        (root / "tools" / "__init__.py").write_text("raise SystemExit('never run')\n")
        (root / "wiki.md").write_text(f"The {name} policy.\n")
    return folder


def module(rows: list[dict[str, Any]]) -> str:
    tasks = []
    for row in rows:
        actions = [f"Action(name={a['name']!r}, kwargs={a['kwargs']!r})" for a in row["actions"]]
        tasks.append(
            f"Task(annotator='0', user_id={row['user_id']!r}, instruction={row['instruction']!r}, "
            f"actions=[{', '.join(actions)}], outputs={row['outputs']!r})"
        )
    return f"raise SystemExit('never run')\nTASKS = [{', '.join(tasks)}]\n"


@pytest.fixture(scope="session")
def services(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_json(tmp_path_factory.mktemp("tau"))


def domain(name: str, folder: Path) -> Domain:
    return load_domain(name, str(folder))


def tau_env(name: str, folder: Path | None, **changes: Any) -> TauBench:
    settings: dict[str, Any] = {
        "domain": name, "data": str(folder) if folder else None, "user": "scripted",
        "actions": "call" if name == "mini" else "native", "max_turns": 30, "holdout": 0,
        "llm": None,
    }  # fmt: skip
    return TauBench(**{**settings, **changes})
