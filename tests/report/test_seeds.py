"""Statistics over runs against hand computations and scipy."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from agentrl_cli.core.statistics import Interval
from agentrl_cli.report import seeds

Runs = dict[int, dict[str, list[float]]]


def paired(ours: Runs, theirs: Runs) -> Interval:
    found = seeds.paired_difference(ours, theirs)
    assert found is not None
    return found


def test_only_differing_runs_widen_the_interval():
    good, bad = {str(t): [0.9] for t in range(50)}, {str(t): [0.1] for t in range(50)}
    apart = seeds.crossed_bootstrap([good, bad, good, bad])
    assert apart.mean == pytest.approx(0.5)
    # four runs drawn of two kinds: all of one kind in 2 x 1/16 of the resamples
    assert (apart.low, apart.high) == pytest.approx((0.1, 0.9))
    same = seeds.crossed_bootstrap([good, good])
    one = seeds.crossed_bootstrap([good])
    assert (same.low, same.high) == pytest.approx((one.low, one.high))
    assert same.high - same.low < 0.1


def test_a_paired_difference_forgets_how_hard_the_tasks_are():
    hard = {str(t): [t / 100] for t in range(50)}
    better = {task: [values[0] + 0.05] for task, values in hard.items()}
    found = paired({0: better, 1: better}, {0: hard, 1: hard})
    assert (found.low, found.mean, found.high) == pytest.approx((0.05, 0.05, 0.05))
    alone = seeds.crossed_bootstrap([better])
    assert alone.high - alone.low > 0.05  # unpaired, the tasks' spread would hide it


def test_a_paired_difference_agrees_with_scipys_over_tasks():
    rng = np.random.default_rng(3)
    a, b = rng.random(40), rng.random(40) * 0.8
    named = [{str(i): [x] for i, x in enumerate(side)} for side in (a, b)]
    ours = paired({0: named[0]}, {0: named[1]})
    theirs = stats.bootstrap((a - b,), np.mean, method="percentile", n_resamples=20000, rng=1)
    assert ours.mean == pytest.approx(float((a - b).mean()))
    limits = theirs.confidence_interval
    assert (ours.low, ours.high) == pytest.approx((limits.low, limits.high), abs=0.02)


def test_only_equal_seeds_are_paired():
    low, high = {"t": [0.2]}, {"t": [0.6]}
    ours = {0: {"t": [0.3]}, 1: {"t": [0.7]}}
    together = paired(ours, {0: low, 1: high})
    assert together.low == pytest.approx(0.1) and together.high == pytest.approx(0.1)
    apart = paired(ours, {0: low, 2: high})
    assert apart.mean == pytest.approx(0.1) and apart.high > 0.3 and apart.low < -0.1


def test_pairs_need_a_common_task():
    assert seeds.paired_difference({0: {"a": [1.0]}}, {0: {"b": [1.0]}}) is None
    with pytest.raises(ValueError):
        seeds.crossed_bootstrap([{}])


def test_noise_is_the_pooled_deviation():
    floor = seeds.seed_noise([[0.4, 0.44], [0.1, 0.2, 0.3], [0.9]])
    assert floor is not None and floor.freedom == 3
    assert floor.deviation == pytest.approx(math.sqrt((2 * 0.02**2 + 2 * 0.1**2) / 3))
    assert floor.least_difference == pytest.approx(3.182 * math.sqrt(2) * floor.deviation)
    assert seeds.seed_noise([[0.4], [0.1]]) is None
    quantiles = stats.t.ppf(0.975, range(1, len(seeds.STUDENT) + 1))
    assert seeds.STUDENT == pytest.approx(quantiles, abs=5e-4)


def test_moving_average_by_hand():
    assert seeds.moving_average([1.0, 0.0, 0.5, 0.5], 2) == [1.0, 0.5, 0.25, 0.5]
