"""On the bundled model the algorithms learn what they claim to; a broken learner fails here."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentrl_cli.cli.environment import write_demos
from agentrl_cli.cli.train import start
from agentrl_cli.runs.run import Run

pytestmark = pytest.mark.slow
USUAL = [
    "env=twentyq", "eval_every=0", "eval.splits=[train]", "eval.greedy=false", "hardware.threads=1",
    "name=it",
]  # fmt: skip


def trained(root: Path, *overrides: str) -> Run:
    start([*USUAL, f"runs={root}", *overrides])
    return Run(root / "it")


def test_rft_improves_success(tmp_path: Path):
    run = trained(
        tmp_path, "algo=rft", "algo.optimizer.lr=3e-4", "steps=20", "eval.episodes_per_task=6",
    )  # fmt: skip
    base, *_, final = run.metrics()
    gain = final["eval/train_success"] - base["eval/train_success"]
    # 336 games before and after: the gain's standard error is 3 points; it was 18 in a trial
    assert gain > 0.08
    assert base["eval/train_success_high"] < final["eval/train_success"]


def test_sft_on_expert_improves_success(tmp_path: Path):
    demos, _ = write_demos(["env=twentyq", "n=128", f"out={tmp_path / 'demos.jsonl'}"])
    run = trained(
        tmp_path, "algo=sft", f"data.demos={demos}", "steps=3", "algo.minibatch_tokens=2000",
        "eval.episodes_per_task=4",
    )  # fmt: skip
    base, *_, final = run.metrics()
    # 224 games before and after; it was 25 points in a trial on test objects
    assert final["eval/train_success"] - base["eval/train_success"] > 0.1
    assert base["eval/train_success_high"] < final["eval/train_success"]


@pytest.fixture(scope="module")
def critic(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A few steps of NLAC with all five roles at work."""
    return trained(
        tmp_path_factory.mktemp("runs"), "algo=nlac", "steps=6", "algo.critic_warmup=2",
        "algo.turns_per_update=48", "rollout.episodes_per_step=48", "eval.episodes_per_task=1",
        "algo.diagnostics.num_states=6", "algo.diagnostics.num_rollouts=4",
    )  # fmt: skip


def test_nlac_roles_are_parsed_and_trained(critic: Run):
    steps = [row for row in critic.metrics() if "reward/mean" in row]
    for row in steps:
        assert row["nlac/unparsed_targets"] < 0.15 and row["successor/samples"] > 40
        assert row["sampling/logp_diff_max"] < 1e-3
    for row in steps[2:]:
        assert row["nlac/unparsed"] < 0.15 and row["policy/samples"] > 10
        assert 0.05 < row["nlac/optimal_share"] < 0.99
    assert all("policy/samples" not in row for row in steps[:2])


def test_nlac_critic_learns_a_shorter_game(tmp_path: Path):
    run = trained(
        tmp_path, "env.max_turns=5", "algo=nlac", "steps=10", "algo.critic_warmup=10",
        "rollout.episodes_per_step=48", "eval.episodes_per_task=2",
        "algo.diagnostics.num_states=24", "algo.diagnostics.num_rollouts=1",
    )  # fmt: skip
    base, *_, final = run.metrics()
    # the base foresees games of 12 turns; optimism 0.43 fell to 0.34
    assert (
        base["nlac/value_bias"] > 0.2 and final["nlac/value_bias"] < 0.85 * base["nlac/value_bias"]
    )
    assert final["nlac/brier"] < 0.85 * base["nlac/brier"]
