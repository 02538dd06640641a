"""In a world with known values the language critic ranks actions rightly and the policy follows."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pytest

from agentrl_cli.algos.nlac.algorithm import NLAC
from agentrl_cli.algos.nlac.parse import strict_outcome
from agentrl_cli.algos.samples import TurnRef
from agentrl_cli.core.types import Episode
from agentrl_cli.models.model_set import ModelSet
from agentrl_cli.rollout.play import EpisodeStart, play
from tests.builders.nlac import CHAT, SAMPLING, bound, nlac, places, weights
from tests.fakes.tabular import GO, JUMP, CorridorEnv, Pair, TableGenerator, kendall, pair_of

WORLD = CorridorEnv(jump=(0.3, 0.75, 0.9), last=0.1)
UNIFORM = {f"Room {room}.": 0.5 for room in range(3)}


@pytest.fixture(scope="module")
def models(model_folder: Path) -> ModelSet:
    return weights(nlac(), model_folder)


def played(world: CorridorEnv, table: TableGenerator, count: int) -> list[Episode]:
    task = world.tasks("train")[0]
    starts = [EpisodeStart(task, "g", seed, f"e{seed}") for seed in range(count)]
    return play(
        starts, lambda: CorridorEnv(jump=world.jump, last=world.last), CHAT, table, SAMPLING,
        max_seq_len=1000,
    )  # fmt: skip


def sweep(algo: NLAC, table: TableGenerator, rows: list[TurnRef], step: int) -> None:
    """One language backup of every transition; the table then holds the targets."""
    algo.roles.begin_stream("sweep", step)
    found: dict[Pair, list[str]] = defaultdict(list)
    for place, ids in zip(rows, algo.successor_targets(rows, []), strict=True):
        if ids is not None:
            found[pair_of(place.episode, place.turn)].append(CHAT.decode(ids))
    table.learn(found)


def test_outcomes_travel_one_step_back_with_each_sweep(models: ModelSet):
    world = CorridorEnv(jump=(0.5,) * 4, last=1.0)
    table = TableGenerator({f"Room {room}.": 0.0 for room in range(4)})
    algo = bound(nlac(), table, models)
    rows = places(*played(world, table, 3))
    known = []
    for step in range(5):
        known.append([bool(table.texts["policy"][f"Room {room}.", GO]) for room in range(4)])
        sweep(algo, table, rows, step)
    assert known == [[room >= 4 - step for room in range(4)] for step in range(5)]
    assert {strict_outcome(text) for text in table.texts["policy"]["Room 0.", GO]} == {True}


def test_whole_traces_carry_the_outcome_to_the_first_turn_in_one_sweep(models: ModelSet):
    world = CorridorEnv(jump=(0.5,) * 4, last=1.0)
    table = TableGenerator({f"Room {room}.": 0.0 for room in range(4)})
    algo = bound(nlac({"td_lambda": 1.0}), table, models)
    sweep(algo, table, places(*played(world, table, 3)), 0)
    told = [table.texts["policy"][f"Room {room}.", GO] for room in range(4)]
    assert all(strict_outcome(text) for row in told for text in row) and all(told)


@pytest.mark.parametrize("trace", [0.5, 1.0])
def test_traces_value_the_policy_that_played_without_bias(models: ModelSet, trace: float):
    table = TableGenerator(dict(UNIFORM))
    algo = bound(nlac({"td_lambda": trace}), table, models)
    rows = places(*played(WORLD, table, 600))
    for step in range(1 if trace == 1 else 4):
        sweep(algo, table, rows, step)
    truth = WORLD.values(UNIFORM)
    assert [table.value(pair) for pair in truth] == pytest.approx(list(truth.values()), abs=0.08)


def test_the_forecasts_rank_all_actions_as_their_true_values_do(models: ModelSet):
    table = TableGenerator(dict(UNIFORM))
    algo = bound(nlac(), table, models)
    rows = places(*played(WORLD, table, 600))
    truth = WORLD.values(UNIFORM)
    agreement = []
    for step in range(4):
        agreement.append(kendall(list(truth.values()), [table.value(pair) for pair in truth]))
        sweep(algo, table, rows, step)
    assert agreement[0] == 0 and agreement == sorted(agreement) and agreement[-1] == 1
    assert [table.value(pair) for pair in truth] == pytest.approx(list(truth.values()), abs=0.08)


def test_backups_follow_the_policy_of_now_whoever_played(models: ModelSet):
    table = TableGenerator(dict(UNIFORM))
    rows = places(*played(WORLD, table, 600))
    table.policy = {"Room 0.": 0.0, "Room 1.": 0.0, "Room 2.": 1.0}
    algo = bound(nlac(), table, models)
    for step in range(4):
        sweep(algo, table, rows, step)
    truth = WORLD.values(table.policy)
    assert truth["Room 0.", GO] == 0.9 != WORLD.values(UNIFORM)["Room 0.", GO]
    assert [table.value(pair) for pair in truth] == pytest.approx(list(truth.values()), abs=0.08)


def test_policy_iteration_from_old_play_alone_reaches_the_optimum(models: ModelSet):
    world, table = CorridorEnv(jump=(0.2, 0.7, 1.0), last=0.0), TableGenerator(dict(UNIFORM))
    rows = places(*played(world, table, 150))
    judged = [place for pair in world.values(UNIFORM) for place in some(rows, pair)]
    algo = bound(
        nlac(show_alternatives=True, num_forecasts=6, advanced={"first_action": "stored"}),
        table,
        models,
    )
    jumps = []
    for step in range(8):
        sweep(algo, table, rows, step)
        targets, _ = algo.improve(judged)
        for room in UNIFORM:
            taught = [
                target.action_ids
                for target in targets
                if pair_of(target.turn.episode, target.turn.turn)[0] == room
            ]
            table.policy[room] = sum(CHAT.decode(ids) == JUMP for ids in taught) / len(taught)
        jumps.append(table.policy["Room 1."])
    assert world.values(UNIFORM)["Room 1.", GO] < 0.7  # so at first it is right to jump there
    assert max(jumps[:3]) > 0.6 and jumps[-1] < 0.15
    assert table.policy["Room 0."] < 0.15 and table.policy["Room 2."] > 0.85
    assert sum(e.success for e in played(world, table, 100)) / 100 > 0.8  # uniformly: 0.4


def some(rows: list[TurnRef], pair: Pair) -> list[TurnRef]:
    """Ten places of a room in which that action was played."""
    return [place for place in rows if pair_of(place.episode, place.turn) == pair][:10]
