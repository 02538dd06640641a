"""What inverse StepAgent's policy learns from: baselines, scale, the expert's actions beside it."""

from __future__ import annotations

from dataclasses import replace
from math import log
from pathlib import Path
from statistics import fmean

import pytest

from agentrl_cli.algos.samples import completion_sample
from agentrl_cli.algos.stepagent.inverse import (
    expert_rewards,
    leave_one_out,
    shrink_to_unit_std,
    surrogate_phase,
    with_expert_likelihood,
)
from agentrl_cli.core.types import Sample
from agentrl_cli.models.forward import token_logprobs
from tests.builders.critics import learner
from tests.builders.nlac import written
from tests.builders.stepagent import OTHER, SHOWN, inverse, shown

# advantages


def test_leave_one_out_by_hand():
    rewards, states = [1.0, 4.0, 5.0, 7.0, 2.0], [[1], [1], [2], [1], [3]]
    assert leave_one_out(rewards, states) == [1 - 5.5, 4 - 4, 0.0, 7 - 2.5, 0.0]


def test_scale_never_enlarges():
    noise = [0.01, -0.01, 0.02, -0.02]
    assert (
        shrink_to_unit_std(noise) == noise
        and shrink_to_unit_std([]) == []
        and shrink_to_unit_std([0.0, 0.0]) == [0.0, 0.0]
    )
    assert shrink_to_unit_std([8.0, -8.0]) == [1.0, -1.0]


def test_expert_rewards_by_hand():
    logits = [0.0, log(3), -log(3)]  # D: 1/2, 3/4, 1/4
    by_form = {
        "logit": [0.0, -log(3), log(3)],
        "neg_log_d": [log(2), log(4 / 3), log(4)],
        "log_one_minus_d": [-log(2), -log(4), -log(4 / 3)],
    }
    for form, rewards in by_form.items():
        assert expert_rewards(logits, form, 5.0) == pytest.approx(rewards, abs=1e-6)
        assert all(abs(reward) <= 0.5 for reward in expert_rewards(logits, form, 0.5))


# the expert's actions beside the policy's


def phases_with_expert(folder: Path, imitation: float):
    """Four samples with advantage 0, the expert's action behind each second one, and who trains."""
    algo = inverse({"kl_coef": 0.1, "entropy_coef": 0.1}, nll_coef=imitation)
    models = shown(algo, folder, [SHOWN, OTHER])
    state, action = SHOWN.state_ids(0), SHOWN.turns[1].action_ids
    own = [completion_sample(state, action[:k]) for k in (1, 2, 3, 2)]
    experts = [completion_sample(e.state_ids(0), e.turns[0].action_ids) for e in (SHOWN, OTHER)]
    phase = surrogate_phase(own, [0.0] * 4, algo.ppo)
    return phase, with_expert_likelihood(phase, experts, imitation), models, algo


def test_expert_samples_follow_equal_shares(
    model_folder: Path,
):
    _, phase, _, _ = phases_with_expert(model_folder, 1.0)
    assert phase.keep_together == 3 and len(phase.samples) == 6
    assert [phase.units(sample) for sample in phase.samples] == [1, 2, 0, 3, 2, 0]
    assert [written(phase.samples[i]) for i in (2, 5)] == ["Is it big?", "Is it old?"]


def test_imitation_adds_expert_likelihood_only(model_folder: Path):
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
