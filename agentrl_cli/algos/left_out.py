"""Which episodes no scalar critic can train on, and how many they were."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from agentrl_cli.core.types import Episode

LEFT_OUT_REASONS = ("broken", "empty")
Reason = Callable[[Episode], str | None]


def left_out_reason(episode: Episode) -> str | None:
    """Why no critic can read an episode: it is `broken`, or has an `empty` action, behind which is
    no state of its own; None for a sound one."""
    if episode.error or not episode.turns or episode.stop not in ("done", "truncated", "context"):
        return "broken"
    return None if all(turn.action_ids for turn in episode.turns) else "empty"


def without_left_out(episodes: list[Episode]) -> list[Episode]:
    """The episodes without a reason to leave them out."""
    return [episode for episode in episodes if left_out_reason(episode) is None]


def left_out_metrics(
    part: str, episodes: list[Episode], reason: Reason = left_out_reason, more: Sequence[str] = ()
) -> dict[str, float]:
    """The share of the episodes that is not trained, for each reason, as metrics
    `PART/left_out_REASON`; `reason` names an episode's, one of `LEFT_OUT_REASONS` or `more`."""
    reasons, total = [reason(episode) for episode in episodes], max(1, len(episodes))
    names = (*LEFT_OUT_REASONS, *more)
    return {f"{part}/left_out_{name}": reasons.count(name) / total for name in names}
