"""What is watched of the critic: every number against one computed by hand."""

from __future__ import annotations

import copy
import math
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from agentrl_cli.algos.nlac import monitor
from agentrl_cli.algos.nlac.choice import Candidate, Candidates, Lesson
from agentrl_cli.algos.nlac.probe import probe, start_from
from agentrl_cli.algos.nlac.refine import Refinement
from agentrl_cli.algos.nlac.roles import CritiquedAction
from agentrl_cli.core.types import Message, Task
from agentrl_cli.envs.twentyq.env import TwentyQ
from agentrl_cli.models.model_set import ModelSet
from agentrl_cli.rollout.play import EpisodeStart, indistinguishable_tasks
from tests.builders.corridor import PATH, RIGHT, rolled, walker, watching
from tests.builders.models import disturb
from tests.builders.nlac import (
    CHAT,
    EXACT,
    LOST,
    WON,
    asked,
    bound,
    candidate,
    episode,
    nlac,
    places,
    troupe,
    weights,
)
from tests.fakes.tabular import GO, JUMP

GAME = TwentyQ(
    world="small",
    turns=4,
    reward="win",
    farewell="graded",
    test_objects=40,
    split_seed=0,
    show_turns_left=True,
)


# numbers


def test_auc_is_the_share_of_pairs_ranked_right_and_ties_count_half():
    assert monitor.auc([(0.1, 0.9), (0.2, 0.3), (0.5, 0.5), (0.8, 0.1)]) == 2.5 / 4
    assert monitor.auc([]) == 0.5


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=1))
def test_auc_of_the_opposite_opinion_is_its_complement(ranked: list[tuple[float, float]]):
    turned = [(high, low) for low, high in ranked]
    assert monitor.auc(ranked) + monitor.auc(turned) == pytest.approx(1)


def test_only_actions_that_truly_differ_make_pairs_the_worse_one_first():
    a, b, c = (candidate(text, 1, value) for text, value in (("a", 0.75), ("b", 0.25), ("c", 0.5)))
    probed = [(a, 0.5), (b, 0.75), (c, 0.65)]
    # two standard errors of the difference, 2 sqrt(2 p (1 - p) / 50), are 0.19 about p = 0.625
    assert monitor.ranked_pairs(probed, 50) == [(0.75, 0.25)]  # 0.15 apart is not different
    assert monitor.ranked_pairs(probed, 10) == []  # nor is 0.25 with as few probes
    probed = [(b, 0.9), (a, 0.1), (c, 0.5)]
    assert monitor.ranked_pairs(probed, 50) == [(0.75, 0.25), (0.5, 0.25), (0.75, 0.5)]


def test_improvement_counts_what_was_said_and_done():
    def group(critique: str, kept: bool, *success: float) -> Candidates:
        place = places(WON)[0]  # of its own: turns are compared by identity
        first = candidate("a", 1, *success, critique=critique)
        judged = CritiquedAction(
            place, first.action_ids, first.forecasts, critique=critique, reading=EXACT
        )
        last = CritiquedAction(place, first.action_ids if kept else [2], reading=EXACT)
        refinement = Refinement([judged, last], prompt=[])
        return Candidates(place, [first, Candidate([2], 0, reading=EXACT)], refinement)

    groups = [
        group("Optimality: Yes.", True, 1.0),
        group("Optimality: Yes.", False, 0.0),
        group("Optimality: No.", False, 0.75, 0.25),
        Candidates(places(WON)[0], [candidate("a", 1)]),  # without a forecast no critique
    ]
    lessons = [Lesson(group.turn, [1]) for group in groups[:2]]
    more = [Lesson(groups[0].turn, [2]), Lesson(groups[2].turn, [1], -1.0)]
    assert monitor.improvement(groups, [*lessons, *more], forecasts=2) == {
        "nlac/unparsed": 1 / 4,
        "nlac/valid_forecasts": (1 / 2 + 1 / 2 + 1 + 0) / 4,
        "nlac/optimal_share": 2 / 3,
        "nlac/changed_share": 2 / 3,
        "nlac/kept_when_optimal": 1 / 2,
        "nlac/distilled_share": 2 / 4,  # two lessons of a turn are one, an unlearnt one is none
        "nlac/forecast_success": (1 + 0 + 0.5 + 0.5) / 4,
    }


def test_critiques_of_candidates_are_counted_where_nothing_is_refined():
    texts = ("Optimality: Yes.", "Optimality: No.", "Hm.")
    groups = [
        Candidates(place, [candidate("a", 2, 0.5, critique=text)])
        for place, text in zip(places(WON), texts, strict=True)
    ]
    found = monitor.improvement(groups, [], forecasts=1)
    assert (found["nlac/unparsed"], found["nlac/optimal_share"]) == (pytest.approx(1 / 3), 1 / 2)


def test_calibration_sets_forecasts_against_how_episodes_ended(models: ModelSet):
    lines = {"won": ["Success.", "Success.", "Failure.", "Hm."], "lost": ["Success."] * 4}
    said = {name: iter(row * 100) for name, row in lines.items()}

    def forecast(text: str, draw: object) -> str:
        return next(said["won" if "is won" in text else "lost"])

    algo = bound(nlac(), troupe(forecast=forecast), models)
    found = algo.critic_monitor.calibration(places(WON)[:1] + places(LOST)[:1])
    assert found["nlac/brier"] == pytest.approx(((2 / 3 - 1) ** 2 + 1**2) / 2)
    assert found["nlac/optimism"] == pytest.approx((2 / 3 - 1 + 1) / 2)
    assert found["nlac/valid_forecasts"] == (12 + 16) / 32


def test_a_measurement_reads_as_many_forecasts_as_is_set(models: ModelSet):
    generator = walker([JUMP, GO], RIGHT)
    algo = watching(nlac({"monitored_forecasts": 3}), PATH, generator, models)
    start = EpisodeStart(PATH.tasks("train")[0], "g", 0, "e")
    rows = places(*rolled(PATH, generator, [start]))[:1]
    generator.calls.clear()
    assert algo.critic_monitor.calibration(rows)["nlac/valid_forecasts"] == 1.0
    algo.critic_monitor.discrimination(rows)
    assert [call.sampling.n for call in generator.of("forecast")] == [3, 3]
    assert algo.forecasts == 1  # what the critique reads of them
    assert {asked(text).count("Success.") + asked(text).count("Failure.")
            for call in generator.of("evaluate") for text in call.texts} == {1}  # fmt: skip


def test_drift_is_the_divergence_from_the_start_on_played_tokens(model_folder: Path):
    models = weights(nlac(), model_folder)
    algo = bound(nlac(), troupe(), models)
    assert monitor.drift(algo.context, [WON]) == {"policy/kl_from_start": 0.0}
    disturb(models, "policy")
    gaps = []
    for turn, played in enumerate(WON.turns):
        ids = WON.state_ids(turn) + played.action_ids
        rows = [logprobs(models, name, ids) for name in ("reference", "policy")]
        at = range(len(ids) - len(played.action_ids), len(ids))
        gaps += [float(rows[0][k - 1, ids[k]] - rows[1][k - 1, ids[k]]) for k in at]
    by_hand = sum(math.exp(gap) - 1 - gap for gap in gaps) / len(gaps)
    assert monitor.drift(algo.context, [WON])["policy/kl_from_start"] == pytest.approx(
        by_hand, rel=1e-4
    )
    assert by_hand > 0.01


@torch.no_grad()
def logprobs(models: ModelSet, name: str, ids: list[int]) -> torch.Tensor:
    return models.module(name)(input_ids=torch.tensor([ids])).logits[0].log_softmax(-1)


# probing


@pytest.mark.parametrize(
    ("forecasts", "auc"),
    [(RIGHT, 1.0), ({JUMP: "Success.", GO: "Failure."}, 0.0), ({JUMP: "Hm.", GO: "Hm."}, 0.5)],
)
def test_discrimination_sets_forecasts_of_one_state_against_probed_outcomes(
    models: ModelSet, forecasts: dict[str, str], auc: float
):
    generator = walker([JUMP, GO], forecasts)
    algo = watching(nlac(advanced={"monitored_actions": 4}), PATH, generator, models)
    starts = [EpisodeStart(PATH.tasks("train")[0], "g", seed, f"e{seed}") for seed in range(6)]
    rows = [place for place in places(*rolled(PATH, generator, starts)) if place.turn == 0]
    found = algo.critic_monitor.discrimination(rows)
    assert found["nlac/auc_within"] == found["nlac/auc_all"] == auc
    assert found["nlac/auc_pairs"] > 0


@pytest.mark.parametrize(
    ("first", "refine", "gain"), [(JUMP, GO, 1.0), (GO, JUMP, -1.0), (GO, GO, 0.0)]
)
def test_the_refined_gain_is_the_probed_difference_to_the_action_it_was_made_from(
    models: ModelSet, first: str, refine: str, gain: float
):
    generator = walker(first, RIGHT, refine)
    algo = watching(nlac(), PATH, generator, models)
    start = EpisodeStart(PATH.tasks("train")[0], "g", 0, "e")
    rows = places(*rolled(PATH, generator, [start]))[:1]
    assert algo.critic_monitor.discrimination(rows)["nlac/refined_gain"] == gain


def test_the_refined_gain_counts_only_what_would_be_distilled(models: ModelSet):
    leap = "I leap."  # as good as a jump
    generator = walker(JUMP, RIGHT | {leap: "Success."})
    refined = iter([GO, JUMP, leap, GO])
    generator.lines["refine"] = lambda text, draw: next(refined)
    generator.lines["evaluate"] = lambda text, draw: (
        "Optimality: No. So." if f"{JUMP}<|im_end|>" in text else "Optimality: Yes. So."
    )
    algo = watching(nlac(gate=True), PATH, generator, models)
    starts = [EpisodeStart(PATH.tasks("train")[0], "g", seed, f"e{seed}") for seed in range(4)]
    rows = [place for place in places(*rolled(PATH, generator, starts)) if place.turn == 0]
    found = algo.critic_monitor.discrimination(rows)
    assert found["nlac/refined_gain"] == 2 / 3  # who goes on wins, who leaps does not
    assert found["nlac/refined_gain_all"] == 2 / 4  # the jump that the gate keeps out, too


def test_probing_plays_an_action_over_all_tasks_that_look_alike(models: ModelSet):
    generator = troupe(act="Is it nice?")
    tasks = GAME.tasks("train")
    algo = watching(nlac(advanced={"probes": len(tasks)}), GAME, generator, models)
    (episode,) = rolled(GAME, generator, [EpisodeStart(tasks[3], "g", 0, "e")])
    place, guess = places(episode)[1], GAME.world_table.guess(tasks[7].data["object"])
    wanted = [(place, CHAT.encode_action(text)) for text in (guess, "Is it nice?")]
    assert probe(algo.roles, wanted, len(tasks)) == [1 / len(tasks), 0.0]


def test_probes_that_are_fewer_than_the_tasks_that_look_alike_favour_none_of_them(models: ModelSet):
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


def test_own_play_from_another_observation_has_diverged():
    generator = troupe(act="Is it nice?")
    task = GAME.tasks("train")[0]
    (episode,) = rolled(GAME, generator, [EpisodeStart(task, "g", 0, "e")])
    start = start_from(CHAT, places(episode)[1], None, 7, 0)
    assert rolled(GAME, generator, [start])[0].stop == "done"
    assert start.awaited is not None
    other = replace(start, awaited=[Message("user", "Perhaps."), *start.awaited[1:]])
    assert rolled(GAME, generator, [other])[0].stop == "diverged"


def test_an_episode_that_was_cut_off_does_not_count_as_failed(models: ModelSet):
    algo = bound(nlac(), troupe(forecast="Yes. Success."), models)
    cut = episode("cut", ["Is it big?"], success=False, stop="context")
    won = algo.critic_monitor.calibration(places(WON))
    assert algo.critic_monitor.calibration([*places(WON), *places(cut)]) == won
    assert won["nlac/brier"] == 0


def test_a_critic_that_says_nothing_has_no_score(models: ModelSet):
    mute = bound(nlac(), troupe(forecast="Who knows?"), models).critic_monitor
    assert mute.calibration(places(WON)) == {"nlac/valid_forecasts": 0}
    cut = episode("cut", ["Is it big?"], success=False, stop="context")
    able = bound(nlac(), troupe(forecast="Yes. Success."), models).critic_monitor
    assert able.calibration(places(cut)) == {"nlac/valid_forecasts": 1}


def test_watching_measures_nothing_where_no_state_is_watched_and_changes_no_weight(
    models: ModelSet,
):
    generator = walker([JUMP, GO], RIGHT)
    start = EpisodeStart(PATH.tasks("train")[0], "g", 0, "e")
    episodes = rolled(PATH, generator, [start])
    before = [models.fingerprint(name) for name in models.names]
    algo = watching(nlac(advanced={"monitored_states": 0}), PATH, generator, models)
    assert algo.monitor(episodes) == {}
    found = watching(nlac(), PATH, generator, models).monitor(episodes)
    assert {"nlac/brier", "nlac/auc_within", "nlac/refined_gain"} <= found.keys()
    asked_of = {call.model for call in generator.of("forecast")}
    assert asked_of == {"policy", "reference"} and found["nlac/brier_start"] >= 0
    assert [models.fingerprint(name) for name in models.names] == before


# states that look alike


@pytest.mark.parametrize("secret", ["cat", "hammer"])
def test_tasks_are_alike_where_every_answer_so_far_would_be_the_same(secret: str):
    world = GAME.world_table
    asked_for = list(world.attributes[:3])
    lines = iter([*map(world.question, asked_for), "Is it nice?"])
    task = Task("secret", "train", {"object": secret})
    (episode,) = rolled(
        GAME, troupe(act=lambda text, draw: next(lines)), [EpisodeStart(task, "g", 0, "e")]
    )
    tasks = [Task(name, "train", {"object": name}) for name in world.objects if name != secret]
    sizes = []
    for turn in range(4):
        found = indistinguishable_tasks(episode, turn, tasks, lambda: copy.copy(GAME))
        known = [(key, world.answer(secret, key)) for key in asked_for[:turn]]
        assert found[0] == task
        assert {t.data["object"] for t in found} == set(world.matching(known))
        sizes.append(len(found))
    assert sizes == sorted(sizes, reverse=True) and sizes[-1] < sizes[0] == len(world.objects)


def test_a_wrong_guess_leaves_out_the_guessed_object_only():
    world = GAME.world_table
    tasks = GAME.tasks("train")
    guessed = tasks[5].data["object"]
    generator = troupe(act=world.guess(guessed))
    (episode,) = rolled(GAME, generator, [EpisodeStart(tasks[0], "g", 0, "e")])
    found = indistinguishable_tasks(episode, 1, tasks, lambda: copy.copy(GAME))
    assert {t.id for t in found} == {t.id for t in tasks} - {tasks[5].id}
