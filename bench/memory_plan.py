"""Compare the memory that `--dry` predicts with the memory that training takes.

Run as `python bench/memory_plan.py`; writes docs/results/memory_plan.json, in MiB. Small random
models are trained in four ways at two widths. They have four layers and a vocabulary of 8,192. An
update has two micro-batches of two samples of 512 tokens, and there are two updates, so that the
second one has moments and gradients. The measurement is the size of the weights plus the peak of
all allocations that torch's profiler records after that. Python and its libraries are left out on
both sides. Nothing is played.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch.profiler import ProfilerActivity, profile
from transformers import Qwen2Config, Qwen2ForCausalLM

sys.path.insert(0, str(Path(__file__).parents[1]))

from agentrl_cli.algos.base import Algorithm, Phase
from agentrl_cli.algos.losses import nll
from agentrl_cli.config.compose import as_dataclass, build, check, compose
from agentrl_cli.config.settings import ModelConfig
from agentrl_cli.core.types import Sample
from agentrl_cli.models.model_set import ModelSet
from agentrl_cli.training.learner import Learner
from agentrl_cli.training.memory_plan import plan_memory
from tests.builders.runs import folders
from tests.builders.tiny_models import tiny_tokenizer

if TYPE_CHECKING:
    from omegaconf import DictConfig

RESULT = Path(__file__).parents[1] / "docs" / "results" / "memory_plan.json"
WAYS = {
    "fp32": ["model.dtype=float32", "model.lora=null", "model.gradient_checkpointing=false"],
    "bf16": ["model.dtype=bfloat16", "model.lora=null", "model.gradient_checkpointing=false"],
    "lora": ["model.dtype=bfloat16", "model.gradient_checkpointing=false"],
    "checkpointed": ["model.dtype=bfloat16", "model.gradient_checkpointing=true"],
}
WIDTHS = (256, 512)
LENGTH, ROWS = 512, 2


def compare(way: str, width: int) -> tuple[float, float]:
    """Return the MiB measured and predicted for a way to train at a width."""
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder), width)
        cfg = settings(folder, *WAYS[way])
        algo: Algorithm = build(cfg.algo)
        models = ModelSet(as_dataclass(cfg.model, ModelConfig), algo.models(), "cpu", 0)
        plan = plan_memory(cfg, algo)
        predicted = plan.peak - plan.kept["Python and libraries"]
    return measured(cfg, algo, models) / 2**20, predicted / 2**20


def write(folder: Path, width: int) -> None:
    """Write a random model to a folder, with layers like Qwen2.5-0.5B's except for the MLP."""
    tokenizer = tiny_tokenizer()
    config = Qwen2Config(
        vocab_size=8192, hidden_size=width, intermediate_size=3 * width, num_hidden_layers=4,
        num_attention_heads=width // 64, num_key_value_heads=max(1, width // 256),
        max_position_embeddings=4096, tie_word_embeddings=True,
    )  # fmt: skip
    Qwen2ForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def settings(folder: str, *overrides: str) -> DictConfig:
    """Return the settings of SFT with that model."""
    sizes = [f"hardware.microbatch_tokens={ROWS * LENGTH}", f"rollout.max_seq_len={LENGTH}"]
    model = ["model=hf", f"model.path={folder}", *overrides]
    groups = folders(Path(folder) / "conf")
    return check(compose(["algo=sft", "hardware=speaker", *sizes, *model], [groups]))


def measured(cfg: DictConfig, algo: Algorithm, models: ModelSet) -> int:
    """Return the bytes of the weights, and the peak of further bytes during two updates."""
    draw = random.Random(0)
    mask = [0] + [1] * (LENGTH - 1)
    samples = [Sample([draw.randrange(3, 250) for _ in mask], mask, {}) for _ in range(2 * ROWS)]
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as watched:
        learner = Learner(
            models, algo.models(), microbatch_tokens=cfg.hardware.microbatch_tokens, seed=0,
            publish=lambda name: None,
        )  # fmt: skip
        for step in range(2):
            learner.run(iter([Phase("policy", samples, nll)]), step)
    assert watched.profiler is not None and watched.profiler.kineto_results is not None
    events = [e for e in watched.profiler.kineto_results.events() if e.name() == "[memory]"]
    events.sort(key=lambda event: event.start_ns())
    changes = [event.nbytes() for event in events]  # pyright: ignore[reportAttributeAccessIssue]
    weights = sum(weight.nbytes for weight in models.module("policy").parameters())
    return weights + max(accumulate(changes))


def main() -> None:
    """Measure, print, and write the result."""
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    ).parse_args()
    torch.set_num_threads(1)
    figures: dict[str, float] = {}
    for way in WAYS:
        for width in WIDTHS:
            pair = compare(way, width)
            for name, number in zip(("measured", "predicted"), pair, strict=True):
                figures[f"{way}_{width}_{name}"] = round(number, 1)
    text = json.dumps(figures, indent=1) + "\n"
    print(text, end="")
    RESULT.write_text(text)


if __name__ == "__main__":
    main()
