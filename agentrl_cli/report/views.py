"""What the page shows of one run: its facts, the outcome of every game, and games turn by turn."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain, zip_longest
from typing import Any

from agentrl_cli.core.types import Episode
from agentrl_cli.report import credit, critic
from agentrl_cli.report.credit import Bar, Strip
from agentrl_cli.report.episode import (
    Facts,
    has_changed,
    known_end,
    numbers,
    summary,
    texts,
    with_returns,
)
from agentrl_cli.report.records import Record
from agentrl_cli.report.tables import share
from agentrl_cli.report.text import number_duplicates
from agentrl_cli.report.tokens import Spell, Token, tokens
from agentrl_cli.runs import episode_files
from agentrl_cli.runs.episode_files import EpisodeEntry
from agentrl_cli.runs.run import step_of

MAX_SLUG = 120  # letters
Entries = list[EpisodeEntry]  # of one evaluation, in its order


@dataclass(frozen=True)
class TurnView:
    """A turn: its anchor, numbers, texts, bars of credit, and its action's tokens where asked."""

    anchor: str
    numbers: Facts
    texts: Facts
    bars: list[Bar]
    tokens: list[Token]


@dataclass
class EpisodeView:
    """An episode: its anchor, what it is, its turns and what the world said last. `wrong` is how
    far its critic was off at worst, 0 to 1, None without one; `before` the same task as the
    starting weights played it, where it ended otherwise."""

    anchor: str
    id: str
    won: bool
    changed: bool
    facts: Facts
    turns: list[TurnView]
    closing: Facts
    strip: Strip | None = None
    wrong: float | None = None
    before: EpisodeView | None = None


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
    """A run: what it is, the settings in which others differ, the command that shows a game of it,
    its outcomes by task, episodes of it, some that it was `trained` on, and what its critic
    expected. `page` is the address of its own page, if it has one."""

    name: str
    anchor: str
    command: str
    group: str
    facts: Facts
    page: str = ""
    settings: Facts = field(default_factory=list)
    grid: dict[str, list[GridCell]] = field(default_factory=dict)
    tasks_left_out: int = 0  # of the grid
    episodes: list[EpisodeView] = field(default_factory=list)
    total: int = 0
    trained: list[EpisodeView] = field(default_factory=list)
    trained_step: int = 0
    predictions: list[critic.Prediction] = field(default_factory=list)


@dataclass(frozen=True)
class Limits:
    """How much a page may show of each run; all of it by default."""

    episodes: int = sys.maxsize
    characters: int = sys.maxsize  # of these episodes
    outcomes: int = sys.maxsize  # in the grid
    trained: int = 64  # episodes of the last update that was kept


def slugs(names: Iterable[str]) -> list[str]:
    """Each name in letters that an anchor and a file's name may have; those that come out equal
    are numbered from the second on."""
    plain = (re.sub(r"[^A-Za-z0-9_-]", "_", name)[:MAX_SLUG] for name in names)
    return number_duplicates(plain, "-{}")


def run_view(
    record: Record,
    group: str,
    page: str,
    limits: Limits,
    settings: Facts | None = None,
    spell: Spell | None = None,
) -> RunView:
    """A run with episodes of its last evaluation, and with all that its critic expected. `settings`
    are those in which other runs differ, `spell` spells its tokens where they are asked for."""
    facts, command = list(_facts(record)), record.run.quoted_folder
    view = RunView(record.name, record.anchor, command, group, facts, page, settings or [])
    kept = [step for step in record.evaluations if record.entries(step)]
    step = record.final_step if record.final_step in kept else max(kept, default=None)
    if step is None:
        return view
    room = _add_evaluated(view, record, step, limits, spell)
    _add_trained(view, record, limits.trained, room, spell)
    return view


def _add_evaluated(
    view: RunView, record: Record, step: int, limits: Limits, spell: Spell | None
) -> int:
    """Give the view the games of an evaluation; how many characters are left."""
    before = {entry.id: entry for entry in record.entries(0)} if step else {}
    base = {name: entry.success for name, entry in before.items()}
    file, entries = record.episode_file(step), record.entries(step)
    examples = {entry.id for entry in choose_examples(entries, base, limits.episodes)}
    room = limits.characters
    for number, entry in enumerate(entries):
        if entry.id not in examples and not entry.annotated:
            continue
        episode = episode_files.read(file, entry)
        predictions = critic.predictions([episode])
        view.predictions += predictions
        if entry.id in examples and episode.id == entry.id:
            shown = episode_view(episode, f"{view.anchor}-e{number}", view.name, base, spell)
            shown.wrong = max((p.error for p in predictions), default=None)
            if shown.changed:
                earlier = episode_files.read(record.episode_file(0), before[entry.id])
                shown.before = episode_view(earlier, f"{shown.anchor}-b", view.name, {}, spell)
            if len(str(shown)) <= room:
                view.episodes.append(shown)
                room -= len(str(shown))
    fill_grid(view, entries, base, limits.outcomes)
    return room


def _add_trained(view: RunView, record: Record, limit: int, room: int, spell: Spell | None) -> None:
    """Give the view episodes of the last update whose episodes were kept, with their credit."""
    found = record.trained_entries()
    if found is None:
        return
    file, entries = found
    view.trained_step = step_of(file)
    for number, entry in enumerate(entries[:limit]):
        episode = episode_files.read(file, entry)
        shown = episode_view(episode, f"{view.anchor}-u{number}", view.name, {}, spell)
        if shown.strip is not None and len(str(shown)) <= room:
            view.trained.append(shown)
            room -= len(str(shown))


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


def episode_view(
    episode: Episode, anchor: str, source: str, base: dict[str, bool], spell: Spell | None = None
) -> EpisodeView:
    """An episode with all that the terminal shows of it, and its credit as bars."""
    rows = credit.bars(episode)
    turns = [
        TurnView(
            f"{anchor}-t{n}", numbers(turn, return_), texts(turn, known_end(episode)), rows[n - 1],
            tokens(turn, spell) if spell else [],
        )
        for n, (turn, return_) in enumerate(with_returns(episode), start=1)
    ]  # fmt: skip
    closing = [(message.role, message.content) for message in episode.closing]
    facts, changed = summary(episode, source), has_changed(episode, base)
    return EpisodeView(
        anchor, episode.id, episode.success, changed, facts, turns, closing, credit.strip(rows)
    )


def _facts(record: Record) -> Iterator[tuple[str, str]]:
    meta = record.run.meta
    yield "status", f"{record.status}, step {record.last_step}, seed {record.seed}"
    yield "folder", str(record.run.folder)
    yield "command", str(meta.get("command", ""))
    yield "made by", f"agentrl {meta.get('agentrl', '?')}, {_commit(meta.get('git'))}"
    folder = meta.get("working_folder")
    if own := folder.get("git") if isinstance(folder, dict) else None:
        yield "started in", _commit(own)
        files = own.get("files") if isinstance(own, dict) else None
        if isinstance(files, dict) and files:
            yield "  not committed", ", ".join(map(str, files))
    for step in sorted(record.evaluations):
        row = record.evaluations[step]
        successes = [f"{s} {share(row.get(f'eval/{s}_success'))} %" for s in record.splits]
        yield f"step {step}", ", ".join(successes)


def _commit(git: Any) -> str:
    """The state of a repository, as meta.json holds it."""
    state = git if isinstance(git, dict) else {}
    return f"commit {state.get('commit', '?')}{' with changes' if state.get('dirty') else ''}"
