"""The improvement ledger of a run as a table: a figure for each part of NLAC's improvement in the
order in which they follow each other, and the first part that is weak. Nothing is measured here;
docs/metrics.md says what a figure counts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from agentrl_cli.core.errors import UserError
from agentrl_cli.report.text import table
from agentrl_cli.runs.run import Run

MIN_HITS = 0.5  # a coin that flags half of everything finds as many faults
MAX_FALSE_ALARMS = 0.3  # most first actions are sound, so more than this outnumbers the hits
MIN_LESSON_SHARE = 0.05  # of 192 replayed turns fewer than ten lessons, which a step's noise drowns
MIN_TURNS = 20  # a share of fewer has a standard error above 0.1
PREFIX = "ledger/"
HEADER = ["part", "figure", "value", "of turns", "healthy"]


@dataclass(frozen=True)
class Ledger:
    """The newest measured figures of a run: shares by their names without `ledger/`, and the number
    of turns that were measured."""

    run: str
    step: int
    figures: dict[str, float]

    def __getitem__(self, name: str) -> float:
        return self.figures[name]

    @property
    def faulty(self) -> int:
        """Turns whose first action was faulty."""
        return round(self["faulty"] * self["turns"])

    @property
    def sound(self) -> int:
        """The other turns."""
        return round(self["turns"]) - self.faulty

    @property
    def learnt(self) -> int:
        """Turns that are learnt from."""
        return round(self["lesson_share"] * self["turns"])


@dataclass(frozen=True)
class Weakness:
    """What is wrong with a part of the improvement, and what to do."""

    part: str
    finding: str
    remedy: str
    is_found: Callable[[Ledger], bool]


WEAKNESSES = (  # in the order in which the parts follow each other: each spoils those behind it
    Weakness(
        "critique", "misses more faults than it finds",
        "train the critic longer first (algo.critic_warmup) or let it read more (algo.forecasts)",
        lambda x: x.faulty > 0 and x["hits"] < MIN_HITS,
    ),
    Weakness(
        "critique", "flags too many sound actions",
        "give it something to compare with (algo.compare=true), more to read (algo.forecasts)",
        lambda x: x.sound > 0 and x["false_alarms"] > MAX_FALSE_ALARMS,
    ),
    Weakness(
        "refiner", "spoils more turns than it mends",
        "keep what is called optimal (algo.advanced.keep_optimal=true), or choose among more draws"
        " (algo.improvement=choice, algo.candidates)",
        lambda x: x["spoiled"] * x.sound > x["mended"] * x.faulty,
    ),
    Weakness(
        "lessons", "are too few to be learnt",
        "draw more (algo.candidates), replay more (algo.turns_per_update), or see what the gate"
        " drops (nlac/distilled_share)",
        lambda x: x["lesson_share"] < MIN_LESSON_SHARE,
    ),
    Weakness(
        "lessons", "are not shown to be better than what is played",
        "measure more turns (algo.advanced.monitored_states), or let the policy wait (algo.guard)",
        lambda x: x["lesson_gain_low"] < 0,
    ),
)  # fmt: skip


def read_ledger(run: Run, step: int | None = None) -> Ledger:
    """The ledger of a step, or the newest. Raises UserError where the run has none."""
    rows, _ = run.readable_metrics()
    measured = [row for row in rows if f"{PREFIX}turns" in row and step in (None, row["step"])]
    if not measured:
        when = "" if step is None else f" of step {step}"
        line = f"run '{run.name}' has no ledger{when}: algo=nlac writes one at each evaluation"
        raise UserError(f"{line} where algo.advanced.monitored_states is above 0")
    row = measured[-1]
    figures = {k.removeprefix(PREFIX): float(v) for k, v in row.items() if k.startswith(PREFIX)}
    return Ledger(run.name, row["step"], figures)


def first_weakness(ledger: Ledger) -> Weakness | None:
    """The first part that is weak: those behind it cannot be judged before it is mended."""
    return next((weakness for weakness in WEAKNESSES if weakness.is_found(ledger)), None)


def render(ledger: Ledger) -> list[str]:
    """The table: a row for each figure, and what to do first."""
    weakness = first_weakness(ledger)
    line = "no part is weak"
    if weakness is not None:
        line = f"first weak part: the {weakness.part}, which {weakness.finding}; {weakness.remedy}"
    title = f"{ledger.run}, step {ledger.step}: {round(ledger['turns'])} turns measured"
    if ledger["turns"] < MIN_TURNS:
        title += ", too few to judge by; raise algo.advanced.monitored_states"
    return [title, "", *table(HEADER, _rows(ledger)), "", line]


def to_json(ledger: Ledger) -> dict[str, Any]:
    """The figures, and the first part that is weak; None where none is."""
    weakness = first_weakness(ledger)
    found = weakness and {key: getattr(weakness, key) for key in ("part", "finding", "remedy")}
    return {"run": ledger.run, "step": ledger.step, "figures": ledger.figures, "weakness": found}


def _rows(x: Ledger) -> list[list[str]]:
    all_turns, low = round(x["turns"]), f"{x['lesson_gain_low']:+.2f}"
    rows = [
        ("policy", "first actions that are faulty", x["faulty"], all_turns, ""),
        ("critique", "faulty ones flagged (hits)", x["hits"], x.faulty, f"from {MIN_HITS}"),
        ("critique", "sound ones flagged (false alarms)", x["false_alarms"], x.sound,
         f"to {MAX_FALSE_ALARMS}"),
        ("refiner", "faulty ones mended", x["mended"], x.faulty, "more turns than spoiled"),
        ("refiner", "sound ones spoiled", x["spoiled"], x.sound, ""),
        ("lessons", "turns learnt from", x["lesson_share"], all_turns, f"from {MIN_LESSON_SHARE}"),
    ]  # fmt: skip
    gain = ["lessons", "gain over what is drawn", f"{x['lesson_gain']:+.2f}", str(x.learnt),
            f"lower end from 0 ({low})"]  # fmt: skip
    return [*([a, b, f"{value:.2f}" if n else "–", str(n), e] for a, b, value, n, e in rows), gain]
