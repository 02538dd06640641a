"""ArCHer's actor: its advantages, its first step, learning a game of chance."""

from __future__ import annotations

import statistics
from copy import deepcopy
from pathlib import Path

import pytest
import torch

from agentrl_cli.models.specs import OptimizerSpec
from tests.builders.archer import archer, archer_with_values, phases
from tests.builders.critics import head_values, learner, success_while_learning
from tests.builders.nlac import LOST, WON, filled

Q, V = 0, 1


# the actor


def test_advantage_is_q_minus_v(
    model_folder: Path,
):
    algo, models, _ = archer_with_values(model_folder)
    played = deepcopy(WON)
    (sample,) = phases(algo, [played], filled(WON))[-1].samples
    expected = []
    for k, turn in enumerate(played.turns):
        state = played.state_ids(k)
        value = head_values(models, "critic", state)[V]
        advantage = head_values(models, "critic", state + turn.action_ids)[Q] - value
        assert turn.info["value"] == pytest.approx(value, abs=1e-5)
        assert turn.info["advantage"] == pytest.approx(advantage, abs=1e-5)
        expected += [0.0] * len(turn.observation_ids)
        expected += [turn.info["advantage"]] * len(turn.action_ids)
    assert sample.streams["advantage"] == expected and all(sample.streams["advantage"][-3:])


def test_first_actor_step_is_unclipped(model_folder: Path):
    algo, models, _ = archer_with_values(model_folder)
    broken = deepcopy(LOST)
    broken.error = "KeyError: 'x'"
    update = algo.update([deepcopy(WON), broken], filled(WON))
    found = learner(algo, models).run(update, 0)
    assert found["policy/samples"] == 1 and found["policy/advantage_std"] > 0
    assert found["policy/ratio"] == pytest.approx(1, abs=1e-5)
    assert found["policy/clip_fraction"] == 0 and "value" not in broken.turns[0].info


@pytest.mark.parametrize("action", ["fresh", "stored"])
def test_empty_action_is_skipped_and_counted(model_folder: Path, action: str):
    algo, models, _ = archer_with_values(model_folder, action=action)
    mute, silent = deepcopy(LOST), deepcopy(LOST)
    mute.id, silent.id = "mute", "silent"
    mute.turns[1].action_ids = []
    mute.turns[1].restart = True  # a segment without an action
    for turn in silent.turns:
        turn.action_ids = []
    fresh = [deepcopy(WON), mute, silent]
    critic, actor = phases(algo, fresh, filled(WON, mute, silent))
    assert len(critic.samples) == len(actor.samples) == 1
    assert critic.metrics == {"archer/skipped_broken": 0, "archer/skipped_empty": 2 / 3}
    assert phases(algo, [mute], filled(mute))[0].samples == []
    found = learner(algo, models).run(algo.update(fresh, filled(WON, mute, silent)), 0)
    assert found["archer/skipped_empty"] == 2 / 3
    algo.monitor(fresh)


def test_normalised_advantages_ignore_an_offset(model_folder: Path):
    rows = []
    for offset in (0.0, 5.0):
        algo, models, _ = archer_with_values(model_folder, normalise_advantages=True)
        with torch.no_grad():
            models.weights("critic")["head.q.bias"].add_(offset)
        played = [deepcopy(WON), deepcopy(LOST)]
        phase = phases(algo, played, filled(WON))[-1]
        raw = [turn.info["advantage"] for game in played for turn in game.turns]
        rows.append([raw, *(sample.streams["advantage"] for sample in phase.samples)])
        mean, spread = statistics.fmean(raw), statistics.pstdev(raw)
        given = [next(filter(None, row)) for row in rows[-1][1:]]
        first = [game.turns[0].info["advantage"] for game in played]
        assert given == pytest.approx([(a - mean) / spread for a in first])
    assert [b - a for a, b in zip(rows[0][0], rows[1][0], strict=True)] == pytest.approx([5.0] * 5)
    for one, other in zip(rows[0][1:], rows[1][1:], strict=True):
        assert one == pytest.approx(other, abs=1e-3)


def test_archer_learns_a_coin_game(model_folder: Path):
    adam = OptimizerSpec(lr=3e-3)
    algo = archer(episodes_per_update=32, critic_updates=2, critic_warmup=3, gamma=1.0,
                  ema_decay=0.5, optimizer=adam, critic_optimizer=adam)  # fmt: skip
    won_share = success_while_learning(algo, model_folder, steps=10, tokens=1)
    assert max(won_share[:4]) < 0.4 and sum(won_share[-2:]) / 2 > 0.85
