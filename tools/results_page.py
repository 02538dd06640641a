"""Makes docs/results.md, docs/results_0.1.md and the small table of README.md, from the records in
docs/results/.

Run as `make results-page`; `python tools/results_page.py --check` says whether all are up to date.
Every number is computed from the records here; the sentences around them, and what each table
means, stand in tools/pages/.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import textwrap
from collections.abc import Iterable
from pathlib import Path
from statistics import fmean
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from agentrl_cli.report.tables import share

from bench.results import ABLATIONS, CONTROLS, OWN_PLAY, PLAYERS, STUDENTS
from tools.results_tables import (
    Row,
    Runs,
    by_demonstrations,
    configurations,
    delayed_credit,
    deviation,
    differences,
    gains,
    golden,
    lead,
    learning,
    markdown,
    mean,
    name_of,
    noise,
    ranged,
    tuning,
)

ROOT = Path(__file__).parents[1]
RECORDS = ROOT / "docs" / "results"
PAGES = Path(__file__).parent / "pages"  # their texts, with places for what is computed
DOCS = ROOT / "docs"
README = ROOT / "README.md"
START, END = "<!-- from docs/results: make results-page -->\n", "<!-- end -->"
OLD = "0.1"  # the folder of what was learnt with the models of version 0.1
OLD_WORLDS = {"twentyq": "Twenty Questions", "math": "MATH", "tau_mini": "the small shop"}
WORLDS = {
    "twentyq": "Twenty Questions", "arithmetic": "arithmetic", "tau_mini": "the small shop",
    "wiki": "the wiki",
}  # fmt: skip
ABLATED = "NLAC with one part exchanged ([algorithms.md](algorithms.md#its-ablations)):"
WRITTEN = {
    "nlac/brier": "Brier score", "nlac/value_bias": "optimism", "nlac/auc_all": "AUC over all",
    "nlac/refined_gain_all": "refined gain",
}  # fmt: skip
SCALAR = {
    "critic/brier": "Brier score", "critic/value_bias": "optimism",
    "critic/rank_correlation": "rank correlation", "critic/rank_same_turn": "in one turn",
}  # fmt: skip
COMPARED = (
    ("nlac", "grpo"), ("nlac", "rft"), ("nlac", "ppo"), ("self_ac", "grpo"),
    ("self_ac, slides", "self_ac"),
)  # fmt: skip
WIDTH = 120


def load(name: str) -> Any:
    """The content of docs/results/NAME.json."""
    return json.loads((RECORDS / f"{name}.json").read_text())


def load_old(name: str) -> Any:
    """The content of docs/results/0.1/NAME.json."""
    return load(f"{OLD}/{name}")


def overview() -> str:
    """README's table: each algorithm's gain in each world, empty where it was not trained."""
    plain = {world: defaults(load(world)) for world in WORLDS}
    cells = [
        [algo, *(ranged(gains(plain[w][algo])) if algo in plain[w] else "" for w in WORLDS)]
        for algo in (*PLAYERS, *STUDENTS)
    ]
    bases = [share(mean(plain[world]["nlac"], "base")) for world in WORLDS]
    named = [f"{name} ({base} %)" for name, base in zip(WORLDS.values(), bases, strict=True)]
    return markdown(" | ".join(["algorithm", *named]), cells)


def todays_learning(world: str) -> str:
    """Whatever was trained from today's models in a world: curves, and a table of each kind; one
    more of NLAC's ablations where they were run."""
    curves = load(f"{world}_curves")
    played = ", ".join(dict.fromkeys(row["algo"] for row in curves))
    picture = f"![Success of {played} against episodes and seconds](images/curves_{world}.svg)"
    parts, rows = [picture], load(world)
    for lead_in, wanted in SHOWN:
        if any(wanted(row) for row in rows):
            parts += [lead_in, learning(rows, wanted)]
    if world in ABLATIONS:
        parts += [ABLATED, learning(load(f"{world}_ablations"), lambda row: True)]
    return "\n\n".join(parts)


def todays_tuning() -> str:
    """For each algorithm its start and its four trials on `val`, where they were done."""
    tables = []
    for world, name in WORLDS.items():
        if (RECORDS / f"{world}_tuning.json").exists():
            tables.append(f"On {name}:\n\n{tuning(load(f'{world}_tuning'))}")
    return "\n\n".join(tables)


def todays_critics() -> str:
    """The figures of docs/results/critics.json, a column for each world."""
    found = load("critics")
    names = sorted({key.removesuffix(f"_{w}") for key in found for w in WORLDS if key.endswith(w)})
    cells = [
        [_figure(name), *(_shown(found.get(f"{name}_{world}")) for world in WORLDS)]
        for name in names
    ]
    return markdown(" | ".join(["figure", *WORLDS.values()]), cells)


def _figure(name: str) -> str:
    """A figure's name in a table; that of one seed or of a spoiled critic says which."""
    if found := re.fullmatch(r"(guard_[a-z]+)_(.+)", name):
        return f"`{found[1]}`, {found[2].replace('_', ' ')}"
    found = re.fullmatch(r"(.+)_s(\d+)", name)
    return f"`{found[1]}`, seed {found[2]}" if found else f"`{name}`"


def _shown(value: float | None) -> str:
    """`0.71`, `300`, and nothing for what was not measured."""
    if value is None:
        return ""
    text = f"{value:,.0f}" if abs(value) >= 10 else f"{value:.2f}"
    return text.replace("-", "−")


def defaults(rows: Iterable[Row]) -> dict[str, Runs]:
    """The records of each algorithm's default, on the test split."""
    return {runs[0]["algo"]: runs for runs in configurations(rows) if _is_default(runs)}


def critics(key: str, columns: dict[str, str], files: dict[str, str]) -> str:
    """What critics knew before and after training, means over seeds; those that logged `key`.
    `columns` are metrics and their headers, `files` the records by name and their worlds."""
    cells = []
    for file, world in files.items():
        found: dict[str, Runs] = {}
        for row in load(f"{file}_critic"):
            if key in row:
                found.setdefault(name_of([row]), []).append(row)
        cells += [[world, name, *_from_to(runs, columns)] for name, runs in found.items()]
    return markdown(" | ".join(["world", "algorithm", *columns.values()]), cells)


def _from_to(runs: Runs, columns: Iterable[str]) -> list[str]:
    """`0.17 → 0.23` for each metric: at the first step and at the last, the mean over the seeds."""
    ends = (0, max(row["step"] for row in runs))
    cells = []
    for column in columns:
        means = [fmean(row[column] for row in runs if row["step"] == step) for step in ends]
        cells.append(" → ".join(f"{mean:.2f}".replace("-", "−") for mean in means))
    return cells


def page() -> str:
    """docs/results.md."""
    rows = {name: load(world) for world, name in WORLDS.items()}
    spread = {name: deviation(list(filter(_plays, rows[name]))) for name in rows}
    ablated = {f"{world}_ablations": f"{WORLDS[world]}, ablations" for world in ABLATIONS}
    flat = ("self_ac_cost", "math_grader", "tau_exactness", "sweep", "report", "practice")
    flat += ("stepagent_cost", "real_models", "delayed_credit")
    parts = {
        **{f"{world}_today": todays_learning(world) for world in WORLDS},
        **{f"noise_{world}": noise(spread[name]) for world, name in WORLDS.items()},
        "demonstrations": by_demonstrations(load("stepagent")),
        "differences": differences(rows, spread, COMPARED),
        "todays_tuning": todays_tuning(),
        "todays_written": critics("nlac/brier", WRITTEN, WORLDS | ablated),
        "todays_scalar": critics("critic/brier", SCALAR, WORLDS),
        "todays_critics": todays_critics(),
        "delayed_credit_table": delayed_credit(load("delayed_credit")),
        "golden": golden(load("tau_exactness")),
        **{name: load(name) for name in flat},
    }
    return filled("results", parts)


def old_page() -> str:
    """docs/results_0.1.md."""
    found = {world: load_old(world) for world in OLD_WORLDS}
    files = {f"{OLD}/{world}": name for world, name in OLD_WORLDS.items()}
    files[f"{OLD}/twentyq_ablations"] = "Twenty Questions, ablations"
    twentyq = found["twentyq"]
    parts = {
        **{f"{world}_players": learning(rows, _plays) for world, rows in found.items()},
        **{f"{world}_students": learning(rows, _studies) for world, rows in found.items()},
        "controls": learning(twentyq, _is_control),
        "demonstrations": by_demonstrations(load_old("stepagent")),
        "ablations": learning(load_old("twentyq_ablations"), lambda row: True),
        "noise": noise(deviation(twentyq)),
        **{f"lead_{other}": lead(twentyq, other) for other in ("ppo", "grpo", "self_ac")},
        **{f"lead_{control}": lead(twentyq, "nlac", control) for control in _controls(twentyq)},
        "written_critics": critics("nlac/brier", WRITTEN, files),
        "scalar_critics": critics("critic/brier", SCALAR, files),
    }
    return filled("results_0.1", parts)


def filled(name: str, parts: dict[str, Any]) -> str:
    """The text of a page with what was computed in its places."""
    text = (PAGES / f"{name}.md").read_text().format_map(parts)
    return "\n\n".join(map(wrapped, text.split("\n\n")))


def wrapped(block: str) -> str:
    """A paragraph in lines of at most WIDTH letters; a block that is no paragraph as it is."""
    if not block[0].isalpha() and block[0] not in "`":
        return block
    return block if block.startswith("```") else textwrap.fill(block, WIDTH, break_on_hyphens=False)


def readme() -> str:
    """README.md with its table made anew."""
    before, start, rest = README.read_text().partition(START)
    _, end, after = rest.partition(END)
    if not (start and end):
        raise SystemExit(f"README.md has no place for its table, between {START}and {END}")
    return f"{before}{start}\n{overview()}\n\n{end}{after}"


def _is_default(runs: Runs) -> bool:
    return not runs[0]["variant"]


def _plays(row: Row) -> bool:
    return row["algo"] in PLAYERS and not row["variant"]


def _studies(row: Row) -> bool:
    return row["demos"] != "" or row["init"] != "base"


def _is_control(row: Row) -> bool:
    return not _plays(row) and not _studies(row)


def _spoils(row: Row) -> bool:
    """Whether a run shows what a method's gain rests on, by taking that away."""
    return row["variant"] in (*CONTROLS, OWN_PLAY)


SHOWN = (
    ("By play, from the base:", lambda row: not _studies(row) and not _spoils(row)),
    ("From demonstrations of the expert, and on from that SFT:", _studies),
    ("Controls:", _spoils),
)


def _controls(rows: Iterable[Row]) -> list[str]:
    return list(dict.fromkeys(r["variant"] for r in rows if r["algo"] == "nlac" and r["variant"]))


def main() -> int:
    """Write the files, or say which is out of date."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if out of date")
    pages = {DOCS / "results.md": page(), DOCS / "results_0.1.md": old_page()}
    made = pages | {README: readme()}
    if not parser.parse_args().check:
        for file, text in made.items():
            file.write_text(text)
        return 0
    stale = [
        file.name for file, text in made.items() if not file.exists() or file.read_text() != text
    ]
    print(f"{', '.join(stale)} out of date: make results-page" if stale else "up to date")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
