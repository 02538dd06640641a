"""How far a critic could be trusted, from what runs have kept: metrics over training, and the turns
of which a critic was most wrong.

A language critic said success or failure in each forecast, a scalar one gave a value; both are held
against how the episode ended. Turns of one episode share its end: they are examples, no sample.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from agentrl_cli.algos.nlac.prompts import outcome
from agentrl_cli.core.types import Episode, Turn
from agentrl_cli.report.records import Record

TRENDS = (
    "nlac/brier", "nlac/optimism", "nlac/auc_within", "nlac/auc_all", "nlac/optimal_share",
    "nlac/refined_gain", "nlac/kept_when_optimal", "nlac/valid_forecasts", "critic/brier",
    "critic/optimism", "critic/rank_correlation", "critic/rank_same_turn",
)  # fmt: skip
BINS = 5


@dataclass(frozen=True)
class Judgement:
    """What a critic expected of a turn (a share of success) and what came."""

    episode: str
    turn: int
    expected: float
    came: bool
    verdict: bool | None

    @property
    def error(self) -> float:
        """How wrong it was, 0 to 1."""
        return abs(self.expected - self.came)


@dataclass(frozen=True)
class Bin:
    """Turns with an expectation between two shares: how many, what was expected, what came."""

    low: float
    high: float
    turns: int
    expected: float
    came: float


@dataclass(frozen=True)
class Verdicts:
    """Of the turns with a verdict: the share called optimal, and how often episodes were won with
    the verdict and against it."""

    turns: int
    optimal: float
    won_if_optimal: float | None
    won_if_not: float | None


def judgements(episodes: Iterable[Episode]) -> list[Judgement]:
    """Every turn of which a critic has said something that can be held against the outcome."""
    return [found for episode in episodes for found in _of(episode)]


def most_wrong(found: list[Judgement], count: int) -> list[Judgement]:
    """The turns where the critic was furthest off, one for each episode, the worst first."""
    worst: dict[str, Judgement] = {}
    for one in sorted(found, key=lambda one: -one.error):
        worst.setdefault(one.episode, one)
    return list(worst.values())[:count]


def calibration(found: list[Judgement]) -> list[Bin]:
    """Expected and real success in five equal ranges of expectation; empty ranges are left out."""
    bins = []
    for number in range(BINS):
        low, high = number / BINS, (number + 1) / BINS
        inside = [one for one in found if min(BINS - 1, int(one.expected * BINS)) == number]
        if inside:
            expected = sum(one.expected for one in inside) / len(inside)
            bins.append(Bin(low, high, len(inside), expected, _won(inside)))
    return bins


def verdicts(found: list[Judgement]) -> Verdicts | None:
    """How verdicts went with outcomes; None where none was given."""
    given = [one for one in found if one.verdict is not None]
    if not given:
        return None
    yes = [one for one in given if one.verdict]
    no = [one for one in given if not one.verdict]
    return Verdicts(
        len(given), len(yes) / len(given), _won(yes) if yes else None, _won(no) if no else None
    )


def trends(records: Iterable[Record]) -> list[str]:
    """The metrics of critics that any of the runs logged, in the order to read them."""
    logged: set[str] = set()
    for record in records:
        logged |= record.columns.keys()
        logged = logged.union(*record.evaluations.values())
    return [name for name in TRENDS if name in logged]


def _of(episode: Episode) -> Iterator[Judgement]:
    for number, turn in enumerate(episode.turns, start=1):
        expected = expectation(turn)
        if expected is not None:
            said = turn.info.get("critic")
            given = said.get("verdict") if isinstance(said, dict) else None
            verdict = given if isinstance(given, bool) else None
            yield Judgement(episode.id, number, expected, episode.success, verdict)


def expectation(turn: Turn) -> float | None:
    """The share of success that a critic expected: of its forecasts, or its value within 0 and 1;
    None where it said nothing that can be read."""
    said = turn.info.get("critic")
    if isinstance(said, dict):
        named = [outcome(text) for text in said.get("forecasts", []) if isinstance(text, str)]
        known = [one for one in named if one is not None]
        return sum(known) / len(known) if known else None
    value = turn.info.get("value")
    return min(1.0, max(0.0, float(value))) if isinstance(value, int | float) else None


def _won(found: list[Judgement]) -> float:
    return sum(one.came for one in found) / len(found)
