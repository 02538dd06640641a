"""docs/results.md and README's small table say what the records in docs/results say."""

from __future__ import annotations

import json
import re
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from tests.paths import ROOT
from tools import results_page

OTHER_PAGES = {  # which name their records and quote no figure
    "reliability": "reliability.md", "performance": "performance.md", "gpu": "performance.md",
    "memory_plan": "scaling.md", "wiki_cost": "wiki.md",
}  # fmt: skip
RECORDS = sorted((ROOT / "docs" / "results").glob("**/*.json"))
LEARNING = [file for file in RECORDS if file.stem in ("twentyq", "arithmetic", "tau_mini", "wiki")]
PAGE, OLD_PAGE = ((ROOT / "docs" / f"results{old}.md").read_text() for old in ("", "_0.1"))


def test_page_and_readme_are_up_to_date():
    assert results_page.page() == PAGE, "make results-page"
    assert results_page.old_page() == OLD_PAGE, "make results-page"
    assert results_page.readme() == (ROOT / "README.md").read_text(), "make results-page"


@pytest.mark.parametrize("file", RECORDS, ids=lambda file: f"{file.parent.name}/{file.stem}")
def test_every_record_is_on_the_page(file: Path):
    loaded: list[str] = []

    def load(name: str) -> Any:
        loaded.append(name)
        return json.loads((ROOT / "docs" / "results" / f"{name}.json").read_text())

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(results_page, "load", load)
        results_page.page()
        results_page.old_page()
    if file.stem in OTHER_PAGES:
        assert file.name in (ROOT / "docs" / OTHER_PAGES[file.stem]).read_text()
        return
    name = str(file.relative_to(ROOT / "docs" / "results").with_suffix(""))
    assert name in loaded, f"give {file.name} a section in tools/pages"


@pytest.mark.parametrize("file", LEARNING, ids=lambda file: f"{file.parent.name}/{file.stem}")
def test_each_configuration_has_its_row(file: Path):
    """Start, finals with intervals, gain and seconds, computed here once more."""
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in json.loads(file.read_text()):
        if row["split"] == "test":
            groups.setdefault((row["algo"], row["variant"]), []).append(row)
    page = OLD_PAGE if file.parent.name == results_page.OLD else PAGE
    lines = [numbers(line) for line in page.splitlines() if line.startswith("| ")]
    for configuration, rows in groups.items():
        finals = [100 * row[key] for row in rows for key in ("final", "low", "high")]
        gains = [100 * (row["final"] - row["base"]) for row in rows]
        base = 100 * fmean(row["base"] for row in rows)
        ends = [min(gains), max(gains)] if len(gains) > 1 else []
        expected = [base, *finals, fmean(gains), *ends]
        shown = pytest.approx(expected, abs=0.0501)
        found = [line for line in lines if line[: len(expected)] == shown]
        assert found, f"{configuration} is not on the page"
        seconds = pytest.approx(fmean(row["seconds"] for row in rows), abs=0.501)
        assert any(line[-1] == seconds for line in found)  # of two that learn the same, too


def gains(world: str) -> dict[str, float]:
    """The mean gain of each algorithm and control in points."""
    runs = results_page.configurations(results_page.load(world))
    return {
        one[0]["variant"] or one[0]["algo"]: 100 * fmean(results_page.gains(one)) for one in runs
    }


def finals(world: str, split: str) -> dict[str, float]:
    """The mean final success of each algorithm's default."""
    runs = results_page.configurations(results_page.load(world), split)
    plain = [one for one in runs if not one[0]["variant"]]
    return {one[0]["algo"]: fmean(row["final"] for row in one) for one in plain}


def seconds(world: str) -> dict[str, float]:
    """The mean time of each algorithm's default."""
    runs = results_page.configurations(results_page.load(world))
    plain = [one for one in runs if not one[0]["variant"]]
    return {one[0]["algo"]: fmean(row["seconds"] for row in one) for one in plain}


def test_what_is_said_of_twenty_questions():
    found = gains("twentyq")
    assert found["nlac"] > 1.75 * max(found["rft"], found["grpo"])
    assert found["nlac"] > 1.4 * max(found["self_ac"], found["ppo"])
    assert found["plain_farewell"] > found["nlac"]
    assert 1 < found["graded_reward"] - found["grpo"] < 3 and found["sft"] > found["nlac"]
    later = ("ppo_from_sft", "rft_from_sft", "dpo", "stepagent_implicit", "stepagent_inverse")
    assert max(found[name] for name in later) < 2
    taken = seconds("twentyq")
    assert taken["sft"] < taken["nlac"] / 10
    leads = {}
    for split in ("test", "train"):
        ends = finals("twentyq", split)
        leads[split] = ends["nlac"] - max(ends[algo] for algo in ("rft", "self_ac", "grpo"))
    assert 0 < leads["train"] < 0.7 * leads["test"]
    assert -6 < min(found["shuffled_critiques"], found["majority"])
    assert max(found["shuffled_critiques"], found["majority"], found["empty_critiques"]) < 0
    assert found["frozen_critic"] > found["nlac"] - 4
    assert 0 < found["nlac_paper"] < 5 and found["archer"] < 0
    parts = gains("twentyq_ablations")
    assert 0.6 < parts["k1"] / found["nlac"] < 0.75 and parts["shared_critic"] > found["nlac"]


def test_what_is_said_of_more_and_fewer_demonstrations():
    found = {
        (results_page.name_of(runs), runs[0]["demos"]): [100 * g for g in results_page.gains(runs)]
        for runs in results_page.configurations(results_page.load("stepagent"))
    }
    few, usual, many = (fmean(found["sft", size]) for size in (32, 128, 512))
    assert few < usual < many
    assert min(found["stepagent_implicit", 32]) > 0
    assert fmean(found["sft, longer", 32]) > 2 * fmean(found["stepagent_implicit", 32])
    assert fmean(found["sft, longer", 128]) < 3 and fmean(found["sft, longer", 512]) < 0
    assert max(fmean(found["stepagent_implicit", size]) for size in (128, 512)) < 0
    assert max(fmean(found["stepagent_inverse", size]) for size in (32, 128, 512)) < 1


def test_what_is_said_of_math():
    found = gains("arithmetic")
    order = [found[name] for name in ("rft", "self_ac", "self_ac_slides", "ppo", "nlac", "grpo")]
    assert order == sorted(order, reverse=True) and found["nlac_paper"] < 0
    assert found["self_ac"] - found["grpo"] > 3 * 3.3 and found["nlac"] - found["grpo"] < 3.3
    last = [
        row["critic/value_bias"]
        for row in results_page.load("arithmetic_critic")
        if row["variant"] == "self_ac_slides" and row["step"]
    ]
    assert len(last) == 3 and max(last) < -0.45
    assert all(0 < found[algo] < 6 for algo in ("stepagent_implicit", "stepagent_inverse", "dpo"))
    assert 0 < found["archer"] < 6
    taken = seconds("arithmetic")
    assert taken["nlac"] > 3 * taken["grpo"]


def test_what_is_said_of_ablations_on_math():
    found, whole, luck = gains("arithmetic_ablations"), gains("arithmetic")["nlac"], 3.3
    lost = {name: whole - gain for name, gain in found.items()}
    assert all(lost[name] > luck for name in ("shared_critic", "nlql", "self_distillation"))
    assert 0.75 * luck < lost["k1"] < luck
    same = ("m2", "k8", "on_policy", "monte_carlo", "nlrl", "guarded")
    assert all(abs(lost[name]) < luck for name in same)


def test_what_is_said_of_the_shop():
    found, ends = gains("tau_mini"), finals("tau_mini", "test")
    assert 0.5 < found["majority"] / found["nlac"] < 0.6 and found["shuffled_critiques"] < 0
    assert max(ends["archer"], 0.426 + found["nlac_paper"] / 100) < 0.7
    del ends["archer"]
    assert min(ends.values()) == ends["nlac"] > 0.9
    assert found["frozen_critic"] > found["nlac"] - 4
    tried = [row for row in results_page.load("tau_mini_tuning") if row["algo"] == "sft"]
    assert max(row["val"] for row in tried) > 0.99


def test_what_is_said_of_the_wiki():
    found = gains("wiki")
    alike = [found[algo] for algo in ("grpo", "rft", "self_ac", "sft")]
    assert max(alike) - min(alike) < 4
    assert max(found[algo] for algo in ("stepagent_implicit", "stepagent_inverse", "dpo")) < 2
    assert 0.4 * min(alike) < found["nlac"] < 0.7 * min(alike) and found["archer"] < 4
    assert found["nlac_paper"] < -20 and found["self_ac_slides"] > min(alike)
    assert 1.7 * found["majority"] < found["nlac"] < 2.3 * found["majority"]
    assert found["shuffled_critiques"] < 0
    assert found["nlac"] < min(found["frozen_critic"], found["shuffled_outcomes"])


def test_what_readme_says():
    worlds = ("twentyq", "arithmetic", "tau_mini", "wiki")
    for world in worlds:
        found, taken = gains(world), seconds(world)
        others = ("grpo", "rft", "self_ac", "ppo")
        assert min(found[algo] for algo in ("nlac", *others)) > 0
        assert max(taken["grpo"], taken["rft"]) < taken["nlac"] / 3
        assert max(taken["self_ac"], taken["ppo"]) < taken["nlac"]
        assert (found["nlac"] > max(found[algo] for algo in others)) == (world == "twentyq")
        best = max(found[algo] for algo in ("nlac", "archer", *others) if algo in found)
        assert (found["sft"] > best) == (world in ("twentyq", "tau_mini"))
        least = min(found[algo] for algo in others)
        assert world in ("twentyq", "arithmetic") or found["nlac"] < least


def numbers(line: str) -> list[float]:
    """The numbers of a table's line behind its first cell."""
    cells = re.sub(r"(?<=\d),(?=\d{3}\b)", "", line.split("|", 2)[2]).replace("−", "-")
    return [float(found) for found in re.findall(r"[+-]?\d+(?:\.\d+)?", cells)]
