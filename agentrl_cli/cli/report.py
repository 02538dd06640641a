"""`agentrl report`: from names of runs to a table in the terminal, one page, and its pictures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentrl_cli.core import files
from agentrl_cli.core.errors import require_fraction
from agentrl_cli.report import critic, figures, page, tables
from agentrl_cli.report.compare import Comparison, World, compare, find_reference, worlds
from agentrl_cli.report.records import Record, read_all
from agentrl_cli.report.views import slugs

FILE = "report.html"


@dataclass(frozen=True)
class Report:
    """What is compared, world by world, and what a reader must be told first."""

    worlds: list[World]
    comparisons: list[Comparison]
    notes: list[str]

    def to_json(self) -> dict[str, Any]:
        """JSON values; numbers that are not finite are null."""
        rows = [comparison.to_json() for comparison in self.comparisons]
        return files.null_if_not_finite({"notes": self.notes, "worlds": rows})


def gather(
    refs: Sequence[str], against: str | None = None, threshold: float | None = None
) -> Report:
    """Read and compare runs. Raises UserError where there is nothing to compare, and for a
    threshold that is no share."""
    if threshold is not None:
        require_fraction(**{"--threshold": threshold})
    records = read_all(refs)
    for record, slug in zip(records, slugs([one.name for one in records]), strict=True):
        record.slug = slug
    found = worlds(records)
    reference = find_reference(found, against)
    comparisons = [compare(world, reference, threshold) for world in found]
    return Report(found, comparisons, remarks(found, records))


def folder_for(refs: Sequence[str]) -> Path:
    """Where a report goes by default: `report` in the one folder of runs that is named, else
    here."""
    alone = len(refs) == 1 and Path(refs[0]).is_dir() and not (Path(refs[0]) / "meta.json").exists()
    return (Path(refs[0]) if alone else Path()) / "report"


def write(report: Report, folder: Path, pages: bool = False) -> Path:
    """Write the page, the pictures beside it as SVG, and with `pages` one page a run with all its
    episodes. Returns the page. Raises UserError where the folder cannot be written."""
    texts_left = page.TEXTS // len(report.worlds)
    pairs = list(zip(report.worlds, report.comparisons, strict=True))
    with files.explain_write_errors(folder, "choose another place with --out"):
        folder.mkdir(parents=True, exist_ok=True)
        views = [
            page.world_view(world, one, draw(world, one, folder, number), texts_left, pages)
            for number, (world, one) in enumerate(pairs, start=1)
        ]
        runs = sum(len(group.records) for world in report.worlds for group in world.groups)
        title = f"{runs} runs, {sum(len(world.groups) for world in report.worlds)} configurations"
        files.replace_text(folder / FILE, page.render(views, report.notes, [], title))
        if pages:
            write_pages(report.worlds, folder / "pages")
    return folder / FILE


def remarks(found: list[World], records: list[Record]) -> list[str]:
    """Worlds that cannot be compared, and whatever is wrong with a run."""
    several = [
        f"{len(found)} environments or ways to evaluate, each in tables of its own; their numbers"
        f" do not compare: {'; '.join(world.label for world in found)}"
    ]
    return (several if len(found) > 1 else []) + [note for one in records for note in one.notes]


def draw(world: World, comparison: Comparison, folder: Path, number: int) -> dict[str, str]:
    """The pictures of a world by name, written as NAME-NUMBER.svg too."""
    metrics = critic.trends(record for group in world.groups for record in group.records)
    drawn = {
        "finals": figures.finals(world, comparison),
        "curves": figures.curves(world),
        "costs": figures.costs(comparison),
        "critic": figures.trends(world, metrics),
    }
    pictures = {name: figures.svg(figure) for name, figure in drawn.items() if figure is not None}
    for name, text in pictures.items():
        files.replace_text(folder / f"{name}-{number}.svg", text)
    return pictures


def write_pages(found: list[World], folder: Path) -> None:
    """A page for each run with every kept episode of its last evaluation."""
    folder.mkdir(exist_ok=True)
    for world in found:
        for group in world.groups:
            for record in group.records:
                text = page.run_page(record, group.label)
                if text is not None:
                    files.replace_text(folder / f"{record.slug}.html", text)


def markdown(found: Report) -> str:
    """The final results as Markdown, a table for each world; of several each under its name."""
    tabled = [tables.markdown(one) for one in found.comparisons]
    if len(tabled) > 1:
        named = zip(found.comparisons, tabled, strict=True)
        tabled = [[f"**{tables.plain(one.world)}**", "", *lines, ""] for one, lines in named]
    return "\n".join(line for lines in tabled for line in lines).rstrip("\n")


def render(found: Report, width: int | None = None) -> str:
    """What the terminal shows."""
    parts: list[str] = []
    for one in found.comparisons:
        if one.rows:
            parts.append(tables.draw(tables.results(one), one.world, width))
            parts += tables.remarks(one)
            if len(played := tables.passes(one)) > 1:
                parts.append(
                    tables.draw(played, "one of k, and all of k, episodes of a task", width)
                )
            parts.append(
                tables.draw(tables.spent(one), "what it cost (means over finished runs)", width)
            )
        else:
            parts.append(f"{one.world}: no run has finished")
    return "\n".join(parts)
