"""TRL's side of the comparison of speed, run by the Python of its own environment with the work
file as its argument. It imports nothing of agentrl.

Rollouts are the documented multi-turn loop of GRPOTrainer: a tool answers each reply, and the next
reply is generated from the whole dialogue by Transformers' `generate`. Only generation is timed. A
random model writes no tool calls, so the parser of replies is replaced by one that reads every
reply as a call; it is not timed. An update trains on finished episodes: log-probs, because a batch
takes several optimizer steps, then forward, backward, clipping and AdamW for each step.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

os.environ |= {"TRL_EXPERIMENTAL_SILENCE": "1", "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}

import torch
import trl.trainer.grpo_trainer as grpo  # pyright: ignore[reportMissingImports]
from datasets import Dataset  # pyright: ignore[reportMissingImports]
from peft import LoraConfig
from serve import Stopwatch, serve
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

CALL = [{"type": "function", "function": {"name": "answer", "arguments": {}}}]
Rows = list[dict[str, Any]]


def called(tokenizer: Any, ids: list[int], **others: Any) -> dict[str, Any]:
    """Return any reply as a call of the tool."""
    return {"role": "assistant", "content": tokenizer.decode(ids), "tool_calls": CALL}


class Side:
    """The trainer with the model of the work."""

    def __init__(self, work: dict[str, Any]) -> None:
        torch.set_num_threads(1)
        self.work, self.watch = work, Stopwatch()
        grpo.parse_response = called
        self.trainer = self._trainer(None)
        single_turn = self.trainer._generate_single_turn
        self.trainer._generate_single_turn = self.watch.wrap(single_turn)
        lora = work["update"]["lora"]
        self.learner = self._trainer(lora) if lora else self.trainer
        self.learner.create_optimizer()

    def versions(self) -> dict[str, str]:
        """Return the installed versions."""
        return {name: version(name) for name in ("trl", "transformers", "torch")}

    def rollout(self, turns: int) -> dict[str, float]:
        """Return the CPU seconds of generation of a batch of episodes, and the number of
        tokens."""
        self.trainer.max_tool_calling_iterations = turns - 1
        self.watch.take()
        made = self.trainer._generate_and_score_completions(self._examples())
        written = made["completion_mask"] * made.get("tool_mask", 1)
        return {"seconds": self.watch.take(), "tokens": int(written.sum())}

    def update(self) -> dict[str, float]:
        """Return the CPU seconds of an update, and its number of optimizer steps."""
        train = self.watch.wrap(self._train)
        steps = train(self.work["update"]["rows"], self.work["update"]["episodes_per_step"])
        return {"seconds": self.watch.take(), "steps": steps}

    def _trainer(self, lora: dict[str, Any] | None) -> Any:
        work, adapter = self.work, None
        if lora is not None:
            (targets,) = lora["targets"]
            adapter = LoraConfig(r=lora["rank"], lora_alpha=lora["alpha"], target_modules=targets)
        tokenizer = AutoTokenizer.from_pretrained(work["model"])
        tokenizer.response_template = {}  # the parser above does without
        model = AutoModelForCausalLM.from_pretrained(work["model"], dtype=work["dtype"])
        never = [model.config.vocab_size]  # no token ends a reply
        batch = len(work["prompts"])
        config = grpo.GRPOConfig(
            output_dir=tempfile.mkdtemp(), use_cpu=True, bf16=False, gradient_checkpointing=False,
            beta=0.0, report_to=[], learning_rate=work["update"]["lr"], max_completion_length=4096,
            per_device_train_batch_size=batch, num_generations=work["group"], temperature=1.0,
            generation_kwargs={"max_new_tokens": work["new_tokens"], "eos_token_id": never},
        )  # fmt: skip

        def answer() -> str:
            """Return the environment's answer."""
            return work["reply"]

        trainer = grpo.GRPOTrainer(
            model=model, args=config, processing_class=tokenizer, tools=[answer],
            reward_funcs=lambda completions, **others: [float(i) for i in range(len(completions))],
            train_dataset=Dataset.from_list(self._examples()), peft_config=adapter,
        )  # fmt: skip
        trainer.eos_token_ids = never
        trainer.model.train()
        return trainer

    def _examples(self) -> Rows:
        return [{"prompt": prompt} for prompt in self.work["prompts"]]

    def _train(self, rows: Rows, per_step: int) -> int:
        """Score the batch, train with `per_step` episodes per step, and return the number
        of steps."""
        trainer, inputs, starts = self.learner, tensors(rows), range(0, len(rows), per_step)
        trainer.current_gradient_accumulation_steps = 1
        trainer.args.steps_per_generation = len(starts)
        inputs["old_per_token_logps"] = self._scored(inputs, per_step)
        items = (inputs["completion_mask"] * inputs["tool_mask"]).sum()
        for start in starts:
            part = {name: value[start : start + per_step] for name, value in inputs.items()}
            loss = trainer._compute_loss(trainer.model, {**part, "num_items_in_batch": items})
            trainer.accelerator.backward(loss)
            trainer.accelerator.clip_grad_norm_(trainer.model.parameters(), 1.0)
            trainer.optimizer.step()
            trainer.optimizer.zero_grad()
        return len(starts)

    @torch.no_grad()
    def _scored(self, inputs: dict[str, Tensor], per_step: int) -> Tensor:
        """Return the log-probs of the completions, [episodes, tokens]."""
        ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], 1)
        seen = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], 1)
        length = inputs["completion_ids"].shape[1]
        score = self.learner._get_per_token_logps_and_entropies
        return score(self.learner.model, ids, seen, length, batch_size=per_step)[0]


def tensors(rows: Rows) -> dict[str, Tensor]:
    """Return the batch in the form of the trainer's own rollouts: prompts padded on the left,
    the rest on the right, and a mask of the environment's tokens."""
    parts = [(row["ids"][: row["prompt"]], row["ids"][row["prompt"] :]) for row in rows]
    masks = [row["mask"][row["prompt"] :] for row in rows]

    def padded(values: list[list[int]], side: str) -> Tensor:
        return grpo.pad([torch.tensor(row) for row in values], padding_value=0, padding_side=side)

    return {
        "prompt_ids": padded([prompt for prompt, _ in parts], "left"),
        "prompt_mask": padded([[1] * len(prompt) for prompt, _ in parts], "left"),
        "completion_ids": padded([rest for _, rest in parts], "right"),
        "completion_mask": padded([[1] * len(rest) for _, rest in parts], "right"),
        "tool_mask": padded(masks, "right"),
        "advantages": torch.tensor([row["advantage"] for row in rows]),
    }


if __name__ == "__main__":
    side = Side(json.loads(Path(sys.argv[1]).read_text()))
    serve({"versions": side.versions, "rollout": side.rollout, "update": side.update})
