"""The soak's figures, by hand and from half a minute of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stress import soak
from stress.soak import Sample


def sample(seconds: float, resident: int = 100, handles: int = 5, threads: int = 2) -> Sample:
    return Sample(seconds, resident, handles, threads)


def test_growth_is_of_the_last_quarter_over_the_first_behind_the_warm_up():
    samples = [sample(i, resident=size) for i, size in enumerate([1, 50, *[100] * 16, *[110] * 4])]
    measured = soak.behind_warm_up(samples)
    assert len(measured) == 19 and soak.growth(measured) == pytest.approx(0.1)


def test_one_more_open_file_or_thread_at_the_end_is_a_leak():
    flat = [sample(i) for i in range(8)]
    assert soak.leaks(flat) == []
    assert soak.leaks([*flat, sample(8, handles=6)]) == ["handles grew from 5 to 6"]
    assert soak.leaks([*flat, sample(8, threads=3)]) == ["threads grew from 2 to 3"]


def test_figures_are_stored_beside_the_others(tmp_path: Path):
    (tmp_path / "it.json").write_text('{"kills": 500, "soak_growth": 9}')
    soak.store(tmp_path / "it.json", soak_hours=2.00001, soak_growth=0.01)
    text = (tmp_path / "it.json").read_text()
    assert list(json.loads(text).items()) == [
        ("kills", 500), ("soak_growth", 0.01), ("soak_hours", 2.0),
    ]  # fmt: skip


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_half_a_minute_of_the_soak_leaks_no_file_and_no_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(soak, "ALGORITHMS", ("grpo", "self_ac"))
    small = ["steps=1", "eval.tasks=1", "eval.baseline=false", "rollout.episodes_per_step=4"]
    assert soak.main(["--hours", "0.005", "--result", str(tmp_path / "it.json"), *small]) == 0
    figures = json.loads((tmp_path / "it.json").read_text())
    assert figures.keys() == {"soak_growth", "soak_hours"} and figures["soak_growth"] < 0.2
