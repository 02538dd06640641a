"""Where a scalar critic reads an episode: a state at its last token, which is the one before the
action; an action at its own last token."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import groupby
from typing import TYPE_CHECKING

from agentrl_cli.algos.critic_metrics import ValuedState, critic_metrics
from agentrl_cli.algos.samples import append_tokens
from agentrl_cli.core.types import Episode, Sample, Turn
from agentrl_cli.models.policy import Module, max_positions

if TYPE_CHECKING:
    from agentrl_cli.rollout.chat_template import Chat


@dataclass(frozen=True)
class StepSpan:
    """A step of `turn`: its action tokens are ids[start:end] of `sample`, which earned `reward`."""

    turn: Turn
    sample: Sample
    start: int
    end: int
    reward: float

    @property
    def state_at(self) -> int:
        """The token at which V(s) of the state before the step is read."""
        return self.start - 1

    @property
    def action_at(self) -> int:
        """The token at which Q(s, a) of the step is read."""
        return self.end - 1

    @property
    def size(self) -> int:
        """The number of action tokens."""
        return self.end - self.start


def turn_spans(episode: Episode, samples: list[Sample]) -> list[StepSpan]:
    """One span a turn; `samples` are the unbroken segments of the episode, in order."""
    spans: list[StepSpan] = []
    segments = iter(samples)
    for i, turn in enumerate(episode.turns):
        same_segment = i > 0 and not turn.restart
        sample = spans[-1].sample if same_segment else next(segments)
        start = (spans[-1].end if same_segment else 0) + len(turn.observation_ids)
        end = start + len(turn.action_ids)
        spans.append(StepSpan(turn, sample, start, end, turn.reward))
    return spans


def token_spans(spans: list[StepSpan]) -> list[StepSpan]:
    """One span a token of the given ones, whose reward comes with their last token."""
    return [
        replace(span, start=i, end=i + 1, reward=span.reward if i == span.action_at else 0.0)
        for span in spans
        for i in range(span.start, span.end)
    ]


def by_segment(spans: list[StepSpan]) -> list[list[StepSpan]]:
    """The spans of each sample, in order."""
    return [list(group) for _, group in groupby(spans, key=lambda span: id(span.sample))]


def with_fresh_actions(spans: list[StepSpan], actions: list[list[int]]) -> list[StepSpan]:
    """Spans of these actions, one for each state of the segment whose spans are given. Their sample
    is the segment with each action as a shadow behind its state, which nothing later sees."""
    stored_ids = spans[0].sample.ids
    packed = Sample([], [], {"shadow": []})
    fresh, copied = [], 0
    for label, (span, action) in enumerate(zip(spans, actions, strict=True), 1):
        append_tokens(packed, stored_ids[copied : span.start])
        append_tokens(packed, action, shadow=label)
        copied, end = span.start, len(packed.ids)
        fresh.append(replace(span, sample=packed, start=end - len(action), end=end))
    append_tokens(packed, stored_ids[copied:])
    return fresh


def truncated_state_ids(
    episode: Episode, chat: Chat, module: Module, reserved: int = 0
) -> list[int]:
    """The ids behind the last action that make the state in which an episode was cut off; none for
    an episode that is done. What `module` has no positions for, with `reserved` more tokens behind
    it, is left out: only a value rests on it."""
    if episode.stop == "done":
        return []
    last = len(episode.turns) - 1
    played = len(episode.state_ids(last)) + len(episode.turns[last].action_ids)
    room = max(0, max_positions(module) - reserved - played)
    return chat.extend(episode.closing, episode.turns[last].action_ids[-1])[:room]


def value_metrics(
    episodes: list[Episode], discount: float, steps: Callable[[Turn], int]
) -> dict[str, float]:
    """`critic/…` of the values noted in the turns of ended episodes. A turn counts as `steps(turn)`
    steps, each of which discounts what follows; its reward comes with the last."""
    states: list[ValuedState] = []
    for episode in episodes:
        return_to_go = 0.0
        for number, turn in reversed(list(enumerate(episode.turns))):
            return_at_reward = turn.reward + discount * return_to_go
            return_to_go = discount ** (steps(turn) - 1) * return_at_reward
            if episode.stop == "done":
                value = turn.info["value"]
                states.append(ValuedState(number, value, return_to_go, episode.success))
    return critic_metrics(states)
