"""What inverse StepAgent's policy learns from: baselines, scale, the expert's actions beside it."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from math import exp, log
from pathlib import Path
from statistics import fmean, pstdev

import pytest

from agentrl_cli.algos.losses import expert_rewards, standardise
from agentrl_cli.algos.samples import completion_sample
from agentrl_cli.algos.stepagent.policy_loss import (
    leave_one_out,
    shrink_to_unit_std,
    surrogate_phase,
    with_expert_likelihood,
)
from agentrl_cli.core.types import Sample
from agentrl_cli.models.reader import token_logprobs
from tests.builders.critics import learner
from tests.builders.nlac import written
from tests.builders.stepagent import OTHER, SHOWN, inverse, shown

# advantages


def test_a_reward_is_measured_against_the_others_in_its_state_by_hand():
    rewards, states = [1.0, 4.0, 5.0, 7.0, 2.0], [[1], [1], [2], [1], [3]]
    assert leave_one_out(rewards, states) == [1 - 5.5, 4 - 4, 0.0, 7 - 2.5, 0.0]


def test_what_a_state_is_worth_as_a_whole_changes_no_advantage():
    states = [[1], [1], [2], [2]]
    plain = leave_one_out([1.0, 2.0, 1.0, 2.0], states)
    assert leave_one_out([1.0, 2.0, 91.0, 92.0], states) == plain == [-1, 1, -1, 1]


def test_large_advantages_are_scaled_down_and_noise_is_not_enlarged():
    noise = [0.01, -0.01, 0.02, -0.02]
    assert (
        shrink_to_unit_std(noise) == noise
        and shrink_to_unit_std([]) == []
        and shrink_to_unit_std([0.0, 0.0]) == [0.0, 0.0]
    )
    assert shrink_to_unit_std([8.0, -8.0]) == [1.0, -1.0]
    assert pstdev(standardise(noise)) == pytest.approx(1)  # what held must not do


# a tabular bandit of two states: in one the policy nearly does as the expert, whose next move is
# almost certain; in the other the expert draws from four arms and the policy prefers one

ARMS = range(4)
EXPERT = [[0.97, 0.01, 0.01, 0.01], [0.25] * 4]
START = [[0.94, 0.02, 0.02, 0.02], [0.7, 0.1, 0.1, 0.1]]
Credit = Callable[[list[float], list[list[int]]], list[float]]


def chances(logits: list[float]) -> list[float]:
    each = [exp(x) for x in logits]
    return [x / sum(each) for x in each]


def distances(credit: Credit, seed: int) -> list[float]:
    """Total variation in both states after 150 updates of 8 tries in each, rewarded by the optimal
    discriminator D = policy / (policy + expert)."""
    draw, logits = random.Random(seed), [[log(chance) for chance in row] for row in START]
    for _ in range(150):
        now = [chances(row) for row in logits]
        tries = [(s, a) for s in range(2) for a in draw.choices(ARMS, now[s], k=8)]
        rewards = expert_rewards([log(now[s][a] / EXPERT[s][a]) for s, a in tries], "logit", 5.0)
        for (s, a), gain in zip(tries, credit(rewards, [[s] for s, _ in tries]), strict=True):
            for arm in ARMS:
                logits[s][arm] += 2.0 * gain * ((arm == a) - now[s][arm]) / 8
    rows = zip([chances(row) for row in logits], EXPERT, strict=True)
    return [sum(abs(p - e) for p, e in zip(*row, strict=True)) / 2 for row in rows]


def test_a_baseline_for_each_state_teaches_both_where_one_for_all_teaches_neither():
    for_all = [distances(lambda rewards, states: standardise(rewards), seed) for seed in range(10)]
    each = [
        distances(lambda r, s: shrink_to_unit_std(leave_one_out(r, s)), seed) for seed in range(10)
    ]
    assert max(max(row) for row in each) < 0.01  # from 0.03 and 0.45
    assert fmean(far for _, far in for_all) > 0.1


# the expert's actions beside the policy's


def phases_with_expert(folder: Path, imitation: float):
    """Four samples with advantage 0, the expert's action behind each second one, and who trains."""
    algo = inverse({"kl_coef": 0.1, "entropy_coef": 0.1}, imitation_coef=imitation)
    models = shown(algo, folder, [SHOWN, OTHER])
    state, action = SHOWN.state_ids(0), SHOWN.turns[1].action_ids
    own = [completion_sample(state, action[:k]) for k in (1, 2, 3, 2)]
    experts = [completion_sample(e.state_ids(0), e.turns[0].action_ids) for e in (SHOWN, OTHER)]
    phase = surrogate_phase(own, [0.0] * 4, algo.ppo)
    return phase, with_expert_likelihood(phase, experts, imitation), models, algo


def test_the_experts_actions_stand_behind_an_equal_share_of_tries_and_count_nothing(
    model_folder: Path,
):
    _, phase, _, _ = phases_with_expert(model_folder, 1.0)
    assert phase.keep_together == 3 and len(phase.samples) == 6
    assert [phase.units(sample) for sample in phase.samples] == [1, 2, 0, 3, 2, 0]
    assert [written(phase.samples[i]) for i in (2, 5)] == ["Is it big?", "Is it old?"]
    with pytest.raises(ValueError, match="cannot be shared"):
        with_expert_likelihood(phase, phase.samples[:4], 1.0)


def test_imitation_adds_the_experts_mean_likelihood_per_token_and_nothing_else(model_folder: Path):
    plain, both, models, algo = phases_with_expert(model_folder, 0.5)
    experts = [Sample(s.ids, s.mask) for s in both.samples if s.streams["shown"][-1]]
    rows = token_logprobs(models.reader("policy"), experts)
    each = [-sum(row) / sum(s.mask) for row, s in zip(rows, experts, strict=True)]
    alone = learner(algo, models).run(iter([replace(plain, name="alone")]), 0)
    fresh = shown(algo, model_folder, [SHOWN])
    found = learner(algo, fresh).run(iter([both]), 0)
    assert found["policy/expert_nll"] == pytest.approx(fmean(each), rel=1e-4)
    assert found["policy/loss"] == pytest.approx(alone["alone/loss"] + 0.5 * fmean(each), rel=1e-4)
    for name in ("ratio", "entropy", "kl", "clip_fraction"):
        assert found[f"policy/{name}"] == pytest.approx(alone[f"alone/{name}"], abs=1e-5)
