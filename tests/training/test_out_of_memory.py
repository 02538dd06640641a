"""A run whose memory runs out, or that is stopped in an update, stays resumable."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from agentrl_cli.algos.base import Phase
from agentrl_cli.cli.train import resume, start
from agentrl_cli.core.errors import RunAborted
from agentrl_cli.core.types import Episode
from agentrl_cli.rollout.collector import PlayCollector
from agentrl_cli.runs.run import Run
from agentrl_cli.training.learner import Learner, PhaseMeter
from tests.builders.runs import facts, folders, settings, trained

REFUSED = RunAborted("the endpoint refuses the key; set it", code="key-refused")
FULL = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")


def stopped(root: Path) -> tuple[Run, str]:
    """A small run of NLAC in which memory runs out, and its last words."""
    with pytest.raises(RunAborted) as end:
        start(settings(root, "nlac", "it"), config_dirs=[folders(root)])
    return Run(root / "it"), str(end.value)


def run_out_in_training(
    monkeypatch: pytest.MonkeyPatch, step: int, error: Exception = FULL
) -> None:
    """An error, if memory runs out, as the policy is trained in that step, where the critic has
    learnt."""
    train = Learner._train_phase

    def train_phase(self: Learner, phase: Phase, meter: PhaseMeter, at: int) -> None:
        if at == step and phase.name == "policy":
            raise error
        train(self, phase, meter, at)

    monkeypatch.setattr(Learner, "_train_phase", train_phase)


@pytest.mark.slow
def test_out_of_memory_in_play_resumes_equal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    whole = facts(trained(tmp_path / "whole", "nlac", "it"))
    play = PlayCollector.collect

    def collect(self: PlayCollector, step: int, group_size: int) -> list[Episode]:
        if step == 3:
            raise FULL
        return play(self, step, group_size)

    monkeypatch.setattr(PlayCollector, "collect", collect)
    run, words = stopped(tmp_path)
    monkeypatch.undo()
    assert words.startswith("memory ran out after 3 steps; resume with less, for example with ")
    assert "hardware.microbatch_tokens=4096" in words and "agentrl resume" in words
    assert run.meta["status"] == "stopped" and "\n" not in words
    assert run.latest_checkpoint().name == "last-000003"
    resume(str(run.folder))
    assert facts(Run(run.folder)) == whole


@pytest.mark.slow
@pytest.mark.parametrize(
    ("step", "error", "kept"),
    [(2, FULL, "step-000002"), (2, REFUSED, "step-000002"), (1, FULL, "last-000000")],
)
def test_interrupted_update_is_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int, error: Exception, kept: str
):
    whole = facts(trained(tmp_path / "whole", "nlac", "it"))
    run_out_in_training(monkeypatch, step, error)
    run, words = stopped(tmp_path)
    monkeypatch.undo()
    assert f"; the checkpoint of step {int(kept[-1])} holds; go on with: " in words
    assert [folder.name for folder in run.checkpoints()] == [kept]
    assert run.meta["status"] == "stopped"
    resume(str(run.folder))
    assert facts(Run(run.folder)) == whole


@pytest.mark.slow
def test_out_of_memory_resumes_with_less(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    run_out_in_training(monkeypatch, step=1)
    run, _ = stopped(tmp_path)
    monkeypatch.undo()
    assert [folder.name for folder in run.checkpoints()] == ["last-000000"]
    resume(str(run.folder), ["hardware.microbatch_tokens=512", "model.gradient_checkpointing=true"])
    done = Run(run.folder)
    assert done.is_done and [row["step"] for row in done.metrics()] == [0, 1, 2, 2, 3, 4, 4]
    assert "microbatch_tokens: 512" in done.config_file.read_text()
