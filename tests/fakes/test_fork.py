"""The walk of the delayed-credit benchmark: its rules, and how episodes are counted."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentrl_cli.envs.check import check_env
from bench import delayed_credit as bench
from tests.fakes.fork import ForkEnv


@pytest.mark.parametrize(("first", "right"), [("even", True), ("odd", False)])
def test_first_turn_decides_and_seed_sets_coins(first: str, right: bool):
    world = ForkEnv(turns=3, coin=0.5)
    world.reset(world.tasks("train")[0], 7)
    steps = [world.step(first), world.step("x"), world.step("yy")]
    coins = [0.5 if "find" in step.messages[0].content else -0.5 for step in steps[1:]]
    assert steps[0].reward == 0 and ("right" in steps[0].messages[0].content) == right
    assert [step.reward for step in steps[1:]] == [coins[0], coins[1] + right]
    assert [step.done for step in steps] == [False, False, True]
    assert steps[-1].info == {"success": right}
    world.reset(world.tasks("train")[0], 7)
    again = [world.step(text).messages for text in ("other", "said", "now")]
    assert again[1:] == [step.messages for step in steps[1:]]


def test_coins_are_found_as_often_as_lost():
    found = 0
    for seed in range(400):
        world = ForkEnv(turns=2, coin=1.0)
        world.reset(world.tasks("train")[0], seed)
        world.step("odd")
        found += world.step("odd").reward > 0
    assert 160 < found < 240


def test_the_walk_is_a_sound_environment():
    assert check_env(lambda: ForkEnv(turns=3, coin=0.5)) == []


@pytest.mark.parametrize("name", bench.TRIALS)
def test_the_benchmark_counts_episodes_until_two_updates_succeed(
    name: str, model_folder: Path, monkeypatch: pytest.MonkeyPatch
):
    def row(*shares: float) -> dict:
        monkeypatch.setattr(bench, "learning", lambda algo, folder, seed: iter(shares))
        return bench.measured(name, bench.TRIALS[name][1], model_folder, 0)

    fast, slow = row(0.5, 0.95, 0.9, 1.0), row(0.5, 0.95, 0.2)
    assert fast["episodes"] == 3 * bench.EPISODES and fast["success"] == [0.5, 0.95, 0.9]
    assert slow["episodes"] is None
    assert bench.best([slow | {"numbers": {}}, fast]) == bench.TRIALS[name][1]
    assert bench.best([slow, slow | {"success": [1.0, 1.0], "numbers": {}}]) == {}
    assert len(bench.TRIALS[name]) == 4
