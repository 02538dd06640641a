"""What the page says of one run: its facts, the outcome of every game, and games turn by turn."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, count, zip_longest

from agentrl_cli.core.types import Episode
from agentrl_cli.report.episode import Facts, numbers, summary, texts, with_returns
from agentrl_cli.report.records import Record
from agentrl_cli.report.tables import share
from agentrl_cli.runs import episode_files
from agentrl_cli.runs.episode_files import EpisodeEntry

EXAMPLES = 6  # episodes of a run in the report
LONGEST = 120  # letters of a slug


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
    """An episode in the grid of outcomes; `link` leads to its turns and is empty where no page
    holds them."""

    id: str
    won: bool
    changed: bool
    link: str


@dataclass
class RunView:
    """A run: what it is, the command that shows a game of it, its outcomes by task, and episodes
    of it."""

    name: str
    anchor: str
    command: str
    group: str
    facts: Facts
    grid: dict[str, list[Outcome]] = field(default_factory=dict)
    cut: int = 0  # tasks that the grid leaves out
    episodes: list[EpisodeView] = field(default_factory=list)
    total: int = 0
    page: str = ""


def slugs(names: Iterable[str]) -> list[str]:
    """Each name in letters that an anchor and a file's name may have; those that come out equal
    are numbered from the second on."""
    found: dict[str, None] = {}
    for name in names:
        plain = re.sub(r"[^A-Za-z0-9_-]", "_", name)[:LONGEST]
        numbered = (f"{plain}-{n}" for n in count(2))
        found[next(one for one in chain([plain], numbered) if one not in found)] = None
    return list(found)


def run_view(
    record: Record, group: str, page: str, texts_left: int, outcomes_left: int
) -> tuple[RunView, list[Episode]]:
    """A run, and the episodes that were read: those shown, and all that a critic annotated. `page`
    is the address of the run's own page, if it has one."""
    view = new_view(record, group, page)
    anchor = view.anchor
    step = max((s for s in record.evaluations if record.entries(s)), default=None)
    if step is None:
        return view, []
    entries = record.entries(step)
    before = {entry.id: entry.success for entry in record.entries(0)} if step else {}
    chosen = {entry.id for entry in pick(entries, before)}
    read: list[Episode] = []
    for number, entry in enumerate(entries):
        if entry.id in chosen or entry.annotated:
            read.append(episode_files.read(record.episode_file(step), entry))
        if entry.id in chosen and read[-1].id == entry.id:
            shown = episode_view(read[-1], f"{anchor}-e{number}", record.name, before)
            size = len(str(shown))
            if size <= texts_left:
                view.episodes.append(shown)
                texts_left -= size
    links = {e.id: f"{page}#{anchor}-e{n}" for n, e in enumerate(entries)} if page else {}
    links |= {one.id: f"#{one.anchor}" for one in view.episodes}
    view.total = len(entries)
    view.grid, view.cut = grid(entries, before, links, outcomes_left)
    return view, read


def new_view(record: Record, group: str, page: str = "") -> RunView:
    """A run without its episodes."""
    facts = list(_facts(record))
    return RunView(
        record.name, anchor_of(record), record.run.quoted_folder, group, facts, page=page
    )


def anchor_of(record: Record) -> str:
    """Where a run is in a page."""
    return f"run-{record.slug}"


def pick(entries: Sequence[EpisodeEntry], before: dict[str, bool]) -> list[EpisodeEntry]:
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
    entries: Sequence[EpisodeEntry], before: dict[str, bool], links: dict[str, str], most: int
) -> tuple[dict[str, list[Outcome]], int]:
    """Outcomes by task, at most about `most` of them, and how many tasks that leaves out."""
    tasks: dict[str, list[Outcome]] = {}
    for entry in entries:
        changed = before.get(entry.id, entry.success) != entry.success
        one = Outcome(entry.id, entry.success, changed, links.get(entry.id, ""))
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
