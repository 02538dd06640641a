"""Episodes in the terminal, critics against outcomes, credit and tokens, by hand."""

from __future__ import annotations

from typing import Any

import pytest

from agentrl_cli.core.types import Episode, Message, Task, Turn
from agentrl_cli.report.episode import (
    Prediction,
    calibration,
    credit,
    numbers,
    predictions,
    render,
    texts,
    tokens,
    verdicts,
)
from tests.builders.report import episode


def test_critic_is_compared_with_outcomes():
    played = [
        episode("cat", 0, 1, critic={"forecasts": ["Success.", "Failure.", "?"], "verdict": True}),
        episode("dog", 0, 0, critic={"forecasts": ["Success.", "Success."], "verdict": True}),
        episode("owl", 0, 0, value=0.25),
        episode("elk", 0, 1, critic={"forecasts": ["?"], "verdict": False}),
    ]
    found = [prediction for each in played for prediction in predictions(each)]
    assert [(p.expected, p.won) for p in found] == [(0.5, True), (1.0, False), (0.25, False)]
    bins = calibration(found)
    assert [(b["low"], b["turns"], b["won"]) for b in bins] == [
        (0.2, 1, 0),
        (0.4, 1, 1),
        (0.8, 1, 0),
    ]
    assert verdicts(found) == {
        "turns": 2, "optimal": 1.0, "won_if_optimal": 0.5, "won_if_not": None,
    }  # fmt: skip
    assert verdicts([Prediction(0.5, None, True)]) is None


def test_credit_of_a_turn():
    forecasts = {"forecasts": ["Success.", "Success.", "Failure.", "It rains."]}
    infos = [
        {"advantage": -2.0}, {"value": 7, "advantage": 1}, {"critic": forecasts}, {"value": 0.25},
        {}, {"advantage": "much", "value": float("nan")},
    ]  # fmt: skip
    found = [credit(Turn([], "a", [1], [2], [0.0], info=info)) for info in infos]
    assert found == [
        {"advantage": -2.0}, {"advantage": 1.0, "value": 1.0},
        {"forecast": pytest.approx(2 / 3)}, {"value": 0.25}, {}, {},
    ]  # fmt: skip


def test_tokens_are_shaded_by_probability():
    logprobs = [0.0, -0.2, -1.0, -3.0, -9.0]
    turn = Turn([], "ab", [], [1, 2, 3, 4, 5], logprobs)
    shaded = [(f"[{n + 1}]", logprob, n) for n, logprob in enumerate(logprobs)]
    assert tokens(turn, str) == shaded
    missing: Any = [None] * 5
    for unknown in ([], missing):  # not stored; another action replaced the sampled one
        turn.logprobs = unknown
        assert tokens(turn, str) == []


CRITIC = {
    "forecasts": ["No. Failure."],
    "critique": "Optimality: No. It loses.",
    "verdict": False,
    "refined": "Is it a pet?",
    "refined_critique": "Optimality: Yes. It wins.",
    "refined_verdict": True,
}
BEFORE = [("forecast", "No. Failure."), ("critique", "Optimality: No. It loses."),
          ("verdict", "not optimal")]  # fmt: skip
REFINED = ("refined", "Is it a pet?")
AFTER = [("critique", "Optimality: Yes. It wins."), ("verdict", "optimal")]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, [*BEFORE, REFINED, *AFTER]),
        ({"refined": "Is it a cat?"}, [*BEFORE, ("refined", "unchanged"), *AFTER]),
        ({"refined_critique": "", "refined_verdict": None}, [*BEFORE, REFINED]),
        ({"forecasts": ["Yes. Success.", "No. Failure.", "No. Failure."], "others": ["Near."] * 3},
         [("forecast", "2 x No. Failure."), ("forecast", "Yes. Success."),
          ("other", "3 x Near."), *BEFORE[1:], REFINED, *AFTER]),
        ({"forecasts": [], "critique": "", "verdict": None, "refined": ""}, []),
        ({"critique": "Well.", "verdict": None, "refined": ""},
         [BEFORE[0], ("critique", "Well."), ("verdict", "unreadable")]),
    ],
)  # fmt: skip
def test_texts_of_a_critic_are_in_writing_order(change, expected):
    turn = Turn([Message("user", "Ask.")], "Is it a cat?", [1], [2], [-0.1])
    turn.info = {"critic": CRITIC | change, "advantage": -0.5, "value": 0.25}
    assert dict(numbers(turn, 1)) == {
        "reward": "0", "return": "1", "value": "+0.250", "advantage": "-0.500",
    }  # fmt: skip
    assert texts(turn, None) == [("user", "Ask."), ("action", "Is it a cat?"), *expected]


def test_many_forecasts_are_folded_to_outcomes():
    said = ["A cat. Success.", "A dog. Success.", "A cat. Success.", "An owl. Failure.", "?"]
    critic = {"forecasts": said, "others": said[:1]}
    turn = Turn([], "go", [1], [2], [-0.5], info={"critic": critic})
    folded, full = dict(texts(turn, None, fold=True)), texts(turn, None)
    assert folded["forecasts"].startswith("3 x Success, 1 x Failure, 1 x unreadable")
    assert folded["other"] == "A cat. Success."
    assert ("forecast", "2 x A cat. Success.") in full and ("forecast", "?") in full


@pytest.mark.parametrize("width", [100, 60, 31, 12])
def test_episode_fits_the_width(width: int):
    text = "a question of many words that goes on for longer than any line is, " * 3
    turn = Turn([Message("user", text)], text, [1], [2], [-0.5], info={"advantage": 0.25})
    lines = render(Episode("e", Task("t", "train", {}), "g", 7, [turn]), "here", width)
    assert width < 24 or max(map(len, lines)) <= width
    at = next(i for i, line in enumerate(lines) if line.startswith("  action"))
    first = at if width > 40 else at + 1  # in a narrow terminal the text is below its label
    indent = lines[first].index("a question" if width > 12 else "a")
    assert lines[first + 1].startswith(" " * indent) and lines[first + 1][indent] != " "
