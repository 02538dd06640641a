"""A GRPO run of TRL, run by the Python of TRL's own environment with a file of settings as its
argument; it imports nothing of agentrl.

After each generation it prints the replies as a line of JSON, `{"tasks": [...], "replies": [...]}`,
and reads a line with their rewards, so that the other side grades both.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

os.environ |= {"HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}

import torch
from datasets import Dataset  # pyright: ignore[reportMissingImports]
from peft import LoraConfig
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer  # pyright: ignore[reportMissingImports]


def main() -> None:
    """Train."""
    torch.set_num_threads(1)
    given = json.loads(Path(sys.argv[1]).read_text())
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what libraries print

    def rewards(completions: list[Any], task: list[int], **others: Any) -> list[float]:
        replies = [reply[0]["content"] for reply in completions]
        print(json.dumps({"tasks": task, "replies": replies}), file=answers)
        return json.loads(sys.stdin.readline())

    config = GRPOConfig(
        output_dir=tempfile.mkdtemp(), use_cpu=True, bf16=False, gradient_checkpointing=False,
        report_to=[], save_strategy="no", disable_tqdm=True, seed=given["seed"],
        max_steps=given["updates"], per_device_train_batch_size=given["episodes"],
        num_generations=given["group"], max_completion_length=given["new_tokens"],
        temperature=1.0, learning_rate=given["lr"], lr_scheduler_type="constant",
        max_grad_norm=1.0, beta=0.0, loss_type="dapo", scale_rewards="group",
    )  # fmt: skip
    rows = [{"prompt": prompt, "task": i} for i, prompt in enumerate(given["prompts"])]
    trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(given["model"], dtype=given["dtype"]),
        args=config, reward_funcs=rewards, train_dataset=Dataset.from_list(rows),
        processing_class=AutoTokenizer.from_pretrained(given["model"]),
        peft_config=LoraConfig(
            r=given["lora"]["rank"], lora_alpha=given["lora"]["alpha"], target_modules="all-linear"
        ),
    )  # fmt: skip
    trainer.train()


if __name__ == "__main__":
    main()
