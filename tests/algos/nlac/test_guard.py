"""A critic with weights of its own, and a policy that waits until what it would learn is better."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from agentrl_cli.algos.nlac.algorithm import NLAC
from agentrl_cli.algos.nlac.choice import Lesson
from agentrl_cli.algos.nlac.guard import Guard, GuardSettings
from agentrl_cli.core.errors import UserError
from agentrl_cli.core.types import Episode, Message
from agentrl_cli.envs.base import Env
from agentrl_cli.models.model_set import ModelSet
from agentrl_cli.rollout.play import EpisodeStart
from tests.builders.corridor import PATH, RIGHT, rolled, walker, walks, watching
from tests.builders.nlac import (
    CHAT,
    LOST,
    WON,
    Troupe,
    bound,
    filled,
    learn,
    nlac,
    places,
    troupe,
    updated,
    weights,
)
from tests.fakes.tabular import GO, JUMP, CorridorEnv

SETTINGS = GuardSettings(every=2, lessons=8, probes=3, memory=2)

# weights of its own


def test_an_own_critic_forecasts_and_learns_and_the_policy_only_acts(model_folder: Path):
    algo, generator = nlac(critic="own", advanced={"role_weights": "reference"}), troupe()
    phases = updated(bound(algo, generator, weights(algo, model_folder)), filled(WON, LOST))
    assert (phases["successor"].model, phases["policy"].model) == ("critic", "policy")
    found = {(call.role, call.model) for call in generator.calls}
    assert found == {
        ("act", "policy"), ("forecast", "target"), ("backup", "target"),
        ("forecast", "critic"), ("evaluate", "reference"), ("refine", "reference"),
    }  # fmt: skip


def test_the_target_follows_an_own_critic_which_begins_as_the_policy(model_folder: Path):
    algo = nlac({"ema_decay": 0.75}, critic="own", critic_warmup=1)
    models, generator = weights(algo, model_folder), troupe()
    bound(algo, generator, models)
    policy, critic = models.fingerprint("policy"), models.fingerprint("critic")
    assert critic == policy == models.fingerprint("target")
    assert algo.models()["target"].follows == "critic"
    before = {key: w.detach().clone() for key, w in models.weights("target").items()}
    learn(algo, models, filled(WON, LOST))
    assert models.fingerprint("policy") == policy and models.fingerprint("critic") != critic
    learned = models.weights("critic")
    for key, weight in models.weights("target").items():
        by_hand = 0.75 * before[key].double() + 0.25 * learned[key].detach().double()
        assert torch.allclose(weight.double(), by_hand, rtol=0, atol=1e-7)


def test_priorities_are_losses_of_the_critic_that_learns(model_folder: Path):
    algo = nlac(critic="own", critic_warmup=9)
    models = weights(algo, model_folder)
    bound(algo, troupe(), models)
    learn(algo, models, filled(WON, LOST))  # the critic leaves the policy
    found = []
    for name in ("critic", "policy"):
        buffer = filled(WON, LOST)
        algo.critic = "own" if name == "critic" else "shared"
        updated(algo, buffer)
        found.append([p for row in buffer.state()["priorities"] for p in row if p != 1.0])
    assert len(found[0]) == len(found[1]) == 4 and sum(found[0]) < sum(found[1])


# do no harm


def guarded(folder: Path, speakers: Troupe, world: Env = PATH) -> tuple[NLAC, ModelSet]:
    """The algorithm with a guard, in the corridor unless another world is given."""
    algo = nlac(critic="own", guard=SETTINGS, turns_per_update=12)
    models = weights(algo, folder)
    return watching(algo, world, speakers, models), models


def step(algo: NLAC, models: ModelSet, number: int, *names: str) -> tuple[dict[str, float], list]:
    """One real update of that number, and which of the named models moved."""
    algo.context.step = number
    before = {name: models.fingerprint(name) for name in names}
    buffer = filled(*walks(walker([JUMP, GO], RIGHT), 4))
    metrics = learn(algo, models, buffer)
    return metrics, [name for name in names if models.fingerprint(name) != before[name]]


def test_a_policy_that_would_learn_worse_actions_waits_to_the_bit_and_its_critic_goes_on(
    model_folder: Path,
):
    algo, models = guarded(model_folder, walker(GO, RIGHT, refine=JUMP))
    for number in range(3):
        metrics, moved = step(algo, models, number, "policy", "critic", "target")
        assert moved == ["critic", "target"]
        assert metrics["guard/open"] == 0 and metrics["guard/gain"] < 0
        assert metrics["policy/empty"] == 1 and metrics["nlac/distilled_share"] > 0


def test_a_policy_learns_once_its_lessons_are_shown_to_be_better(model_folder: Path):
    speakers = walker(JUMP, RIGHT, refine=JUMP)
    algo, models = guarded(model_folder, speakers)
    metrics, moved = step(algo, models, 0, "policy")
    assert moved == [] and metrics["guard/open"] == 0  # as good is not better
    speakers.lines["refine"] = lambda text, draw: JUMP if "Room 1." in text else GO
    for number, opened in ((1, False), (2, True), (3, True)):
        metrics, moved = step(algo, models, number, "policy")
        assert (metrics["guard/open"] == 1) == opened == (moved == ["policy"])
    assert metrics["guard/gain"] > metrics["guard/low"] > 0


def test_a_guard_measures_lessons_against_own_play_and_counts_its_episodes(model_folder: Path):
    algo, _ = guarded(model_folder, walker(JUMP, RIGHT, refine=GO))
    guard = Guard(SETTINGS, algo.roles)
    rooms = [place for place in places(*walks(walker(GO, RIGHT), 8)) if place.turn == 0]
    better = [Lesson(place, CHAT.encode_action(GO)) for place in rooms[:6]]
    equal = [Lesson(place, CHAT.encode_action(JUMP)) for place in rooms[6:]]
    unlearnt = [Lesson(place, CHAT.encode_action(JUMP), -1.0) for place in rooms]
    metrics = guard.check(0, [*better, *equal, *unlearnt])
    mean, error = 3 / 4, (3 / 14 / 8) ** 0.5  # of six gains of 1 and two of 0
    assert metrics == {
        "guard/gain": pytest.approx(mean),
        "guard/low": pytest.approx(mean - 1.96 * error),
        "guard/open": 1.0,
        "guard/episodes": 2 * 8 * SETTINGS.probes,
    }
    assert guard.check(1, equal)["guard/episodes"] == 0 and guard.is_open  # not due
    guard.check(2, equal)
    assert sorted(guard.gains[0] + guard.gains[1]) == [0] * 4 + [1] * 6
    guard.check(4, equal)
    assert guard.gains == [[0.0] * 2] * 2 and not guard.is_open  # two measurements are remembered


def test_a_guard_is_shut_before_it_has_measured_eight_lessons(model_folder: Path):
    algo, _ = guarded(model_folder, walker(JUMP, RIGHT, refine=GO))
    rooms = [place for place in places(*walks(walker(GO, RIGHT), 7)) if place.turn == 0]
    few = [Lesson(place, CHAT.encode_action(GO)) for place in rooms]
    metrics = Guard(SETTINGS, algo.roles).check(0, few)
    assert (metrics["guard/gain"], metrics["guard/low"], metrics["guard/open"]) == (1, -1, 0)
    assert Guard(SETTINGS, algo.roles).check(0, [])["guard/open"] == 0


def test_a_lesson_whose_probes_were_all_cut_off_says_nothing(model_folder: Path):
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
    guard = Guard(SETTINGS, algo.roles)
    guard.check(0, [Lesson(place, CHAT.encode_action(GO)) for place in rooms])
    assert guard.gains == [[1.0, 1.0]]


def test_a_guard_takes_as_many_lessons_as_is_set(model_folder: Path):
    algo, _ = guarded(model_folder, walker(JUMP, RIGHT, refine=GO))
    rooms = [place for place in places(*walks(walker(GO, RIGHT), 12)) if place.turn == 0]
    lessons = [Lesson(place, CHAT.encode_action(GO)) for place in rooms]
    metrics = Guard(SETTINGS, algo.roles).check(0, lessons)
    assert metrics["guard/episodes"] == 2 * SETTINGS.lessons * SETTINGS.probes


def test_what_a_guard_has_measured_is_in_a_checkpoint(model_folder: Path):
    algo, _ = guarded(model_folder, walker(JUMP, RIGHT, refine=GO))
    algo.policy_guard.gains = [[1.0, 0.5] * 3, [0.5] * 2]
    state = json.loads(json.dumps(algo.state()))
    other, _ = guarded(model_folder, walker(JUMP, RIGHT, refine=GO))
    assert not other.policy_guard.is_open
    other.load(state)
    assert other.policy_guard.gains == algo.policy_guard.gains and other.policy_guard.is_open
    assert nlac().state() == {}


class Fickle(CorridorEnv):
    """A corridor whose first words are never the same."""

    greeted = iter(range(10**6))

    def reset(self, task: Any, seed: int) -> list[Message]:
        super().reset(task, seed)
        return [Message("user", f"Room 0. Visit {next(self.greeted)}.")]


def test_a_world_that_cannot_be_replayed_has_no_guard(model_folder: Path):
    world, speakers = Fickle(jump=(0.0, 1.0), last=0.0), walker(GO, RIGHT)
    algo, _ = guarded(model_folder, speakers, world)
    played = rolled(world, speakers, [EpisodeStart(world.tasks("train")[0], "g", 0, "e")])
    lessons = [Lesson(place, CHAT.encode_action(GO)) for place in places(*played)]
    with pytest.raises(UserError, match=r"cannot be probed; set algo\.guard=null"):
        algo.policy_guard.check(0, lessons)


def test_a_world_that_cannot_be_replayed_is_still_monitored_without_probes(model_folder: Path):
    world, speakers = Fickle(jump=(0.0, 1.0), last=0.0), walker(GO, RIGHT)
    algo, _ = guarded(model_folder, speakers, world)
    played = rolled(world, speakers, [EpisodeStart(world.tasks("train")[0], "g", 0, "e")])
    measured = algo.monitor(played)
    assert "nlac/brier" in measured
    assert not any(name.startswith(("ledger/", "nlac/auc")) for name in measured)


@pytest.mark.parametrize("sizes", [{"every": 0}, {"probes": 0}, {"memory": 0}, {"lessons": 7}])
def test_a_guard_that_could_never_measure_is_refused(sizes: dict[str, int]):
    with pytest.raises(UserError, match=next(iter(sizes))):
        GuardSettings(**{"every": 2, "lessons": 8, "probes": 3, "memory": 2, **sizes})
