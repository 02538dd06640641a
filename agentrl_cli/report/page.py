"""One HTML file that needs nothing else: tables, pictures as images inside it, episodes to unfold.

There is no script in it and nothing is fetched: its Content-Security-Policy allows images given as
data and the one style sheet by its hash. Jinja escapes every text.
"""

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
from agentrl_cli.report.critic import Bin, Judgement, Verdicts
from agentrl_cli.report.records import Record
from agentrl_cli.report.tables import Cells, share
from agentrl_cli.report.views import RunView, anchor_of, episode_view, grid, new_view, run_view
from agentrl_cli.runs import episode_files

TEXTS = 2_400_000  # characters of episodes in one page
GRID = 12_000  # outcomes shown in one page
WORST = 8
HERE = Path(__file__).parent


@dataclass(frozen=True)
class CriticView:
    """What a group's critic expected and what came."""

    group: str
    turns: int
    bins: list[Bin]
    verdicts: Verdicts | None
    worst: list[tuple[Judgement, str, str]]  # and the run, and the turn's anchor


@dataclass
class WorldView:
    """What the page says of one world."""

    label: str
    results: Cells
    passes: Cells
    spent: Cells
    remarks: list[str]
    pictures: list[tuple[str, str]]  # what it shows, and the image as data
    critics: list[CriticView]
    runs: list[RunView]
    seeds: dict[str, list[tuple[int, str]]]  # of each group: the finished runs and their anchors


def world_view(
    world: World, comparison: Comparison, pictures: dict[str, str], texts_left: int, pages: bool
) -> WorldView:
    """Everything of a world; `texts_left` bounds the characters of its episodes."""
    runs: list[RunView] = []
    critics: list[CriticView] = []
    records = [(group.label, record) for group in world.groups for record in group.records]
    each = texts_left // max(1, len(records))
    outcomes = GRID // max(1, len(records))
    for group in world.groups:
        found: dict[str, list[Judgement]] = {}
        for record in group.records:
            page = f"pages/{record.slug}.html" if pages else ""
            view, episodes = run_view(record, group.label, page, each, outcomes)
            runs.append(view)
            found[view.anchor] = critic.judgements(episodes)
        if any(found.values()):
            critics.append(critic_view(group.label, found, runs))
    images = [(name, data_url(svg)) for name, svg in pictures.items()]
    cells = tables.results(comparison), tables.passes(comparison), tables.spent(comparison)
    links = {
        group.label: [(r.seed, anchor_of(r)) for r in group.finished.values()]
        for group in world.groups
    }
    return WorldView(world.label, *cells, tables.remarks(comparison), images, critics, runs, links)


def critic_view(
    group: str, found: dict[str, list[Judgement]], runs: Sequence[RunView]
) -> CriticView:
    """Calibration, verdicts and the worst turns of a group, from what was said in each run, which
    its anchor names."""
    names = {run.anchor: run.name for run in runs}
    anchors = {(run.anchor, one.id): one.anchor for run in runs for one in run.episodes}
    said = [one for judged in found.values() for one in judged]
    rows = [(one, run) for run, judged in found.items() for one in critic.most_wrong(judged, WORST)]
    rows.sort(key=lambda row: -row[0].error)
    worst = [
        (
            one,
            names[run],
            f"{anchors[run, one.episode]}-t{one.turn}" if (run, one.episode) in anchors else "",
        )
        for one, run in rows[:WORST]
    ]
    return CriticView(group, len(said), critic.calibration(said), critic.verdicts(said), worst)


def run_page(record: Record, group: str) -> str | None:
    """A page of its own with every kept episode of a run's last evaluation; None without one."""
    step = max((s for s in record.evaluations if record.entries(s)), default=None)
    if step is None:
        return None
    entries, file = record.entries(step), record.episode_file(step)
    before = {entry.id: entry.success for entry in record.entries(0)} if step else {}
    view = new_view(record, group)
    view.total = len(entries)
    view.episodes = [
        episode_view(episode_files.read(file, entry), f"{view.anchor}-e{n}", record.name, before)
        for n, entry in enumerate(entries)
    ]
    links = {one.id: f"#{one.anchor}" for one in view.episodes}
    view.grid, view.cut = grid(entries, before, links, len(entries))
    return render([], [], [view], record.name)


def render(
    worlds: Sequence[WorldView], notes: Sequence[str], runs: Sequence[RunView], title: str
) -> str:
    """The page. `notes` are what a reader must know before the numbers."""
    try:
        from jinja2 import Environment, FileSystemLoader, StrictUndefined
    except ImportError:
        raise UserError("a report needs jinja2; pip install 'agentrl-cli[report]'") from None
    style = (HERE / "page.css").read_text()
    loader = Environment(
        loader=FileSystemLoader(HERE), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    loader.globals |= {"share": share, "version": __version__}
    return loader.get_template("page.html.jinja").render(
        worlds=worlds, notes=notes, runs=runs, title=title, style=style, digest=digest,
        made=f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
    )  # fmt: skip


def data_url(svg: str) -> str:
    """A picture as the source of an image: as such it can neither run nor fetch anything."""
    return "data:image/svg+xml;base64," + base64.b64encode(svg.encode()).decode()
