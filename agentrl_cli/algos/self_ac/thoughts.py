"""Thought factors: an answer is cut at its blank lines, each part is a turn with an empty
observation and a credit of its own. Where a turn's reward and answer belong, is decided here."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise

from agentrl_cli.core.types import Episode, Turn

BLANK_LINE = "\n\n"
Decode = Callable[[list[int]], str]


def split_episode(episode: Episode, decode: Decode, min_tokens: int) -> Episode:
    """The same tokens with a turn for each thought; the episode itself where `min_tokens` is 0."""
    if not min_tokens:
        return episode
    turns = [part for turn in episode.turns for part in split_turn(turn, decode, min_tokens)]
    return replace(episode, turns=turns)


def split_turn(turn: Turn, decode: Decode, min_tokens: int) -> list[Turn]:
    """The turn as one turn for each thought: the first has its observation, the last its reward and
    its end. `decode` gives the text of ids."""
    bounds = [0, *thought_ends([decode([i]) for i in turn.action_ids], min_tokens)]
    cuts = [(turn.action_ids[i:k], turn.logprobs[i:k]) for i, k in pairwise(bounds)]
    parts = [Turn([], decode(ids), [], ids, logprobs) for ids, logprobs in cuts]
    first, last = parts[0], parts[-1]
    first.observation, first.observation_ids = turn.observation, turn.observation_ids
    first.restart = turn.restart
    last.reward, last.done, last.finish = turn.reward, turn.done, turn.finish
    return parts


def thought_ends(texts: Sequence[str], min_tokens: int) -> list[int]:
    """Where the thoughts of an answer end, in tokens whose texts are given: behind the first token
    that completes a blank line. What has fewer than `min_tokens` joins the thought behind it, the
    last one the thought before it."""
    ends, begin, last_character = [], 0, ""
    for end, text in enumerate(texts, 1):
        joined = last_character + text  # a blank line may be made by two tokens
        last_character = joined[-1:]
        long_enough = end - begin >= min_tokens and len(texts) - end >= min_tokens
        if BLANK_LINE in joined and long_enough:
            ends.append(end)
            begin, last_character = end, ""
    return [*ends, len(texts)]


def merge_info(episode: Episode, split: Episode, discount: float) -> None:
    """Write into each turn's `info` what was noted of its thoughts in the `split` episode: the
    value before the first, the mean advantage, the TD error over all, and every thought's own."""
    thoughts = iter(split.turns)
    for turn in episode.turns:
        parts, length = [], 0
        while length < len(turn.action_ids):
            parts.append(next(thoughts))
            length += len(parts[-1].action_ids)
        notes = [part.info for part in parts]
        turn.info |= {
            "value": notes[0]["value"],
            "advantage": statistics.fmean(note["advantage"] for note in notes),
            "td_error": sum(discount**k * note["td_error"] for k, note in enumerate(notes)),
            "thoughts": [{"text": part.action, **part.info} for part in parts],
        }
