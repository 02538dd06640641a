"""Measure one CUDA GPU with the shapes of real models: writes docs/results/gpu.json.

Run as `python bench/gpu.py`, or with `--only CASE …`, which keeps the stored figures of the others.
It needs a Python and torch that the package supports, and downloads nothing, because weights are
random. Each case is built like a run with `hardware=gpu` and takes a few minutes. A case that does
not fit is named and left out. `--try` runs a toy on the CPU and only prints. Keys end in their
unit.

Figures of a case:

- Tokens sampled per second.
- Tokens trained per second by an update of GRPO: log-probs, forward, backward, AdamW. Its episodes
  have 100 tokens per turn.
- The share of the device's peak (model FLOPs utilization, Chowdhery et al. 2022, appendix B).
  Attention counts half because it is causal. Recomputation does not count.
- The peak memory of updates, and the prediction of `--dry`.
- Self-AC's update divided by GRPO's, for each layout of its critic's rows.

Seconds are medians over rounds. The first round warms up and does not count.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

sys.path.insert(0, str(Path(__file__).parents[1]))

from agentrl_cli.config.compose import check, compose
from agentrl_cli.core.types import Episode
from agentrl_cli.generators.base import Sampling
from agentrl_cli.rollout.replay_buffer import ReplayBuffer
from agentrl_cli.training.build import Parts, build_parts
from agentrl_cli.training.memory_plan import plan_memory, read_shapes
from bench.self_ac_cost import ACTED, SEEN, played
from tests.builders.hub_shapes import SHAPES
from tests.builders.tiny_models import tiny_tokenizer

if TYPE_CHECKING:
    from omegaconf import DictConfig

RESULT = Path(__file__).parents[1] / "docs" / "results" / "gpu.json"
PEAK_FLOPS = {  # bfloat16, dense, by what the device calls itself
    "H100": 989e12, "H200": 989e12, "A100": 312e12, "L40S": 362e12, "L4": 121e12, "4090": 165e12,
}  # fmt: skip
GIB = 2**30
ROUNDS = 3
TOY = {
    "model_type": "qwen3", "vocab_size": 512, "hidden_size": 64, "num_hidden_layers": 2,
    "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32, "intermediate_size": 128,
    "max_position_embeddings": 4096, "tie_word_embeddings": True,
}  # fmt: skip
Figures = dict[str, float]


@dataclass(frozen=True)
class Case:
    """The shape of a public model, which is trained as a whole or with LoRA on `episodes` of
    `context` tokens."""

    name: str
    shape: dict[str, Any]
    lora: bool
    context: int
    episodes: int
    device: str = "cuda"


CASES = (
    Case("qwen3_0.6b_full", SHAPES["Qwen3-0.6B"], lora=False, context=16384, episodes=8),
    Case("qwen3_0.6b_lora", SHAPES["Qwen3-0.6B"], lora=True, context=16384, episodes=8),
    Case("qwen2.5_7b_lora", SHAPES["Qwen2.5-7B"], lora=True, context=8192, episodes=4),
)
TRIED = (Case("toy_lora", TOY, lora=True, context=1024, episodes=4, device="cpu"),)


def measure(case: Case, folder: Path) -> Figures:
    """Return the figures of a case. Self-AC is measured if the model is small and has LoRA."""
    write_model(folder, case)
    found = training_figures(case, folder)
    if case.lora and case.shape["hidden_size"] <= 1024:
        found |= self_ac_figures(case, folder, found["update_seconds"])
    return {f"{case.name}_{name}": round(value, 4) for name, value in found.items()}


def write_model(folder: Path, case: Case) -> None:
    """Write a model with random weights, made on the device, and a tokenizer with fewer ids
    than the model has embeddings."""
    (folder / "config.json").write_text(json.dumps(case.shape))
    with torch.device(case.device):
        model = AutoModelForCausalLM.from_config(
            AutoConfig.from_pretrained(folder), dtype=torch.bfloat16
        )
    model.save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)


def training_figures(case: Case, folder: Path) -> Figures:
    """Return the figures of sampling, GRPO's update and memory."""
    cfg, parts = assembled(case, folder, "algo=grpo")
    seconds, sampled = sampling(parts)
    episodes = played(case.episodes, case.context // (SEEN + ACTED))
    tokens = sum(episode.tokens for episode in episodes)
    if case.device == "cuda":
        parts.generator.clear()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    found = {"rollout_tokens_per_second": sampled / seconds}
    found["update_seconds"] = updating(parts, episodes)
    found["update_tokens_per_second"] = tokens / found["update_seconds"]
    found["predicted_gib"] = predicted_bytes(cfg, parts) / GIB
    if case.device == "cuda":
        found["measured_gib"] = torch.cuda.max_memory_allocated() / GIB
        found |= utilisation(cfg, found["update_tokens_per_second"])
    return found


def self_ac_figures(case: Case, folder: Path, grpo_seconds: float) -> Figures:
    """Return Self-AC's update divided by GRPO's for each layout."""
    episodes = played(case.episodes, case.context // (SEEN + ACTED))
    found: Figures = {}
    for layout in ("visible_first", "flex") if case.device == "cuda" else ("visible_first",):
        settings = ["algo=self_ac", f"algo.layout={layout}", "algo.critic_warmup=0"]
        _, parts = assembled(case, folder, *settings)
        found[f"self_ac_{layout}_over_grpo_ratio"] = updating(parts, episodes) / grpo_seconds
        del parts
    return found


def assembled(case: Case, folder: Path, *overrides: str) -> tuple[DictConfig, Parts]:
    """Return the parts of a run of this case, after freeing the memory of the previous one."""
    gc.collect()
    if case.device == "cuda":
        torch.cuda.empty_cache()
    model = ["model=hf", f"model.path={folder}", "model.dtype=bfloat16"]
    model += [] if case.lora else ["model.lora=null"]
    sizes = [f"rollout.max_seq_len={case.context}", "rollout.max_new_tokens=64"]
    hardware = [f"hardware={'gpu' if case.device == 'cuda' else 'cpu'}"]
    hardware += [f"hardware.microbatch_tokens={case.context}"]
    cfg = check(compose(["env=twentyq", *model, *sizes, *hardware, *overrides]))
    return cfg, build_parts(cfg, None)


def sampling(parts: Parts) -> tuple[float, int]:
    """Return the seconds to sample 128 tokens for each of 256 prompts of 256 tokens (on a CPU 8
    prompts), and the number of tokens."""
    draw, rows = random.Random(0), 256 if parts.models.device.type == "cuda" else 8
    prompts = [[draw.randrange(3, 250) for _ in range(256)] for _ in range(rows)]
    how = Sampling(max_tokens=128, temperature=1.0, stop_ids=())

    def sample() -> None:
        parts.generator.clear()
        parts.generator.generate(prompts, list(range(len(prompts))), how)

    return median_seconds(sample), len(prompts) * how.max_tokens


def updating(parts: Parts, episodes: list[Episode]) -> float:
    """Return the seconds of an update on these episodes."""
    buffer = ReplayBuffer(None, 1)
    return median_seconds(lambda: parts.learner.run(parts.algo.update(episodes, buffer), 0))


def median_seconds(call: Callable[[], object]) -> float:
    """Return the median seconds of ROUNDS calls after a first one, with the device
    synchronised."""
    seconds: list[float] = []
    for _ in range(ROUNDS + 1):
        began = time.perf_counter()
        call()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds[1:])


def predicted_bytes(cfg: DictConfig, parts: Parts) -> int:
    """Return the predicted bytes of an update, without the generator's cache."""
    plan = plan_memory(cfg, parts.algo)
    kept = sum(number for name, number in plan.kept.items() if name != "keys and values")
    phases = (phase for name, phase in plan.phases.items() if name != "decoding")
    return kept + max(sum(phase.values()) for phase in phases)


def utilisation(cfg: DictConfig, tokens_per_second: float) -> Figures:
    """Return the model operations of an update divided by the device's peak; nothing if the
    peak is unknown. Frozen weights below an adapter get no gradient."""
    name, shapes = torch.cuda.get_device_name(), read_shapes(cfg)
    known = [peak for part, peak in PEAK_FLOPS.items() if part in name]
    operations = (4 if cfg.model.lora else 6) * shapes.parameters
    operations += 6 * shapes.layers * shapes.queries * cfg.rollout.max_seq_len
    return {"model_flops_share": operations * tokens_per_second / known[0]} if known else {}


def main() -> None:
    """Measure every case and print; write the result unless `--try` is given."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--try", dest="tries", action="store_true", help="a toy on the CPU")
    parser.add_argument("--only", nargs="+", choices=[case.name for case in CASES], metavar="CASE")
    asked = parser.parse_args()
    tries = asked.tries
    if not tries and not torch.cuda.is_available():
        raise SystemExit("there is no CUDA device here; --try runs a toy on the CPU")
    figures: dict[str, float | str] = {}
    if asked.only and RESULT.exists():
        figures = json.loads(RESULT.read_text())
    figures["torch"] = torch.__version__
    figures |= {} if tries else {"device": torch.cuda.get_device_name()}
    for case in TRIED if tries else CASES:
        if asked.only and case.name not in asked.only:
            continue
        with tempfile.TemporaryDirectory() as folder:
            try:
                figures |= measure(case, Path(folder))
            except torch.OutOfMemoryError as error:
                print(f"{case.name} is left out: {str(error).splitlines()[0]}", file=sys.stderr)
        print(json.dumps(figures, indent=1), flush=True)
        if not tries:
            RESULT.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
