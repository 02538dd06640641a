"""How far a critic could be trusted, from what runs have kept: metrics over training, and the turns
of which a critic was most wrong. A language critic named success or failure in each forecast, a
scalar one gave a value; both are compared with how the episode ended. Turns of one episode share
its end: they are examples, no sample."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from agentrl_cli.algos.nlac.parse import stated_outcome
from agentrl_cli.core.files import is_number
from agentrl_cli.core.types import Episode, Turn
from agentrl_cli.report.records import Record

CRITIC_METRICS = (
    "nlac/brier", "nlac/optimism", "nlac/auc_within", "nlac/auc_all", "nlac/optimal_share",
    "nlac/refined_gain", "nlac/refined_gain_all", "nlac/kept_when_optimal", "nlac/valid_forecasts",
    "ledger/faulty", "ledger/hits", "ledger/false_alarms", "ledger/mended", "ledger/spoiled",
    "ledger/lesson_share", "ledger/lesson_gain", "ledger/lesson_gain_low", "guard/low",
    "critic/brier", "critic/brier_ratio", "critic/optimism", "critic/rank_correlation",
    "critic/rank_same_turn", "critic/auc_same_turn",
)  # fmt: skip
BINS = 5


@dataclass(frozen=True)
class Prediction:
    """The share of success that a critic expected of a turn, whether it called the action optimal
    (None: it did not say), and whether the episode was won."""

    episode: str
    turn: int
    expected: float
    optimal: bool | None
    won: bool

    @property
    def error(self) -> float:
        """How wrong it was, 0 to 1."""
        return abs(self.expected - self.won)


@dataclass(frozen=True)
class Bin:
    """Turns with an expectation in a range: how many, the mean expectation, and the share won."""

    low: float
    high: float
    turns: int
    expected: float
    won: float


@dataclass(frozen=True)
class Verdicts:
    """Of the turns with a verdict: the share called optimal, and how often episodes were won with
    the verdict and against it."""

    turns: int
    optimal: float
    won_if_optimal: float | None
    won_if_not: float | None


def predictions(episodes: Iterable[Episode]) -> list[Prediction]:
    """Every turn for which a critic's expectation can be compared with the outcome, which of an
    episode that broke or was cut off is not known."""
    found: list[Prediction] = []
    for episode in filter(lambda episode: episode.stop == "done", episodes):
        for number, turn in enumerate(episode.turns, start=1):
            expected, critic = expected_success(turn), turn.info.get("critic")
            if expected is not None:
                verdict = critic.get("verdict") if isinstance(critic, dict) else None
                optimal = verdict if isinstance(verdict, bool) else None
                found.append(Prediction(episode.id, number, expected, optimal, episode.success))
    return found


def most_wrong(predictions: list[Prediction], count: int) -> list[Prediction]:
    """The turns where the critic was furthest off, one for each episode, the worst first."""
    worst: dict[str, Prediction] = {}
    for prediction in sorted(predictions, key=lambda prediction: -prediction.error):
        worst.setdefault(prediction.episode, prediction)
    return list(worst.values())[:count]


def calibration(predictions: list[Prediction]) -> list[Bin]:
    """Expected and real success in five equal ranges of expectation; empty ranges are left out."""
    bins = []
    for number in range(BINS):
        inside = [p for p in predictions if min(BINS - 1, int(p.expected * BINS)) == number]
        if inside:
            low, high = number / BINS, (number + 1) / BINS
            expected = sum(p.expected for p in inside) / len(inside)
            bins.append(Bin(low, high, len(inside), expected, _win_rate(inside)))
    return bins


def verdicts(predictions: list[Prediction]) -> Verdicts | None:
    """How verdicts went with outcomes; None where none was given."""
    optimal = [p for p in predictions if p.optimal is True]
    other = [p for p in predictions if p.optimal is False]
    turns = len(optimal) + len(other)
    if not turns:
        return None
    rates = [_win_rate(some) if some else None for some in (optimal, other)]
    return Verdicts(turns, len(optimal) / turns, *rates)


def logged_metrics(records: Iterable[Record]) -> list[str]:
    """The metrics of critics that any of the runs logged, in the order to read them."""
    logged: set[str] = set()
    for record in records:
        logged = logged.union(record.columns, *record.evaluations.values())
    return [name for name in CRITIC_METRICS if name in logged]


def expected_success(turn: Turn) -> float | None:
    """The share of success that a critic expected: of its forecasts, or its value within 0 and 1;
    None where it left nothing that can be read."""
    critic = turn.info.get("critic")
    if isinstance(critic, dict):
        forecasts = critic.get("forecasts")
        texts = forecasts if isinstance(forecasts, list) else []
        outcomes = [stated_outcome(text) for text in texts if isinstance(text, str)]
        named = [success for success in outcomes if success is not None]
        return sum(named) / len(named) if named else None
    value = turn.info.get("value")
    return min(1.0, max(0.0, float(value))) if is_number(value) else None


def _win_rate(predictions: list[Prediction]) -> float:
    return sum(prediction.won for prediction in predictions) / len(predictions)
