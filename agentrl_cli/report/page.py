"""One HTML file that needs nothing else: tables, pictures as images inside it, episodes to unfold.

There is no script in it and nothing is fetched: its Content-Security-Policy allows images given as
data and the one style sheet by its hash. Jinja escapes every text.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import chain, zip_longest
from pathlib import Path

from agentrl_cli import __version__, index
from agentrl_cli.errors import UserError
from agentrl_cli.index import Entry
from agentrl_cli.report import critic, tables
from agentrl_cli.report.compare import Comparison, World
from agentrl_cli.report.critic import Bin, Judgement, Verdicts
from agentrl_cli.report.episode import Facts, numbers, summary, texts, with_returns
from agentrl_cli.report.records import Record
from agentrl_cli.report.tables import Cells, share
from agentrl_cli.types import Episode

TEXTS = 2_400_000  # characters of episodes in one page
GRID = 12_000  # outcomes shown in one page
EXAMPLES = 6  # episodes of a run in the report
WORST = 8
HERE = Path(__file__).parent


@dataclass(frozen=True)
class TurnView:
    """A turn: its anchor, numbers and texts."""

    anchor: str
    numbers: Facts
    texts: Facts


@dataclass(frozen=True)
class EpisodeView:
    """An episode: its anchor, what it is, its turns and what the world said last."""

    anchor: str
    id: str
    won: bool
    changed: bool
    facts: Facts
    turns: list[TurnView]
    closing: Facts


@dataclass(frozen=True)
class Outcome:
    """An episode in the grid of outcomes; `anchor` is empty where the page does not hold it."""

    id: str
    won: bool
    changed: bool
    anchor: str


@dataclass
class RunView:
    """A run: what it is, its outcomes by task, and episodes of it."""

    name: str
    anchor: str
    group: str
    facts: Facts
    grid: dict[str, list[Outcome]] = field(default_factory=dict)
    cut: int = 0  # tasks that the grid leaves out
    episodes: list[EpisodeView] = field(default_factory=list)
    total: int = 0
    page: str = ""


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
            view, episodes = run_view(record, group.label, each, outcomes)
            view.page = f"pages/{record.name}.html" if pages else ""
            runs.append(view)
            found[record.name] = critic.judgements(episodes)
        if any(found.values()):
            critics.append(critic_view(group.label, found, runs))
    images = [(name, data_url(svg)) for name, svg in pictures.items()]
    cells = tables.results(comparison), tables.passes(comparison), tables.spent(comparison)
    return WorldView(world.label, *cells, tables.remarks(comparison), images, critics, runs)


def critic_view(
    group: str, found: dict[str, list[Judgement]], runs: Sequence[RunView]
) -> CriticView:
    """Calibration, verdicts and the worst turns of a group, from what was said in each run."""
    anchors = {(run.name, one.id): one.anchor for run in runs for one in run.episodes}
    said = [one for judged in found.values() for one in judged]
    rows = [(one, run) for run, judged in found.items() for one in critic.most_wrong(judged, WORST)]
    rows.sort(key=lambda row: -row[0].error)
    worst = [
        (
            one,
            run,
            f"{anchors[run, one.episode]}-t{one.turn}" if (run, one.episode) in anchors else "",
        )
        for one, run in rows[:WORST]
    ]
    return CriticView(group, len(said), critic.calibration(said), critic.verdicts(said), worst)


def run_view(
    record: Record, group: str, texts_left: int, outcomes_left: int
) -> tuple[RunView, list[Episode]]:
    """A run, and the episodes that were read: those shown, and all that a critic annotated."""
    anchor = f"run-{slug(record.name)}"
    view = RunView(record.name, anchor, group, list(_facts(record)))
    step = max((s for s in record.evaluations if record.entries(s)), default=None)
    if step is None:
        return view, []
    entries = record.entries(step)
    before = {entry.id: entry.success for entry in record.entries(0)} if step else {}
    chosen = {entry.id for entry in pick(entries, before)}
    read: list[Episode] = []
    for number, entry in enumerate(entries):
        if entry.id in chosen or entry.annotated:
            read.append(index.read(record.episode_file(step), entry))
        if entry.id in chosen and read[-1].id == entry.id:
            shown = episode_view(read[-1], f"{anchor}-e{number}", record.name, before)
            size = len(str(shown))
            if size <= texts_left:
                view.episodes.append(shown)
                texts_left -= size
    shown_at = {one.id: one.anchor for one in view.episodes}
    view.total = len(entries)
    view.grid, view.cut = grid(entries, before, shown_at, outcomes_left)
    return view, read


def pick(entries: Sequence[Entry], before: dict[str, bool]) -> list[Entry]:
    """A few to show, in turn: newly won, newly lost, annotated, lost, won."""
    kinds = (
        [e for e in entries if e.success and before.get(e.id) is False],
        [e for e in entries if not e.success and before.get(e.id)],
        [e for e in entries if e.annotated],
        [e for e in entries if not e.success],
        [e for e in entries if e.success],
    )
    turns = chain.from_iterable(zip_longest(*kinds))
    return list({e.id: e for e in turns if e is not None}.values())[:EXAMPLES]


def grid(
    entries: Sequence[Entry], before: dict[str, bool], anchors: dict[str, str], most: int
) -> tuple[dict[str, list[Outcome]], int]:
    """Outcomes by task, at most about `most` of them, and how many tasks that leaves out."""
    tasks: dict[str, list[Outcome]] = {}
    for entry in entries:
        changed = before.get(entry.id, entry.success) != entry.success
        one = Outcome(entry.id, entry.success, changed, anchors.get(entry.id, ""))
        tasks.setdefault(entry.task, []).append(one)
    kept: dict[str, list[Outcome]] = {}
    for task, row in tasks.items():
        if sum(map(len, kept.values())) + len(row) <= most:
            kept[task] = row
    return kept, len(tasks) - len(kept)


def episode_view(
    episode: Episode, anchor: str, source: str, before: dict[str, bool]
) -> EpisodeView:
    """An episode with all that the terminal shows of it."""
    turns = [
        TurnView(f"{anchor}-t{n}", numbers(turn, earned), texts(turn, episode.success))
        for n, (turn, earned) in enumerate(with_returns(episode), start=1)
    ]
    closing = [(message.role, message.content) for message in episode.closing]
    changed = before.get(episode.id, episode.success) != episode.success
    facts = summary(episode, source)
    return EpisodeView(anchor, episode.id, episode.success, changed, facts, turns, closing)


def run_page(record: Record, group: str) -> str | None:
    """A page of its own with every kept episode of a run's last evaluation; None without one."""
    step = max((s for s in record.evaluations if record.entries(s)), default=None)
    if step is None:
        return None
    entries, file = record.entries(step), record.episode_file(step)
    before = {entry.id: entry.success for entry in record.entries(0)} if step else {}
    view = RunView(record.name, f"run-{slug(record.name)}", group, list(_facts(record)))
    view.total = len(entries)
    view.episodes = [
        episode_view(index.read(file, entry), f"{view.anchor}-e{n}", record.name, before)
        for n, entry in enumerate(entries)
    ]
    anchors = {one.id: one.anchor for one in view.episodes}
    view.grid, view.cut = grid(entries, before, anchors, len(entries))
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


def slug(name: str) -> str:
    """A name as an anchor."""
    return "".join(c if c.isascii() and (c.isalnum() or c in "-_") else "_" for c in name)


def _facts(record: Record) -> Iterator[tuple[str, str]]:
    meta = record.run.meta
    yield "status", f"{record.status}, step {record.last_step}, seed {record.seed}"
    yield "folder", str(record.run.folder)
    yield "command", str(meta.get("command", ""))
    git = meta.get("git") or {}
    dirty = " with changes" if git.get("dirty") else ""
    yield "made by", f"agentrl {meta.get('agentrl', '?')}, commit {git.get('commit', '?')}{dirty}"
    for step in sorted(record.evaluations):
        row = record.evaluations[step]
        told = [f"{s} {share(row.get(f'eval/{s}_success'))} %" for s in record.splits]
        yield f"step {step}", ", ".join(told)
