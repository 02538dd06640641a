"""StepAgent: which pairs are preferred, what the discriminator sees, whom its rewards teach."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from functools import partial
from math import log
from pathlib import Path
from statistics import fmean

import pytest

from agentrl_cli.algos.base import Phase
from agentrl_cli.algos.dpo import per_pair_half, preference_phase
from agentrl_cli.algos.losses import dpo
from agentrl_cli.algos.samples import completion_sample
from agentrl_cli.algos.stepagent.discriminator import labelled_actions
from agentrl_cli.algos.stepagent.practice import StateAction
from agentrl_cli.config.settings import LoraConfig
from agentrl_cli.core.errors import UserError
from agentrl_cli.core.types import Sample
from agentrl_cli.models.model_set import ModelSet
from agentrl_cli.models.reader import token_logprobs
from agentrl_cli.models.specs import OptimizerSpec
from tests.builders.critics import learner
from tests.builders.models import LORA
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


def test_pairs_are_the_experts_action_and_the_own_try_behind_one_state(model_folder: Path):
    algo = implicit()
    shown(algo, model_folder, [SHOWN], troupe(act="Is it a cat?"))
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


def test_equal_tries_are_dropped_and_counted(model_folder: Path):
    for tried, third in (("turn", "Hm.\nIs it red?"), ("last_line", "Is it red?")):
        algo, dropped = implicit(attempt=tried), 1 + (tried == "last_line")
        said = iter(["Is it big?", third, "Is it a dog?"])
        shown(algo, model_folder, [SHOWN], troupe(act=lambda text, draw, said=said: next(said)))
        phase = phases(algo)["dpo"]
        assert phase.metrics["stepagent/dropped"] == dropped
        assert len(phase.samples) == 2 * (3 - dropped)
        assert phase.metrics["stepagent/match"] == dropped / 3
        assert phase.metrics["stepagent/last_line_match"] == 2 / 3


def test_behind_the_experts_thought_only_the_last_line_is_trained(model_folder: Path):
    algo = implicit(attempt="last_line")
    shown(algo, model_folder, [SHOWN], troupe(act="Is it old?"))
    chosen, rejected = phases(algo)["dpo"].samples[2:4]
    assert (written(chosen), written(rejected)) == ("Is it red?", "Is it old?")
    assert prompt(chosen) == prompt(rejected)
    assert chosen.ids == SHOWN.state_ids(1) + SHOWN.turns[1].action_ids


def test_the_loss_is_log_two_where_the_policy_is_its_reference(model_folder: Path):
    algo = implicit(optimizer=STILL)
    models = shown(algo, model_folder, [SHOWN, OTHER], troupe(act="Hm?"))
    found = learner(algo, models).run(algo.update([], buffer()), 0)
    assert found["dpo/loss"] == pytest.approx(log(2), abs=1e-5)
    assert found["dpo/margin"] == pytest.approx(0, abs=1e-5)


def logprobs(models: ModelSet, samples: list[Sample]) -> list[float]:
    bare = [Sample(s.ids, s.mask) for s in samples]
    return [sum(row) for row in token_logprobs(models.reader("policy"), bare)]


@pytest.mark.parametrize("lora", [None, LORA], ids=["full", "lora"])
def test_a_step_makes_the_experts_action_likelier_and_the_own_one_less_likely(
    model_folder: Path, lora: LoraConfig | None
):
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


def test_an_identical_pair_has_no_gradient(model_folder: Path):
    algo = implicit()
    models = shown(algo, model_folder, [SHOWN])
    sample = completion_sample(SHOWN.state_ids(1), SHOWN.turns[1].action_ids)
    pair = (sample, deepcopy(sample))
    loss = partial(dpo, beta=0.5)
    phase = preference_phase(models, [pair], loss, epochs=1, tokens_per_step=0, metrics={})
    found = learner(algo, models).run(iter([phase]), 0)
    assert found["dpo/grad_norm"] < 1e-4  # rounding; that of another pair is some 10
    assert found["dpo/loss"] == pytest.approx(log(2))
    assert sum(map(per_pair_half, phase.samples)) == 1


def test_the_reference_is_the_runs_start_or_the_policy_of_the_updates_start(model_folder: Path):
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


def test_it_learns_to_do_as_the_expert_does(model_folder: Path):
    bandit = Bandit(
        implicit(optimizer=OptimizerSpec(lr=1e-3)), model_folder, pulls((1, 0, 0, 0), 40)
    )
    rows = [bandit.step() for _ in range(9)]
    assert rows[0]["stepagent/match"] < 0.45 and rows[-1]["stepagent/match"] > 0.85
    assert bandit.chances()[0] > 0.85


# the bandit: one state, four arms, an expert with known chances


def test_implicit_reflection_brings_the_policy_near_the_experts_chances(model_folder: Path):
    bandit = Bandit(implicit(optimizer=OptimizerSpec(lr=1e-3)), model_folder, pulls(EXPERT, 40))
    far = bandit.distance()
    distances = [bandit.nearer() for _ in range(9)]
    assert far == pytest.approx(0.35, abs=0.02)
    assert distances[0] < far - 0.05 and fmean(distances[-3:]) < 0.14
    assert bandit.chances()[3] < 0.06  # what the expert never does


@pytest.mark.slow
def test_inverse_reflection_brings_the_policy_near_the_experts_chances(model_folder: Path):
    algo = inverse(
        {"optimizer": OptimizerSpec(lr=1e-3)}, fragments_per_update=40, discriminator_epochs=5,
        discriminator_optimizer=OptimizerSpec(lr=1e-3),
    )  # fmt: skip
    bandit = Bandit(algo, model_folder, pulls(EXPERT, 40))
    far = bandit.distance()
    distances = [bandit.nearer() for _ in range(9)]
    assert far == pytest.approx(0.35, abs=0.02)
    assert distances[0] < far - 0.05 and fmean(distances[-3:]) < 0.14
    assert bandit.chances()[3] < 0.06


# inverse: the discriminator


def test_the_discriminator_reads_the_last_token_of_each_action_agent_one_expert_zero(
    model_folder: Path,
):
    algo = inverse()
    shown(algo, model_folder, [SHOWN], troupe(act="Hm?"))
    algo.context.step = 1  # in which the larger half of the three fragments is the discriminator's
    phase = phases(algo)["discriminator"]
    assert phase.model == "discriminator" and len(phase.samples) == 6
    assert [s.streams["label"][-1] for s in phase.samples] == [1, 1, 1, 1, 0, 0]
    assert [phase.units(s) for s in phase.samples] == [1, 1, 1, 1, 2, 2]  # both sides count alike
    mine = [SHOWN.state_ids(i) + CHAT.encode_action("Hm?") for i in range(3)]
    theirs = [SHOWN.state_ids(i) + SHOWN.turns[i].action_ids for i in range(3)]
    turns = [mine.index(phase.samples[i].ids) for i in (0, 2)]
    expected = [mine[i] for i in turns for _ in range(2)] + [theirs[i] for i in turns]
    assert [sample.ids for sample in phase.samples] == expected
    for sample in phase.samples:
        assert not any(sample.mask)
        assert sample.streams["value_at"] == [0.0] * (len(sample.ids) - 1) + [phase.units(sample)]
        assert set(sample.streams["label"][:-1]) == {0.0}


def test_layout_does_not_tell_agent_from_expert(model_folder: Path):
    algo, state = inverse(), SHOWN.state_ids(1)
    shown(algo, model_folder, [SHOWN])
    texts = ("Maybe.\nIs it red?", " Maybe. \n\n Is  it red? ")
    rows = [labelled_actions([StateAction(state, text)], 0.0, algo.context) for text in texts]
    assert rows[0] == rows[1] and rows[0][0].ids == state + SHOWN.turns[1].action_ids


def test_a_last_line_is_judged_with_the_experts_thought_before_it(model_folder: Path):
    algo = inverse(attempt="last_line")
    shown(algo, model_folder, [SHOWN], troupe(act="Is it old?"))
    rows = []
    for algo.context.step in range(2):  # every fragment is in one of the halves
        rows += [sample.ids for sample in phases(algo)["discriminator"].samples]
    assert SHOWN.state_ids(1) + CHAT.encode_action("Maybe.\nIs it old?") in rows


def trained_judge(folder: Path, own: str, expert: str, form: str) -> tuple[dict, float, float]:
    """The last metrics of a discriminator on 12 states, and its mean rewards for both actions."""
    demos = [episode(f"d{i}", [expert], success=True) for i in range(12)]
    algo = inverse(
        {"optimizer": STILL}, reward=form, fragments_per_update=0, discriminator_epochs=12,
        discriminator_optimizer=OptimizerSpec(lr=3e-3),
    )  # fmt: skip
    models = shown(algo, folder, demos, troupe(act=own))
    found = learner(algo, models).run(algo.update([], buffer()), 0)
    agents = [episode(f"d{i}", [own], success=True) for i in range(12)]
    mine, theirs = (
        fmean(
            algo.rewards(
                labelled_actions(list(map(StateAction.played, places(*row))), 0.0, algo.context)
            )
        )
        for row in (agents, demos)
    )
    return found, mine, theirs


@pytest.mark.parametrize("form", FORMS)
def test_where_actions_differ_the_experts_earn_more_whatever_the_form(
    model_folder: Path, form: str
):
    found, mine, theirs = trained_judge(model_folder, "Is it a dog?", "Is it big?", form)
    assert theirs > mine + 0.5
    assert found["discriminator/accuracy"] > 0.7
    for gap in ("reward_gap", "heldout_gap"):  # all states are alike
        assert found[f"stepagent/{gap}"] == pytest.approx(theirs - mine, abs=0.3)
    signs = {"logit": (True, False), "unlike_agent": (True, True), "like_expert": (False, False)}
    assert (theirs > 0, mine > 0) == signs[form]


def test_where_actions_are_the_same_the_discriminator_cannot_tell(model_folder: Path):
    found, mine, theirs = trained_judge(model_folder, "Is it big?", "Is it big?", "logit")
    assert found["discriminator/loss"] == pytest.approx(log(2), abs=0.03)
    assert mine == theirs == pytest.approx(0, abs=0.4)  # D near 0.5
    assert found["stepagent/reward_gap"] == 0


@pytest.mark.parametrize("lora", [None, LORA], ids=["full", "lora"])
def test_each_phase_moves_its_own_model_only(model_folder: Path, lora: LoraConfig | None):
    algo = inverse({"kl_coef": 0.1})
    models = shown(algo, model_folder, [SHOWN, OTHER], lora=lora)
    trainer, marks = learner(algo, models), []

    def watched() -> Iterator[Phase]:
        for phase in algo.update([], buffer()):
            yield phase
            marks.append({name: models.fingerprint(name) for name in models.names})

    start = {name: models.fingerprint(name) for name in models.names}
    trainer.run(watched(), 0)
    changed = [
        {name for name in models.names if now[name] != then[name]}
        for then, now in zip([start, *marks], marks, strict=False)
    ]
    assert changed == [{"discriminator"}, {"policy"}]


def test_under_lora_the_discriminator_is_an_adapter_of_its_own_with_a_head(model_folder: Path):
    algo = inverse()
    models = shown(algo, model_folder, [SHOWN], lora=LORA)
    judge, policy = models.weights("discriminator"), models.weights("policy")
    assert models.module("policy") is models.module("discriminator")
    assert all("lora_" in name or name.startswith("head.") for name in judge)
    assert {"head.weight", "head.bias"} <= judge.keys()
    assert not {id(w) for w in judge.values()} & {id(w) for w in policy.values()}


WRONG = {
    "fragments_per_update is -1; give at least 0": (implicit, {"fragments_per_update": -1}),
    "beta is -0.1; give at least 0": (implicit, {"beta": -0.1}),
    "epochs is 0; give at least 1": (implicit, {"epochs": 0}),
    "discriminator_epochs is 0; give at least 1": (inverse, {"discriminator_epochs": 0}),
    "reward_clip is -1; give at least 0": (inverse, {"reward_clip": -1}),
}


@pytest.mark.parametrize("words", WRONG)
def test_numbers_that_cannot_be_are_refused(words: str):
    make, changes = WRONG[words]
    with pytest.raises(UserError, match=f"^{words}$"):
        make(**changes)
