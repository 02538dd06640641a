"""docs/metrics.md explains every metric that a run logs, and none that no run does."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from agentrl_cli.train import start

ROOT = Path(__file__).parent.parent
ALGORITHMS = sorted(file.stem for file in (ROOT / "conf" / "algo").glob("*.yaml"))
SMALL = [
    "env=coin", "model.weights=null", "steps=2", "eval_every=1", "eval.episodes_per_task=1",
    "rollout.episodes_per_step=8", "name=it",
]  # fmt: skip
MORE = {  # what switches a part on that the default leaves out
    "grpo": ["algo.kl=0.1"],
    "nlac": ["algo.kl=0.1", "algo.warmup=1", "algo.turns_per_update=8", "algo.replay=32",
             "algo.advanced.watched_states=2", "algo.advanced.probes=2"],
}  # fmt: skip
FLAGS = "(invalid|repeated)"
GROUPS = {
    "env/coin.yaml": "_target_: coin.Coin\nturns: 2\n",
    "hardware/speaker.yaml": "device: cpu\nthreads: 1\ntokens_per_batch: 4096\n"
    "generator: {_target_: coin.Speaker}\n",
}


def documented() -> list[str]:
    """The names in the first column of the tables, as regular expressions."""
    rows = re.findall(r"^\| `([^`]+)` \|", (ROOT / "docs" / "metrics.md").read_text(), re.MULTILINE)
    return [re.sub(r"<\w+>", "[a-z_]+", name.replace("<flag>", FLAGS)) for name in rows]


def logged(algo: str, folder: Path, *more: str) -> set[str]:
    for name, text in GROUPS.items():
        (folder / "conf" / name).parent.mkdir(parents=True)
        (folder / "conf" / name).write_text(text)
    overrides = [*SMALL, f"algo={algo}", f"runs={folder / 'runs'}", *MORE.get(algo, []), *more]
    start(overrides, config_dir=folder / "conf")
    lines = (folder / "runs" / "it" / "metrics.jsonl").read_text().splitlines()
    return {name for line in lines for name in json.loads(line)} - {"step"}


@pytest.fixture(scope="module")
def every_metric(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    found = logged("sft", tmp_path_factory.mktemp("run"), "hardware.threads=1")
    for algo in ALGORITHMS:
        found |= logged(algo, tmp_path_factory.mktemp("run"), "hardware=speaker")
    return found


def test_every_metric_of_a_run_is_explained(every_metric: set[str]):
    shapes = documented()
    assert {m for m in every_metric if not any(re.fullmatch(s, m) for s in shapes)} == set()


def test_every_explained_metric_is_logged_by_some_run(every_metric: set[str]):
    assert {s for s in documented() if not any(re.fullmatch(s, m) for m in every_metric)} == set()


def test_every_metric_is_explained_once():
    names = documented()
    assert len(names) == len(set(names))
