"""Where a scalar critic reads an episode: a state at its last token, which is the one before the
action; an action at its own last token."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from agentrl_cli.algos.calibration import Row, critic_metrics
from agentrl_cli.models.policy import Module, reach
from agentrl_cli.types import Episode, Sample, Turn

if TYPE_CHECKING:
    from agentrl_cli.chat import Chat


@dataclass
class Span:
    """Action tokens ids[start:end] of `sample` that count as one step, and that step's reward. The
    state before it is read at token start - 1, the step itself at token end - 1."""

    turn: Turn
    sample: Sample
    start: int
    end: int
    reward: float


def whole(episodes: list[Episode]) -> list[Episode]:
    """The episodes that did not break and have at least one turn."""
    return [episode for episode in episodes if episode.turns and not episode.error]


def turn_spans(episode: Episode, samples: list[Sample]) -> list[Span]:
    """One span a turn; `samples` are the unbroken segments of the episode, in order."""
    spans: list[Span] = []
    segments = iter(samples)
    for i, turn in enumerate(episode.turns):
        goes_on = i > 0 and not turn.restart
        sample = spans[-1].sample if goes_on else next(segments)
        start = (spans[-1].end if goes_on else 0) + len(turn.observation_ids)
        end = start + len(turn.action_ids)
        spans.append(Span(turn, sample, start, end, turn.reward))
    return spans


def token_spans(spans: list[Span]) -> list[Span]:
    """One span a token of the given ones, whose reward comes with their last token."""
    return [
        Span(s.turn, s.sample, at, at + 1, s.reward if at == s.end - 1 else 0.0)
        for s in spans
        for at in range(s.start, s.end)
    ]


def cut_off(episode: Episode, chat: Chat, module: Module) -> list[int]:
    """The ids behind the last action that make the state in which an episode was cut off; none for
    an episode that is done. What `module` has no positions for is left out: only a value rests on
    it."""
    if episode.stop == "done":
        return []
    last = len(episode.turns) - 1
    played = len(episode.state_ids(last)) + len(episode.turns[last].action_ids)
    room = max(0, reach(module) - played)
    return chat.extend(episode.closing, episode.turns[last].action_ids[-1])[:room]


def measured(
    episodes: list[Episode], discount: float, steps: Callable[[Turn], int]
) -> dict[str, float]:
    """`critic/…` of the values noted in the turns of ended episodes. A turn counts as `steps(turn)`
    steps, each of which discounts what follows; its reward comes with the last."""
    rows: list[Row] = []
    for episode in episodes:
        later = 0.0
        for number, turn in reversed(list(enumerate(episode.turns))):
            later = discount ** (steps(turn) - 1) * (turn.reward + discount * later)
            if episode.stop == "done":
                rows.append((number, turn.info["value"], later))
    return critic_metrics(rows)
