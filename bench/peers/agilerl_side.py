"""AgileRL's side of the comparison, run by the Python of its own environment with the work file as
its argument. It imports nothing of agentrl.

In each turn `get_action` generates the replies of all live episodes from their whole dialogues.
Only this call is timed. AgileRL trains only adapters, so the model has adapters.
"""

from __future__ import annotations

import json
import os
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

os.environ |= {"HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}

import agilerl  # pyright: ignore[reportMissingImports]
import torch
from peft import LoraConfig
from serve import Stopwatch, serve
from transformers import AutoModelForCausalLM, AutoTokenizer

agilerl.HAS_LIGER_KERNEL = False  # its kernels are Triton's, which needs a GPU
from agilerl.algorithms import GRPO  # noqa: E402  # pyright: ignore[reportMissingImports]


class Side:
    """The agent with the model of the work."""

    def __init__(self, work: dict[str, Any]) -> None:
        torch.set_num_threads(1)
        self.work, self.watch = work, Stopwatch()
        tokenizer = AutoTokenizer.from_pretrained(work["model"])
        model = AutoModelForCausalLM.from_pretrained(work["model"], dtype=torch.float32)
        lora = work["lora"]
        self.agent = GRPO(
            pad_token_id=tokenizer.pad_token_id, pad_token=tokenizer.pad_token,
            actor_network=model, device="cpu", max_model_len=4096, temperature=1.0, top_k=0,
            batch_size=len(work["prompt_ids"]) // work["group"], group_size=work["group"],
            max_output_tokens=work["new_tokens"], gradient_checkpointing=False,
            lora_config=LoraConfig(
                r=lora["rank"], lora_alpha=lora["alpha"], target_modules=lora["targets"],
                task_type="CAUSAL_LM",
            ),
        )  # fmt: skip
        self.agent.generation_config.eos_token_id = model.config.vocab_size  # none ends a reply

    def versions(self) -> dict[str, str]:
        """Return the installed versions."""
        return {name: version(name) for name in ("agilerl", "transformers", "torch")}

    def rollout(self, turns: int) -> dict[str, float]:
        """Return the CPU seconds of generation of a batch of episodes, and the number of
        tokens."""
        reply, made = torch.tensor([self.work["reply_ids"]]), 0
        states = [torch.tensor([ids]) for ids in self.work["prompt_ids"]]
        act = self.watch.wrap(self.agent.get_action)
        for _ in range(turns):
            obs = [{"input_ids": state} for state in states]
            found = act(obs, training=True, repeat_prompts=False).token_ids
            made += sum(new.shape[1] - old.shape[1] for new, old in zip(found, states, strict=True))
            states = [torch.cat([ids, reply], 1) for ids in found]
        return {"seconds": self.watch.take(), "tokens": made}


if __name__ == "__main__":
    side = Side(json.loads(Path(sys.argv[1]).read_text()))
    serve({"versions": side.versions, "rollout": side.rollout})
