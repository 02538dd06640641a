"""Thought factors: where an answer is cut, and what Self-AC makes of the parts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from agentrl_cli.algos.self_ac import split_episode, split_turn, thought_ends, trained_turns
from agentrl_cli.core.errors import UserError
from agentrl_cli.core.types import Episode
from tests.builders.nlac import CHAT, episode
from tests.builders.self_ac import outputs_with_values, phase_of, self_ac

END = "<end>"
CUTS = {  # the tokens of an answer, its thoughts' lengths with at least 1 and with at least 3
    "no blank line": (["So", " it", " is", "\n", "a", END], [6], [6]),
    "inside a token": (["So", " it", ".\n\nThen", " is", " a", END], [3, 3], [3, 3]),
    "of two tokens": (["So", "\n", "\n", "is", " a", END], [3, 3], [3, 3]),
    "at the very end": (["So", " it", ".", "\n\n", END], [4, 1], [5]),
    "several at the end": (["So", ".\n\n", "\n", "\n", END], [2, 2, 1], [5]),
    "at the beginning": (["\n\n", "So", " it", " is", END], [1, 4], [5]),
    "a short thought": (["So", "\n\n", "it", "\n\n", "is", " a", END], [2, 2, 3], [4, 3]),
    "nothing but one": (["\n\n"], [1], [1]),
    "an empty text": (["So", "", "\n", "", "\n", "is", " a", END], [5, 3], [5, 3]),
}


@pytest.mark.parametrize("name", CUTS)
def test_answer_is_split_after_blank_lines(name: str):
    texts, fine, coarse = CUTS[name]
    for shortest, lengths in ((1, fine), (3, coarse)):
        assert thought_ends(texts, shortest) == [sum(lengths[: k + 1]) for k in range(len(lengths))]


ANSWERS = ["It flies.\n\nIt sings.\n\nIs it an owl?", "Is it a cat?"]


def reasoned(won: bool = True) -> Episode:
    """An answer of three thoughts, then one of one."""
    made = episode("reasoned", ANSWERS, success=won)
    made.turns[0].reward = -1.0
    return made


def test_thoughts_keep_tokens_and_reward():
    turn = reasoned().turns[0]
    parts = split_turn(turn, CHAT.decode, 1)
    texts = [part.action for part in parts]
    assert texts == ["It flies.\n\n", "It sings.\n\n", "Is it an owl?"]
    assert [i for part in parts for i in part.action_ids] == turn.action_ids
    assert [len(part.logprobs) for part in parts] == [len(part.action_ids) for part in parts]
    assert [part.observation_ids for part in parts] == [turn.observation_ids, [], []]
    assert [part.reward for part in parts] == [0.0, 0.0, -1.0]
    game = reasoned()
    assert split_episode(game, CHAT.decode, 0) is game
    whole = split_episode(game, CHAT.decode, 1)
    assert whole.tokens == game.tokens and whole.reward == game.reward
    assert [turn.done for turn in whole.turns] == [False, False, False, True]
    assert whole.success and not split_episode(reasoned(won=False), CHAT.decode, 1).success


def test_credit_of_thoughts_by_hand(model_folder: Path):
    algo, _ = self_ac(model_folder, thought_tokens=1, gae_lambda=0.0, alpha=0.5, gamma=0.5)
    phase = phase_of(algo, reasoned())
    values = [0.1, 0.7, 0.2, 0.4, 0.5]
    loss, metrics = algo.loss(*outputs_with_values(phase, [values]))
    # rewards 0, 0, -1, 0 and the outcome 1 in the last state's place
    errors = [0.35 - 0.1, 0.1 - 0.7, -1 + 0.2 - 0.2, 0.5 - 0.4]
    assert metrics["advantage"].item() == pytest.approx(sum(errors), abs=1e-6)
    assert metrics["actor_loss"].item() == pytest.approx(-sum(errors), abs=1e-6)
    assert metrics["ratio"] == 4 and loss.isfinite()
    assert phase.metrics["self_ac/thoughts"] == 2 and trained_turns(phase.samples[0]) == 4


def test_annotate_merges_thoughts_into_turns(model_folder: Path):
    algo, models = self_ac(model_folder, thought_tokens=1, gamma=0.5, gae_lambda=0.0)
    models.weights("policy")["head.bias"].data.fill_(0.5)
    game = reasoned()
    algo.annotate([game])
    info = game.turns[0].info
    one = {"value": 0.5, "advantage": -0.25, "td_error": -0.25}  # 0.5 * 0.5 - 0.5
    last = {"value": 0.5, "advantage": -1.25, "td_error": -1.25}
    assert [{k: note[k] for k in one} for note in info["thoughts"]] == [one, one, last]
    assert info["value"] == 0.5 and info["advantage"] == pytest.approx(-1.75 / 3)
    # from the first thought's state to the next turn's: -1 / 4 + 0.5 / 8 - 0.5
    assert info["td_error"] == pytest.approx(-0.25 + 0.5 / 8 - 0.5)
    assert len(game.turns[1].info["thoughts"]) == 1
    found = algo.monitor([reasoned()])
    earned = [-0.25 + 0.0625, -0.5 + 0.125, -1 + 0.25, 0.5]  # the outcome lies one step further on
    assert found["critic/brier"] == pytest.approx(sum((0.5 - e) ** 2 for e in earned) / 4)


def test_replies_are_not_split_twice(model_folder: Path):
    algo, _ = self_ac(model_folder, thought_tokens=1)
    cutting = replace(algo.context, turn_delimiter="\n\n")
    with pytest.raises(UserError) as caught:
        algo.bind(cutting)
    assert caught.value.code == "split-twice"
    plain, _ = self_ac(model_folder, thought_tokens=0)
    plain.bind(cutting)
