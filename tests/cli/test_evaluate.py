"""`agentrl eval`: a bare model without an algorithm, another environment, and what it asks of
models outside of this process."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from agentrl_cli.algos.nlac.algorithm import NLAC
from agentrl_cli.cli.evaluate import evaluate_command
from agentrl_cli.core.types import Episode
from tests.builders.command_line import agentrl, refused
from tests.builders.runs import SMALL, folders, trained

BARE = [text for text in SMALL if not text.startswith("steps")]
HERE = ["model=tiny", "env=twentyq", "eval.tasks=1", "eval.episodes_per_task=1",
        "eval.splits=[test]", "eval.greedy=false", "hardware.threads=1"]  # fmt: skip
OUTSIDE = ["env=tau_mini", "env.user=llm", "env.llm.model=m", "env.llm.retries=0",
           "env.llm.base_url=http://127.0.0.1:9/v1", "env.llm.timeout=5"]  # fmt: skip
SERVED = ["model=endpoint", "model.url=http://127.0.0.1:9/v1", "model.name=m", "env=twentyq"]


def test_a_bare_model_plays_without_any_algorithm(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    def monitored(self: NLAC, episodes: list[Episode]) -> dict[str, float]:
        raise AssertionError("the default algorithm has probed a bare model")

    monkeypatch.setattr(NLAC, "monitor", monitored)
    record = evaluate_command(None, HERE)
    assert record["eval/test_episodes"] == 1
    assert {name.partition("/")[0] for name in record} == {"model", "eval"}
    with pytest.raises(AssertionError):
        evaluate_command(None, [*HERE, "algo=nlac", "algo.diagnostics.num_states=1"])


def test_a_run_is_evaluated_on_another_environment(tmp_path: Path):
    run = trained(tmp_path / "runs", "grpo", "it", "steps=1", "eval.baseline=false")
    record = evaluate_command(str(run.folder), ["env=arithmetic", "eval.greedy=false"])
    assert record["env"] == "arithmetic" and record["eval/test_episodes"] == 4
    assert "eval/test_boxed" in record or any("level" in name for name in record)
    (written,) = (run.folder / "evaluations.jsonl").read_text().splitlines()
    assert json.loads(written)["env"] == "arithmetic"
    own = evaluate_command(str(run.folder), [])
    assert "env" not in own


@pytest.mark.slow
def test_another_environment_may_be_of_the_users_own_groups(tmp_path: Path):
    run = trained(tmp_path / "runs", "grpo", "it", "steps=1", "eval.baseline=false")
    groups = ["--config-dir", str(folders(tmp_path))]
    result = agentrl("eval", str(run.folder), "env=coin", "env.max_turns=3", "--json", *groups)
    assert json.loads(result.stdout)["eval/test_turns"] == 3
    line = f"run '{run.folder}' is evaluated by its own configuration; leave --config-dir out, or"
    refused(agentrl("eval", str(run.folder), *groups), line)
    refused(agentrl("eval", str(run.folder), "env=mathh"), "env 'mathh' not found; did you mean")


@pytest.mark.extras
def test_requests_to_a_model_outside_are_told_before_and_after():
    pytest.importorskip("openai", reason="needs the extra 'openai'")
    small = ["eval.tasks=2", *[text for text in HERE if text.startswith("eval.")][1:]]
    result = agentrl("eval", "model=tiny", *OUTSIDE, *small, "hardware.threads=1")
    first, *_, last = result.stderr.splitlines()[:-1]
    name = "model 'm' at http://127.0.0.1:9/v1"
    asked = f"{name} is asked: 2 episodes, up to 17 requests each, 34 in all; fewer with eval.tasks"
    assert first.startswith(asked)
    assert last == f"{name} was asked 1 times"  # a fifth of the episodes had failed by then
    assert result.exit_code == 1


@pytest.mark.parametrize("command", [
    ["eval", "model=tiny", *OUTSIDE], ["train", "model=tiny", *OUTSIDE, "steps=1"],
    ["eval", *SERVED], ["calibrate", "env=twentyq", "env.llm.model=m"],
], ids=["customer", "training", "agent", "calibrate"])  # fmt: skip
def test_without_the_client_library_nothing_is_asked_or_written(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "openai", None)  # as where the extra is not installed
    line = "chatting with an endpoint needs the client library; pip install 'agentrl-cli[openai]'"
    refused(agentrl(*command), line)
    assert not list(tmp_path.rglob("*.*"))
