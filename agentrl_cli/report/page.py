"""The HTML report: one file with tables, figures and episodes that needs nothing else. Its
Content-Security-Policy allows images given as data, and its style sheet and script by their hashes,
so nothing is fetched and no text of a model is executed. Jinja escapes all texts."""

from __future__ import annotations

import base64
import hashlib
import re
import sys
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from io import BytesIO
from pathlib import Path
from typing import Any
from zipfile import ZIP_DEFLATED, ZipFile

from agentrl_cli import __version__
from agentrl_cli.core import files
from agentrl_cli.core.errors import UserError
from agentrl_cli.core.types import Episode
from agentrl_cli.report import compare, episode, figures, records
from agentrl_cli.report.compare import Report, Section
from agentrl_cli.report.episode import Decode, Facts
from agentrl_cli.report.records import Record
from agentrl_cli.report.summary import share
from agentrl_cli.runs import episode_files
from agentrl_cli.runs.episode_files import EpisodeEntry
from agentrl_cli.runs.run import step_of

FOLDER, FILE = "report", "report.html"
FIGURES = ("finals", "curves", "costs", "training", "critic")  # of a section
MAX_CHARACTERS = 2_400_000  # of all episodes in the page
MAX_OUTCOMES = 12_000  # in the page
MAX_EPISODES, MAX_TRAINED = 6, 2  # of a run in the page
MAX_TRAINED_ALONE = 64  # in a page of one run, which shows all evaluated episodes
MAX_SLUG = 120  # characters
HERE = Path(__file__).parent
View = dict[str, Any]  # values that the template shows


def folder_for(refs: Sequence[str]) -> Path:
    """Return the default folder of a report: inside the only run or folder, else `report`."""
    if len(refs) != 1:
        return Path(FOLDER)
    found = records.find_runs(refs[0])[0].folder
    return _no_link((found.parent if found.parent == Path(refs[0]) else found) / FOLDER)


def _no_link(folder: Path) -> Path:
    """Return a folder to write. Raises UserError if it is a link, which may come from someone
    else."""
    if folder.is_symlink():
        line = f"'{folder}' is a link; remove it, or choose another place with --out"
        raise UserError(line, code="link-out-of-run")
    return folder


def write(report: Report, folder: Path, pages: bool = False, logprobs: bool = False) -> Path:
    """Write the page and its figures, and return the page. `pages` adds a page per run with all
    episodes, `logprobs` also the log-prob of each token. Raises UserError if the folder cannot be
    written or a tokenizer is missing."""
    all_records = [record for section in report.sections for record in section.records]
    for record, slug in zip(all_records, slugs([r.name for r in all_records]), strict=True):
        record.slug = slug
    with files.explain_write_errors(folder, "choose another place with --out"):
        folder.mkdir(parents=True, exist_ok=True)
        sections: list[View] = []
        for number, section in enumerate(report.sections, start=1):
            drawn = figures.figures(section, **records.shown_metrics(section.records))
            for name in FIGURES:
                file = folder / f"{name}-{number}.svg"
                file.unlink(missing_ok=True)  # of an earlier report
                if name in drawn:
                    files.replace_text(file, drawn[name])
            sections.append(section_view(section, drawn, len(all_records), pages or logprobs))
        groups = [group for section in report.sections for group in section.groups]
        counts = {"run": len(all_records), "configuration": len(groups)}
        title = ", ".join(f"{n} {noun}{'s' if n != 1 else ''}" for noun, n in counts.items())
        files.replace_text(folder / FILE, render_page(sections, report.notes, [], title))
        for group in groups if pages or logprobs else []:
            for record in group.records:
                decode = episode.decoder(record) if logprobs else None
                if text := run_page(record, group.label, decode):
                    pages_folder = _no_link(folder / "pages")
                    pages_folder.mkdir(exist_ok=True)
                    files.replace_text(pages_folder / f"{record.slug}.html", text)
    return folder / FILE


def pack(report: Report, folder: Path) -> Path:
    """Put all files that `write` has written to `folder` into a zip file there, and return it."""
    slugs = [record.slug for section in report.sections for record in section.records]
    numbers = range(1, len(report.sections) + 1)
    found = [folder / f"{name}-{number}.svg" for number in numbers for name in FIGURES]
    found += [folder / "pages" / f"{slug}.html" for slug in slugs]
    packed, content = folder / f"{FOLDER}.zip", BytesIO()
    with files.explain_write_errors(folder, "choose another place with --out"):
        with ZipFile(content, "w", ZIP_DEFLATED) as archive:
            for file in [folder / FILE, *found]:
                if file.is_file() and files.is_inside(file, folder):
                    archive.write(file, Path(FOLDER) / file.relative_to(folder))
        files.replace_bytes(packed, content.getvalue())
    return packed


def slugs(names: Sequence[str]) -> list[str]:
    """Return unique names that are valid in anchors and file names."""
    plain = (re.sub(r"[^A-Za-z0-9_-]", "_", name)[:MAX_SLUG] for name in names)
    return compare.number_duplicates(plain, "-{}")


def run_page(record: Record, group: str, decode: Decode | None = None) -> str | None:
    """Return a page with all episodes of a run's evaluation; None if there are none."""
    view = run_view(record, group, decode=decode)
    return render_page([], [], [view], record.name) if view["total"] else None


def render_page(
    sections: Sequence[View], notes: Sequence[str], runs: Sequence[View], title: str
) -> str:
    """Return the HTML. `notes` stand above all results."""
    try:
        from jinja2 import Environment, FileSystemLoader, StrictUndefined
    except ImportError:
        line = "reports need jinja2; run pip install 'agentrl-cli[report]'"
        raise UserError(line, code="missing-package") from None
    loader = Environment(
        loader=FileSystemLoader(HERE), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    return loader.get_template("page.html.jinja").render(
        sections=sections, notes=notes, runs=runs, title=title, digest=digest, share=share,
        style=(HERE / "page.css").read_text("utf-8"), script=(HERE / "page.js").read_text("utf-8"),
        version=__version__, made=f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
    )  # fmt: skip


def digest(text: str) -> str:
    """Return the hash of a text as in a Content-Security-Policy."""
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def section_view(section: Section, drawn: dict[str, str], count: int, pages: bool) -> View:
    """Return the part of the page that shows a section of a report with `count` runs."""
    settings, left_out = compare.settings_table(section)
    runs: list[View] = []
    critics: list[View] = []
    for column, group in enumerate(section.groups, start=1):
        own = [(row[0], row[column]) for row in settings[1:] if row[column] != compare.DASH]
        views = [run_view(record, group.label, count, pages, own) for record in group.records]
        runs += views
        if predictions := [prediction for view in views for prediction in view["predictions"]]:
            critics.append({
                "group": group.label, "turns": len(predictions),
                "bins": episode.calibration(predictions), "verdicts": episode.verdicts(predictions),
            })  # fmt: skip
    return {
        "label": section.label, "results": compare.results(section),
        "costs": compare.costs(section), "remarks": compare.remarks(section),
        "settings": settings, "left_out": left_out, "critics": critics, "runs": runs,
        "figures": {
            name: "data:image/svg+xml;base64," + base64.b64encode(svg.encode()).decode()
            for name, svg in drawn.items()
        },
        "finished": {group.label: list(group.finished.values()) for group in section.groups},
    }  # fmt: skip


def run_view(
    record: Record,
    group: str,
    count: int | None = None,
    pages: bool = False,
    settings: Facts | None = None,
    decode: Decode | None = None,
) -> View:
    """Return the part of a page that shows a run, with episodes of its evaluation and those of
    the last stored update that have credit. `count` runs share the page; None shows all episodes.
    `settings` are those in which groups differ. `pages`: each run also has its own page."""
    anchor, page = f"run-{record.slug}", f"pages/{record.slug}.html" if pages else ""
    view: View = {
        "record": record, "group": group, "anchor": anchor, "facts": _facts(record),
        "settings": settings or [], "page": page, "grid": {}, "tasks_left_out": 0,
        "episodes": [], "total": 0, "predictions": [], "trained": [], "trained_step": 0,
    }  # fmt: skip
    kept = [step for step in record.evaluations if record.entries(record.episode_file(step))]
    if not kept:
        return view
    room = MAX_CHARACTERS // count if count else sys.maxsize
    step = record.final_step if record.final_step in kept else max(kept)
    file, base_file = record.episode_file(step), record.episode_file(0)
    entries = record.entries(file)
    before = {entry.id: entry for entry in record.entries(base_file)} if step else {}
    base = {name: entry.success for name, entry in before.items()}
    examples = choose_examples(entries, base, MAX_EPISODES if count else None)
    grid: dict[str, list[View]] = {}
    for number, entry in enumerate(entries):
        at = f"{anchor}-e{number}"
        outcome = {"id": entry.id, "won": entry.success, "link": f"{page}#{at}" if page else ""}
        outcome["changed"] = episode.has_changed(entry, base)
        grid.setdefault(entry.task, []).append(outcome)
        if entry.id not in examples and not entry.annotated:
            continue
        played = episode_files.read(file, entry)
        predictions = episode.predictions(played)
        view["predictions"] += predictions
        if entry.id not in examples:
            continue
        shown = episode_view(played, at, record.name, base, decode)
        shown["wrong"] = max((p.error for p in predictions), default=None)
        if shown["changed"]:
            earlier = episode_files.read(base_file, before[entry.id])
            shown["before"] = episode_view(earlier, f"{at}-b", record.name, {}, decode)
        if (size := len(str(shown))) <= room:
            view["episodes"].append(shown)
            outcome["link"] = f"#{at}"
            room -= size
    outcomes = MAX_OUTCOMES // count if count else sys.maxsize
    for task, row in grid.items():
        if len(row) <= outcomes:
            view["grid"][task] = row
            outcomes -= len(row)
    view["total"], view["tasks_left_out"] = len(entries), len(grid) - len(view["grid"])
    for file in record.run.episode_files("train")[-1:]:
        view["trained_step"] = step_of(file)
        found = record.entries(file)
        some = choose_examples(found, {}, MAX_TRAINED if count else MAX_TRAINED_ALONE)
        for number, entry in enumerate(entry for entry in found if entry.id in some):
            played = episode_files.read(file, entry)
            shown = episode_view(played, f"{anchor}-u{number}", record.name, {}, decode)
            if shown["credited"] and (size := len(str(shown))) <= room:
                view["trained"].append(shown)
                room -= size
    return view


def choose_examples(
    entries: list[EpisodeEntry], base: dict[str, bool], limit: int | None
) -> set[str]:
    """Return the ids of episodes to show, in turn lost and won ones whose outcome differs from
    `base`, the outcomes before training by id, and lost and won ones with an equal outcome. Those
    with texts of a critic come first, then the first ones of each task."""
    numbers: Counter[tuple[bool, bool]] = Counter()
    repeats: Counter[str] = Counter()  # of each task

    def place(entry: EpisodeEntry) -> tuple[int, tuple[bool, bool]]:
        kind = (not episode.has_changed(entry, base), entry.success)
        numbers[kind] += 1
        return numbers[kind], kind

    def rank(entry: EpisodeEntry) -> tuple[bool, int]:
        repeats[entry.task] += 1
        return not entry.annotated, repeats[entry.task]

    return {entry.id for entry in sorted(sorted(entries, key=rank), key=place)[:limit]}


def episode_view(
    played: Episode, anchor: str, source: str, base: dict[str, bool], decode: Decode | None = None
) -> View:
    """Return the part of a page that shows an episode. `credited` names the kind of credit in its
    strip of turns, and `scale` is the largest absolute advantage. `wrong` is the largest error of
    its critic. `before` is the same task before training, if it ended differently."""
    end = episode.known_end(played)
    turns: list[View] = [
        {
            "anchor": f"{anchor}-t{n}", "numbers": episode.numbers(turn, return_),
            "texts": episode.texts(turn, end), "credit": episode.credit(turn),
            "tokens": episode.tokens(turn, decode) if decode else [],
        }
        for n, (turn, return_) in enumerate(episode.with_returns(played), start=1)
    ]  # fmt: skip
    advantages = [abs(turn["credit"].get("advantage", 0.0)) for turn in turns]
    return {
        "anchor": anchor, "id": played.id, "won": played.success,
        "changed": episode.has_changed(played, base), "facts": episode.summary(played, source),
        "turns": turns, "wrong": None, "before": None,
        "final_observation": [(each.role, each.content) for each in played.final_observation],
        "credited": next((name for turn in turns for name in turn["credit"]), ""),
        "scale": max(advantages, default=0) or 1,
    }  # fmt: skip


def _facts(record: Record) -> Facts:
    meta = record.run.meta
    facts = [
        ("status", f"{record.run.status}, step {record.last_step}, seed {record.seed}"),
        ("folder", str(record.run.folder)),
        ("command", str(meta.get("command", ""))),
        ("made by", f"agentrl {meta.get('agentrl', '?')}, {_commit(meta.get('git'))}"),
    ]
    folder = meta.get("working_folder")
    own = folder.get("git") if isinstance(folder, dict) else None
    if isinstance(own, dict):
        facts.append(("started in", _commit(own)))
        if isinstance(changed := own.get("files"), dict) and changed:
            facts.append(("  not committed", ", ".join(map(str, changed))))
    for step in sorted(record.evaluations):
        row = record.evaluations[step]
        successes = [f"{s} {share(row.get(f'eval/{s}_success'))} %" for s in record.splits]
        facts.append((f"step {step}", ", ".join(successes)))
    return facts


def _commit(git: Any) -> str:
    state = git if isinstance(git, dict) else {}
    return f"commit {state.get('commit', '?')}{' with changes' if state.get('dirty') else ''}"
