"""Whether this model's roles can be read, asked before anything is learnt: a few states go through
every role. What is told of it is in algos/role_report.py."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from agentrl_cli.algos.nlac.reading import Reading
from agentrl_cli.algos.nlac.roles import Roles, RoleText
from agentrl_cli.algos.role_report import RoleReport
from agentrl_cli.algos.samples import TurnRef, all_turns
from agentrl_cli.core.types import Episode, evenly_spaced

STATES = 8  # that are asked about


def role_states(episodes: list[Episode]) -> list[TurnRef]:
    """STATES turns of these episodes, or all where there are fewer; last ones among them."""
    turns = all_turns([episode for episode in episodes if episode.turns])
    return evenly_spaced(turns, STATES)


@contextmanager
def recorded(roles: Roles) -> Iterator[list[RoleText]]:
    """Keep all that the roles write, in a random stream of its own."""
    texts: list[RoleText] = []
    roles.begin_stream("role_check")
    roles.record = texts
    try:
        yield texts
    finally:
        roles.record = None


def role_reports(texts: list[RoleText], reading: Reading) -> list[RoleReport]:
    """A report of each role that wrote, in the order in which they first did."""
    by_role: dict[str, list[RoleText]] = {}
    for text in texts:
        by_role.setdefault(text.role, []).append(text)
    return [_report(role, written, reading) for role, written in by_role.items()]


def mute_critic(share: float, turns: int) -> str:
    """The warning where too small a share of an update's forecasts can be read."""
    found = "no forecast" if share == 0 else f"only {share:.2f} of the forecasts"
    line = f"warning: {found} of {turns} turns names 'Success.' or 'Failure.'"
    more = "this model does not write what NLAC's critic must; word algo.prompts for it"
    return f"{line}: {more}, or begin with one that was trained on such texts"


def _report(role: str, written: list[RoleText], reading: Reading) -> RoleReport:
    readings = [_read_as(role, text, reading) for text in written]
    unread = [i for i, name in enumerate(readings) if name is None]
    shown = unread[0] if unread else 0
    return RoleReport(
        role, len(written), len(written) - len(unread),
        sum(not text.is_complete for text in written),
        written[shown].text, f"read as {readings[shown]}" if readings[shown] else "unreadable",
    )  # fmt: skip


def _read_as(role: str, text: RoleText, reading: Reading) -> str | None:
    """What an answer is read as; None where it cannot be read."""
    if role == "refine":
        return "an action" if text.is_complete and text.text.strip() else None
    if role == "evaluate":
        verdict = reading.verdict(text.text)
        return None if verdict is None else f"Optimality: {'Yes' if verdict else 'No'}"
    found = reading.outcome(text.text)
    is_whole = text.is_complete or role == "forecast"  # a target must end, a forecast need not
    return None if found is None or not is_whole else "Success" if found else "Failure"
