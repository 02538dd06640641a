"""Write losses and gradients of the peers' own code on a tiny model, for bench/parity.py.

    python parity_side.py OUT --archer URL --eto URL

This runs in the environment of the peers and imports nothing of agentrl. `OUT/model` is the model.
Each rule has one file with its inputs and, by case, the loss and the whole gradient. Rows of tokens
are padded on the right, and `mask` is 1 on trained tokens. References and target networks have the
weights of the model times 0.9.

The peers' classes compute the losses without changes. Objects that a loss only reads are replaced:
the trainers of ETO and Stable-Baselines3 are not constructed, ArCHer's tokenizer reads numbers, and
its RoBERTa critic is a causal model like ours.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

os.environ |= {"TQDM_DISABLE": "1", "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}

import numpy as np
import torch
from accelerate import Accelerator
from datasets import Dataset  # pyright: ignore[reportMissingImports]
from torch import Tensor, nn
from transformers import (
    AutoModelForCausalLM,
    BatchEncoding,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
)

WORDS, WIDTH, PAD, EOS = 32, 8, 0, 1
COMMITS = {  # of the code that is fetched
    "archer": "7c771a7610cb34e54ba53d69d1fb7337103e5648",
    "eto": "a2fc5da38f8d00cfaf3f9b6370d586eebaf72904",
}
Arrays = dict[str, Any]
rng = np.random.default_rng(0)


# the model, rows and gradients


def write_model(folder: Path) -> None:
    """Write a random Qwen2 of 1,000 weights, and a tokenizer of the words t0, t1, ..."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    config = Qwen2Config(
        vocab_size=WORDS, hidden_size=WIDTH, intermediate_size=12, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=128,
        tie_word_embeddings=True, pad_token_id=PAD, eos_token_id=EOS, bos_token_id=None,
    )  # fmt: skip
    model = Qwen2ForCausalLM(config)
    for name, weight in model.named_parameters():
        drawn = torch.from_numpy(rng.normal(size=weight.shape) * 0.4).float()
        weight.data = drawn + (1.0 if "norm" in name else 0.0)
    model.save_pretrained(folder)
    inner = Tokenizer(models.WordLevel({f"t{i}": i for i in range(WORDS)}, unk_token="t0"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()  # pyright: ignore
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, pad_token="t0", eos_token="t1")
    tokenizer.chat_template = "{% for m in messages %}{{ m['content'] + ' t1 ' }}{% endfor %}"
    tokenizer.save_pretrained(folder)


def read_model(folder: Path, scale: float = 1.0) -> Any:
    """Return the model with its weights times `scale`."""
    return scaled(AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32), scale)


@torch.no_grad()
def scaled(model: Any, scale: float = 0.9) -> Any:
    for weight in model.parameters():
        weight.mul_(scale)
    return model


def draw(count: int) -> list[int]:
    """Return random tokens that are not special."""
    return rng.integers(2, WORDS, count).tolist()


def sentence(count: int) -> str:
    return " ".join(f"t{i}" for i in draw(count))


def padded(rows: Sequence[Sequence[float]], value: float = 0) -> Tensor:
    """Return right-padded rows."""
    length = max(map(len, rows))
    return torch.tensor([[*row, *[value] * (length - len(row))] for row in rows])


def gradient(*parts: nn.Module) -> np.ndarray:
    """Return the gradient of a body and perhaps a head, in the order of names, and clear it."""
    named = dict(parts[0].named_parameters())
    named |= {
        f"head.{name}": weight for head in parts[1:] for name, weight in head.named_parameters()
    }
    rows = [weight.grad for _, weight in sorted(named.items()) if weight.grad is not None]
    for weight in named.values():
        weight.grad = None
    return torch.cat([row.flatten() for row in rows]).numpy()


def result(case: str, loss: Tensor | float, *parts: nn.Module) -> Arrays:
    """Return the entries of one case, after the backward pass."""
    return {f"{case}/loss": np.float64(float(loss)), f"{case}/gradient": gradient(*parts)}


def dialogue(turns: int, observed: int = 3) -> tuple[list[int], list[int]]:
    """Return ids and mask of an episode with actions of 2 to 5 tokens."""
    ids, mask = [], []
    for _ in range(turns):
        acted = int(rng.integers(2, 6))
        ids += draw(observed + acted)
        mask += [0] * observed + [1] * acted
    return ids, mask


# TRL


def grpo(model_folder: Path) -> Arrays:
    """Return the loss of GRPOTrainer on a rollout of its own, which computes the advantages."""
    from trl import GRPOConfig, GRPOTrainer  # pyright: ignore[reportMissingImports]

    model = read_model(model_folder)
    prompts = [{"prompt": sentence(n)} for n in (4, 7) for _ in range(4)]
    rewards = [1.0, 0.0, 0.25, 0.5, 2.0, 2.0, 2.0, 2.0]  # of two groups
    config = GRPOConfig(
        output_dir=tempfile.mkdtemp(), use_cpu=True, bf16=False, gradient_checkpointing=False,
        report_to=[], per_device_train_batch_size=8, num_generations=4, max_completion_length=16,
        beta=0.05,
    )  # fmt: skip
    trainer: Any = GRPOTrainer(
        model=model, args=config, reward_funcs=lambda completions, **others: rewards,
        processing_class=PreTrainedTokenizerFast.from_pretrained(model_folder),
        train_dataset=Dataset.from_list(prompts),
    )  # fmt: skip
    scaled(trainer.ref_model)
    trainer.model.train()
    trainer.current_gradient_accumulation_steps = 1
    found: Arrays = {"rewards": rewards, "groups": [0] * 4 + [1] * 4}
    for case, settings in {
        "dapo": {},
        "grpo": {"loss_type": "grpo", "beta": 0.05},
        "bnpo": {
            "loss_type": "bnpo", "scale_rewards": "none", "epsilon_high": 0.28, "beta": 0.05,
            "use_bias_correction_kl": False,
        },
        "dr_grpo": {"loss_type": "dr_grpo"},
    }.items():  # fmt: skip
        usual = {"loss_type": "dapo", "scale_rewards": "group", "epsilon_high": 0.2, "beta": 0.0}
        vars(trainer).update(usual | settings)
        trainer.args.use_bias_correction_kl = settings.get("use_bias_correction_kl", True)
        torch.manual_seed(1)  # the same rollout in every case
        batch = trainer._generate_and_score_completions(prompts)
        seen = torch.cat([batch["prompt_mask"], batch["completion_mask"]], 1)
        between = torch.zeros_like(batch["completion_mask"])
        between[:, 3:6] = 1  # tokens of the environment within a completion
        batch["tool_mask"] = 1 - between
        trained = batch["completion_mask"] * batch["tool_mask"]
        batch["num_items_in_batch"] = trained.sum()
        ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], 1)
        length = trained.shape[1]
        with torch.no_grad():
            score = trainer._get_per_token_logps_and_entropies
            old = score(trainer.model, ids, seen, length)[0]
        old = old + 0.3 * torch.from_numpy(np.random.default_rng(2).normal(size=old.shape)).float()
        batch["old_per_token_logps"] = old
        loss = trainer._compute_loss(trainer.model, batch)
        loss.backward()
        found |= result(case, loss.detach(), trainer.model)
        mask, old = (nn.functional.pad(part, (ids.shape[1] - length, 0)) for part in (trained, old))
        rows = {"ids": ids, "mask": mask, "old_logprob": old * mask}
        found |= {
            name: padded([row[kept.bool()].tolist() for row, kept in zip(part, seen, strict=True)])
            for name, part in rows.items()
        }
    found["lengths"] = seen.sum(1)
    return found


def sft(model_folder: Path) -> Arrays:
    """Return the loss of SFTTrainer on episodes of several turns."""
    from trl import SFTConfig, SFTTrainer  # pyright: ignore[reportMissingImports]

    config = SFTConfig(
        output_dir=tempfile.mkdtemp(), use_cpu=True, bf16=False, gradient_checkpointing=False,
        report_to=[],
    )  # fmt: skip
    trainer: Any = SFTTrainer(
        model=read_model(model_folder), args=config,
        processing_class=PreTrainedTokenizerFast.from_pretrained(model_folder),
        train_dataset=Dataset.from_list([{"text": sentence(3)}]),
    )  # fmt: skip
    trainer.model.train()
    batch = episodes([dialogue(3), dialogue(1), dialogue(2)])
    inputs = {
        "input_ids": batch["ids"],
        "attention_mask": seen(batch),
        "labels": batch["ids"].masked_fill(batch["mask"] == 0, -100),
    }
    loss = trainer.compute_loss(trainer.model, inputs, num_items_in_batch=batch["mask"].sum())
    loss.backward()
    return batch | result("nll", loss.detach(), trainer.model)


def episodes(rows: list[tuple[list[int], list[int]]]) -> Arrays:
    """Return ids, mask and lengths of rows."""
    ids, mask = zip(*rows, strict=True)
    return {
        "ids": padded(ids),
        "mask": padded(mask),
        "lengths": torch.tensor(list(map(len, ids))),
    }


def seen(batch: Arrays) -> Tensor:
    """Return the attention mask of a batch."""
    return (torch.arange(batch["ids"].shape[1]) < batch["lengths"][:, None]).long()


def dpo(model_folder: Path) -> Arrays:
    """Return the loss of DPOTrainer on a batch of its dataloader: chosen rows, then rejected."""
    from trl import DPOConfig, DPOTrainer  # pyright: ignore[reportMissingImports]

    config = DPOConfig(
        output_dir=tempfile.mkdtemp(), use_cpu=True, bf16=False, gradient_checkpointing=False,
        report_to=[], per_device_train_batch_size=3, beta=0.3,
    )  # fmt: skip
    lengths = ((4, 3, 6), (2, 5, 2), (6, 1, 4))
    rows = [
        {"prompt": sentence(p), "chosen": " " + sentence(c), "rejected": " " + sentence(r)}
        for p, c, r in lengths
    ]
    trainer: Any = DPOTrainer(
        model=read_model(model_folder), ref_model=read_model(model_folder, 0.9), args=config,
        processing_class=PreTrainedTokenizerFast.from_pretrained(model_folder),
        train_dataset=Dataset.from_list(rows),
    )  # fmt: skip
    trainer.model.train()
    batch = next(iter(trainer.get_train_dataloader()))
    found = {"ids": batch["input_ids"], "mask": batch["completion_mask"]}
    found["lengths"] = batch["attention_mask"].sum(1)
    loss = trainer.compute_loss(trainer.model, batch)
    loss.backward()
    return found | result("sigmoid", loss.detach(), trainer.model)


# code of papers


def fetch(name: str, url: str, folder: Path, *paths: str) -> None:
    """Put the files of a repository, at a fixed commit, on the import path."""
    clone = str(folder / name)
    get = ["git", "clone", "--quiet", "--filter=blob:none", "--no-checkout", url, clone]
    subprocess.run(get, check=True)
    checkout = ["git", "-C", clone, "checkout", "--quiet", COMMITS[name], "--", *paths]
    subprocess.run(checkout, check=True)
    sys.path.insert(0, clone)


def eto(model_folder: Path) -> Arrays:
    """Return the loss of ETO's DPOMultiTrainer (Song et al. 2024) on trajectories and on steps:
    chosen rows, then rejected."""
    from trl.experimental.utils import pad_to_length  # pyright: ignore[reportMissingImports]

    imported = {  # that today's TRL lacks; the loss uses only pad_to_length
        "trl.import_utils": ("is_peft_available", "is_wandb_available"),
        "trl.models": ("PreTrainedModelWrapper", "create_reference_model"),
        "trl.trainer.utils": (
            "DPODataCollatorWithPadding", "disable_dropout_in_model", "pad_to_length",
            "trl_sanitze_kwargs_for_tagging",
        ),
    }  # fmt: skip
    for module, names in imported.items():
        for name in names:
            found = pad_to_length if name == "pad_to_length" else lambda *args, **others: False
            setattr(importlib.import_module(module), name, found)
    from fastchat.train.dpo_trainer import DPOMultiTrainer  # pyright: ignore[reportMissingImports]

    policy, trainer = read_model(model_folder), DPOMultiTrainer.__new__(DPOMultiTrainer)
    vars(trainer).update(
        is_encoder_decoder=False, label_pad_token_id=-100, padding_value=PAD, beta=0.3,
        label_smoothing=0, loss_type="sigmoid", ref_model=read_model(model_folder, 0.9),
        accelerator=SimpleNamespace(device="cpu"),
    )  # fmt: skip
    steps = [draw(n) for n in (4, 6, 3)]  # states of expert and policy
    rows = {
        "trajectory": [dialogue(n) for n in (3, 1, 2, 2, 3, 1)],
        "step": [
            (state + action, [0] * len(state) + [1] * len(action))
            for state in steps * 2
            for action in [draw(int(rng.integers(1, 6)))]
        ],
    }
    found = {}
    for case, made in rows.items():
        batch, half = episodes(made), len(made) // 2
        labels = batch["ids"].masked_fill(batch["mask"] == 0, -100)
        parts = {"input_ids": batch["ids"], "attention_mask": seen(batch), "labels": labels}
        inputs = {f"chosen_{name}": part[:half] for name, part in parts.items()}
        inputs |= {f"rejected_{name}": part[half:] for name, part in parts.items()}
        loss, _ = trainer.get_batch_loss_metrics(policy, inputs)
        loss.backward()
        found |= {f"{case}/{name}": part for name, part in batch.items()}
        found |= result(case, loss.detach(), policy)
    return found


class Head(nn.Module):
    """A scalar head with hidden layers."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        hidden = [p for _ in range(layers) for p in (nn.Linear(WIDTH, WIDTH), nn.ReLU())]
        self.hidden = nn.Sequential(*hidden)
        self.weight, self.bias = nn.Parameter(torch.empty(WIDTH)), nn.Parameter(torch.empty(()))

    def forward(self, states: Tensor) -> Tensor:
        return self.hidden(states) @ self.weight + self.bias


def randomise(head: nn.Module) -> np.ndarray:
    """Draw the weights of a head and return them in the order of their names."""
    named = dict(head.named_parameters())
    for name in sorted(named):
        drawn = rng.normal(size=named[name].shape) * 0.5
        named[name].data = torch.tensor(drawn, dtype=torch.float32)
    return torch.cat([named[name].data.flatten() for name in sorted(named)]).numpy()


class Critic(nn.Module):
    """Replaces ArCHer's RoBERTa. Q is read at the last token of the action, V at the last token of
    the state. Texts are numbers."""

    def __init__(self, folder: Path, scale: float) -> None:
        super().__init__()
        self.body = read_model(folder, scale)
        self.heads = nn.ModuleDict({name: Head(2) for name in ("q", "v", "q2", "v2")})

    def forward(self, observation: list[str], action: list[str], detach_model: bool = False) -> Any:
        states = torch.stack([self.last(o) for o in observation])
        acts = torch.stack(
            [self.last(f"{o} {a}") for o, a in zip(observation, action, strict=True)]
        )
        q, v, q2, v2 = self.heads.values()
        return q(acts), q2(acts), v(states), v2(states)

    def last(self, text: str) -> Tensor:
        return self.body.model(torch.tensor([numbers(text)])).last_hidden_state[0, -1]


def numbers(text: str) -> list[int]:
    return [int(word) for word in text.split()]


def tokenize(texts: list[str], **others: Any) -> BatchEncoding:
    """Replaces a tokenizer. Texts are numbers."""
    rows = [numbers(text) for text in texts]
    ones = [[1] * len(row) for row in rows]
    return BatchEncoding({"input_ids": padded(rows), "attention_mask": padded(ones)})


def text(ids: list[int]) -> str:
    return " ".join(map(str, ids))


def archer(model_folder: Path, source: Path) -> Arrays:
    """Return ArcherTrainer.critic_loss on the turns of a finished and a truncated episode, and the
    actor's part of ArcherTrainer.update on their states. Each state is one batch, because padding
    would shift positions. Their gradient, a sum over batches, is divided by the number of batches.
    """
    from archer.models.archer_agent import ArcherAgent  # pyright: ignore[reportMissingImports]

    path = source / "archer/algorithms/archer/trainer.py"  # its package imports environments
    spec = importlib.util.spec_from_file_location("archer_trainer", path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    agent = ArcherAgent.__new__(ArcherAgent)
    nn.Module.__init__(agent)
    agent.model, agent.tokenizer, agent.template = read_model(model_folder), tokenize, None
    agent.device, agent.softmax, agent.policy_lm = "cpu", nn.Softmax(dim=-1), "tiny"
    agent.critic, agent.target_critic = Critic(model_folder, 1.0), Critic(model_folder, 0.9)
    found: Arrays = {
        "critic_head": randomise(agent.critic.heads),
        "target_head": randomise(agent.target_critic.heads),
    }
    trainer = module.ArcherTrainer(
        agent, Accelerator(cpu=True), None, critic_lr=0.0, lm_lr=0.0, gamma=0.95, epochs=0,
        actor_epochs=1, grad_accum_steps=5, max_grad_norm=1e9,
    )  # fmt: skip

    made, tail = [dialogue(3), dialogue(2)], draw(3)  # the last state of the second
    batch = episodes(made)
    states, actions, after, done = [], [], [], []
    for number, (ids, mask) in enumerate(made):
        starts = [i for i in range(1, len(ids)) if mask[i] and not mask[i - 1]]
        ends = [i for i in range(1, len(ids) + 1) if mask[i - 1] and not [*mask, 0][i]]
        states += [text(ids[:start]) for start in starts]
        actions += [text(ids[s:e]) for s, e in zip(starts, ends, strict=True)]
        last = ids + tail
        after += [text(ids[:start]) for start in starts[1:]] + [text(last)]
        done += [0.0] * (len(starts) - 1) + [float(number == 0)]
    rewards, fresh = rng.normal(size=len(states)).tolist(), [draw(n) for n in (2, 4, 1, 3, 2)]
    fresh_of = dict(zip(states, map(text, fresh), strict=True))
    agent.get_action = lambda observation: [fresh_of[o] for o in observation]
    losses = trainer.critic_loss(states, actions, rewards, after, done, None)
    total = sum(losses[f"{name}.loss"] for name in ("q1", "q2", "v1", "v2"))
    found |= result("critic", total, agent.critic.body, agent.critic.heads)
    found |= batch | {"turn_rewards": rewards, "tail": tail, "fresh": padded(fresh, -1)}

    drawn = iter(states)
    replay = SimpleNamespace(batch_size=1, sample=lambda n: {"observation": [next(drawn)]})
    info = trainer.update(replay)
    found |= result("policy", info["pg.loss"], agent.model)
    found["policy/gradient"] /= len(states)
    return found


# Stable-Baselines3


def ppo(model_folder: Path) -> Arrays:
    """Return the loss of PPO.train. Each token of an action is a step, and its prefix the state."""
    from gymnasium import spaces  # pyright: ignore[reportMissingImports]
    from stable_baselines3 import PPO  # pyright: ignore[reportMissingImports]
    from stable_baselines3.common.buffers import RolloutBuffer  # pyright: ignore[reportMissingImports]
    from stable_baselines3.common.logger import configure  # pyright: ignore[reportMissingImports]

    body, head = read_model(model_folder), Head(0)
    made = [dialogue(3), dialogue(1), dialogue(2)]
    batch = episodes(made)
    places = [(b, i) for b, (_, mask) in enumerate(made) for i, m in enumerate(mask) if m]
    rows, columns = torch.tensor(places).T
    rewards = 2 + rng.normal(size=len(made))
    found: Arrays = batch | {"policy_head": randomise(head), "rewards": rewards}

    def evaluate(steps: Tensor, actions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        out = body(batch["ids"], attention_mask=seen(batch), output_hidden_states=True)
        steps = steps.long().flatten()
        at = rows[steps], columns[steps] - 1
        dist = torch.distributions.Categorical(logits=out.logits[at])
        return head(out.hidden_states[-1][at]), dist.log_prob(actions.flatten()), dist.entropy()

    policy: Any = nn.ModuleDict({"body": body, "head": head})
    policy.evaluate_actions, policy.set_training_mode = evaluate, lambda mode: None
    policy.optimizer = torch.optim.SGD(policy.parameters(), lr=0.0)
    actions = batch["ids"][rows, columns]
    count = len(places)
    with torch.no_grad():
        values, logprobs, _ = evaluate(torch.arange(count), actions)
    old_logprobs = logprobs + 0.3 * torch.from_numpy(rng.normal(size=count)).float()
    old_values = values + 0.5 * torch.from_numpy(rng.normal(size=count)).float()
    tables = torch.zeros(2, *batch["ids"].shape)
    tables[0, rows, columns], tables[1, rows, columns - 1] = old_logprobs, old_values
    found |= {"old_logprob": tables[0], "old_value": tables[1]}
    starts = [k == 0 or places[k][0] != places[k - 1][0] for k in range(count)]
    for case, settings in {
        "default": {},  # except for gamma, lambda and the entropy bonus
        "value_clip": {"clip_range_vf": lambda progress: 0.2, "normalize_advantage": False},
    }.items():
        usual = {
            "clip_range": lambda progress: 0.2, "clip_range_vf": None, "normalize_advantage": True,
            "ent_coef": 0.01, "vf_coef": 0.5, "max_grad_norm": 1e9, "n_epochs": 1, "verbose": 0,
            "batch_size": count, "target_kl": None, "_n_updates": 0, "lr_schedule": lambda p: 0.0,
            "_current_progress_remaining": 1.0, "policy": policy, "device": "cpu",
            "action_space": spaces.Discrete(WORDS), "_logger": configure(format_strings=[]),
        }  # fmt: skip
        space = spaces.Box(0, count, (1,))
        buffer = RolloutBuffer(count, space, usual["action_space"], "cpu", 0.9, 0.97)
        for k, (episode, _) in enumerate(places):
            is_last = k + 1 == count or starts[k + 1]
            reward = rewards[episode] if is_last else 0.0
            buffer.add(
                np.array([[k]]), actions[k].numpy()[None, None], np.array([reward]),
                np.array([starts[k]]), values[k : k + 1], old_logprobs[k : k + 1],
            )  # fmt: skip
        buffer.compute_returns_and_advantage(torch.zeros(1), np.array([True]))
        if case == "value_clip":  # with old values other than those before the update
            buffer.values[:] = old_values.numpy()[:, None]
        trainer = PPO.__new__(PPO)
        vars(trainer).update(usual | settings | {"rollout_buffer": buffer})
        trainer.train()
        found |= result(case, trainer.logger.name_to_value["train/loss"], body, head)
    return found


def gae(model_folder: Path) -> Arrays:
    """Return advantages and returns of RolloutBuffer. The last of four episodes is truncated."""
    from gymnasium import spaces  # pyright: ignore[reportMissingImports]
    from stable_baselines3.common.buffers import RolloutBuffer  # pyright: ignore[reportMissingImports]

    count, starts = 12, [0, 3, 4, 9]
    space = spaces.Discrete(2)
    buffer = RolloutBuffer(count, spaces.Box(0, 1, (1,)), space, "cpu", 0.9, 0.97)
    rewards, values = rng.normal(size=count), rng.normal(size=count + 1).astype(np.float32)
    zero = torch.zeros(1)
    for k in range(count):
        value, start = torch.tensor(values[k : k + 1]), np.array([k in starts])
        buffer.add(np.zeros((1, 1)), np.zeros((1, 1)), rewards[k : k + 1], start, value, zero)
    buffer.compute_returns_and_advantage(torch.tensor(values[-1:]), np.array([False]))
    dones = [k + 1 in starts for k in range(count)]
    return {
        "rewards": rewards, "values": values, "dones": dones,
        "gae/advantages": buffer.advantages.flatten(), "gae/returns": buffer.returns.flatten(),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--archer", required=True, help="repository of ArCHer")
    parser.add_argument("--eto", required=True, help="repository of ETO")
    options, folder = parser.parse_args(), Path(tempfile.mkdtemp())
    torch.set_num_threads(1)
    model = options.out / "model"
    write_model(model)
    fetch("archer", options.archer, folder, "archer")
    fetch("eto", options.eto, folder, "fastchat")
    rules = {
        "grpo": grpo(model), "sft": sft(model), "dpo": dpo(model), "eto": eto(model),
        "archer": archer(model, folder / "archer"), "ppo": ppo(model), "gae": gae(model),
    }  # fmt: skip
    for rule, arrays in rules.items():
        np.savez_compressed(options.out / f"{rule}.npz", **arrays)
    names = ("trl", "stable_baselines3", "transformers", "torch")
    versions = {name: version(name) for name in names} | COMMITS
    (options.out / "versions.json").write_text(json.dumps(versions, indent=1) + "\n")


if __name__ == "__main__":
    main()
