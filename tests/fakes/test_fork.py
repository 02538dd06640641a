"""How the delayed-credit benchmark counts episodes."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import delayed_credit as bench


@pytest.mark.parametrize("name", bench.TRIALS)
def test_the_benchmark_counts_episodes_until_two_updates_succeed(
    name: str, model_folder: Path, monkeypatch: pytest.MonkeyPatch
):
    def row(*shares: float) -> dict:
        monkeypatch.setattr(bench, "learning", lambda algo, folder, seed: iter(shares))
        return bench.measured(name, bench.TRIALS[name][1], model_folder, 0)

    fast, slow = row(0.5, 0.95, 0.9, 1.0), row(0.5, 0.95, 0.2)
    assert fast["episodes"] == 3 * bench.EPISODES and fast["success"] == [0.5, 0.95, 0.9]
    assert slow["episodes"] is None
    assert bench.best([slow | {"numbers": {}}, fast]) == bench.TRIALS[name][1]
    assert bench.best([slow, slow | {"success": [1.0, 1.0], "numbers": {}}]) == {}
    assert len(bench.TRIALS[name]) == 4
