"""TRL's side of the comparison of learning, run by the Python of TRL's own environment with the
file of the work as its argument; it imports nothing of agentrl.

GRPOTrainer has its defaults, except for what the comparison fixes: sizes, learning rate without a
schedule, new tokens, one thread, and adapters in place of all weights. A run that was interrupted
goes on from its last checkpoint, in a folder beside the file of the work.
"""

from __future__ import annotations

import json
import os
import re
import sys
from importlib.metadata import version
from pathlib import Path
from statistics import fmean
from typing import Any

os.environ |= {"TRL_EXPERIMENTAL_SILENCE": "1", "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}

import torch
import trl.trainer.grpo_trainer as grpo  # pyright: ignore[reportMissingImports]
from datasets import Dataset  # pyright: ignore[reportMissingImports]
from peft import LoraConfig
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.trainer_utils import get_last_checkpoint

BOXED = re.compile(r"\\boxed\{\s*(-?\d+)\s*\}")


def main() -> None:
    """Train, and write the mean reward of each update with all replies."""
    work: dict[str, Any] = json.loads(Path(sys.argv[1]).read_text())
    torch.set_num_threads(1)
    folder = Path(sys.argv[1]).with_suffix("")
    played = folder / "played.json"
    folder.mkdir(exist_ok=True)
    checkpoint = get_last_checkpoint(folder)
    done = int(checkpoint.rpartition("-")[2]) if checkpoint else 0
    updates: list[list[dict[str, Any]]] = json.loads(played.read_text())[:done] if done else []

    def reward(completions: list[Any], answer: list[str], **others: Any) -> list[float]:
        """One for the right number in the last box."""
        texts = [completion[-1]["content"] for completion in completions]
        found = [BOXED.findall(text)[-1:] for text in texts]
        values = [float(box == [gold]) for box, gold in zip(found, answer, strict=True)]
        updates.append([
            {"text": text, "answer": gold, "reward": value}
            for text, gold, value in zip(texts, answer, values, strict=True)
        ])  # fmt: skip
        played.write_text(json.dumps(updates))
        print(len(updates), fmean(values), flush=True)
        return values

    batch, lora = 16, work["lora"]
    (targets,) = lora["targets"]
    config = grpo.GRPOConfig(
        output_dir=str(folder), use_cpu=True, bf16=False, gradient_checkpointing=False,
        report_to=[], save_steps=2, save_total_limit=2, logging_steps=1, seed=work["seed"],
        learning_rate=work["lr"], lr_scheduler_type="constant", max_steps=work["updates"],
        per_device_train_batch_size=batch, gradient_accumulation_steps=work["episodes"] // batch,
        num_generations=work["group"], max_completion_length=work["new_tokens"], temperature=1.0,
    )  # fmt: skip
    system = {"role": "system", "content": work["system"]}
    rows = [
        {"prompt": [system, {"role": "user", "content": row["problem"]}], "answer": row["answer"]}
        for row in work["rows"]
    ]
    trainer = grpo.GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(work["model"], dtype=work["dtype"]),
        processing_class=AutoTokenizer.from_pretrained(work["model"]),
        args=config, reward_funcs=reward, train_dataset=Dataset.from_list(rows),
        peft_config=LoraConfig(r=lora["rank"], lora_alpha=lora["alpha"], target_modules=targets),
    )  # fmt: skip
    trainer.train(resume_from_checkpoint=checkpoint)
    versions = {name: version(name) for name in ("trl", "transformers", "torch")}
    updates = updates[: work["updates"]]  # a finished run that is repeated plays once more
    rewards = [fmean(reply["reward"] for reply in update) for update in updates]
    replies = [reply for update in updates for reply in update]
    found = {"rewards": rewards, "replies": replies, "versions": versions}
    Path(work["output"]).write_text(json.dumps(found))


if __name__ == "__main__":
    main()
