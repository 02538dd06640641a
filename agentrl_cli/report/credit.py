"""What a method made of each turn, as bars: the advantage with which a turn was trained, and the
success that a critic expected of it. Advantages are drawn against the largest of their episode,
expectations as the shares that they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from agentrl_cli.core.files import is_number
from agentrl_cli.core.types import Episode, Turn
from agentrl_cli.report.critic import expected_success

WIDTH = 100.0  # of a bar's picture, in its own units
COLUMN, HEIGHT = 6, 24  # of a strip's picture: a turn's width, and the height of all


@dataclass(frozen=True)
class Bar:
    """A bar in a picture `WIDTH` wide: its left end, its length, and the value that it stands
    for."""

    name: str
    value: float
    left: float
    length: float


@dataclass(frozen=True)
class Column:
    """A turn in a strip: its left and upper end, its height, and whether its value is below 0."""

    left: float
    top: float
    height: float
    negative: bool


@dataclass(frozen=True)
class Strip:
    """The turns of an episode side by side, of one kind of credit."""

    name: str
    columns: list[Column]

    @property
    def width(self) -> int:
        """Of the picture, in its own units."""
        return COLUMN * len(self.columns)


def bars(episode: Episode) -> list[list[Bar]]:
    """For each turn the bars of what is known of it; none where nothing is."""
    advantages = list(map(_advantage, episode.turns))
    largest = max((abs(value) for value in advantages if value is not None), default=0.0)
    return [
        [
            *([_signed_bar("advantage", advantage, largest)] if advantage is not None else []),
            *_expectation(turn),
        ]
        for turn, advantage in zip(episode.turns, advantages, strict=True)
    ]


def strip(rows: Sequence[Sequence[Bar]]) -> Strip | None:
    """The turns' first bars, upright and side by side; None where no turn has one."""
    named = next((row[0].name for row in rows if row), None)
    if named is None:
        return None
    values = [next((bar for bar in row if bar.name == named), None) for row in rows]
    middle = HEIGHT / 2 if any(bar and bar.value < 0 for bar in values) else HEIGHT
    columns = [_column(number, bar, middle) for number, bar in enumerate(values)]
    return Strip(named, columns)


def _advantage(turn: Turn) -> float | None:
    value = turn.info.get("advantage")
    return float(value) if is_number(value) else None


def _signed_bar(name: str, value: float, largest: float) -> Bar:
    """From the middle to the left below 0, to the right above."""
    length = WIDTH / 2 * abs(value) / largest if largest else 0.0
    return Bar(name, value, WIDTH / 2 - (length if value < 0 else 0.0), length)


def _expectation(turn: Turn) -> list[Bar]:
    expected = expected_success(turn)
    if expected is None:
        return []
    name = "forecast" if isinstance(turn.info.get("critic"), dict) else "value"
    return [Bar(name, expected, 0.0, WIDTH * expected)]


def _column(number: int, bar: Bar | None, middle: float) -> Column:
    """`middle` is where 0 lies: half way down, or at the bottom where nothing is negative."""
    full = WIDTH / 2 if bar and bar.name == "advantage" else WIDTH
    height = middle * bar.length / full if bar else 0.0
    negative = bool(bar and bar.value < 0)
    return Column(COLUMN * number, middle if negative else middle - height, height, negative)
