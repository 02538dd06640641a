"""Statistics over runs against hand computations and scipy."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from agentrl_cli.core.statistics import STUDENT, Interval, student
from agentrl_cli.report import seeds

Runs = dict[int, dict[str, list[float]]]


def paired(ours: Runs, theirs: Runs) -> Interval:
    found = seeds.paired_difference(ours, theirs)
    assert found is not None
    return found


def test_only_differing_runs_widen_the_interval():
    good, bad = {str(t): [0.9] for t in range(50)}, {str(t): [0.1] for t in range(50)}
    apart = seeds.mean_success([good, bad, good, bad])
    assert apart.mean == pytest.approx(0.5)
    # the standard error of 0.9, 0.1, 0.9, 0.1 is 0.231, times Student's 3.18 for three degrees
    assert (apart.low, apart.high) == pytest.approx((0.0, 1.0))
    close = seeds.mean_success([good, good, good, {task: [0.8] for task in good}])
    half = stats.t.ppf(0.975, 3) * np.std([0.9, 0.9, 0.9, 0.8], ddof=1) / 2
    assert close.high - close.mean == pytest.approx(half, rel=1e-3)
    same = seeds.mean_success([good, good])
    one = seeds.mean_success([good])
    assert (same.low, same.high) == pytest.approx((one.low, one.high))
    assert same.high - same.low < 0.1


def test_a_paired_difference_forgets_how_hard_the_tasks_are():
    hard = {str(t): [t / 100] for t in range(50)}
    better = {t: [values[0] + 0.05 + 0.01 * (-1) ** int(t)] for t, values in hard.items()}
    found = paired({0: better, 1: better}, {0: hard, 1: hard})
    assert found.mean == pytest.approx(0.05) and 0.03 < found.low < found.high < 0.07
    alone = seeds.mean_success([better])
    assert alone.high - alone.low > 0.05  # unpaired, the tasks' spread would hide it


def test_a_paired_difference_agrees_with_scipys_over_tasks():
    rng = np.random.default_rng(3)
    a, b = rng.random(40), rng.random(40) * 0.8
    named = [{str(i): [x] for i, x in enumerate(side)} for side in (a, b)]
    ours = paired({0: named[0]}, {0: named[1]})
    theirs = stats.ttest_rel(a, b)
    assert ours.mean == pytest.approx(float((a - b).mean()))
    limits = theirs.confidence_interval()
    assert (ours.low, ours.high) == pytest.approx((limits.low, limits.high), rel=1e-3)


def test_only_equal_seeds_are_paired():
    low, high = {"t": [0.2]}, {"t": [0.6]}
    ours = {0: {"t": [0.3]}, 1: {"t": [0.7]}}
    together = paired(ours, {0: low, 1: high})
    assert together.mean == pytest.approx(0.1)
    apart = paired(ours, {0: low, 2: high})
    assert apart.mean == pytest.approx(0.1) and apart.high > 0.9 and apart.low < -0.9


def test_a_single_run_varies_as_much_as_those_it_is_compared_with():
    finals, one = [0.50, 0.56, 0.52, 0.60, 0.47], {0: {str(t): [0.7] for t in range(30)}}
    several = {1 + i: {str(t): [x] for t in range(30)} for i, x in enumerate(finals)}
    variance = np.var(finals, ddof=1)
    parts = [variance / 5, variance]
    half = stats.t.ppf(0.975, sum(parts) ** 2 / sum(p**2 / 4 for p in parts)) * sum(parts) ** 0.5
    for sign, found in ((1, paired(one, several)), (-1, paired(several, one))):
        assert found.mean == pytest.approx(sign * (0.7 - np.mean(finals)))
        assert found.high - found.mean == pytest.approx(half, rel=3e-3)


def test_pairs_need_a_common_task():
    assert seeds.paired_difference({0: {"a": [1.0]}}, {0: {"b": [1.0]}}) is None
    with pytest.raises(ValueError):
        seeds.mean_success([{}])


def test_noise_is_the_pooled_deviation():
    floor = seeds.seed_noise([[0.4, 0.44], [0.1, 0.2, 0.3], [0.9]])
    assert floor is not None and floor.freedom == 3
    assert floor.deviation == pytest.approx(math.sqrt((2 * 0.02**2 + 2 * 0.1**2) / 3))
    assert floor.least_difference == pytest.approx(3.182 * math.sqrt(2) * floor.deviation)
    assert seeds.seed_noise([[0.4], [0.1]]) is None


def test_moving_average_by_hand():
    assert seeds.moving_average([1.0, 0.0, 0.5, 0.5], 2) == [1.0, 0.5, 0.25, 0.5]


def test_intervals_contain_the_true_mean_in_95_of_100_experiments():
    """Few tasks, few seeds, and many of one of them, with noise of all three kinds."""
    rng = np.random.default_rng(0)
    for runs, tasks in ((1, 3), (3, 3), (3, 100), (5, 20)):
        contained = 0
        for _ in range(400):
            by_run = rng.normal(0, 0.04 if runs > 1 else 0, (runs, 1))
            values = (
                0.5 + by_run + rng.normal(0, 0.1, (1, tasks)) + rng.normal(0, 0.05, (runs, tasks))
            )
            found = seeds.mean_success(
                [{str(t): [value] for t, value in enumerate(row)} for row in values]
            )
            contained += found.low <= 0.5 <= found.high
        assert 0.92 <= contained / 400 <= 0.995


def test_variance_of_runs_and_tasks_by_hand():
    values = [[0.40, 0.52, 0.45, 0.60], [0.50, 0.60, 0.58, 0.68], [0.43, 0.58, 0.45, 0.66]]
    found = seeds.mean_success([{str(t): [x] for t, x in enumerate(row)} for row in values])
    assert found.mean == pytest.approx(np.mean(values))
    table = np.array(values)
    by_run = np.var(table.mean(1), ddof=1) / 3
    by_task = np.var(table.mean(0), ddof=1) / 4
    rest = table - table.mean(1, keepdims=True) - table.mean(0) + table.mean()
    by_rest = (rest**2).sum() / 6 / 12
    variance = by_run + by_task - by_rest  # a two-way layout with one value in each cell
    freedom = variance**2 / (by_run**2 / 2 + by_task**2 / 3)  # Satterthwaite
    half = stats.t.ppf(0.975, freedom) * variance**0.5
    assert found.high - found.mean == pytest.approx(half, rel=3e-3)


def test_band_of_curves_by_hand():
    low, high = seeds.band(np.array([[0.0, 0.2], [0.2, 0.2], [0.4, 0.2]]))
    assert (high - low)[0] / 2 == pytest.approx(4.303 * 0.2 / 3**0.5, rel=1e-3)
    assert (low[1], high[1]) == pytest.approx((0.2, 0.2))


def test_quantiles_of_student():
    freedoms = [1, 1.5, 2, 3.3, 10, 30, 45, 1000]
    exact = stats.t.ppf(0.975, freedoms)
    ours = [student(freedom) for freedom in freedoms]
    assert all(
        0.999 * e < o < 1.25 * e for o, e in zip(ours, exact, strict=True)
    )  # never too small
    whole = [student(n) for n in range(1, len(STUDENT) + 1)]
    assert whole == pytest.approx(stats.t.ppf(0.975, range(1, len(STUDENT) + 1)), abs=5e-4)
