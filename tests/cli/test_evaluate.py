"""`agentrl eval` of a bare model, in another environment, and with external models."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from agentrl_cli.algos.nlac.algorithm import NLAC
from agentrl_cli.cli.evaluate import evaluate_command
from agentrl_cli.core.types import Episode
from tests.builders.command_line import agentrl, refused
from tests.builders.runs import folders, trained

HERE = ["model=tiny", "env=twentyq", "eval.tasks=1", "eval.episodes_per_task=1",
        "eval.splits=[test]", "eval.greedy=false", "hardware.threads=1"]  # fmt: skip
OUTSIDE = ["env=tau_mini", "env.user=llm", "env.llm.model=m", "env.llm.retries=0",
           "env.llm.base_url=http://127.0.0.1:9/v1", "env.llm.timeout=5"]  # fmt: skip
SERVED = ["model=endpoint", "model.url=http://127.0.0.1:9/v1", "model.name=m", "env=twentyq"]


def test_bare_model_plays_without_algorithm(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    def monitored(self: NLAC, episodes: list[Episode]) -> dict[str, float]:
        raise AssertionError("the default algorithm has probed a bare model")

    monkeypatch.setattr(NLAC, "monitor", monitored)
    record = evaluate_command(None, HERE)
    assert record["eval/test_episodes"] == 1
    assert {name.partition("/")[0] for name in record} == {"model", "eval"}
    with pytest.raises(AssertionError):
        evaluate_command(None, [*HERE, "algo=nlac", "algo.diagnostics.num_states=1"])


@pytest.mark.slow
def test_run_is_evaluated_in_another_environment(tmp_path: Path):
    run = trained(tmp_path / "runs", "grpo", "it", "steps=1", "eval.baseline=false")
    record = evaluate_command(str(run.folder), ["env=arithmetic", "eval.greedy=false"])
    assert record["env"] == "arithmetic" and record["eval/test_episodes"] == 4
    assert 0 <= record["eval/test_level_1"] <= 1
    (written,) = (run.folder / "evaluations.jsonl").read_text().splitlines()
    assert json.loads(written)["env"] == "arithmetic"
    own = evaluate_command(str(run.folder), [])
    assert "env" not in own


@pytest.mark.slow
def test_run_is_evaluated_in_a_users_environment(tmp_path: Path):
    run = trained(tmp_path / "runs", "grpo", "it", "steps=1", "eval.baseline=false")
    groups = ["--config-dir", str(folders(tmp_path))]
    result = agentrl("eval", str(run.folder), "env=coin", "env.turns=3", "--json", *groups)
    assert json.loads(result.stdout)["eval/test_turns"] == 3
    refused(agentrl("eval", str(run.folder), *groups), "--config-dir")
    refused(agentrl("eval", str(run.folder), "env=mathh"), "'math'")


@pytest.mark.extras
def test_requests_are_reported_before_and_after():
    pytest.importorskip("openai", reason="needs the extra 'openai'")
    small = ["eval.tasks=2", *[text for text in HERE if text.startswith("eval.")][1:]]
    result = agentrl("eval", "model=tiny", *OUTSIDE, *small, "hardware.threads=1")
    first, *_, last = result.stderr.splitlines()[:-1]
    name = "model 'm' at http://127.0.0.1:9/v1"
    assert first.startswith(name)
    assert all(f" {number} " in first for number in (2, 17, 34))
    assert last.startswith(f"{name}: 1 ")  # a fifth of the episodes had failed by then
    assert result.exit_code == 1


@pytest.mark.parametrize("command", [
    ["eval", "model=tiny", *OUTSIDE], ["train", "model=tiny", *OUTSIDE, "steps=1"],
    ["eval", *SERVED], ["calibrate", "env=twentyq", "env.llm.model=m"],
], ids=["customer", "training", "agent", "calibrate"])  # fmt: skip
def test_missing_client_library_is_refused(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "openai", None)  # as where the extra is not installed
    refused(agentrl(*command), "agentrl-cli[openai]")
    assert not list(tmp_path.rglob("*.*"))
