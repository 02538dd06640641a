"""One HTML file that needs nothing else: tables, pictures as images inside it, and episodes to
unfold. Nothing is fetched: its Content-Security-Policy allows images given as data, and the one
style sheet and the one script by their hashes. The script searches, sorts and lays side by side
what is there; without it the page shows the same. Jinja escapes every text."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from agentrl_cli import __version__
from agentrl_cli.core.errors import UserError
from agentrl_cli.report import critic, tables
from agentrl_cli.report.compare import Comparison, World
from agentrl_cli.report.critic import Bin, Prediction, Verdicts
from agentrl_cli.report.differences import Differences, differences
from agentrl_cli.report.records import Record
from agentrl_cli.report.tables import Cells, share
from agentrl_cli.report.tokens import Spell
from agentrl_cli.report.views import Limits, RunView, run_view

MAX_EPISODES = 6  # of a run in the page of all
MAX_TRAINED = 2  # of those it was trained on
MAX_CHARACTERS = 2_400_000  # of episodes in one page
MAX_OUTCOMES = 12_000  # in one page
WORST_TURNS = 8
HERE = Path(__file__).parent


@dataclass(frozen=True)
class WorstTurn:
    """A turn of which a critic was very wrong; `anchor` is empty where the page has it not."""

    prediction: Prediction
    run: str
    anchor: str


@dataclass(frozen=True)
class CriticView:
    """What a group's critic expected and what came."""

    group: str
    turns: int
    bins: list[Bin]
    verdicts: Verdicts | None
    worst: list[WorstTurn]


@dataclass
class WorldView:
    """What the page shows of one world; `pictures` are images as data by name, `finished` the runs
    with a final evaluation by group."""

    label: str
    results: Cells
    passes: Cells
    costs: Cells
    remarks: list[str]
    differences: Differences
    pictures: dict[str, str]
    critics: list[CriticView]
    runs: list[RunView]
    finished: dict[str, list[Record]]


def world_view(
    world: World, comparison: Comparison, pictures: dict[str, str], characters: int, pages: bool
) -> WorldView:
    """Everything of a world, with at most so many `characters` of its episodes; with `pages` its
    runs have pages of their own to link to."""
    count = max(1, sum(len(group.records) for group in world.groups))
    limits = Limits(MAX_EPISODES, characters // count, MAX_OUTCOMES // count, MAX_TRAINED)
    differing = differences(world)
    runs: list[RunView] = []
    critics: list[CriticView] = []
    for group in world.groups:
        settings = differing.of(group.label)
        for record in group.records:
            page = f"pages/{record.slug}.html" if pages else ""
            runs.append(run_view(record, group.label, page, limits, settings))
        views = runs[-len(group.records) :]
        if any(view.predictions for view in views):
            critics.append(critic_view(group.label, views))
    return WorldView(
        world.label, tables.results(comparison), tables.passes(comparison),
        tables.costs(comparison), tables.remarks(comparison), differing,
        {name: data_url(svg) for name, svg in pictures.items()}, critics, runs,
        {group.label: list(group.finished.values()) for group in world.groups},
    )  # fmt: skip


def critic_view(group: str, runs: Sequence[RunView]) -> CriticView:
    """Calibration, verdicts and the worst turns of a group's critic."""
    predictions = [prediction for run in runs for prediction in run.predictions]
    worst = [turn for run in runs for turn in worst_turns(run)]
    worst.sort(key=lambda turn: -turn.prediction.error)
    bins, verdicts = critic.calibration(predictions), critic.verdicts(predictions)
    return CriticView(group, len(predictions), bins, verdicts, worst[:WORST_TURNS])


def worst_turns(run: RunView) -> list[WorstTurn]:
    """The turns of a run of which its critic was most wrong."""
    anchors = {episode.id: f"{episode.anchor}-t" for episode in run.episodes}
    return [
        WorstTurn(p, run.name, f"{anchors[p.episode]}{p.turn}" if p.episode in anchors else "")
        for p in critic.most_wrong(run.predictions, WORST_TURNS)
    ]


def run_page(record: Record, group: str, spell: Spell | None = None) -> str | None:
    """A page of its own with every kept episode of a run's last evaluation; None without one.
    `spell` spells its tokens, where they are asked for."""
    view = run_view(record, group, "", Limits(), spell=spell)
    return render([], [], [view], record.name) if view.total else None


def render(
    worlds: Sequence[WorldView], notes: Sequence[str], runs: Sequence[RunView], title: str
) -> str:
    """The page. `notes` are what a reader must know before the numbers."""
    try:
        from jinja2 import Environment, FileSystemLoader, StrictUndefined
    except ImportError:
        raise UserError("a report needs jinja2; pip install 'agentrl-cli[report]'") from None
    style, script = (HERE / "page.css").read_text(), (HERE / "page.js").read_text()
    loader = Environment(
        loader=FileSystemLoader(HERE), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    loader.globals |= {"share": share, "version": __version__}
    return loader.get_template("page.html.jinja").render(
        worlds=worlds, notes=notes, runs=runs, title=title, style=style, script=script,
        style_digest=digest(style), script_digest=digest(script),
        made=f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
    )  # fmt: skip


def digest(text: str) -> str:
    """A text's hash as a Content-Security-Policy names it."""
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def data_url(svg: str) -> str:
    """A picture as the source of an image: as such it can neither run nor fetch anything."""
    return "data:image/svg+xml;base64," + base64.b64encode(svg.encode()).decode()
