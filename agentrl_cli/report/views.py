"""What the page shows of one run: its facts, the outcome of every game, and games turn by turn."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain, zip_longest

from agentrl_cli.core.types import Episode
from agentrl_cli.report import critic
from agentrl_cli.report.episode import Facts, has_changed, numbers, summary, texts, with_returns
from agentrl_cli.report.records import Record
from agentrl_cli.report.tables import share
from agentrl_cli.report.text import number_duplicates
from agentrl_cli.runs import episode_files
from agentrl_cli.runs.episode_files import EpisodeEntry

MAX_SLUG = 120  # letters
Entries = list[EpisodeEntry]  # of one evaluation, in its order


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
class GridCell:
    """An episode in the grid of outcomes; `link` leads to its turns and is empty where no page
    holds them."""

    id: str
    won: bool
    changed: bool
    link: str


@dataclass
class RunView:
    """A run: what it is, the command that shows a game of it, its outcomes by task, episodes of it,
    and what its critic expected. `page` is the address of its own page, if it has one."""

    name: str
    anchor: str
    command: str
    group: str
    facts: Facts
    page: str = ""
    grid: dict[str, list[GridCell]] = field(default_factory=dict)
    tasks_left_out: int = 0  # of the grid
    episodes: list[EpisodeView] = field(default_factory=list)
    total: int = 0
    predictions: list[critic.Prediction] = field(default_factory=list)


@dataclass(frozen=True)
class Limits:
    """How much a page may show of each run; all of it by default."""

    episodes: int = sys.maxsize
    characters: int = sys.maxsize  # of these episodes
    outcomes: int = sys.maxsize  # in the grid


def slugs(names: Iterable[str]) -> list[str]:
    """Each name in letters that an anchor and a file's name may have; those that come out equal
    are numbered from the second on."""
    plain = (re.sub(r"[^A-Za-z0-9_-]", "_", name)[:MAX_SLUG] for name in names)
    return number_duplicates(plain, "-{}")


def run_view(record: Record, group: str, page: str, limits: Limits) -> RunView:
    """A run with episodes of its last evaluation, and with all that its critic expected."""
    facts, command = list(_facts(record)), record.run.quoted_folder
    view = RunView(record.name, record.anchor, command, group, facts, page)
    step = max((step for step in record.evaluations if record.entries(step)), default=None)
    if step is None:
        return view
    base = {entry.id: entry.success for entry in record.entries(0)} if step else {}
    file, entries = record.episode_file(step), record.entries(step)
    examples = {entry.id for entry in choose_examples(entries, base, limits.episodes)}
    characters = 0
    for number, entry in enumerate(entries):
        if entry.id not in examples and not entry.annotated:
            continue
        episode = episode_files.read(file, entry)
        view.predictions += critic.predictions([episode])
        if entry.id in examples and episode.id == entry.id:
            shown = episode_view(episode, f"{view.anchor}-e{number}", view.name, base)
            if characters + len(str(shown)) <= limits.characters:
                view.episodes.append(shown)
                characters += len(str(shown))
    fill_grid(view, entries, base, limits.outcomes)
    return view


def choose_examples(entries: Entries, base: dict[str, bool], limit: int) -> Entries:
    """Some episodes to show, in turn: newly won, newly lost, annotated, lost, won. `base` are the
    starting weights' outcomes by id."""
    kinds = (
        [e for e in entries if e.success and base.get(e.id) is False],
        [e for e in entries if not e.success and base.get(e.id)],
        [e for e in entries if e.annotated],
        [e for e in entries if not e.success],
        [e for e in entries if e.success],
    )
    turns = chain.from_iterable(zip_longest(*kinds))
    return list({e.id: e for e in turns if e is not None}.values())[:limit]


def fill_grid(view: RunView, entries: Entries, base: dict[str, bool], limit: int) -> None:
    """Give the view its outcomes by task, at most about `limit` of them."""
    own = f"{view.page}#{view.anchor}-e"
    links = {entry.id: f"{own}{n}" for n, entry in enumerate(entries) if view.page}
    links |= {episode.id: f"#{episode.anchor}" for episode in view.episodes}
    tasks: dict[str, list[GridCell]] = {}
    for entry in entries:
        link = links.get(entry.id, "")
        cell = GridCell(entry.id, entry.success, has_changed(entry, base), link)
        tasks.setdefault(entry.task, []).append(cell)
    for task, row in tasks.items():
        if sum(map(len, view.grid.values())) + len(row) <= limit:
            view.grid[task] = row
    view.total, view.tasks_left_out = len(entries), len(tasks) - len(view.grid)


def episode_view(episode: Episode, anchor: str, source: str, base: dict[str, bool]) -> EpisodeView:
    """An episode with all that the terminal shows of it."""
    turns = [
        TurnView(f"{anchor}-t{n}", numbers(turn, return_), texts(turn, episode.success))
        for n, (turn, return_) in enumerate(with_returns(episode), start=1)
    ]
    closing = [(message.role, message.content) for message in episode.closing]
    facts, changed = summary(episode, source), has_changed(episode, base)
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
        successes = [f"{s} {share(row.get(f'eval/{s}_success'))} %" for s in record.splits]
        yield f"step {step}", ", ".join(successes)
