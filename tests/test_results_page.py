"""docs/results.md holds the numbers of the records in docs/results."""

from __future__ import annotations

import json
import re
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from scipy import stats

from tests.paths import ROOT
from tools import results_page

OTHER_PAGES = {  # which name a record without quoting its figures
    "reliability": "reliability.md", "performance": "performance.md", "gpu": "performance.md",
    "phases": "performance.md", "memory_plan": "scaling.md", "wiki_cost": "wiki.md",
    "trl_learning": "performance.md", "smollm2_cost": "real_models.md",
    "stepagent_courier": "findings.md", "parity": "algorithms.md", "smollm2_curves": "results.md",
    "twentyq_ablations_critic": "results.md", "arithmetic_ablations_critic": "results.md",
}  # fmt: skip
RECORDS = ROOT / "docs" / "results"
PAGE = (ROOT / "docs" / "results.md").read_text()


def test_generated_pages_equal_their_records():
    for file, text in results_page.pages().items():
        assert file.read_text() == text, "make results-page"


def test_figures_in_sentences_are_those_of_the_records(monkeypatch: pytest.MonkeyPatch):
    def row(algo: str, seed: int, final: str, **other: Any) -> dict[str, Any]:
        common = {"env": "here", "algo": algo, "variant": "", "demos": "", "split": "test"}
        common |= {"base": 0.4, "base_by_task": "30 50", "final_by_task": final, "seconds": 30.0}
        return common | {"seed": seed, "final": fmean(map(float, final.split())) / 100} | other

    ours = [row("nlac", 1, "50 70"), row("nlac", 0, "70 90", start_seconds=20.0)]
    theirs = [row("grpo", 0, "60 80"), row("grpo", 1, "60 80", seconds=10.0)]
    trained = [row | {"split": "train", "final": 0.5 + row["seed"] / 10} for row in ours]
    trained += [row | {"split": "train", "final": 0.4} for row in theirs]
    critic = {"env": "here", "algo": "nlac", "variant": "", "nlac/brier": 0.25}
    trial = {"algo": "nlac", "variant": "", "trial": "long", "step": 24, "val": 0.625}
    files = {
        "here": [*ours, *theirs, *trained],
        "here_critic": [critic | {"step": 12}, critic | {"step": 0, "nlac/brier": 0.5}],
        "here_trials": [trial, trial | {"step": 48}, trial | {"trial": "long_lower"}],
    }  # fmt: skip
    monkeypatch.setattr(results_page, "load", files.__getitem__)
    texts = {
        "{success[here nlac]:.0p} of {start[here nlac]:.0p}": "70 of 40",
        "{success_on_train[here nlac]:.0p}": "55",
        "{gains[here nlac]}": "40.0 and 20.0",
        "{mean_gain[here nlac]:.1p}, {least_gain[here nlac]:.1p}": "30.0, 20.0",
        "{seconds[here nlac]:.0f}": "40", "{times[here nlac over grpo]:.1f}": "2.0",
        "{critic[here nlac nlac/brier 12]:.2f}": "0.25",
        "{long_run[here nlac long 24]:.1p}": "62.5", "{here[0][final]:.2f}": "0.60",
    }  # fmt: skip
    for template, text in texts.items():
        assert results_page.filled(template, files) == f"{text}\n"
    found = results_page.filled("{gain[here nlac]}; {difference[here grpo less nlac]}", {})
    gain, less = map(numbers_in, found.split(";"))
    assert gain[0] == 30 and gain[1] < 30 < gain[2] and less[0] == 0 and less[1] < 0 < less[2]
    on_train = results_page.filled("{difference_on_train[here nlac less grpo]}", {})
    assert numbers_in(on_train) == pytest.approx([15.0, -48.5, 78.5], abs=0.1)  # 10 and 20 points
    assert "−" in on_train and "+" not in found
    with pytest.raises(SystemExit, match="here has 0 configurations rft"):
        results_page.filled("{gain[here rft]}", {})


def numbers_in(text: str) -> list[float]:
    return [float(found) for found in re.findall(r"-?\d+\.\d", text.replace("−", "-"))]


def test_every_record_is_on_a_page(monkeypatch: pytest.MonkeyPatch):
    loaded: list[str] = []

    def load(name: str) -> Any:
        loaded.append(name)
        return json.loads((RECORDS / f"{name}.json").read_text())

    monkeypatch.setattr(results_page, "load", load)
    results_page.page()
    for file in RECORDS.glob("*.json"):
        if page := OTHER_PAGES.get(file.stem):
            assert file.name in (ROOT / "docs" / page).read_text()
        else:
            assert file.stem in loaded


def test_memory_of_smollm2_is_on_its_page():
    page = (ROOT / "docs" / "real_models.md").read_text()
    cost = json.loads((RECORDS / "smollm2_cost.json").read_text())
    methods = [m[1] for k in cost if (m := re.fullmatch("peak_mib_arithmetic_smollm2_(.+)", k))]
    assert methods
    for name in methods:
        peak, predicted = (
            cost[f"{kind}_arithmetic_smollm2_{name}"] for kind in ("peak_mib", "predicted_mib")
        )
        assert f"| `{name}` | {peak:,} | {predicted:,} |" in page


@pytest.mark.parametrize("env", results_page.ENVIRONMENTS)
def test_each_configuration_has_its_row(env: str):
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in json.loads((RECORDS / f"{env}.json").read_text()):
        if row["split"] == "test":
            groups.setdefault((row["algo"], row["variant"]), []).append(row)
    lines = [numbers(line) for line in PAGE.splitlines() if line.startswith("| ")]
    for configuration, rows in groups.items():
        if all("final_by_task" in row for row in rows):
            means = [fmean(row[key] for row in rows) for key in ("steps", "episodes")]
            success = [100 * fmean(row[key] for row in rows) for key in ("base", "final")]
            spent = fmean(row["seconds"] + row["start_seconds"] for row in rows)
            shown = [pytest.approx([len(rows), *means, *success], abs=0.501)]
            shown += [pytest.approx([spent], abs=0.501)]
            found = [line for line in lines if [line[:5], line[-1:]] == shown]
            assert found, f"{configuration} is not on the page"
            continue
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


def test_differences_are_bold_after_holms_correction(monkeypatch: pytest.MonkeyPatch):
    def rows(algo: str, finals: tuple[int, ...], **other: Any) -> list[dict[str, Any]]:
        common = {"algo": algo, "variant": "", "demos": "", "split": "test", "init": "base"}
        return [
            common | other | {"seed": s, "final": p / 100, "final_by_task": " ".join([str(p)] * 30)}
            for s, p in enumerate(finals)
        ]

    names = {"nlac": (60, 63, 59), "grpo": (50, 53, 50), "rft": (55, 53, 51)}
    every = [row for algo, finals in names.items() for row in rows(algo, finals)]
    every += [*rows("sft", (90, 90, 90), demos=128), *rows("nlac", (9, 9, 9), variant="majority")]
    monkeypatch.setattr(results_page, "load", {"here": every}.__getitem__)
    finals = {algo: [r["final"] for r in every if r["algo"] == algo][:3] for algo in names}
    pairs = (("nlac", "grpo"), ("nlac", "rft"), ("rft", "grpo"))
    first, second, last = (stats.ttest_rel(finals[a], finals[b]).pvalue for a, b in pairs)
    assert 3 * first < 0.05 < 2 * second and second < last  # so only the first is certain
    table = results_page.differences("here").splitlines()
    assert table[0] == "| points | rft | grpo |"
    assert table[2:] == ["| nlac | +7.7 | **+9.7** |", "| rft |  | +2.0 |"]
    ours, theirs = (results_page.by_task([r for r in every if r["algo"] == a][:3], "final")
                    for a in ("nlac", "rft"))  # fmt: skip
    assert results_page.paired_test(ours, theirs)[1] == pytest.approx(second)
    assert results_page.paired_test(ours, ours) == (0.0, 1.0)


def test_records_have_a_value_of_each_task():
    for file in RECORDS.glob("*.json"):
        for row in json.loads(file.read_text()):
            for key in ("base_by_task", "final_by_task"):
                if isinstance(row, dict) and key in row:
                    assert len(row[key].split()) == row["tasks"], file.name


def test_differences_are_paired_by_task_and_seed():
    def rows(algo: str, finals: list[str]) -> list[dict[str, Any]]:
        common = {"algo": algo, "variant": "", "demos": "", "split": "test", "base": 0.3}
        cost = {"steps": 24, "episodes": 3072, "seconds": 60.0}
        return [
            common | cost | {"seed": seed, "base_by_task": "30 30 30", "final_by_task": final}
            | {"final": fmean(map(float, final.split())) / 100}
            for seed, final in enumerate(finals)
        ]  # fmt: skip

    grpo, rft = rows("grpo", ["10 50 90", "20 40 80"]), rows("rft", ["30 30 30", "30 30 30"])
    every = [*grpo, *rft, *rows("nlac", ["20 60 100", "30 50 90"])]
    table = results_page.learning(every, lambda row: row["algo"] != "rft").splitlines()
    nlac, theirs = (line.strip("| ").split(" | ") for line in table[2:])
    assert nlac[:6] == ["nlac", "2", "24", "3,072", "30.0", nlac[5]] and theirs[0] == "grpo"
    assert nlac[5].startswith("58.3 [") and theirs[5].startswith("48.3 [")
    assert nlac[6].startswith("+28.3 [") and nlac[8] == nlac[6]  # rft ends where all began
    low, high = numbers(f"||{nlac[7]}")[1:]  # ten points in each task and seed
    assert nlac[7].startswith("+10.0 [") and high - low > 40  # equal values of three tasks
    assert theirs[7] == "" and theirs[8].startswith("+18.3 [") and theirs[9] == ""  # not greedy
    trained = [row | {"split": "train", "final": row["final"] + row["seed"] / 10} for row in every]
    greedy = [row | {"base_greedy": 0.4, "final_greedy": 0.7} for row in every]
    table = results_page.learning([*greedy, *trained], lambda row: row["algo"] == "nlac")
    assert " | 40.0 → 70.0 | 60 |" in table
    (line,) = (line for line in table.splitlines() if line.startswith("| nlac | 30.0 |"))
    # success 60.0 and 66.7 %, 10 points more than grpo in both seeds, 30.0 and 26.7 than rft
    assert "| 63.3 [21.0, 100.0] | +10.0 [+10.0, +10.0] | +28.3 [+7.2, +49.5] |" in line


def test_controls_stand_beside_their_algorithm_after_as_many_updates(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    (tmp_path / "twentyq_ablations.json").touch()
    monkeypatch.setattr(results_page, "RECORDS", tmp_path)
    common = {"demos": "", "split": "test", "base": 0.3, "seed": 0, "init": "base", "algo": "nlac"}
    common |= {"base_by_task": "30 30", "episodes": 3072, "seconds": 60.0}
    short = {"steps": 12, "episodes": 1536, "seconds": 20.0, "final": 0.5, "final_by_task": "40 60"}
    final = {"final": 0.8, "final_by_task": "70 90", "steps": 48}
    rows = [
        common | final | {"variant": "", "short": short},
        common | short | {"variant": "majority", "final": 0.4, "final_by_task": "40 40"},
    ]
    files = {"twentyq": rows, "twentyq_curves": [], "twentyq_ablations": [rows[1]]}
    monkeypatch.setattr(results_page, "load", files.__getitem__)
    page = results_page.env_learning("twentyq")
    played, controls, ablations = page.split("| algorithm |")[1:]
    assert "| nlac | 1 | 48 | 3,072 |" in played and "12 updates" not in played
    for table in (controls, ablations):
        assert "| nlac, 12 updates | 1 | 12 | 1,536 | 30.0 | 50.0" in table
        (line,) = (line for line in table.splitlines() if line.startswith("| nlac, majority | 1 |"))
        assert line.split(" | ")[7].startswith("−10.0 [")  # less NLAC after as many updates
        assert "less nlac, 12 updates" in table and "train split" not in table


def numbers(line: str) -> list[float]:
    cells = re.sub(r"(?<=\d),(?=\d{3}\b)", "", line.split("|", 2)[2]).replace("−", "-")
    return [float(found) for found in re.findall(r"[+-]?\d+(?:\.\d+)?", cells)]
