"""The parts of bench/performance.py, at toy sizes: the sides do the same work, a figure that
is worse is told, and the page knows every figure."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from statistics import fmean

import pytest

from agentrl_cli.core.types import Episode
from bench.measures.logprobs import LogprobCase, peak
from bench.measures.workload import LORA, QUICK, Ours, Updates, write_model
from bench.peers.environments import PACKAGES
from bench.performance import FIGURES, worse
from bench.phases import PHASES
from bench.trl_learning import gap
from tests.paths import ROOT

PEERS = {name for name in FIGURES if any(f"_vs_{peer}" in name for peer in PACKAGES)}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    write_model(folder, QUICK)
    return folder


def ran(script: str, flag: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, f"bench/{script}", flag]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done


def lengths(episode: Episode) -> list[tuple[int, int]]:
    return [(len(turn.observation_ids), len(turn.action_ids)) for turn in episode.turns]


@pytest.mark.parametrize("lora", [None, LORA])
def test_rollout_has_the_configured_tokens(model: Path, lora):
    ours = Ours(model, QUICK, lora)
    one, *others = map(lengths, ours.play(3))
    assert one == [(QUICK.prompt, QUICK.new), *[(QUICK.seen, QUICK.new)] * 2]
    assert others == [one] * (QUICK.episodes - 1)
    found = ours.rollout(3)
    assert found["tokens"] == QUICK.episodes * 3 * QUICK.new and found["seconds"] > 0


def test_peer_gets_the_same_work(model: Path):
    ours = Ours(model, QUICK)
    finished = ours.finished()
    work = ours.work(finished)
    for ids, row, episode in zip(work["prompt_ids"], work["update"]["rows"], finished, strict=True):
        first, *later = episode.turns
        assert ids == first.observation_ids == row["ids"][: row["prompt"]]
        assert all(turn.observation_ids == work["reply_ids"] for turn in later)
        assert len(row["ids"]) == len(row["mask"]) == episode.tokens
        assert sum(row["mask"]) == sum(len(turn.action_ids) for turn in episode.turns)
        assert row["advantage"] == 2 * episode.reward - 1
    assert len({len(episode.turns) for episode in finished}) > 1, "all episodes are as long"
    json.dumps(work)


@pytest.mark.parametrize("steps", [1, 2])
def test_update_takes_the_given_steps(model: Path, steps: int):
    updates = Updates(model, Ours(model, QUICK).finished(), steps)
    assert updates.update()["steps"] == updates.update()["steps"] == steps


def test_chunked_logprobs_are_equal_and_smaller(monkeypatch):
    monkeypatch.setattr("agentrl_cli.models.forward.LOGITS_AT_ONCE", 4 * 5000)
    reader = LogprobCase(vocabulary=5000, tokens=64, width=128)
    assert reader.chunked().tolist() == pytest.approx(reader.plain().tolist(), abs=1e-5)
    assert peak(reader.chunked) < 0.9 * peak(reader.plain)


def test_page_has_every_stored_figure():
    stored = json.loads((ROOT / "docs" / "results" / "performance.json").read_text())
    lines = (ROOT / "docs" / "performance.md").read_text().splitlines()
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]
    rows = {row[0].strip("`"): row[3:] for row in cells if len(row) > 3}
    for name in FIGURES:
        shown = [f"{stored[name]:g}"]
        if f"{name}_low" in stored:
            kinds = ("low", "high", "theirs_seconds", "ours_seconds")
            low, high, theirs, ours = (f"{stored[f'{name}_{kind}']:g}" for kind in kinds)
            shown = [f"{shown[0]} [{low}, {high}]", f"{theirs}, {ours}"]
        assert [cell.removesuffix(" (missed)") for cell in rows[name]] == shown


def test_readme_has_the_stored_ratios():
    stored = json.loads((ROOT / "docs" / "results" / "performance.json").read_text())
    readme = " ".join((ROOT / "README.md").read_text().split())
    assert f"takes {stored['rollout_vs_trl_20_turns']:.1f} times as long in TRL" in readme
    assert f"a GRPO update {stored['grpo_update_vs_trl']:.1f} times" in readme


def test_page_has_every_stored_phase():
    stored = json.loads((ROOT / "docs" / "results" / "phases.json").read_text())
    lines = (ROOT / "docs" / "performance.md").read_text().splitlines()
    for recipe in stored.values():
        for algo, seconds in recipe.items():
            shown = " | ".join(f"{seconds[name]:g}" for name in PHASES)
            assert f"| `{algo}` | {shown} |" in lines


def test_gap_is_of_the_last_quarter():
    rewards = [[0.0] * 18 + [end] * 6 for end in (0.5, 0.6, 0.7)]
    own = {str(seed): {"rewards": values} for seed, values in enumerate(rewards)}
    trl = {
        seed: {"rewards": [0.1 + value for value in run["rewards"]]} for seed, run in own.items()
    }
    mean, low, high = gap({"agentrl": own, "trl": trl}).values()
    assert mean == pytest.approx(0.1) and low == pytest.approx(0.1 - 0.2267, abs=1e-4)
    assert low + high == pytest.approx(0.2)  # 2.776 (4 degrees of freedom) x 0.1 x sqrt(2 / 3)


def test_page_has_the_stored_gap():
    sides = json.loads((ROOT / "docs" / "results" / "trl_learning.json").read_text())
    stored = json.loads((ROOT / "docs" / "results" / "parity.json").read_text())
    found = gap(sides)
    assert stored == stored | found
    trl, own = (fmean(r for run in sides[side].values() for r in run["rewards"][-6:])
                for side in ("trl", "agentrl"))  # fmt: skip
    page = " ".join((ROOT / "docs" / "performance.md").read_text().split())
    assert f"the mean reward is {trl:.2f} in TRL and {own:.2f} here" in page
    middle, low, high = (f"{number:.2f}".replace("-", "−") for number in found.values())
    assert f"is {middle}, with a 95 % interval of [{low}, {high}]" in page


def test_worse_figures_are_listed():
    stored = {"rollout_vs_trl_1_turn": 6.0, "first_episode_seconds": 6.0, "torch": "2"}
    slower = {"rollout_vs_trl_1_turn": 5.0, "first_episode_seconds": 7.2, "torch": "3"}
    faster = {"rollout_vs_trl_1_turn": 9.0, "first_episode_seconds": 3.0}
    assert worse(slower, stored, 0.15) == [
        "first_episode_seconds is 7.2, 20% worse than the stored 6",
        "rollout_vs_trl_1_turn is 5, 20% worse than the stored 6",
    ]
    assert worse(slower, stored, 0.25) == worse(faster, stored, 0.0) == []
    below = {"help_ms_above_typer": -20.0}
    assert worse({"help_ms_above_typer": -30.0}, below, 0.0) == []
    assert len(worse({"help_ms_above_typer": 10.0}, below, 0.25)) == 1


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_script_measures_without_peers():
    done = ran("performance.py", "--quick")
    measured = {line.split()[0] for line in done.stdout.splitlines() if " " in line}
    assert measured == FIGURES.keys() - PEERS
    assert done.stderr.count("is left out; give --peers FOLDER") == len(PEERS)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_gpu_script_runs():
    figures = json.loads(ran("gpu.py", "--try").stdout)
    units = ("_second", "_seconds", "_gib", "_ratio")
    assert all(
        name.endswith(units) and value >= 0 for name, value in figures.items() if name != "torch"
    )
    assert {"toy_lora_rollout_tokens_per_second", "toy_lora_update_seconds"} <= figures.keys()
