"""The trials by which a comparison's algorithms are tuned: alike for each of them."""

from __future__ import annotations

import pytest

from agentrl_cli.config.compose import compose
from bench.results import TASKS
from bench.tuning import START, TRIALS, Trial, best


@pytest.mark.parametrize("env", TASKS)
@pytest.mark.parametrize("algo", ["nlac", "sft"])
def test_a_trial_composes_and_is_judged_by_val(env: str, algo: str):
    config = compose(Trial(env, algo, TRIALS[-1]).settings())
    assert config.eval.splits == ["val"] and config.seed == 10


@pytest.mark.parametrize("algo", ["nlac", "archer", "grpo", "stepagent_inverse"])
def test_trials_differ_in_rates_and_the_size_of_steps(algo: str):
    preset, third, thrice, small = (Trial("twentyq", algo, name).changes for name in TRIALS)
    assert not preset and third.keys() == thrice.keys()
    assert all(thrice[key] / third[key] == pytest.approx(9, rel=0.02) for key in third)
    assert all("lr" in key for key in third) and list(small) != list(third)
    assert next(iter(small)).endswith("minibatch_tokens")


def test_who_starts_from_sft_starts_from_its_preset():
    start = Trial("arithmetic", "dpo", "preset").start
    assert start == Trial("arithmetic", "sft", START)
    assert start is not None and start.settings() == ["experiment=math_sft", "seed=10"]
    assert Trial("arithmetic", "grpo", "preset").start is None


def test_the_best_is_one_after_training():
    rows = [{"step": 0, "val": 0.9}, {"step": 3, "val": 0.4}, {"step": 6, "val": 0.6}]
    assert best(rows) == rows[2]
