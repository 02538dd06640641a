"""Credit as bars, by hand; tokens by their probability."""

from __future__ import annotations

from typing import Any

import pytest

from agentrl_cli.core.types import Episode, Message, Task, Turn
from agentrl_cli.report import credit
from agentrl_cli.report.credit import Bar, Column
from agentrl_cli.report.tokens import Token, tokens


def episode(*infos: dict[str, Any]) -> Episode:
    turns = [Turn([Message("user", "?")], "a", [1], [2], [0.0], info=info) for info in infos]
    return Episode("e", Task("t", "test", {}), "g", 0, turns)


def test_advantages_are_drawn_from_the_middle_against_the_largest():
    rows = credit.bars(episode({"advantage": -2.0}, {"advantage": 1}, {}, {"advantage": 0.0}))
    assert rows == [
        [Bar("advantage", -2.0, 0.0, 50.0)], [Bar("advantage", 1.0, 50.0, 25.0)], [],
        [Bar("advantage", 0.0, 50.0, 0.0)],
    ]  # fmt: skip
    strip = credit.strip(rows)
    assert strip is not None and (strip.name, strip.width) == ("advantage", 24)
    assert strip.columns == [
        Column(0, 12.0, 12.0, True), Column(6, 6.0, 6.0, False), Column(12, 12.0, 0.0, False),
        Column(18, 12.0, 0.0, False),
    ]  # fmt: skip


def test_what_a_critic_expected_is_drawn_as_the_share_that_it_is():
    forecasts = {"forecasts": ["Success.", "Success.", "Failure.", "It rains."]}
    rows = credit.bars(
        episode({"value": 0.25}, {"value": 7, "advantage": 1}, {"critic": forecasts})
    )
    assert rows[0] == [Bar("value", 0.25, 0.0, 25.0)]
    assert rows[1] == [Bar("advantage", 1.0, 50.0, 50.0), Bar("value", 1.0, 0.0, 100.0)]
    assert [(bar.name, bar.value) for bar in rows[2]] == [("forecast", pytest.approx(2 / 3))]
    strip = credit.strip([rows[0], rows[2]])
    assert strip is not None and strip.columns[0] == Column(0, 18.0, 6.0, False)


def test_where_nothing_is_known_there_is_no_strip():
    rows = credit.bars(episode({}, {"advantage": "much", "value": float("nan")}))
    assert rows == [[], []] and credit.strip(rows) is None


def test_tokens_are_shaded_by_their_probability_and_left_out_where_it_was_not_kept():
    shades = [Token("", logprob).shade for logprob in (0.0, -0.2, -1.0, -3.0, -9.0)]
    assert shades == [0, 1, 2, 3, 4]
    turn = Turn([], "ab", [], [5, 6], [-0.5, -1.5])
    assert tokens(turn, str) == [Token("[5]", -0.5), Token("[6]", -1.5)]
    turn.logprobs = []
    assert tokens(turn, str) == []
