"""`agentrl report`: from names of runs to a table in the terminal, one page, and its pictures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from zipfile import ZIP_DEFLATED, ZipFile

from agentrl_cli.core import files
from agentrl_cli.core.errors import require_fraction
from agentrl_cli.core.terminal import safe
from agentrl_cli.report import critic, figures, page, tables
from agentrl_cli.report.compare import Comparison, Group, World, compare, find_reference, worlds
from agentrl_cli.report.records import Record, find_runs, read_records
from agentrl_cli.report.tokens import speller
from agentrl_cli.report.views import slugs
from agentrl_cli.runs.find import is_run, list_runs

FOLDER, FILE = "report", "report.html"
PICTURES = ("finals", "curves", "costs", "training", "critic")  # of a world
TRAINING_METRICS = ("loss", "kl_from_start", "approx_kl", "entropy", "grad_norm")


@dataclass(frozen=True)
class Report:
    """What is compared, world by world, and what a reader must know first."""

    worlds: list[World]
    comparisons: list[Comparison]
    notes: list[str]

    def to_json(self) -> dict[str, Any]:
        """JSON values; numbers that are not finite are null."""
        rows = [asdict(comparison) for comparison in self.comparisons]
        return files.null_if_not_finite({"notes": self.notes, "worlds": rows})


def gather(
    refs: Sequence[str], against: str | None = None, threshold: float | None = None
) -> Report:
    """Read and compare runs. Raises UserError for no runs and for a threshold that is no share."""
    if threshold is not None:
        require_fraction(**{"--threshold": threshold})
    records = read_records(refs)
    for record, slug in zip(records, slugs(record.name for record in records), strict=True):
        record.slug = slug
    sorted_worlds = worlds(records)
    reference = find_reference(sorted_worlds, against)
    comparisons = [compare(world, reference, threshold) for world in sorted_worlds]
    return Report(sorted_worlds, comparisons, notes(sorted_worlds, records))


def folder_for(refs: Sequence[str]) -> Path:
    """Where a report goes by default: `report` in the one run or folder named, else here."""
    if len(refs) != 1:
        return Path(FOLDER)
    folder = Path(refs[0])
    is_of_runs = folder.is_dir() and not is_run(folder) and bool(list_runs(folder))
    return (folder if is_of_runs else find_runs(refs[0])[0].folder) / FOLDER


def write(report: Report, folder: Path, pages: bool = False, logprobs: bool = False) -> Path:
    """Write the page, the pictures beside it as SVG, and with `pages` one page a run with all its
    episodes, with `logprobs` also the log-prob of every token. Returns the page. Raises UserError
    where the folder cannot be written, and where a run's tokenizer is asked for and not here."""
    characters = page.MAX_CHARACTERS // len(report.worlds)
    views: list[page.WorldView] = []
    with files.explain_write_errors(folder, "choose another place with --out"):
        folder.mkdir(parents=True, exist_ok=True)
        for world, comparison in zip(report.worlds, report.comparisons, strict=True):
            pictures = draw(world, comparison, folder, len(views) + 1)
            linked = pages or logprobs
            views.append(page.world_view(world, comparison, pictures, characters, linked))
        groups = [group for world in report.worlds for group in world.groups]
        title = f"{sum(len(g.records) for g in groups)} runs, {len(groups)} configurations"
        files.replace_text(folder / FILE, page.render(views, report.notes, [], title))
        if pages or logprobs:
            write_pages(groups, folder / "pages", logprobs)
    return folder / FILE


def pack(report: Report, folder: Path) -> Path:
    """Put the page, its pictures and the pages of its runs, which `write` has written to `folder`,
    into one zip file there, to be sent. Raises UserError where it cannot be written."""
    groups = [group for world in report.worlds for group in world.groups]
    slugs = [record.slug for group in groups for record in group.records]
    pages = [folder / "pages" / f"{slug}.html" for slug in slugs]
    packed = folder / f"{FOLDER}.zip"
    with (
        files.explain_write_errors(folder, "choose another place with --out"),
        ZipFile(packed, "w", ZIP_DEFLATED) as archive,
    ):
        numbers = range(1, len(report.worlds) + 1)
        pictures = [folder / f"{name}-{number}.svg" for number in numbers for name in PICTURES]
        for file in [folder / FILE, *filter(Path.exists, [*pictures, *pages])]:
            archive.write(file, Path(FOLDER) / file.relative_to(folder))
    return packed


def notes(worlds: list[World], records: list[Record]) -> list[str]:
    """Worlds that cannot be compared, and whatever is wrong with a run."""
    several = (
        f"{len(worlds)} environments or ways to evaluate, each in tables of its own; their numbers"
        f" do not compare: {'; '.join(world.label for world in worlds)}"
    )
    return [*([several] if len(worlds) > 1 else []), *(n for r in records for n in r.notes)]


def draw(world: World, comparison: Comparison, folder: Path, number: int) -> dict[str, str]:
    """The pictures of a world by name, written as NAME-NUMBER.svg too."""
    records = [record for group in world.groups for record in group.records]
    drawn = {
        "finals": figures.finals(world, comparison),
        "curves": figures.curves(world),
        "costs": figures.costs(comparison),
        "training": figures.trends(world, training_metrics(records)),
        "critic": figures.trends(world, critic.logged_metrics(records)),
    }
    pictures = {name: figures.svg(figure) for name, figure in drawn.items() if figure is not None}
    for name in drawn:
        file = folder / f"{name}-{number}.svg"
        if name in pictures:
            files.replace_text(file, pictures[name])
        else:  # of an earlier report
            file.unlink(missing_ok=True)
    return pictures


def training_metrics(records: Sequence[Record]) -> list[str]:
    """Loss, divergence, entropy and gradient norm of every model that any of the runs trained, in
    the order of these words."""
    logged = sorted({key for record in records for key in (*record.columns, *_evaluated(record))})
    return [key for word in TRAINING_METRICS for key in logged if key.rpartition("/")[2] == word]


def _evaluated(record: Record) -> set[str]:
    return {key for row in record.evaluations.values() for key in row}


def write_pages(groups: list[Group], folder: Path, logprobs: bool) -> None:
    """A page for each run with every kept episode of its last evaluation."""
    folder.mkdir(exist_ok=True)
    for group in groups:
        for record in group.records:
            spell = speller(record) if logprobs else None
            if text := page.run_page(record, group.label, spell):
                files.replace_text(folder / f"{record.slug}.html", text)


def markdown(report: Report) -> str:
    """The final results as Markdown, a table for each world; of several each under its name."""
    lines: list[str] = []
    for comparison in report.comparisons:
        table = tables.markdown(comparison)
        if len(report.comparisons) > 1:
            table = [f"**{tables.markdown_cell(comparison.world)}**", "", *table, ""]
        lines += table
    return "\n".join(lines).rstrip("\n")


def render(report: Report, width: int | None = None) -> str:
    """What the terminal shows."""
    parts: list[str] = []
    for comparison in report.comparisons:
        if not comparison.rows:
            parts.append(safe(f"{comparison.world}: no run has finished"))
            continue
        parts.append(tables.draw(tables.results(comparison), comparison.world, width))
        parts += map(safe, tables.remarks(comparison))
        if len(passes := tables.passes(comparison)) > 1:
            parts.append(tables.draw(passes, "one of k, and all of k, episodes of a task", width))
        costs = tables.costs(comparison)
        parts.append(tables.draw(costs, "what it cost (means over finished runs)", width))
    return "\n".join(parts)
