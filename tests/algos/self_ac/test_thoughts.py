"""Thought factors: where an answer is cut, and what Self-AC makes of the parts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl_cli.algos.self_ac.packing import trained_turns
from agentrl_cli.algos.self_ac.thoughts import split_episode, split_turn, thought_ends
from agentrl_cli.core.errors import UserError
from agentrl_cli.core.types import Episode
from agentrl_cli.report.episode import render_turn
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
def test_an_answer_is_cut_behind_the_token_that_completes_a_blank_line(name: str):
    texts, fine, coarse = CUTS[name]
    for shortest, lengths in ((1, fine), (3, coarse)):
        assert thought_ends(texts, shortest) == [sum(lengths[: k + 1]) for k in range(len(lengths))]


@given(st.lists(st.sampled_from(["a", "\n", "\n\n", "b\n\nc", ""]), min_size=1), st.integers(1, 5))
def test_no_thought_is_shorter_than_the_shortest_and_none_hides_a_cut(texts: list, shortest: int):
    ends = thought_ends(texts, shortest)
    assert ends[-1] == len(texts)
    begins = [0, *ends[:-1]]
    if len(ends) > 1:
        assert all(end - begin >= shortest for begin, end in zip(begins, ends, strict=True))
    for begin, end in zip(begins, ends, strict=True):
        if end < len(texts):
            assert "\n\n" in "".join(texts[begin:end])
        if shortest == 1:  # a blank line stands nowhere but in a thought's last tokens
            assert "\n\n" not in "".join(texts[begin : end - 1])


ANSWERS = ["It flies.\n\nIt sings.\n\nIs it an owl?", "Is it a cat?"]


def reasoned(won: bool = True) -> Episode:
    """An answer of three thoughts, then one of one."""
    made = episode("reasoned", ANSWERS, success=won)
    made.turns[0].reward = -1.0
    return made


def test_thoughts_are_the_same_tokens_and_only_the_last_one_is_rewarded():
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


def test_a_packed_answer_has_a_state_after_every_thought(model_folder: Path):
    algo, _ = self_ac(model_folder, thought_tokens=1)
    phase = phase_of(algo, reasoned())
    (sample,) = phase.samples
    assert trained_turns(sample) == 4 and phase.metrics["self_ac/thoughts"] == 2
    marks, mask = sample.streams["shadow"], sample.mask
    golden = ""  # o: observed, c: critic prompt, a: an action's token; runs written once
    for mark, trained in zip(marks, mask, strict=True):
        kind = "c" if mark else "a" if trained else "o"
        golden += kind if not golden.endswith(kind) else ""
    assert golden == "ocacacaocac"
    visible = [i for i, mark in zip(sample.ids, marks, strict=True) if not mark]
    game = reasoned()
    assert visible == game.state_ids(1) + game.turns[1].action_ids
    assert phase_of(self_ac(model_folder)[0], reasoned()).metrics["self_ac/thoughts"] == 1


def test_each_thought_has_its_own_credit_by_hand(model_folder: Path):
    algo, _ = self_ac(model_folder, thought_tokens=1, gae_lambda=0.0, alpha=0.5, discount=0.5)
    phase = phase_of(algo, reasoned())
    values = [0.1, 0.7, 0.2, 0.4, 0.5]
    loss, metrics = algo.loss(*outputs_with_values(phase, [values]))
    # rewards 0, 0, -1, 0 and the outcome 1 in the last state's place
    errors = [0.35 - 0.1, 0.1 - 0.7, -1 + 0.2 - 0.2, 0.5 - 0.4]
    assert metrics["advantage"].item() == pytest.approx(sum(errors), abs=1e-6)
    assert metrics["actor_loss"].item() == pytest.approx(-sum(errors), abs=1e-6)
    assert metrics["ratio"] == 4 and loss.isfinite()


def test_turns_are_told_of_their_thoughts(model_folder: Path):
    algo, models = self_ac(model_folder, thought_tokens=1, discount=0.5, gae_lambda=0.0)
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
    shown = "\n".join(render_turn(1, game.turns[0]))
    assert (
        shown.count("  thought ") == 3
        and "im_end" not in shown
        and "It sings.  value +0.500" in shown
    )
    assert len(game.turns[1].info["thoughts"]) == 1
    assert "  action " in "\n".join(render_turn(2, game.turns[1]))
    found = algo.monitor([reasoned()])
    earned = [-0.25 + 0.0625, -0.5 + 0.125, -1 + 0.25, 0.5]  # the outcome lies one step further on
    assert found["critic/brier"] == pytest.approx(sum((0.5 - e) ** 2 for e in earned) / 4)


def test_a_negative_length_of_thoughts_is_refused(model_folder: Path):
    with pytest.raises(UserError, match="thought_tokens is -1"):
        self_ac(model_folder, thought_tokens=-1)


def test_thoughts_are_not_cut_twice(model_folder: Path):
    algo, _ = self_ac(model_folder, thought_tokens=1)
    cutting = replace(algo.context, turn_delimiter="\n\n")
    with pytest.raises(UserError, match="environment itself cuts replies into thoughts; give algo"):
        algo.bind(cutting)
    plain, _ = self_ac(model_folder, thought_tokens=0)
    plain.bind(cutting)
