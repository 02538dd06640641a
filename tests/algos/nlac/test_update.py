"""One update: the targets, the samples, and the models that move."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from agentrl_cli.algos.nlac.algorithm import distillation_samples
from agentrl_cli.algos.nlac.diagnostics import drift
from agentrl_cli.algos.nlac.improve import Candidates
from agentrl_cli.algos.samples import completion_sample
from agentrl_cli.generators.base import Sampling
from agentrl_cli.models.forward import token_logprobs
from agentrl_cli.models.model_set import ModelSet
from agentrl_cli.models.specs import OptimizerSpec
from agentrl_cli.rollout.replay_buffer import TurnKey
from tests.builders.models import model_config
from tests.builders.nlac import (
    CHAT,
    LOST,
    PROMPTS,
    WON,
    asked,
    bound,
    candidate,
    episode,
    filled,
    learn,
    messages,
    nlac,
    places,
    prompt,
    troupe,
    updated,
    weights,
    written,
)


def test_terminal_targets_state_the_true_outcome(models: ModelSet):
    generator = troupe()
    algo = bound(nlac(), generator, models)
    ends = [places(WON)[-1], places(LOST)[-1]]
    targets = algo.successor_targets(ends, [WON, LOST])
    assert [CHAT.decode(ids or []) for ids in targets] == [
        "The end of won. Success.",
        "The end of lost. Failure.",
    ]
    assert [ids[-1] for ids in targets if ids] == [CHAT.end_of_turn] * 2
    assert generator.calls == []


@pytest.mark.parametrize("stop", ["truncated", "context"])
def test_cut_episodes_have_no_terminal_target(models: ModelSet, stop: str):
    cut = episode("cut", ["Is it big?", "Is it red?"], success=False, stop=stop)
    algo = bound(nlac(), troupe(), models)
    first, last = algo.successor_targets(places(cut), [cut])
    assert first is not None and last is None


def test_target_model_writes_backups_and_their_forecasts(models: ModelSet):
    generator = troupe()
    bound(nlac(), generator, models).successor_targets(places(WON, LOST), [WON, LOST])
    assert [(call.role, call.model) for call in generator.calls] == [
        ("act", "policy"),
        ("forecast", "target"),
        ("backup", "target"),
    ]


def test_backup_reads_forecast_of_fresh_next_action(models: ModelSet):
    generator = troupe(act="Is it a fish?", forecast="Later. Failure.", backup="So. Failure.")
    (target,) = bound(nlac(), generator, models).successor_targets(places(WON)[:1], [WON])
    act, forecast, backup = (call.texts[0] for call in generator.calls)
    assert CHAT.decode(target or []) == "So. Failure."
    assert asked(act) == "Here is won at 1."
    assert "Is it a fish?" in messages(forecast)[-2] and asked(forecast) == PROMPTS.forecast
    assert asked(backup) == "Seen: Here is won at 1.\nThen: Later. Failure.\nBack it up."
    assert "Is it big?" in messages(backup)[-2]


def test_full_trace_backs_up_from_the_outcome(models: ModelSet):
    def backup(text: str, draw: object) -> str:
        return f"Before. {asked(text).splitlines()[1].removeprefix('Then: ')}"

    generator = troupe(backup=backup)
    targets = bound(nlac({"td_lambda": 1.0}), generator, models).successor_targets(
        places(WON), [WON]
    )
    assert [CHAT.decode(ids or []) for ids in targets] == [
        "Before. Before. The end of won. Success.",
        "Before. The end of won. Success.",
        "The end of won. Success.",
    ]
    assert [(call.role, len(call.texts)) for call in generator.calls] == [
        ("backup", 2),
        ("backup", 1),
    ]
    first, second = generator.calls
    assert [asked(text).splitlines()[0] for text in (*first.texts, *second.texts)] == [
        "Seen: Here is won at 2.",
        "Seen: Here is won at 2.",
        "Seen: Here is won at 1.",
    ]


def test_full_trace_of_cut_episode_starts_with_forecast(models: ModelSet):
    cut = episode("cut", ["Is it big?", "Is it red?", "Is it old?"], success=False, stop="context")
    generator = troupe(forecast="Later. Success.", backup="So. Success.")
    targets = bound(nlac({"td_lambda": 1.0}), generator, models).successor_targets(
        places(cut), [cut]
    )
    assert [ids is None for ids in targets] == [False, False, True]
    act, *rest = generator.calls
    assert [asked(text) for text in act.texts] == ["Here is cut at 2."] * 2
    assert [call.role for call in rest] == ["forecast", "backup", "backup"]


def test_text_without_outcome_breaks_its_chain(models: ModelSet):
    generator = troupe(backup="It may end well.")
    targets = bound(nlac({"td_lambda": 1.0}), generator, models).successor_targets(
        places(WON), [WON]
    )
    assert [ids is None for ids in targets] == [True, True, False]
    assert len(generator.of("backup")) == 1


def test_successor_prompt_hides_the_response(models: ModelSet):
    algo = bound(nlac(turns_per_update=5), troupe(), models)
    samples = updated(algo, filled(WON, LOST))["successor"].samples
    stands = {
        tuple(algo.roles.prompt(p, p.action_ids, PROMPTS.forecast)): p for p in places(WON, LOST)
    }
    assert len(samples) == 5
    for sample in samples:
        place = stands[tuple(prompt(sample))]
        assert place.response not in CHAT.text_of(prompt(sample))
        text = CHAT.text_of(prompt(sample))
        assert "Then:" not in text and "Critique" not in text


def test_successor_mask_covers_exactly_the_target(models: ModelSet):
    backup = "So it went on. Success."
    algo = bound(nlac(turns_per_update=5), troupe(backup=backup), models)
    samples = updated(algo, filled(WON, LOST))["successor"].samples
    texts = sorted(written(sample) for sample in samples)
    assert texts == [backup] * 3 + ["The end of lost. Failure.", "The end of won. Success."]
    assert all(sample.ids[-1] == CHAT.end_of_turn for sample in samples)


@pytest.mark.parametrize("role", ["forecast", "backup"])
def test_texts_without_outcome_are_counted_not_trained(models: ModelSet, role: str):
    algo = bound(nlac(turns_per_update=5), troupe(**{role: "It may end well."}), models)
    phase = updated(algo, filled(WON, LOST))["successor"]
    assert sorted(map(written, phase.samples)) == [
        "The end of lost. Failure.",
        "The end of won. Success.",
    ]
    assert phase.metrics["nlac/unparsed_targets"] == pytest.approx(3 / 5)


def test_cut_backups_are_not_trained(models: ModelSet):
    speakers = troupe(backup="So it went on. Success")
    speakers.cut = "backup"
    phase = updated(bound(nlac(turns_per_update=5), speakers, models), filled(WON, LOST))
    assert len(phase["successor"].samples) == 2
    assert phase["successor"].metrics["nlac/unparsed_targets"] == pytest.approx(3 / 5)


def test_target_follows_critic_after_each_of_its_steps(
    model_folder: Path, monkeypatch: pytest.MonkeyPatch
):
    algo = nlac({"ema_decay": 0.75, "critic_steps": 3}, critic_warmup=1)
    models, generator = weights(algo, model_folder), troupe()
    bound(algo, generator, models)
    by_hand = {key: w.detach().double().clone() for key, w in models.weights("target").items()}
    start, seen = models.fingerprint("policy"), [models.fingerprint("policy")]

    def follow(target: str, source: str, decay: float) -> None:
        move(target, source, decay)
        seen.append(models.fingerprint("policy"))
        for key, weight in models.weights("policy").items():
            by_hand[key] = 0.75 * by_hand[key] + 0.25 * weight.detach().double()

    move = models.ema_update
    monkeypatch.setattr(models, "ema_update", follow)
    learn(algo, models, filled(WON, LOST))
    assert len(seen) > 3 and len(set(seen)) == len(seen)
    for key, weight in models.weights("target").items():
        assert torch.allclose(weight.double(), by_hand[key], rtol=0, atol=5e-7)
    assert generator.changed[-1] == "target"
    assert models.fingerprint("reference") == start


def test_kl_anchor_reduces_drift(model_folder: Path):
    drifts = []
    for kl in (0.0, 3.0):
        algo = nlac(kl_coef=kl, turns_per_update=5)
        models = weights(algo, model_folder)
        bound(algo, troupe(), models)
        for _ in range(6):
            learn(algo, models, filled(WON, LOST))
        drifts.append(drift(algo.context, [WON, LOST])["policy/kl_ref"])
    assert drifts[1] < 0.7 * drifts[0]


def test_off_policy_update_changes_only_priorities(model_folder: Path):
    algo = nlac(turns_per_update=3)
    models = weights(algo, model_folder)
    bound(algo, troupe(), models)
    buffer = filled(WON, LOST)
    assert all(turn.logprobs[0] != turn.logprobs[0] for e in (WON, LOST) for turn in e.turns)
    before = [repr(e.to_json()) for e in buffer.episodes()]
    metrics = learn(algo, models, buffer)
    assert [repr(e.to_json()) for e in buffer.episodes()] == before
    drawn = [p for row in buffer.state()["priorities"] for p in row if p != 1.0]
    assert len(drawn) == 3 and metrics["successor/samples"] == metrics["policy/samples"] == 3
    assert all(bool(w.isfinite().all()) for w in models.weights("policy").values())


def test_priority_is_loss_per_token(models: ModelSet):
    algo, buffer = bound(nlac(turns_per_update=1), troupe(), models), filled(WON, LOST)
    (sample,) = updated(algo, buffer)["successor"].samples
    with torch.no_grad():
        logits = models.module("policy")(input_ids=torch.tensor([sample.ids])).logits[0]
    at = [i for i, m in enumerate(sample.mask) if m]
    losses = [-float(logits[i - 1].log_softmax(-1)[sample.ids[i]]) for i in at]
    (drawn,) = [p for row in buffer.state()["priorities"] for p in row if p != 1.0]
    assert drawn == pytest.approx(sum(losses) / len(losses), rel=1e-5)


def test_turn_without_target_gets_lowest_priority(models: ModelSet):
    cut = episode("cut", ["Is it big?", "Is it red?", "Is it old?"], success=False, stop="context")
    algo, buffer = bound(nlac(turns_per_update=3), troupe(), models), filled(cut)
    buffer.set_priorities([TurnKey("cut", turn) for turn in range(3)], [100.0] * 3)
    assert len(updated(algo, buffer)["successor"].samples) == 2  # the last turn has no target
    first, second, last = (buffer.priority(TurnKey("cut", turn)) for turn in range(3))
    assert 0 < last == min(first, second) < 100.0


def test_turns_without_any_target_share_lowest_priority(models: ModelSet):
    algo = bound(nlac(turns_per_update=2), troupe(backup="It may end."), models)
    cut = episode("cut", ["Is it big?", "Is it red?"], success=False, stop="context")
    buffer = filled(cut)
    buffer.set_priorities([TurnKey("cut", 0)], [0.5])
    updated(algo, buffer)
    assert buffer.state()["priorities"] == [[0.5, 0.5]]


def test_uniform_replay_leaves_priorities(models: ModelSet):
    algo, buffer = bound(nlac({"priority_exponent": 0.0}), troupe(), models), filled(WON, LOST)
    updated(algo, buffer)
    assert {p for row in buffer.state()["priorities"] for p in row} == {1.0}


def test_warmup_trains_only_the_critic(models: ModelSet):
    algo = bound(nlac(critic_warmup=2), troupe(), models)
    names = []
    for step in range(3):
        algo.context.step = step
        names.append(list(updated(algo, filled(WON, LOST))))
    assert names == [["successor"], ["successor"], ["successor", "policy"]]


def test_phases_have_separate_step_sizes(models: ModelSet):
    sizes = {"minibatch_tokens": 7, "critic_steps": 2}
    phases = updated(bound(nlac(sizes), troupe(), models), filled(WON, LOST))
    tokens = sum(sum(sample.mask) for sample in phases["successor"].samples)
    assert phases["policy"].minibatch_tokens == 7
    assert phases["successor"].minibatch_tokens == math.ceil(tokens / 2)


def test_extra_prompt_tokens_bound_every_role(models: ModelSet):
    long = "Yes. " * 16 + "Success."
    cast = troupe(forecast=long, backup=long)
    most = len(CHAT.encode_action(long))
    algo = nlac(
        {"role_tokens": most},
        num_forecasts=3,
        show_alternatives=True,
        policy_target="best_of_n",
        num_candidates=2,
    )
    updated(bound(algo, cast, models), filled(WON, LOST))
    asked_of = {c.role: max(map(len, c.prompts)) + most for c in cast.calls if c.role != "act"}
    room = WON.tokens + algo.extra_prompt_tokens()
    assert asked_of.keys() == {"forecast", "backup", "evaluate", "refine"}
    assert room - most < max(asked_of.values()) == asked_of["evaluate"] <= room


def test_extra_prompt_tokens_bound_repeated_refinements(models: ModelSet):
    sampling = Sampling(max_tokens=40, temperature=1.0, stop_ids=(CHAT.end_of_turn,))
    algo = nlac({"role_tokens": 30}, num_forecasts=1, num_refinements=3)
    bound(algo, troupe(), models).context.sampling = sampling
    instruction = len(algo.roles.prompt_after([], [], algo.prompts.refine))
    assert algo.extra_prompt_tokens() == 3 * (instruction + 30 + 40)


def test_separate_critic_forecasts_and_learns(model_folder: Path):
    algo, generator = nlac(separate_critic=True, advanced={"role_model": "reference"}), troupe()
    phases = updated(bound(algo, generator, weights(algo, model_folder)), filled(WON, LOST))
    assert (phases["successor"].model, phases["policy"].model) == ("critic", "policy")
    found = {(call.role, call.model) for call in generator.calls}
    assert found == {
        ("act", "policy"), ("forecast", "target"), ("backup", "target"),
        ("forecast", "critic"), ("evaluate", "reference"), ("refine", "reference"),
    }  # fmt: skip


def test_priorities_are_losses_of_the_critic(model_folder: Path):
    algo = nlac(separate_critic=True, critic_warmup=9)
    models = weights(algo, model_folder)
    bound(algo, troupe(), models)
    learn(algo, models, filled(WON, LOST))  # the critic leaves the policy
    found = []
    for name in ("critic", "policy"):
        buffer = filled(WON, LOST)
        algo.separate_critic = name == "critic"
        updated(algo, buffer)
        found.append([p for row in buffer.state()["priorities"] for p in row if p != 1.0])
    assert len(found[0]) == len(found[1]) == 4 and sum(found[0]) < sum(found[1])


def test_refined_action_is_distilled_without_critique(models: ModelSet):
    critic = "Optimality: No. It loses badly."
    algo = bound(nlac(turns_per_update=5), troupe(evaluate=critic), models)
    phase = updated(algo, filled(WON, LOST))["policy"]
    states = sorted(place.state_ids for place in places(WON, LOST))
    assert sorted(prompt(sample) for sample in phase.samples) == states
    for sample in phase.samples:
        assert written(sample) == "Is it an owl?" and sample.ids[-1] == CHAT.end_of_turn
        assert "badly" not in CHAT.text_of(sample.ids) and "Critique" not in CHAT.text_of(
            sample.ids
        )
    assert phase.metrics["nlac/optimal_share"] == 0 and phase.metrics["nlac/changed_share"] == 1


def test_kl_anchor_reads_reference_logprobs(models: ModelSet):
    (sample, *_) = updated(bound(nlac(kl_coef=0.1), troupe(), models), filled(WON))[
        "policy"
    ].samples
    row = sample.per_token["reference_logprob"]
    assert [bool(x) for x in row] == [bool(m) for m in sample.mask]
    free = updated(bound(nlac(), troupe(), models), filled(WON))["policy"]
    assert all("reference_logprob" not in sample.per_token for sample in free.samples)


def test_packed_sample_equals_single_samples(models: ModelSet):
    algo = bound(nlac(policy_target="advantage_weighted", num_candidates=4), troupe(), models)
    rows = [candidate("Is it a cat?", 3, 0.2), candidate("Is it?", 2, 0.9), candidate("No.", 1)]
    turn = places(WON)[1]
    targets = algo.selector.targets(Candidates(turn, rows))
    (together,) = distillation_samples(targets, packed=algo.can_pack)
    alone = [completion_sample(turn.state_ids, target.action_ids) for target in targets]
    reader, state = algo.context.models.forward("policy"), len(turn.state_ids)
    (packed,), single = token_logprobs(reader, [together]), token_logprobs(reader, alone)
    assert packed[:state] == [0.0] * state
    assert packed[state:] == pytest.approx([x for row in single for x in row[state:]], abs=1e-5)
    weights = together.per_token["weight"]
    assert weights[state:] == [x.weight for x in targets for _ in x.action_ids]
    assert weights[:state] == [0.0] * state


def test_model_without_packing_gets_single_samples(model_folder: Path):
    plain = nlac(policy_target="advantage_weighted", num_candidates=4, kl_coef=0.1)
    models = ModelSet(model_config(model_folder, attention="eager"), plain.models(), "cpu", 0)
    algo = bound(plain, troupe(), models)
    assert not algo.can_pack
    turn = places(WON)[0]
    rows = [candidate("a", 3, 0.2), candidate("b", 1, 0.9)]
    samples = distillation_samples(algo.selector.targets(Candidates(turn, rows)), packed=False)
    assert [written(sample) for sample in samples] == ["a", "b"]
    weights = [set(sample.per_token["weight"]) for sample in samples]
    mean = (3 * 0.2 + 0.9) / 4
    assert weights == [{0.0, 3 * (0.2 - mean)}, {0.0, 0.9 - mean}]
    alone = [completion_sample(turn.state_ids, row.action_ids) for row in rows]
    reader = models.forward("policy")
    assert token_logprobs(reader, samples) == token_logprobs(reader, alone)


def test_separate_critic_has_an_optimizer_of_its_own():
    own = OptimizerSpec(lr=0.5)
    specs = nlac(separate_critic=True, critic_optimizer=own).models()
    assert specs["critic"].optimizer == own and specs["policy"].optimizer != own
    specs = nlac(separate_critic=True).models()
    assert specs["critic"].optimizer == specs["policy"].optimizer
