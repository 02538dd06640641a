"""NLAC: who writes the targets from what, what is trained on them, and which weights move."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from agentrl_cli.algos.nlac import monitor
from agentrl_cli.models.forward import token_logprobs
from agentrl_cli.models.model_set import ModelSet
from agentrl_cli.rollout.replay_buffer import TurnKey
from tests.builders.nlac import (
    CHAT,
    LOST,
    PROMPTS,
    WON,
    asked,
    bound,
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

# policy evaluation


def test_terminal_targets_are_the_true_outcome_and_nobody_is_asked(models: ModelSet):
    generator = troupe()
    algo = bound(nlac(), generator, models)
    ends = [places(WON)[-1], places(LOST)[-1]]
    targets = algo.language_backup(ends, [WON, LOST])
    assert [CHAT.decode(ids or []) for ids in targets] == [
        "The end of won. Success.",
        "The end of lost. Failure.",
    ]
    assert [ids[-1] for ids in targets if ids] == [CHAT.closing] * 2
    assert generator.calls == []


def test_no_role_reads_and_writes_more_behind_an_episode_than_is_said(models: ModelSet):
    long = "Yes. " * 16 + "Success."
    cast = troupe(forecast=long, backup=long)
    most = len(CHAT.encode_action(long))
    algo = nlac(
        {"role_tokens": most}, forecasts=3, compare=True, improvement="choice", candidates=2
    )
    updated(bound(algo, cast, models), filled(WON, LOST))
    asked_of = {c.role: max(map(len, c.prompts)) + most for c in cast.calls if c.role != "act"}
    room = WON.tokens + algo.role_ids()
    assert asked_of.keys() == {"forecast", "backup", "evaluate", "refine"}
    assert room - most < max(asked_of.values()) == asked_of["evaluate"] <= room


@pytest.mark.parametrize("stop", ["truncated", "context"])
def test_an_episode_that_was_cut_off_has_no_terminal_target(models: ModelSet, stop: str):
    cut = episode("cut", ["Is it big?", "Is it red?"], success=False, stop=stop)
    algo = bound(nlac(), troupe(), models)
    first, last = algo.language_backup(places(cut), [cut])
    assert first is not None and last is None


def test_backups_and_their_forecasts_are_written_by_the_target_and_actions_by_the_policy(
    models: ModelSet,
):
    generator = troupe()
    bound(nlac(), generator, models).language_backup(places(WON, LOST), [WON, LOST])
    assert [(call.role, call.model) for call in generator.calls] == [
        ("act", "policy"),
        ("forecast", "target"),
        ("backup", "target"),
    ]


def test_a_backup_reads_the_response_and_a_forecast_of_a_fresh_action_in_the_next_state(
    models: ModelSet,
):
    generator = troupe(act="Is it a fish?", forecast="Later. Failure.", backup="So. Failure.")
    (target,) = bound(nlac(), generator, models).language_backup(places(WON)[:1], [WON])
    act, forecast, backup = (call.texts[0] for call in generator.calls)
    assert CHAT.decode(target or []) == "So. Failure."
    assert asked(act) == "Here is won at 1."
    assert "Is it a fish?" in messages(forecast)[-2] and asked(forecast) == PROMPTS.forecast
    assert asked(backup) == "Seen: Here is won at 1.\nThen: Later. Failure.\nBack it up."
    assert "Is it big?" in messages(backup)[-2]


def test_a_whole_trace_backs_up_from_the_true_end_turn_by_turn(models: ModelSet):
    def backup(text: str, draw: object) -> str:
        return f"Before. {asked(text).splitlines()[1].removeprefix('Then: ')}"

    generator = troupe(backup=backup)
    targets = bound(nlac({"trace": 1.0}), generator, models).language_backup(places(WON), [WON])
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


def test_a_whole_trace_of_an_episode_that_was_cut_off_begins_with_a_forecast_before_its_last_turn(
    models: ModelSet,
):
    cut = episode("cut", ["Is it big?", "Is it red?", "Is it old?"], success=False, stop="context")
    generator = troupe(forecast="Later. Success.", backup="So. Success.")
    targets = bound(nlac({"trace": 1.0}), generator, models).language_backup(places(cut), [cut])
    assert [ids is None for ids in targets] == [False, False, True]
    act, *rest = generator.calls
    assert [asked(text) for text in act.texts] == ["Here is cut at 2."] * 2
    assert [call.role for call in rest] == ["forecast", "backup", "backup"]


def test_a_text_without_an_outcome_breaks_its_chain(models: ModelSet):
    generator = troupe(backup="It may end well.")
    targets = bound(nlac({"trace": 1.0}), generator, models).language_backup(places(WON), [WON])
    assert [ids is None for ids in targets] == [True, True, False]
    assert len(generator.of("backup")) == 1


def test_a_target_is_trained_behind_a_prompt_without_the_response(models: ModelSet):
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


def test_the_mask_of_a_successor_sample_covers_exactly_what_was_written(models: ModelSet):
    backup = "So it went on. Success."
    algo = bound(nlac(turns_per_update=5), troupe(backup=backup), models)
    samples = updated(algo, filled(WON, LOST))["successor"].samples
    texts = sorted(written(sample) for sample in samples)
    assert texts == [backup] * 3 + ["The end of lost. Failure.", "The end of won. Success."]
    assert all(sample.ids[-1] == CHAT.closing for sample in samples)


@pytest.mark.parametrize("role", ["forecast", "backup"])
def test_texts_without_an_outcome_are_counted_and_never_trained(models: ModelSet, role: str):
    algo = bound(nlac(turns_per_update=5), troupe(**{role: "It may end well."}), models)
    phase = updated(algo, filled(WON, LOST))["successor"]
    assert sorted(map(written, phase.samples)) == [
        "The end of lost. Failure.",
        "The end of won. Success.",
    ]
    assert phase.metrics["nlac/unparsed_targets"] == pytest.approx(3 / 5)


@pytest.mark.parametrize(("forecast", "warnings"), [("It may end well.", 1), ("Success.", 0)])
def test_a_model_that_writes_no_forecast_is_told_of_once(
    models: ModelSet, capsys: pytest.CaptureFixture[str], forecast: str, warnings: int
):
    algo = bound(nlac(), troupe(forecast=forecast), models)
    for step in range(2):
        algo.context.step = step
        updated(algo, filled(WON, LOST))
    said = capsys.readouterr().err
    assert said.count("this model does not write what NLAC's critic must") == warnings


def test_a_backup_that_was_cut_off_right_after_its_outcome_is_not_trained(models: ModelSet):
    speakers = troupe(backup="So it went on. Success")
    speakers.cut = "backup"
    phase = updated(bound(nlac(turns_per_update=5), speakers, models), filled(WON, LOST))
    assert len(phase["successor"].samples) == 2
    assert phase["successor"].metrics["nlac/unparsed_targets"] == pytest.approx(3 / 5)


def test_a_turn_that_is_drawn_twice_is_trained_twice_and_not_counted_as_unparsed(models: ModelSet):
    algo = bound(nlac(turns_per_update=20), troupe(), models)
    phase = updated(algo, filled(WON, LOST))["successor"]
    assert len(phase.samples) == 20 and phase.metrics["nlac/unparsed_targets"] == 0


# the models


def test_the_target_moves_by_the_moving_average_after_the_successor_has_learned(
    model_folder: Path,
):
    algo = nlac({"ema_decay": 0.75}, critic_warmup=1)
    models, generator = weights(algo, model_folder), troupe()
    bound(algo, generator, models)
    before = {key: w.detach().clone() for key, w in models.weights("target").items()}
    learn(algo, models, filled(WON, LOST))
    policy = models.weights("policy")
    assert any(not torch.equal(policy[key], before[key]) for key in before)
    for key, weight in models.weights("target").items():
        by_hand = 0.75 * before[key].double() + 0.25 * policy[key].detach().double()
        assert torch.allclose(weight.double(), by_hand, rtol=0, atol=1e-7)
    assert generator.loaded[-1] == ("target", models.version("target"))


def test_the_reference_stays_where_the_policy_began(model_folder: Path):
    algo = nlac(kl_coef=0.5)
    models = weights(algo, model_folder)
    bound(algo, troupe(), models)
    before = models.fingerprint("policy")
    metrics = learn(algo, models, filled(WON, LOST))
    assert models.fingerprint("reference") == before != models.fingerprint("policy")
    assert metrics["policy/kl"] > 0


def test_an_anchored_policy_stays_nearer_to_its_start(model_folder: Path):
    drifts = []
    for kl in (0.0, 3.0):
        algo = nlac(kl_coef=kl, turns_per_update=5)
        models = weights(algo, model_folder)
        bound(algo, troupe(), models)
        for _ in range(6):
            learn(algo, models, filled(WON, LOST))
        drifts.append(monitor.drift(algo.context, [WON, LOST])["policy/kl_from_start"])
    assert drifts[1] < 0.7 * drifts[0]


def test_play_of_a_stranger_without_log_probs_is_learned_from_and_only_priorities_change(
    model_folder: Path,
):
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


def test_a_priority_is_the_mean_loss_of_the_turns_target(models: ModelSet):
    algo, buffer = bound(nlac(turns_per_update=1), troupe(), models), filled(WON, LOST)
    (sample,) = updated(algo, buffer)["successor"].samples
    with torch.no_grad():
        logits = models.module("policy")(input_ids=torch.tensor([sample.ids])).logits[0]
    at = [i for i, m in enumerate(sample.mask) if m]
    losses = [-float(logits[i - 1].log_softmax(-1)[sample.ids[i]]) for i in at]
    (drawn,) = [p for row in buffer.state()["priorities"] for p in row if p != 1.0]
    assert drawn == pytest.approx(sum(losses) / len(losses), rel=1e-5)


def test_a_turn_without_a_target_is_not_preferred_to_one_with_a_target(models: ModelSet):
    cut = episode("cut", ["Is it big?", "Is it red?", "Is it old?"], success=False, stop="context")
    algo, buffer = bound(nlac(turns_per_update=3), troupe(), models), filled(cut)
    buffer.set_priorities([TurnKey("cut", turn) for turn in range(3)], [100.0] * 3)
    assert len(updated(algo, buffer)["successor"].samples) == 2  # the last turn has no target
    first, second, last = (buffer.priority(TurnKey("cut", turn)) for turn in range(3))
    assert 0 < last == min(first, second) < 100.0


def test_a_turn_that_is_drawn_with_and_without_a_target_keeps_the_loss_of_the_target(
    models: ModelSet,
):
    game = episode("a", ["Is it big?", "Is it red?"], success=True)
    texts = iter(["It may end.", *["So. Success."] * 9])
    algo = nlac(turns_per_update=10)
    bound(algo, troupe(backup=lambda prompt, draw: next(texts, "It may end.")), models)
    buffer = filled(game)
    samples = updated(algo, buffer)["successor"].samples
    losses = [-sum(row) for row in token_logprobs(models.reader("policy"), samples)]
    per_token = {written(s): x / sum(s.mask) for s, x in zip(samples, losses, strict=True)}
    assert len(samples) < 10 and len(per_token) == 2
    found = [buffer.priority(TurnKey("a", turn)) for turn in range(2)]
    told = [per_token["So. Success."], per_token["The end of a. Success."]]
    assert found == pytest.approx(told, rel=1e-5)


def test_where_no_turn_has_a_target_none_keeps_a_priority_above_the_others(models: ModelSet):
    algo = bound(nlac(turns_per_update=2), troupe(backup="It may end."), models)
    cut = episode("cut", ["Is it big?", "Is it red?"], success=False, stop="context")
    buffer = filled(cut)
    buffer.set_priorities([TurnKey("cut", 0)], [0.5])
    updated(algo, buffer)
    assert buffer.state()["priorities"] == [[0.5, 0.5]]


def test_priorities_stay_alone_where_replay_is_uniform(models: ModelSet):
    algo, buffer = bound(nlac({"priority_exponent": 0.0}), troupe(), models), filled(WON, LOST)
    updated(algo, buffer)
    assert {p for row in buffer.state()["priorities"] for p in row} == {1.0}


def test_the_policy_rests_during_the_warmup(models: ModelSet):
    algo = bound(nlac(critic_warmup=2), troupe(), models)
    names = []
    for step in range(3):
        algo.context.step = step
        names.append(list(updated(algo, filled(WON, LOST))))
    assert names == [["successor"], ["successor"], ["successor", "policy"]]


def test_the_policy_and_the_successor_take_steps_of_their_own_sizes(models: ModelSet):
    sizes = {"tokens_per_step": 7, "successor_tokens_per_step": 9}
    phases = updated(bound(nlac(sizes), troupe(), models), filled(WON, LOST))
    assert phases["policy"].tokens_per_step == 7 and phases["successor"].tokens_per_step == 9
