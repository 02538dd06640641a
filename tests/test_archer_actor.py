"""ArCHer's actor: its advantages, its first step, learning a game of chance."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path

import pytest

from agentrl_cli.algos.base import OptimizerSpec
from tests.sample_archer import archer, phases, stirred
from tests.sample_critics import alone, learner, success_while_learning
from tests.sample_nlac import LOST, WON, filled

Q, V = 0, 1


# the actor


def test_an_advantage_is_q_less_v_of_the_live_critic_on_every_token_of_its_turn(
    model_folder: Path,
):
    algo, models, _ = stirred(model_folder)
    played = deepcopy(WON)
    (sample,) = phases(algo, [played], filled(WON))[-1].samples
    expected = []
    for k, turn in enumerate(played.turns):
        state = played.state_ids(k)
        value = alone(models, "critic", state)[V]
        advantage = alone(models, "critic", state + turn.action_ids)[Q] - value
        assert turn.info["value"] == pytest.approx(value, abs=1e-5)
        assert turn.info["advantage"] == pytest.approx(advantage, abs=1e-5)
        expected += [0.0] * len(turn.observation_ids)
        expected += [turn.info["advantage"]] * len(turn.action_ids)
    assert sample.streams["advantage"] == expected and all(sample.streams["advantage"][-3:])


def test_the_actors_first_step_is_unclipped_and_a_broken_episode_is_left_out(model_folder: Path):
    algo, models, _ = stirred(model_folder)
    broken = deepcopy(LOST)
    broken.error = "KeyError: 'x'"
    update = algo.update([deepcopy(WON), broken], filled(WON))
    found = learner(algo, models).run(update, 0)
    assert found["policy/samples"] == 1 and found["policy/advantage_spread"] > 0
    assert found["policy/ratio"] == pytest.approx(1, abs=1e-5)
    assert found["policy/clip_fraction"] == 0 and "value" not in broken.turns[0].info


def test_a_game_of_chance_is_learned(model_folder: Path):
    adam = OptimizerSpec(lr=3e-3)
    algo = archer(episodes_per_update=32, critic_updates=2, critic_warmup=3, discount=1.0, ema=0.5,
                  optimizer=adam, critic_optimizer=adam)  # fmt: skip
    won_share = success_while_learning(algo, model_folder, steps=10, tokens=1)
    assert max(won_share[:4]) < 0.4 and sum(won_share[-2:]) / 2 > 0.85
