"""Episodes as training data: turns, training samples, and which episodes are skipped."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from agentrl_cli.core.types import Episode, Sample, Task, Turn

PerToken = Mapping[str, float | list[float]]
Reason = Callable[[Episode], str | None]
LEFT_OUT_REASONS = ("broken", "empty")


@dataclass(frozen=True, eq=False)
class TurnRef:
    """Turn number `turn` of an episode: (s, a, s'). Compared by identity."""

    episode: Episode
    turn: int

    @classmethod
    def from_state(cls, state_ids: list[int]) -> TurnRef:
        """Return a turn with this state and no action."""
        turn = Turn([], "", state_ids, [], [])
        return cls(Episode("", Task("", "", {}), "", 0, [turn]), 0)

    @property
    def state_ids(self) -> list[int]:
        """s: the tokens before the action."""
        return self.episode.state_ids(self.turn)

    @property
    def action_ids(self) -> list[int]:
        """a: the tokens of the action."""
        return self.episode.turns[self.turn].action_ids

    @property
    def action(self) -> str:
        """a as text."""
        return self.episode.turns[self.turn].action

    @property
    def response(self) -> str:
        """The environment's response to a, as text."""
        return "\n".join(message.content for message in self.episode.response(self.turn))

    @property
    def is_last(self) -> bool:
        return self.turn == len(self.episode.turns) - 1

    @property
    def next(self) -> TurnRef:
        """The turn in s'."""
        return TurnRef(self.episode, self.turn + 1)


def last_turn(episode: Episode) -> TurnRef:
    """Return the last turn of an episode."""
    return TurnRef(episode, len(episode.turns) - 1)


def all_turns(episodes: list[Episode]) -> list[TurnRef]:
    """Return every turn of the episodes, in order."""
    return [TurnRef(episode, turn) for episode in episodes for turn in range(len(episode.turns))]


def episode_samples(
    episode: Episode, per_token_of: Callable[[int, Turn], PerToken] = lambda index, turn: {}
) -> list[Sample]:
    """Return the episode as one sample whose action tokens are trained; none without such tokens.

    `per_token_of(i, turn)` returns the fields of turn i: one number for all tokens of the action,
    or one per token. Observations get 0. A `weight` of 0 leaves a token untrained. All turns must
    have the same fields.
    """
    sample = Sample([], [])
    for i, turn in enumerate(episode.turns):
        observed, acted = len(turn.observation_ids), len(turn.action_ids)
        per_token = per_token_of(i, turn)
        rows = {k: v if isinstance(v, list) else [v] * acted for k, v in per_token.items()}
        sample.ids += turn.observation_ids + turn.action_ids
        sample.mask += [0] * observed + [int(w != 0) for w in rows.get("weight", [1.0] * acted)]
        for name, row in rows.items():
            sample.per_token.setdefault(name, []).extend([0.0] * observed + row)
    return [sample] if any(sample.mask) else []


def append_tokens(sample: Sample, ids: list[int], trained: int = 0, **numbers: float) -> None:
    """Append tokens; each field of the sample gets its number from `numbers`, or 0."""
    sample.ids += ids
    sample.mask += [trained] * len(ids)
    for name, row in sample.per_token.items():
        row += [float(numbers.get(name, 0))] * len(ids)


def completion_sample(prompt: list[int], completion: list[int]) -> Sample:
    """Return a prompt and its completion; only the completion is trained."""
    return Sample(prompt + completion, [0] * len(prompt) + [1] * len(completion))


def branches_sample(prompt: list[int], completions: list[list[int]]) -> Sample:
    """Return a prompt with several completions that do not see each other, so the prompt is read
    once. Each is a branch (models/packed_attention.py) unless there is only one."""
    sample = Sample([], [], {"branch": []})
    append_tokens(sample, prompt)
    for label, completion in enumerate(completions, 1):
        append_tokens(sample, completion, trained=1, branch=label if len(completions) > 1 else 0)
    return sample


def skip_reason(episode: Episode) -> str | None:
    """Return why a value function cannot be trained on an episode, or None.

    The reason is `broken` (failed, or without turns) or `empty` (an action without tokens).
    """
    if episode.error or not episode.turns or episode.stop not in ("done", "truncated", "context"):
        return "broken"
    return None if all(turn.action_ids for turn in episode.turns) else "empty"


def without_skipped(episodes: list[Episode]) -> list[Episode]:
    """Return the episodes that can be trained."""
    return [episode for episode in episodes if skip_reason(episode) is None]


def skipped_metrics(
    part: str, episodes: list[Episode], reason: Reason = skip_reason, more: Sequence[str] = ()
) -> dict[str, float]:
    """Return the share of the episodes that is skipped, as `PART/skipped_REASON`, for
    `LEFT_OUT_REASONS` and the reasons in `more`."""
    reasons, total = [reason(episode) for episode in episodes], max(1, len(episodes))
    names = (*LEFT_OUT_REASONS, *more)
    return {f"{part}/skipped_{name}": reasons.count(name) / total for name in names}
