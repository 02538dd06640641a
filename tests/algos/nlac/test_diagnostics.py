"""Diagnostics: every number against one computed by hand."""

from __future__ import annotations

import copy
import json
import math
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from agentrl_cli.algos.nlac.algorithm import NLAC
from agentrl_cli.algos.nlac.diagnostics import (
    ImprovementCheck,
    auc,
    critique_accuracy,
    drift,
    gap,
    improvement_metrics,
    lower_bound,
    probe,
    ranked_pairs,
    start_at,
    target_gains,
)
from agentrl_cli.algos.nlac.improve import Candidates, TrainingTarget
from agentrl_cli.algos.nlac.roles import Candidate
from agentrl_cli.algos.settings import NLACImprovementCheckConfig
from agentrl_cli.algos.sft import SFT
from agentrl_cli.core.errors import UserError
from agentrl_cli.core.types import Episode, Message
from agentrl_cli.envs.base import Env
from agentrl_cli.envs.twentyq.env import TwentyQ
from agentrl_cli.models.model_set import ModelSet
from agentrl_cli.rollout.play import EpisodeStart, indistinguishable_tasks
from tests.builders.corridor import PATH, RIGHT, rolled, walker, walks, watching
from tests.builders.models import disturb
from tests.builders.nlac import (
    CHAT,
    LOST,
    SAMPLING,
    STRICT,
    WON,
    Troupe,
    asked,
    bound,
    candidate,
    episode,
    filled,
    learn,
    nlac,
    places,
    troupe,
    weights,
)
from tests.fakes.tabular import GO, JUMP, CorridorEnv

GAME = TwentyQ(
    world="small",
    max_turns=4,
    reward="win",
    final_hint="graded",
    test_objects=40,
    split_seed=0,
    show_turns_left=True,
)


def test_auc_counts_ties_half():
    assert auc([(0.1, 0.9), (0.2, 0.3), (0.5, 0.5), (0.8, 0.1)]) == 2.5 / 4
    assert auc([]) == 0.5


def test_pairs_need_a_significant_difference():
    values = {"a": 0.75, "b": 0.25, "c": 0.5}

    def pairs(rollouts: int, **success: float) -> list[tuple[float, float]]:
        actions = [candidate(name, 1, values[name]) for name in success]
        for action, rate in zip(actions, success.values(), strict=True):
            action.success = rate
        return ranked_pairs(actions, rollouts)

    close = {"a": 0.5, "b": 0.75, "c": 0.65}
    # two standard errors of the difference, 2 sqrt(2 p (1 - p) / 50), are 0.19 about p = 0.625
    assert pairs(50, **close) == [(0.75, 0.25)]  # a difference of 0.15 is not significant
    assert pairs(10, **close) == []  # nor is 0.25 with few rollouts
    assert pairs(50, b=0.9, a=0.1, c=0.5) == [(0.75, 0.25), (0.5, 0.25), (0.75, 0.5)]


def test_improvement_metrics_by_hand():
    def group(critique: str, kept: bool, *success: float) -> Candidates:
        place = places(WON)[0]  # of its own: turns are compared by identity
        first = candidate("a", 1, *success, critique=critique)
        last = first if kept else Candidate(place, [2], parser=STRICT)
        return Candidates(place, [first, last], [first, last])

    groups = [
        group("Optimality: Yes.", True, 1.0),
        group("Optimality: Yes.", False, 0.0),
        group("Optimality: No.", False, 0.75, 0.25),
        Candidates(places(WON)[0], [candidate("a", 1)]),  # without a forecast no critique
    ]
    targets = [TrainingTarget(group.turn, [1]) for group in groups[:2]]
    more = [TrainingTarget(groups[0].turn, [2]), TrainingTarget(groups[2].turn, [1], -1.0)]
    assert improvement_metrics(groups, [*targets, *more], forecasts=2) == {
        "nlac/unparsed": 1 / 4,
        "nlac/valid_forecasts": (1 / 2 + 1 / 2 + 1 + 0) / 4,
        "nlac/optimal_share": 2 / 3,
        "nlac/changed_share": 2 / 3,
        "nlac/kept_when_optimal": 1 / 2,
        "nlac/distilled_share": 2 / 4,  # two targets of a turn are one, an unlearnt one is none
        "nlac/forecast_success": (1 + 0 + 0.5 + 0.5) / 4,
    }


def test_calibration_compares_forecasts_with_outcomes(models: ModelSet):
    lines = {"won": ["Success.", "Success.", "Failure.", "Hm."], "lost": ["Success."] * 4}
    said = {name: iter(row * 100) for name, row in lines.items()}

    def forecast(text: str, draw: object) -> str:
        return next(said["won" if "is won" in text else "lost"])

    algo = bound(nlac(), troupe(forecast=forecast), models)
    found = algo.critic_monitor.calibration(places(WON)[:1] + places(LOST)[:1])
    assert found["nlac/brier"] == pytest.approx(((2 / 3 - 1) ** 2 + 1**2) / 2)
    assert found["nlac/value_bias"] == pytest.approx((2 / 3 - 1 + 1) / 2)
    assert found["nlac/valid_forecasts"] == (12 + 16) / 32


def test_monitor_uses_its_own_forecast_count(models: ModelSet):
    generator = walker([JUMP, GO], RIGHT)
    algo = watching(nlac(diagnostics={"num_forecasts": 3}), PATH, generator, models)
    start = EpisodeStart(PATH.tasks("train")[0], "g", 0, "e")
    rows = places(*rolled(PATH, generator, [start]))[:1]
    generator.calls.clear()
    assert algo.critic_monitor.calibration(rows)["nlac/valid_forecasts"] == 1.0
    algo.critic_monitor.discrimination(rows)
    assert [call.sampling.n for call in generator.of("forecast")] == [3, 3]
    assert algo.num_forecasts == 1  # what the critique reads of them
    assert {asked(text).count("Success.") + asked(text).count("Failure.")
            for call in generator.of("evaluate") for text in call.texts} == {1}  # fmt: skip


def test_drift_equals_k3_by_hand(model_folder: Path):
    models = weights(nlac(), model_folder)
    algo = bound(nlac(), troupe(), models)
    assert drift(algo.context, [WON]) == {"policy/kl_ref": 0.0}
    disturb(models, "policy")
    gaps = []
    for turn, played in enumerate(WON.turns):
        ids = WON.state_ids(turn) + played.action_ids
        rows = [logprobs(models, name, ids) for name in ("reference", "policy")]
        at = range(len(ids) - len(played.action_ids), len(ids))
        gaps += [float(rows[0][k - 1, ids[k]] - rows[1][k - 1, ids[k]]) for k in at]
    by_hand = sum(math.exp(gap) - 1 - gap for gap in gaps) / len(gaps)
    assert drift(algo.context, [WON])["policy/kl_ref"] == pytest.approx(by_hand, rel=1e-4)
    assert by_hand > 0.01


@torch.no_grad()
def logprobs(models: ModelSet, name: str, ids: list[int]) -> torch.Tensor:
    return models.module(name)(input_ids=torch.tensor([ids])).logits[0].log_softmax(-1)


@pytest.mark.parametrize(
    ("forecasts", "auc"),
    [(RIGHT, 1.0), ({JUMP: "Success.", GO: "Failure."}, 0.0), ({JUMP: "Hm.", GO: "Hm."}, 0.5)],
)
def test_auc_compares_forecasts_with_rollouts(
    models: ModelSet, forecasts: dict[str, str], auc: float
):
    generator = walker([JUMP, GO], forecasts)
    algo = watching(nlac(diagnostics={"num_actions": 4}), PATH, generator, models)
    starts = [EpisodeStart(PATH.tasks("train")[0], "g", seed, f"e{seed}") for seed in range(6)]
    rows = [place for place in places(*rolled(PATH, generator, starts)) if place.turn == 0]
    found = algo.critic_monitor.discrimination(rows)
    assert found["nlac/auc_within"] == found["nlac/auc_all"] == auc
    assert found["nlac/auc_pairs"] > 0


def test_refined_gain_counts_training_targets_only(models: ModelSet):
    leap = "I leap."  # as good as a jump
    generator = walker(JUMP, RIGHT | {leap: "Success."})
    refined = iter([GO, JUMP, leap, GO])
    generator.lines["refine"] = lambda text, draw: next(refined)
    generator.lines["evaluate"] = lambda text, draw: (
        "Optimality: No. So." if f"{JUMP}<|im_end|>" in text else "Optimality: Yes. So."
    )
    algo = watching(nlac(require_optimal=True), PATH, generator, models)
    starts = [EpisodeStart(PATH.tasks("train")[0], "g", seed, f"e{seed}") for seed in range(4)]
    rows = [place for place in places(*rolled(PATH, generator, starts)) if place.turn == 0]
    found = algo.critic_monitor.discrimination(rows)
    assert found["nlac/refined_gain"] == 2 / 3  # who goes on wins, who leaps does not
    assert found["nlac/refined_gain_all"] == 2 / 4  # the jump that the gate keeps out, too


def test_probe_covers_all_similar_tasks(models: ModelSet):
    generator = troupe(act="Is it nice?")
    tasks = GAME.tasks("train")
    algo = watching(nlac(diagnostics={"num_rollouts": len(tasks)}), GAME, generator, models)
    (episode,) = rolled(GAME, generator, [EpisodeStart(tasks[3], "g", 0, "e")])
    place, guess = places(episode)[1], GAME.world_table.guess(tasks[7].data["object"])
    wanted = [(place, CHAT.encode_action(text)) for text in (guess, "Is it nice?")]
    assert probe(algo.roles, wanted, len(tasks)) == [1 / len(tasks), 0.0]


def test_few_probes_favor_no_task(models: ModelSet):
    generator = troupe(act="Is it nice?")
    tasks = GAME.tasks("train")
    algo = watching(nlac(), GAME, generator, models)
    starts = [EpisodeStart(tasks[0], "g", seed, f"e{seed}") for seed in range(200)]
    played = rolled(GAME, generator, starts)
    probed, play = list[str](), algo.context.probe
    algo.context.probe = lambda starts: probed.extend(s.task.id for s in starts) or play(starts)
    probe(algo.roles, [(place, None) for place in places(*played) if place.turn == 0], 4)
    counts = Counter(probed)
    assert len(tasks) > 40 and set(counts) == {task.id for task in tasks}
    assert max(counts.values()) < 40  # of 800 among 44; the own task took 200 of them


def test_other_observation_is_divergence(models: ModelSet):
    generator = troupe(act="Is it nice?")
    task, algo = GAME.tasks("train")[0], bound(nlac(), generator, models)
    (episode,) = rolled(GAME, generator, [EpisodeStart(task, "g", 0, "e")])
    start = start_at(algo.roles, places(episode)[1], None, 7, 0)
    assert rolled(GAME, generator, [start])[0].stop == "done"
    assert start.awaited is not None
    other = replace(start, awaited=[Message("user", "Perhaps."), *start.awaited[1:]])
    assert rolled(GAME, generator, [other])[0].stop == "diverged"


def test_monitor_changes_no_weight(models: ModelSet):
    generator = walker([JUMP, GO], RIGHT)
    start = EpisodeStart(PATH.tasks("train")[0], "g", 0, "e")
    episodes = rolled(PATH, generator, [start])
    before = [models.fingerprint(name) for name in models.names]
    algo = watching(nlac(diagnostics={"num_states": 0}), PATH, generator, models)
    assert algo.monitor(episodes) == {}
    found = watching(nlac(), PATH, generator, models).monitor(episodes)
    assert {"nlac/brier", "nlac/auc_within", "nlac/refined_gain"} <= found.keys()
    asked_of = {call.model for call in generator.of("forecast")}
    assert asked_of == {"policy", "reference"} and found["nlac/brier_start"] >= 0
    assert [models.fingerprint(name) for name in models.names] == before


def test_wrong_guess_excludes_one_task():
    world = GAME.world_table
    tasks = GAME.tasks("train")
    guessed = tasks[5].data["object"]
    generator = troupe(act=world.guess(guessed))
    (episode,) = rolled(GAME, generator, [EpisodeStart(tasks[0], "g", 0, "e")])
    found = indistinguishable_tasks(episode, 1, tasks, lambda: copy.copy(GAME))
    assert {t.id for t in found} == {t.id for t in tasks} - {tasks[5].id}


YES, NO = "Optimality: Yes. So.", "Optimality: No. So."


PROBES = 16


def probed(critique: str, success: float, other: float, refined: float | None) -> Candidates:
    """A first draw with its critique, another draw, and a refined action; None: it was kept."""
    place = places(WON)[0]
    drawn = [candidate("a", 1, critique=critique), candidate("b", 1)]
    last = drawn[0] if refined is None else candidate("c", 0)
    actions = drawn if refined is None else [*drawn, last]
    for action, rate in zip(actions, (success, other, refined), strict=False):
        action.success = rate or 0.0
    chain = [drawn[0], replace(last)] if critique else []
    return Candidates(place, actions, chain)


TURNS = [
    probed(NO, 0.0, 1.0, 0.75),  # faulty, flagged, mended
    probed(NO, 0.0, 1.0, 0.125),  # faulty, flagged, better and still worse than the state
    probed(YES, 0.0, 1.0, None),  # faulty, missed, and kept as it was
    probed("", 0.0, 1.0, None),  # faulty, no critique that could be read
    probed(NO, 1.0, 0.0, 0.0),  # sound, a false alarm, and spoiled
    probed(YES, 0.5, 0.5, 0.375),  # sound, and a little worse is not spoiled
]


def test_critique_accuracy_by_hand(models: ModelSet):
    selector = bound(nlac(), troupe(), models).selector
    gains = [0.75 - 0.5, 0.125 - 0.5, 0.0 - 0.5, 0.0 - 0.5, 0.375 - 0.5]  # all that is refined
    mean = sum(gains) / 5
    deviation = (sum((gain - mean) ** 2 for gain in gains) / 4) ** 0.5
    assert critique_accuracy(TURNS, selector, PROBES) == {
        "critique/turns": 6.0,
        "critique/faulty": 4 / 6,
        "critique/recall": 2 / 4,
        "critique/false_positive_rate": 1 / 2,
        "refinement/fix_rate": 1 / 3,  # of the faulty ones that were refined
        "refinement/break_rate": 1 / 2,
        "refinement/target_share": 5 / 6,
        "refinement/target_gain": pytest.approx(mean),
        "refinement/target_gain_low": pytest.approx(mean - 2.776 * deviation / 5**0.5, abs=1e-4),
    }


def test_difference_within_noise_is_no_fault(models: ModelSet):
    selector = bound(nlac(), troupe(), models).selector
    close = [probed(NO, 0.25, 0.5, 0.5)]  # 0.25 under the other; two errors are 0.34 and 0.12
    assert critique_accuracy(close, selector, PROBES)["critique/faulty"] == 0
    assert critique_accuracy(close, selector, 8 * PROBES)["critique/faulty"] == 1


def test_gap_compares_with_other_draws():
    group = probed(NO, 0.25, 0.75, 0.5)
    first, second, refined = group.actions
    assert gap(group, first, 64) == -0.5 and gap(group, refined, 64) == 0  # 0.5 is the mean of both
    second.draws = 3
    # p is 0.5625, the error sqrt(p (1 - p) (1 + 1/16 + 9/16) / probes), so two are 0.125 at 102.4
    assert gap(group, refined, 102) == 0 and gap(group, refined, 103) == -0.125
    assert gap(Candidates(group.turn, [first]), first, 64) == 0  # all draws are the same


def test_gated_action_is_no_target(models: ModelSet):
    selector = bound(nlac(require_optimal=True), troupe(), models).selector
    groups = [probed(NO, 0.0, 1.0, 0.75), probed(YES, 0.5, 0.5, None)]
    for group, critique in zip(groups, (YES, NO), strict=True):
        group.chain[-1].critique = critique
    assert target_gains(groups, selector) == [0.25]


def test_lower_bound_needs_two_values():
    assert lower_bound([]) == lower_bound([0.5]) == 0.0
    assert lower_bound([0.25, 0.75]) == pytest.approx(0.5 - 12.706 * 0.125**0.5 / 2**0.5)


SETTINGS = NLACImprovementCheckConfig(every=2, num_targets=8, num_rollouts=3, window=2)


def guarded(folder: Path, speakers: Troupe, world: Env = PATH) -> tuple[NLAC, ModelSet]:
    """The algorithm with a guard, in the corridor unless another world is given."""
    algo = nlac(separate_critic=True, improvement_check=SETTINGS, turns_per_update=12)
    models = weights(algo, folder)
    return watching(algo, world, speakers, models), models


def step(algo: NLAC, models: ModelSet, number: int, *names: str) -> tuple[dict[str, float], list]:
    """One real update of that number, and which of the named models moved."""
    algo.context.step = number
    before = {name: models.fingerprint(name) for name in names}
    buffer = filled(*walks(walker([JUMP, GO], RIGHT), 4))
    metrics = learn(algo, models, buffer)
    return metrics, [name for name in names if models.fingerprint(name) != before[name]]


def test_check_freezes_policy_but_not_critic(model_folder: Path):
    algo, models = guarded(model_folder, walker(GO, RIGHT, refine=JUMP))
    for number in range(3):
        metrics, moved = step(algo, models, number, "policy", "critic", "target")
        assert moved == ["critic", "target"]
        assert metrics["improvement_check/open"] == 0 and metrics["improvement_check/gain"] < 0
        assert metrics["policy/empty"] == 1 and metrics["nlac/distilled_share"] > 0


def test_policy_trains_once_targets_are_better(model_folder: Path):
    speakers = walker(JUMP, RIGHT, refine=JUMP)
    algo, models = guarded(model_folder, speakers)
    metrics, moved = step(algo, models, 0, "policy")
    assert moved == [] and metrics["improvement_check/open"] == 0  # as good is not better
    speakers.lines["refine"] = lambda text, draw: JUMP if "Room 1." in text else GO
    for number, opened in ((1, False), (2, True), (3, True)):
        metrics, moved = step(algo, models, number, "policy")
        assert (metrics["improvement_check/open"] == 1) == opened == (moved == ["policy"])
    assert metrics["improvement_check/gain"] > metrics["improvement_check/low"] > 0


def test_check_compares_targets_with_own_play(model_folder: Path):
    algo, _ = guarded(model_folder, walker(JUMP, RIGHT, refine=GO))
    guard = ImprovementCheck(SETTINGS, algo.roles)
    rooms = [place for place in places(*walks(walker(GO, RIGHT), 8)) if place.turn == 0]
    better = [TrainingTarget(place, CHAT.encode_action(GO)) for place in rooms[:6]]
    equal = [TrainingTarget(place, CHAT.encode_action(JUMP)) for place in rooms[6:]]
    unlearnt = [TrainingTarget(place, CHAT.encode_action(JUMP), -1.0) for place in rooms]
    metrics = guard.measure(0, [*better, *equal, *unlearnt])
    mean, error = 3 / 4, (3 / 14 / 8) ** 0.5  # of six gains of 1 and two of 0
    assert metrics == {
        "improvement_check/gain": pytest.approx(mean),
        "improvement_check/low": pytest.approx(mean - 2.3646 * error, abs=1e-4),
        "improvement_check/open": 1.0,
        "improvement_check/episodes": 2 * 8 * SETTINGS.num_rollouts,
    }
    assert guard.measure(1, equal)["improvement_check/episodes"] == 0 and guard.is_open  # not due
    guard.measure(2, equal)
    assert sorted(guard.gains[0] + guard.gains[1]) == [0] * 4 + [1] * 6
    guard.measure(4, equal)
    assert guard.gains == [[0.0] * 2] * 2 and not guard.is_open  # two measurements are remembered


def test_targets_without_outcome_do_not_count(model_folder: Path):
    algo, _ = guarded(model_folder, walker(JUMP, RIGHT, refine=GO))
    play = algo.context.probe

    def cut(starts: list[EpisodeStart]) -> list[Episode]:
        episodes = play(starts)
        for start, played in zip(starts, episodes, strict=True):
            is_own_play = not start.replayed
            played.stop = "context" if is_own_play and "e0" in start.id else played.stop
        return episodes

    algo.context.probe = cut
    rooms = [place for place in places(*walks(walker(GO, RIGHT), 3)) if place.turn == 0]
    guard = ImprovementCheck(SETTINGS, algo.roles)
    guard.measure(0, [TrainingTarget(place, CHAT.encode_action(GO)) for place in rooms])
    assert guard.gains == [[1.0, 1.0]]


def test_check_state_is_restored(model_folder: Path):
    checks = []
    for _ in range(2):
        algo, _ = guarded(model_folder, walker(JUMP, RIGHT, refine=GO))
        assert algo.checker and not algo.checker.is_open
        checks.append((algo, algo.checker))
    (algo, check), (other, restored) = checks
    check.gains = [[1.0, 0.5] * 3, [0.5] * 2]
    other.load(json.loads(json.dumps(algo.state())))
    assert restored.gains == check.gains and restored.is_open
    assert bound(nlac(), troupe(), algo.context.models).state() == {}


class Fickle(CorridorEnv):
    """A corridor whose first words are never the same."""

    greeted = iter(range(10**6))

    def reset(self, task: Any, seed: int) -> list[Message]:
        super().reset(task, seed)
        return [Message("user", f"Room 0. Visit {next(self.greeted)}.")]


@pytest.mark.parametrize(
    "sizes", [{"every": 0}, {"num_rollouts": 0}, {"window": 0}, {"num_targets": 7}]
)
def test_invalid_check_settings_are_refused(sizes: dict[str, int]):
    with pytest.raises(UserError, match=next(iter(sizes))):
        NLACImprovementCheckConfig(
            **{"every": 2, "num_targets": 8, "num_rollouts": 3, "window": 2, **sizes}
        )


def play(algo: NLAC, prompts: list[list[int]]) -> list[str]:
    rows = algo.generator("refined").generate(prompts, list(range(len(prompts))), SAMPLING)
    return [CHAT.decode(row[0].ids) for row in rows]


def test_refined_policy_plays_refined_actions(models: ModelSet):
    states = [place.state_ids for place in places(WON, LOST)]
    algo = bound(nlac(), troupe(evaluate="Optimality: No. It loses."), models)
    assert play(algo, states) == ["Is it an owl?"] * 5
    speakers = troupe(evaluate="Optimality: No. It loses.")
    greedy = replace(SAMPLING, temperature=0.0)
    generator = bound(nlac(), speakers, models).generator("refined")
    (row,) = generator.generate(states[:1], [0], greedy)
    assert row[0].finish_reason == "stop" and all(map(math.isnan, row[0].logprobs))
    assert {call.sampling for call in speakers.of("act")} == {greedy}  # of all candidates


def test_refined_policy_keeps_gated_actions(models: ModelSet):
    algo = bound(
        nlac(require_optimal=True), troupe(evaluate="Optimality: No.", act="Is it?"), models
    )
    assert play(algo, [places(WON)[0].state_ids]) == ["Is it?"]
    mute = bound(nlac(), troupe(evaluate="Hm.", act="Is it?"), models)
    assert play(mute, [places(WON)[0].state_ids]) == ["Is it?"]


def test_other_algorithms_cannot_play_refined():

    with pytest.raises(UserError) as refused:
        SFT.generator(object(), "refined")  # type: ignore[arg-type]
    assert refused.value.code == "unknown-act"


def test_refined_policy_plays_one_turn(models: ModelSet):
    speakers = troupe(act="3+3=6\n\n6+1=7\n\nIt is 7.", refine="3+4=7\n\nIt is 7.")
    algo = bound(nlac(), speakers, models)
    algo.context.turn_delimiter = "\n\n"
    assert play(algo, [places(WON)[0].state_ids]) == ["3+4=7\n\n"]


def test_calibration_needs_outcomes_and_forecasts(models: ModelSet):
    monitor = bound(nlac(), troupe(forecast="Yes. Success."), models).critic_monitor
    cut = episode("cut", ["Is it big?"], success=False, stop="context")
    assert monitor.calibration([*places(WON), *places(cut)]) == monitor.calibration(places(WON))
    assert monitor.calibration(places(cut)) == {"nlac/valid_forecasts": 1}
    mute = bound(nlac(), troupe(forecast="Who knows?"), models).critic_monitor
    assert mute.calibration(places(WON)) == {"nlac/valid_forecasts": 0}


def test_measurements_need_replayable_environment(model_folder: Path):
    world, speakers = Fickle(jump=(0.0, 1.0), last=0.0), walker(GO, RIGHT)
    algo, _ = guarded(model_folder, speakers, world)
    played = rolled(world, speakers, [EpisodeStart(world.tasks("train")[0], "g", 0, "e")])
    measured = algo.monitor(played)
    assert "nlac/brier" in measured
    assert not any(name.startswith(("critique/", "refinement/", "nlac/auc")) for name in measured)
    targets = [TrainingTarget(place, CHAT.encode_action(GO)) for place in places(*played)]
    assert algo.checker
    with pytest.raises(UserError) as refused:
        algo.checker.measure(0, targets)
    assert refused.value.code == "cannot-replay"


@pytest.mark.parametrize(("count", "measured", "low"), [(7, 7, -1.0), (12, 8, 1.0), (0, 0, -1.0)])
def test_check_measures_eight_targets(model_folder: Path, count: int, measured: int, low: float):
    algo, _ = guarded(model_folder, walker(JUMP, RIGHT, refine=GO))
    rooms = [place for place in places(*walks(walker(GO, RIGHT), count)) if place.turn == 0]
    targets = [TrainingTarget(place, CHAT.encode_action(GO)) for place in rooms]
    metrics = ImprovementCheck(SETTINGS, algo.roles).measure(0, targets)
    assert metrics["improvement_check/episodes"] == 2 * measured * SETTINGS.num_rollouts
    assert (metrics["improvement_check/low"], metrics["improvement_check/open"]) == (low, low > 0)
