"""Where a scalar critic reads an episode: a state at its last token, which is the one before the
action; an action at its own last token."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from agentrl_cli.algos.critic_metrics import Row, critic_metrics
from agentrl_cli.core.types import Episode, Sample, Turn
from agentrl_cli.models.policy import Module, max_positions

if TYPE_CHECKING:
    from agentrl_cli.rollout.chat_template import Chat


LEFT_OUT_REASONS = ("broken", "empty")
Columns = list[tuple[int, int]]
Reason = Callable[[Episode], str | None]


@dataclass
class StepSpan:
    """Action tokens ids[start:end] of `sample` that count as one step, and that step's reward. The
    state before it is read at token start - 1, the step itself at token end - 1."""

    turn: Turn
    sample: Sample
    start: int
    end: int
    reward: float


def left_out_reason(episode: Episode) -> str | None:
    """Why no critic can read an episode: it is `broken`, or has an `empty` action, behind which is
    no state of its own; None for a sound one."""
    if episode.error or not episode.turns or episode.stop not in ("done", "truncated", "context"):
        return "broken"
    return None if all(turn.action_ids for turn in episode.turns) else "empty"


def without_faults(episodes: list[Episode]) -> list[Episode]:
    """The episodes without a fault."""
    return [episode for episode in episodes if left_out_reason(episode) is None]


def left_out_metrics(
    part: str, episodes: list[Episode], reason: Reason = left_out_reason, more: Sequence[str] = ()
) -> dict[str, float]:
    """The share of the episodes that is not trained, for each reason, as metrics
    `PART/left_out_REASON`; `reason` names an episode's, one of `LEFT_OUT_REASONS` or of `more`."""
    found, total = [reason(episode) for episode in episodes], max(1, len(episodes))
    return {
        f"{part}/left_out_{name}": found.count(name) / total for name in (*LEFT_OUT_REASONS, *more)
    }


def turn_spans(episode: Episode, samples: list[Sample]) -> list[StepSpan]:
    """One span a turn; `samples` are the unbroken segments of the episode, in order."""
    spans: list[StepSpan] = []
    segments = iter(samples)
    for i, turn in enumerate(episode.turns):
        goes_on = i > 0 and not turn.restart
        sample = spans[-1].sample if goes_on else next(segments)
        start = (spans[-1].end if goes_on else 0) + len(turn.observation_ids)
        end = start + len(turn.action_ids)
        spans.append(StepSpan(turn, sample, start, end, turn.reward))
    return spans


def token_spans(spans: list[StepSpan]) -> list[StepSpan]:
    """One span a token of the given ones, whose reward comes with their last token."""
    return [
        StepSpan(s.turn, s.sample, at, at + 1, s.reward if at == s.end - 1 else 0.0)
        for s in spans
        for at in range(s.start, s.end)
    ]


def with_stored_actions(spans: list[StepSpan]) -> tuple[Sample, Columns]:
    """A segment as it was played, and where the state and the action of each turn are read."""
    return spans[0].sample, [(span.start - 1, span.end - 1) for span in spans]


def with_fresh_actions(spans: list[StepSpan], tried: list[list[int]]) -> tuple[Sample, Columns]:
    """A segment with the action tried in each of its states as a shadow behind that state, and
    where the state and that action are read."""
    ids, row, columns, done = spans[0].sample.ids, Sample([], [], {"shadow": []}), [], 0
    for k, (span, action) in enumerate(zip(spans, tried, strict=True), 1):
        _lay(row, ids[done : span.start], 0)
        _lay(row, action, k)
        columns.append((len(row.ids) - len(action) - 1, len(row.ids) - 1))
        done = span.start
    _lay(row, ids[done:], 0)
    return row, columns


def _lay(row: Sample, ids: list[int], shadow: int) -> None:
    row.ids += ids
    row.mask += [0] * len(ids)
    row.streams["shadow"] += [float(shadow)] * len(ids)


def truncated_state_ids(episode: Episode, chat: Chat, module: Module, prompt: int = 0) -> list[int]:
    """The ids behind the last action that make the state in which an episode was cut off; none for
    an episode that is done. What `module` has no positions for, with `prompt` more tokens behind
    it, is left out: only a value rests on it."""
    if episode.stop == "done":
        return []
    last = len(episode.turns) - 1
    played = len(episode.state_ids(last)) + len(episode.turns[last].action_ids)
    room = max(0, max_positions(module) - prompt - played)
    return chat.extend(episode.closing, episode.turns[last].action_ids[-1])[:room]


def value_metrics(
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
