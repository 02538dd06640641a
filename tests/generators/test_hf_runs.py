"""Any Hugging Face model through LoRA in the same loop: it trains, adapters resume exactly."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file

from agentrl_cli.cli.train import resume
from agentrl_cli.runs.run import Run
from tests.builders.runs import SPEAKER, facts, trained

FULL = "model.lora=null"
UNREAD = "algo.min_parse_rate=0"  # a random model writes no role
KEPT = "model.gradient_checkpointing=false"
CASES = {
    "grpo": ("grpo", []),
    "grpo, all weights": ("grpo", [FULL]),
    "stepagent_implicit": ("stepagent_implicit", []),
    "stepagent_inverse": ("stepagent_inverse", []),
    "nlac, all activations kept": ("nlac", [SPEAKER, KEPT, UNREAD]),
    "nlac, sampled roles": ("nlac", [UNREAD]),
}

SLOW = ("stepagent_implicit", "nlac, all activations kept", "nlac, sampled roles")


def run_of(folder: Path, root: Path, algo: str, name: str, *more: str) -> Run:
    """Two steps of a model that lies in a folder, saved after each."""
    model = ["model=hf", f"model.path={folder}", "steps=2", "eval_every=0", "save_every=1"]
    return trained(root, algo, name, *model, *more)


@pytest.mark.parametrize(
    ("algo", "more"),
    [
        pytest.param(*case, id=name, marks=[pytest.mark.slow] if name in SLOW else [])
        for name, case in CASES.items()
    ],
)
def test_folder_model_trains_and_resumes_exactly(
    model_folder: Path, tmp_path: Path, algo: str, more: list[str]
):
    run = run_of(model_folder, tmp_path, algo, "whole", *more)
    whole = facts(run)
    shutil.rmtree(run.latest_checkpoint())
    resume(str(run.folder))
    assert facts(run) == whole
    file = "model.safetensors" if FULL in more else "adapter_model.safetensors"
    first, last = (load_file(c / "models" / "policy" / file) for c in run.checkpoints())
    assert any(not first[key].equal(last[key]) for key in first)


def test_adapters_start_another_run(model_folder: Path, tmp_path: Path):
    rank = "model.lora.rank=4"
    first = run_of(model_folder, tmp_path, "grpo", "first", rank)
    still = [rank, f"init={first.folder}", "algo.optimizer.lr=0"]
    again = run_of(model_folder, tmp_path, "grpo", "again", *still)
    file = Path("models", "policy", "adapter_model.safetensors")
    learned, loaded = (load_file(run.latest_checkpoint() / file) for run in (first, again))
    assert all(loaded[key].equal(learned[key]) for key in learned)
    assert learned.keys() == loaded.keys() and any(w.any() for w in learned.values())
