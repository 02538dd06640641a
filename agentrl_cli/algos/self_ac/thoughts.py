"""Thought factors: an answer is cut at its blank lines, each part is a turn with an empty
observation and a credit of its own. Where a turn's reward and answer belong, is decided here."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise

from agentrl_cli.core.types import Episode, Turn

BLANK = "\n\n"
Read = Callable[[list[int]], str]


def cut(texts: Sequence[str], shortest: int) -> list[int]:
    """Where the thoughts of an answer end, in tokens whose texts are given: behind the first token
    that completes a blank line. What has fewer than `shortest` tokens joins the thought behind it,
    the last one the thought before it."""
    ends, begin, last = [], 0, ""
    for at, text in enumerate(texts, 1):
        joined = last + text
        last = joined[-1:]
        if BLANK in joined and at - begin >= shortest <= len(texts) - at:
            ends.append(at)
            begin, last = at, ""
    return [*ends, len(texts)]


def thoughts_of(turn: Turn, read: Read, shortest: int) -> list[Turn]:
    """The turn as one turn for each thought: the first has its observation, the last its reward and
    its end. `read` gives the text of ids."""
    bounds = [0, *cut([read([i]) for i in turn.action_ids], shortest)]
    parts = [
        Turn(
            [], read(turn.action_ids[begin:end]), [], turn.action_ids[begin:end],
            turn.logprobs[begin:end],
        )
        for begin, end in pairwise(bounds)
    ]  # fmt: skip
    first, last = parts[0], parts[-1]
    first.observation, first.observation_ids = turn.observation, turn.observation_ids
    first.restart = turn.restart
    last.reward, last.done, last.finish = turn.reward, turn.done, turn.finish
    return parts


def by_thought(episode: Episode, read: Read, shortest: int) -> Episode:
    """The same tokens with a turn for each thought; the episode itself where `shortest` is 0."""
    if not shortest:
        return episode
    turns = [part for turn in episode.turns for part in thoughts_of(turn, read, shortest)]
    return replace(episode, turns=turns)


def tell(episode: Episode, thoughts: Episode, discount: float) -> None:
    """Write into each turn's `info` what was noted of its thoughts: the value before the first, the
    mean advantage, the TD error over all of them, and every thought's own."""
    parts = iter(thoughts.turns)
    for turn in episode.turns:
        rows, length = [], 0
        while length < len(turn.action_ids):
            rows.append(next(parts))
            length += len(rows[-1].action_ids)
        notes = [part.info for part in rows]
        turn.info |= {
            "value": notes[0]["value"],
            "advantage": statistics.fmean(note["advantage"] for note in notes),
            "td_error": sum(discount**k * note["td_error"] for k, note in enumerate(notes)),
            "thoughts": [{"text": part.action, **part.info} for part in rows],
        }
