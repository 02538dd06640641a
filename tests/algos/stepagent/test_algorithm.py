"""StepAgent: which pairs are preferred, what the discriminator sees, whom its rewards teach."""

from __future__ import annotations

from dataclasses import replace
from math import exp, log
from pathlib import Path
from statistics import fmean

import pytest

from agentrl_cli.algos.base import Texts
from agentrl_cli.algos.samples import completion_sample
from agentrl_cli.algos.stepagent import (
    expert_rewards,
    labelled_actions,
    leave_one_out,
    shrink_to_unit_std,
    surrogate_phase,
    with_expert_likelihood,
)
from agentrl_cli.config.settings import LoraConfig
from agentrl_cli.core.types import Sample
from agentrl_cli.models.forward import token_logprobs
from agentrl_cli.models.model_set import ModelSet
from agentrl_cli.models.specs import OptimizerSpec
from tests.builders.critics import learner
from tests.builders.models import LORA, disturb
from tests.builders.nlac import CHAT, episode, places, prompt, troupe, written
from tests.builders.stepagent import (
    EXPERT,
    FORMS,
    OTHER,
    SHOWN,
    STILL,
    Bandit,
    buffer,
    implicit,
    inverse,
    phases,
    pulls,
    shown,
)

# implicit


def test_values_are_implicit_rewards(model_folder: Path):
    algo = implicit(beta=0.5)
    models = shown(algo, model_folder, [SHOWN])
    disturb(models, "policy")
    samples = [completion_sample(t.state_ids, t.action_ids) for t in places(SHOWN)]
    new, old = (token_logprobs(models.forward(name), samples) for name in ("policy", "reference"))
    expected = [0.5 * (sum(a) - sum(b)) for a, b in zip(new, old, strict=True)]
    assert min(map(abs, expected)) > 1e-3
    assert algo.action_values(places(SHOWN)) == pytest.approx(expected)


def test_pairs_share_the_state(model_folder: Path):
    algo = implicit()
    shown(algo, model_folder, [SHOWN], troupe(act="Is it a cat?"))
    assert algo.texts(1, 24) == {"fresh actions": Texts(len(SHOWN.turns), 24)}
    phase = phases(algo)["dpo"]
    assert phase.keep_together == 2 and phase.units(phase.samples[0]) == 0.5
    assert [written(sample) for sample in phase.samples] == [
        "Is it big?", "Is it a cat?", "Maybe.\nIs it red?", "Is it a cat?",
    ]  # fmt: skip
    for i, sample in enumerate(phase.samples):
        turn = SHOWN.turns[i // 2]
        assert prompt(sample) == SHOWN.state_ids(i // 2)
        acted = turn.action_ids if i % 2 == 0 else CHAT.encode_action("Is it a cat?")
        assert sample.mask == [0] * len(SHOWN.state_ids(i // 2)) + [1] * len(acted)


def test_equal_actions_are_dropped_and_counted(model_folder: Path):
    for tried, third in (("turn", "Hm.\nIs it red?"), ("last_line", "Is it red?")):
        algo, dropped = implicit(attempt=tried), 1 + (tried == "last_line")
        said = iter(["Is it big?", third, "Is it a dog?"])
        shown(algo, model_folder, [SHOWN], troupe(act=lambda text, draw, said=said: next(said)))
        phase = phases(algo)["dpo"]
        assert phase.metrics["stepagent/dropped"] == dropped
        assert len(phase.samples) == 2 * (3 - dropped)
        assert phase.metrics["stepagent/match"] == dropped / 3
        assert phase.metrics["stepagent/last_line_match"] == 2 / 3


def logprobs(models: ModelSet, samples: list[Sample]) -> list[float]:
    bare = [Sample(s.ids, s.mask) for s in samples]
    return [sum(row) for row in token_logprobs(models.forward("policy"), bare)]


@pytest.mark.parametrize("lora", [None, LORA], ids=["full", "lora"])
def test_training_favours_the_expert_action(model_folder: Path, lora: LoraConfig | None):
    algo = implicit(beta=1.0, optimizer=OptimizerSpec(lr=1e-3 if lora is None else 1e-2))
    models = shown(algo, model_folder, [SHOWN], troupe(act="Can it fly?"), lora)
    samples = phases(algo)["dpo"].samples
    trainer, before, frozen = learner(algo, models), logprobs(models, samples), []
    for step in range(3):  # the first step of an adapter only moves its zero half
        frozen.append(models.fingerprint("reference"))
        trainer.run(algo.update([], buffer()), step)
    gains = [a - b for a, b in zip(logprobs(models, samples), before, strict=True)]
    assert all(gain > 0 for gain in gains[0::2]) and all(gain < 0 for gain in gains[1::2])
    assert len({*frozen, models.fingerprint("reference")}) == 1


def test_reference_of_start_and_iteration(model_folder: Path):
    for reference in ("start", "iteration"):
        algo = implicit(reference=reference)
        models = shown(algo, model_folder, [SHOWN], troupe(act="Hm?"))
        start, trainer, seen = models.fingerprint("policy"), learner(algo, models), []
        for step in range(2):
            seen.append(models.fingerprint("policy"))
            trainer.run(algo.update([], buffer()), step)
        assert models.fingerprint("policy") != seen[1]
        expected = start if reference == "start" else seen[1]
        assert models.fingerprint("reference") == expected


def test_expert_reference_by_hand(model_folder: Path):
    algo = implicit(reference="expert", beta=0.5)
    models = shown(algo, model_folder, [SHOWN], troupe(act="Hm?"))
    trainer = learner(algo, models)
    start = models.fingerprint("policy")
    first, second = algo.update([], buffer())
    assert (first.model, models.fingerprint("policy")) == ("reference", start)
    rows = [Sample(s.ids, s.mask) for s in second.samples]  # expert's, own, expert's, ...
    before = logprobs(models, rows)

    found = trainer.run(algo.update([], buffer()), 0)
    expert = models.fingerprint("reference")
    estimated = [sum(row) for row in token_logprobs(models.forward("reference"), rows)]
    gains = [new - old for new, old in zip(estimated, before, strict=True)]
    assert all(gain > 0 for gain in gains[0::2])  # the reference is nearer to the expert
    pairs = zip(gains[0::2], gains[1::2], strict=True)
    losses = [log(1 + exp(0.5 * (chosen - rejected))) for chosen, rejected in pairs]
    assert found["dpo/loss"] == pytest.approx(fmean(losses), rel=1e-4)

    algo.context.step = 1
    assert "reference/loss" not in trainer.run(algo.update([], buffer()), 1)
    assert models.fingerprint("reference") == expert


# the bandit: one state, four arms, an expert with known chances


@pytest.mark.slow
def test_implicit_variant_approaches_the_expert(model_folder: Path):
    bandit = Bandit(implicit(optimizer=OptimizerSpec(lr=1e-3)), model_folder, pulls(EXPERT, 40))
    far = bandit.distance()
    distances = [bandit.nearer() for _ in range(9)]
    assert far == pytest.approx(0.35, abs=0.02)
    assert distances[0] < far - 0.05 and fmean(distances[-3:]) < 0.14
    assert bandit.chances()[3] < 0.06  # what the expert never does


@pytest.mark.slow
def test_inverse_variant_approaches_the_expert(model_folder: Path):
    algo = inverse(
        {"optimizer": OptimizerSpec(lr=1e-3)}, expert_states_per_update=40, discriminator_epochs=5,
        discriminator_optimizer=OptimizerSpec(lr=1e-3),
    )  # fmt: skip
    bandit = Bandit(algo, model_folder, pulls(EXPERT, 40))
    far = bandit.distance()
    distances = [bandit.nearer() for _ in range(9)]
    assert far == pytest.approx(0.35, abs=0.02)
    assert distances[0] < far - 0.05 and fmean(distances[-3:]) < 0.14
    assert bandit.chances()[3] < 0.06


# inverse: the discriminator


def test_discriminator_labels_and_balance(model_folder: Path):
    algo = inverse()
    shown(algo, model_folder, [SHOWN], troupe(act="Hm?"))
    algo.context.step = 1  # in which the larger half of the three fragments is the discriminator's
    phase = phases(algo)["discriminator"]
    assert phase.model == "discriminator" and len(phase.samples) == 6
    assert [s.per_token["label"][-1] for s in phase.samples] == [1, 1, 1, 1, 0, 0]
    assert [phase.units(s) for s in phase.samples] == [1, 1, 1, 1, 2, 2]  # both sides count alike
    mine = [SHOWN.state_ids(i) + CHAT.encode_action("Hm?") for i in range(3)]
    theirs = [SHOWN.state_ids(i) + SHOWN.turns[i].action_ids for i in range(3)]
    turns = [mine.index(phase.samples[i].ids) for i in (0, 2)]
    expected = [mine[i] for i in turns for _ in range(2)] + [theirs[i] for i in turns]
    assert [sample.ids for sample in phase.samples] == expected
    for sample in phase.samples:
        assert not any(sample.mask)
        assert sample.per_token["value_at"] == [0.0] * (len(sample.ids) - 1) + [phase.units(sample)]
        assert set(sample.per_token["label"][:-1]) == {0.0}


def test_layout_of_an_action_is_removed(model_folder: Path):
    algo, state = inverse(), SHOWN.state_ids(1)
    shown(algo, model_folder, [SHOWN])
    texts = ("Maybe.\nIs it red?", " Maybe. \n\n Is  it red? ")
    rows = [labelled_actions([(state, text)], 0.0, algo.context) for text in texts]
    assert rows[0] == rows[1] and rows[0][0].ids == state + SHOWN.turns[1].action_ids


def trained_judge(folder: Path, own: str, expert: str, form: str) -> tuple[dict, float, float]:
    """The last metrics of a discriminator on 12 states, and its mean rewards for both actions."""
    demos = [episode(f"d{i}", [expert], success=True) for i in range(12)]
    algo = inverse(
        {"optimizer": STILL}, reward=form, expert_states_per_update=0, discriminator_epochs=12,
        discriminator_optimizer=OptimizerSpec(lr=3e-3),
    )  # fmt: skip
    models = shown(algo, folder, demos, troupe(act=own))
    found = learner(algo, models).run(algo.update([], buffer()), 0)
    agents = [episode(f"d{i}", [own], success=True) for i in range(12)]
    mine, theirs = (
        fmean(
            algo.rewards(
                labelled_actions([(t.state_ids, t.action) for t in places(*row)], 0.0, algo.context)
            )
        )
        for row in (agents, demos)
    )
    return found, mine, theirs


@pytest.mark.parametrize("form", FORMS)
def test_expert_earns_more_in_every_form(model_folder: Path, form: str):
    found, mine, theirs = trained_judge(model_folder, "Is it a dog?", "Is it big?", form)
    assert theirs > mine + 0.5
    assert found["discriminator/accuracy"] > 0.7
    for gap in ("reward_gap", "heldout_gap"):  # all states are alike
        assert found[f"stepagent/{gap}"] == pytest.approx(theirs - mine, abs=0.3)
    signs = {"logit": (True, False), "neg_log_d": (True, True), "log_one_minus_d": (False, False)}
    assert (theirs > 0, mine > 0) == signs[form]


def test_equal_actions_leave_discriminator_at_chance(model_folder: Path):
    found, mine, theirs = trained_judge(model_folder, "Is it big?", "Is it big?", "logit")
    assert found["discriminator/loss"] == pytest.approx(log(2), abs=0.03)
    assert mine == theirs == pytest.approx(0, abs=0.4)  # D near 0.5
    assert found["stepagent/reward_gap"] == 0


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


def test_expert_samples_follow_equal_shares(model_folder: Path):
    _, phase, _, _ = phases_with_expert(model_folder, 1.0)
    assert phase.keep_together == 3 and len(phase.samples) == 6
    assert [phase.units(sample) for sample in phase.samples] == [1, 2, 0, 3, 2, 0]
    assert [written(phase.samples[i]) for i in (2, 5)] == ["Is it big?", "Is it old?"]


def test_imitation_adds_expert_likelihood_only(model_folder: Path):
    plain, both, models, algo = phases_with_expert(model_folder, 0.5)
    experts = [Sample(s.ids, s.mask) for s in both.samples if s.per_token["shown"][-1]]
    rows = token_logprobs(models.forward("policy"), experts)
    each = [-sum(row) / sum(s.mask) for row, s in zip(rows, experts, strict=True)]
    alone = learner(algo, models).run(iter([replace(plain, name="alone")]), 0)
    fresh = shown(algo, model_folder, [SHOWN])
    found = learner(algo, fresh).run(iter([both]), 0)
    assert found["policy/expert_nll"] == pytest.approx(fmean(each), rel=1e-4)
    assert found["policy/loss"] == pytest.approx(alone["alone/loss"] + 0.5 * fmean(each), rel=1e-4)
    for name in ("ratio", "entropy", "kl", "clip_fraction"):
        assert found[f"policy/{name}"] == pytest.approx(alone[f"alone/{name}"], abs=1e-5)
