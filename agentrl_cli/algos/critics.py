"""Value functions: which tokens they are read at, and how well they predict the return.

V(s) is read at the last token of a state, the one before the action. Q(s, a) is read at the last
token of the action.
"""

from __future__ import annotations

import statistics
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from agentrl_cli.algos.samples import append_tokens, episode_samples
from agentrl_cli.core.types import Episode, Sample, Turn
from agentrl_cli.models.forward import Module, max_positions

if TYPE_CHECKING:
    from agentrl_cli.rollout.chat_template import Chat

Numbers = Sequence[float]


@dataclass(frozen=True)
class StepSpan:
    """One step of `turn`: its action is ids[start:end] of `sample`, and it earned `reward`."""

    turn: Turn
    sample: Sample
    start: int
    end: int
    reward: float

    @property
    def state_at(self) -> int:
        """Index of the token at which V(s) is read."""
        return self.start - 1

    @property
    def action_at(self) -> int:
        """Index of the token at which Q(s, a) is read."""
        return self.end - 1

    @property
    def size(self) -> int:
        return self.end - self.start


def turn_spans(episode: Episode, sample: Sample) -> list[StepSpan]:
    """Return one span of the episode's sample per turn."""
    spans: list[StepSpan] = []
    end = 0
    for turn in episode.turns:
        start = end + len(turn.observation_ids)
        end = start + len(turn.action_ids)
        spans.append(StepSpan(turn, sample, start, end, turn.reward))
    return spans


def token_spans(spans: list[StepSpan]) -> list[StepSpan]:
    """Return one span per action token; the last token of a turn earns the turn's reward."""
    return [
        replace(span, start=i, end=i + 1, reward=span.reward if i == span.action_at else 0.0)
        for span in spans
        for i in range(span.start, span.end)
    ]


def with_fresh_actions(spans: list[StepSpan], actions: list[list[int]]) -> list[StepSpan]:
    """Return spans of other actions, one per state of an episode. Their sample is the episode with
    each action as a branch after its state, which no later token sees."""
    stored_ids = spans[0].sample.ids
    packed = Sample([], [], {"branch": []})
    fresh, copied = [], 0
    for label, (span, action) in enumerate(zip(spans, actions, strict=True), 1):
        append_tokens(packed, stored_ids[copied : span.start])
        append_tokens(packed, action, branch=label)
        copied, end = span.start, len(packed.ids)
        fresh.append(replace(span, sample=packed, start=end - len(action), end=end))
    append_tokens(packed, stored_ids[copied:])
    return fresh


def value_sample(episode: Episode, chat: Chat, module: Module) -> Sample:
    """Return the episode's sample. It ends with the state from which a truncated episode
    bootstraps."""
    (sample,) = episode_samples(episode)
    append_tokens(sample, truncated_state_ids(episode, chat, module))
    return sample


def truncated_state_ids(
    episode: Episode, chat: Chat, module: Module, reserved: int = 0
) -> list[int]:
    """Return the tokens after the last action that complete the state in which an episode was
    truncated; none if it is done. They are cut to the positions of `module` less `reserved`."""
    if episode.stop == "done":
        return []
    last = len(episode.turns) - 1
    length = len(episode.state_ids(last)) + len(episode.turns[last].action_ids)
    room = max(0, max_positions(module) - reserved - length)
    return chat.extend(episode.final_observation, episode.turns[last].action_ids[-1])[:room]


@dataclass(frozen=True)
class ValuedState:
    """A state of a finished episode: its turn number, V(s), the discounted return from there on,
    and whether the episode was a success."""

    turn: int
    value: float
    return_to_go: float
    won: bool


def value_metrics(
    episodes: list[Episode], gamma: float, steps: Callable[[Turn], int]
) -> dict[str, float]:
    """Return `critic/...` of the values in `turn.info` of finished episodes. A turn counts as
    `steps(turn)` steps, each of which discounts; the last one earns its reward."""
    states: list[ValuedState] = []
    for episode in episodes:
        return_to_go = 0.0
        for number, turn in reversed(list(enumerate(episode.turns))):
            return_at_reward = turn.reward + gamma * return_to_go
            return_to_go = gamma ** (steps(turn) - 1) * return_at_reward
            if episode.stop == "done":
                value = turn.info["value"]
                states.append(ValuedState(number, value, return_to_go, episode.success))
    return critic_metrics(states)


def critic_metrics(states: Sequence[ValuedState]) -> dict[str, float]:
    """Return `critic/...` of these states; empty without states."""
    if not states:
        return {}
    values = [state.value for state in states]
    returns = [state.return_to_go for state in states]
    brier = statistics.fmean((v - r) ** 2 for v, r in zip(values, returns, strict=True))
    constant = statistics.pvariance(returns)  # the Brier score of the best constant, their mean
    ratio = {"critic/brier_ratio": brier / constant} if constant else {}
    return {
        "critic/rank_correlation": rank_correlation(values, returns),
        "critic/rank_same_turn": rank_same_turn(states),
        "critic/auc_same_turn": auc_same_turn(states),
        "critic/brier": brier,  # Brier 1950
        "critic/value_bias": statistics.fmean(values) - statistics.fmean(returns),
        **ratio,
    }


def rank_same_turn(states: Sequence[ValuedState]) -> float:
    """Return the rank correlation within each turn number, averaged over states."""
    total = 0.0
    for row in _by_turn(states):
        values, returns = [s.value for s in row], [s.return_to_go for s in row]
        total += len(row) * rank_correlation(values, returns)
    return total / len(states)


def auc_same_turn(states: Sequence[ValuedState]) -> float:
    """Return the share of pairs (success, failure) of one turn number in which the success has the
    higher value. Ties count half; 0.5 without pairs. Uses rank sums (Mann and Whitney 1947)."""
    right, pairs = 0.0, 0
    for row in _by_turn(states):
        rank_of_won = [r for r, s in zip(ranks([s.value for s in row]), row, strict=True) if s.won]
        won = len(rank_of_won)
        right += sum(rank_of_won) - won * (won + 1) / 2
        pairs += won * (len(row) - won)
    return right / pairs if pairs else 0.5


def _by_turn(states: Sequence[ValuedState]) -> list[list[ValuedState]]:
    turns: dict[int, list[ValuedState]] = defaultdict(list)
    for state in states:
        turns[state.turn].append(state)
    return list(turns.values())


def rank_correlation(xs: Numbers, ys: Numbers) -> float:
    """Return Spearman's coefficient (Spearman 1904) with mean ranks for ties; 0 if one side is
    constant."""
    if len(set(xs)) < 2 or len(set(ys)) < 2:
        return 0.0
    return statistics.correlation(ranks(xs), ranks(ys))


def ranks(numbers: Numbers) -> list[float]:
    """Return the rank of each number from 1 up; equal numbers share their mean rank."""
    order = sorted(numbers)
    return [(bisect_left(order, n) + 1 + bisect_right(order, n)) / 2 for n in numbers]


def explained_variance(values: Numbers, returns: Numbers) -> float:
    """Return 1 - Var(returns - values) / Var(returns); 0 if the returns do not vary."""
    residuals = [r - v for v, r in zip(values, returns, strict=True)]
    variance = statistics.pvariance(returns) if returns else 0.0
    return 1 - statistics.pvariance(residuals) / variance if variance else 0.0
