"""Losses and gradients equal those of the peers in tests/parity (bench/parity.py)."""

from __future__ import annotations

import json

import pytest

from bench.parity import CASES, PAGE, RESULT, compare, largest, table

TOLERANCE = 1e-5


@pytest.mark.parametrize("name", CASES)
def test_loss_and_gradient_equal_the_peers(name: str):
    assert all(gap < TOLERANCE for gap in compare(name))


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("grpo/dapo", "algo.loss_type=grpo"),
        ("grpo/dapo", "algo.advantage_std=population"),
        ("grpo/dapo", "algo.skip_zero_advantages=true"),
        ("grpo/grpo", "algo.use_bias_correction_kl=false"),
        ("grpo/bnpo", "algo.clip_eps_high=null"),
        ("ppo/value_clip", "algo.value_clip_error=larger"),
    ],
)
def test_another_setting_differs(name: str, change: str):
    assert min(compare(name, change)) > 100 * TOLERANCE


def test_page_holds_the_record():
    record = json.loads(RESULT.read_text())
    assert table(record) in PAGE.read_text()
    assert len(record["cases"]) == len(CASES)
    assert record == record | largest(record["cases"])
    assert max(row[key] for row in record["cases"] for key in ("loss", "gradient")) < TOLERANCE
