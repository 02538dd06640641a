"""A run with a lost server is saved and resumes exactly with another server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agentrl_cli.cli.evaluate import evaluate_command
from agentrl_cli.cli.train import resume, start
from agentrl_cli.core.errors import RunAborted, UserError
from agentrl_cli.generators import vllm
from agentrl_cli.runs.run import Run
from tests.builders.runs import facts, folders
from tests.builders.vllm import vllm_run
from tests.fakes.vllm_server import FakeVLLM, serving

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm, "FIRST_PAUSE", 0.0)


def begin(server: FakeVLLM, folder: Path, root: Path, algo: str, *more: str) -> Run:
    start(vllm_run(server.url, folder, root, algo, *more), config_dirs=[folders(root)])
    return Run(root / "it")


def comparable(run: Run) -> dict[str, Any]:
    """All that a run holds, without times and what was measured of its servers."""
    found = facts(run)
    for row in found["metrics"]:
        for name in [name for name in row if name.startswith("generator/")]:
            del row[name]
    return found


@pytest.mark.parametrize(("algo", "of"), [("grpo", "-policy-v1-"), ("nlac", "-target-v")])
def test_run_with_lost_server_resumes_with_another(
    model_folder: Path, tmp_path: Path, algo: str, of: str
):
    with serving(model_folder) as server:
        whole = comparable(begin(server, model_folder, tmp_path / "whole", algo))

    asked_for: list[str] = []

    def spoils(i: int) -> str | None:
        asked_for.extend([server.asked[i]["model"]] if of in server.asked[i]["model"] else [])
        return "hangs up" if len(asked_for) > 2 else None

    with serving(model_folder, spoils=spoils) as server:
        with pytest.raises(RunAborted, match=server.url) as stopped:
            begin(server, model_folder, tmp_path, algo)
        address = server.url
    run = Run(tmp_path / "it")
    assert stopped.value.exit_code == 1 and run.meta["status"] == "stopped"
    assert str(stopped.value).endswith(f"agentrl resume {run.folder}")
    assert run.checkpoints()
    with pytest.raises(UserError, match=address):
        resume(str(run.folder))
    with serving(model_folder) as server:
        resume(str(run.folder), [f"hardware.generator.urls=[{server.url}]"])
    assert comparable(Run(run.folder)) == whole


def test_failed_episodes_are_counted(model_folder: Path, tmp_path: Path):
    lost: list[int] = []  # the seed of one episode's turn

    def spoils(i: int) -> str | None:
        asked = server.asked[i]
        if "-policy-v1-" in asked["model"] and not lost:
            lost.append(asked["seed"])
        return "is busy" if asked["seed"] in lost else None

    with serving(model_folder, spoils=spoils) as server:
        run = begin(server, model_folder, tmp_path, "grpo", "eval.baseline=false", "eval_every=0")
    shares = [row["episodes/failed_generator"] for row in run.metrics() if "reward/mean" in row]
    assert sorted(shares) == [0, 0, 0, 1 / 8] and shares[0] == 0


def test_served_run_is_searched_with_hf(model_folder: Path, tmp_path: Path):
    with serving(model_folder) as server:
        run = begin(server, model_folder, tmp_path, "self_ac", "steps=1", "eval.baseline=false")
        served = [f"hardware.generator.urls=[{server.url}]"]
        by_server = evaluate_command(str(run.folder), served)
        with pytest.raises(UserError) as refused:
            evaluate_command(str(run.folder), [*served, "search=tot"])
        assert refused.value.code == "no-hidden-states"
    by_hf = evaluate_command(str(run.folder), ["hardware=cpu"])
    assert by_hf["eval/test_greedy_success"] == by_server["eval/test_greedy_success"]
    found = evaluate_command(str(run.folder), ["hardware=cpu", "search=tot"])
    assert "search/tree_success" in found
