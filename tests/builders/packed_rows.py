"""Tiny models of every allowed family, packed rows of any shape, what single passes say of them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache, PreTrainedModel

from agentrl_cli.core.types import Sample
from agentrl_cli.models import packed_attention
from agentrl_cli.models.forward import collate, forward
from agentrl_cli.models.model_set import ValueHead

WORDS = 90
USUAL = {
    "vocab_size": WORDS, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256,
    "initializer_range": 0.2, "tie_word_embeddings": False, "bos_token_id": None,
    "eos_token_id": 1, "pad_token_id": 0,
}  # fmt: skip
GPT2 = {
    "vocab_size": WORDS, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 256,
    "initializer_range": 0.2, "bos_token_id": None, "eos_token_id": 1, "resid_pdrop": 0.0,
}  # fmt: skip
ALIKE = {key: value for key, value in USUAL.items() if "key_value" not in key}  # one head a query
OPT = {"ffn_dim": 48, "word_embed_proj_dim": 32, "init_std": 0.2, "dropout": 0.0}
MIXTRAL = {**USUAL, "num_local_experts": 4, "sliding_window": None}
QWEN3_MOE = {**USUAL, "head_dim": 8, "moe_intermediate_size": 24, "num_experts": 4}
SIZES = {
    "llama": USUAL, "qwen2": USUAL, "qwen3": USUAL | {"head_dim": 8},
    "mistral": USUAL | {"sliding_window": None}, "phi3": USUAL, "gpt2": GPT2, "opt": ALIKE | OPT,
    "gpt_neox": ALIKE, "mixtral": MIXTRAL | {"num_experts_per_tok": 2},
    "qwen3_moe": QWEN3_MOE | {"num_experts_per_tok": 2},
}  # fmt: skip


FAMILIES = tuple(SIZES)


def random_model(family: str, sizes: dict[str, Any] | None = None) -> Any:
    config = AutoConfig.for_model(family, **(sizes or SIZES[family]))
    return AutoModelForCausalLM.from_config(config)


PROMPT = [80, 81, 82]
LAYOUTS = ("visible_first", "interleaved")  # that train on any device


@cache
def fresh(family: str) -> PreTrainedModel:
    torch.manual_seed(0)
    model = random_model(family).eval()
    assert isinstance(model, PreTrainedModel)
    return model


def model_of(family: str, layout: str = "visible_first", grad: str = "full") -> PreTrainedModel:
    """The family's random model, set to a layout; one model for all tests, never trained."""
    model = fresh(family)
    names = {
        "visible_first": packed_attention.SPLIT[grad],
        "interleaved": "sdpa",
        "flex": packed_attention.FLEX,
    }
    model.set_attn_implementation(names[layout])
    model.zero_grad()
    return model


def head_of(width: int = 32) -> ValueHead:
    head = ValueHead(width)
    with torch.no_grad():
        head.weight.copy_(torch.linspace(-1, 1, width))
    return head


@dataclass
class Row:
    """A packed row by parts: observations and actions, the prompt behind every state."""

    turns: list[tuple[list[int], list[int]]]
    prompt: list[int]

    def state(self, k: int) -> list[int]:
        past = [i for observation, action in self.turns[:k] for i in observation + action]
        return past + (self.turns[k][0] if k < len(self.turns) else [])

    def sample(self) -> Sample:
        ids, mask, labels = [], [], []
        for k in range(len(self.turns) + 1):
            observation, action = self.turns[k] if k < len(self.turns) else ([], [])
            ids += observation + self.prompt + action
            mask += [0] * len(observation + self.prompt) + [1] * len(action)
            labels += [0] * len(observation) + [k + 1] * len(self.prompt) + [0] * len(action)
        return Sample(ids, mask, {"branch": [float(label) for label in labels]})

    def value_columns(self) -> list[int]:
        labels = self.sample().per_token["branch"]
        last = {int(label): column for column, label in enumerate(labels) if label}
        return [last[k] for k in sorted(last)]


def row(*lengths: tuple[int, int], prompt: list[int] = PROMPT, seed: int = 0) -> Row:
    """A row of turns with these lengths of observation and action, and tokens of its own."""
    draw = torch.Generator().manual_seed(seed)

    def some(n: int) -> list[int]:
        return torch.randint(2, 80, (n,), generator=draw).tolist()

    return Row([(some(seen), some(acted)) for seen, acted in lengths], prompt)


def read(model: PreTrainedModel, head: nn.Module, rows: list[Row]) -> list[tuple[Tensor, Tensor]]:
    """By one packed pass: log-probs of each row's action tokens, and V_0 … V_n."""
    batch = collate([one.sample() for one in rows])
    outputs = forward(model, batch, head)
    assert outputs.values is not None
    pairs = zip(rows, outputs.logprobs, batch.mask.bool(), outputs.values, strict=True)
    return [(lp[mask], values[one.value_columns()]) for one, lp, mask, values in pairs]


def alone(model: PreTrainedModel, head: nn.Module, one: Row) -> tuple[Tensor, Tensor]:
    """The same by one plain pass for each action and one for each value."""
    logprobs = []
    for k, (_, action) in enumerate(one.turns):
        begin = len(one.state(k))
        ids = torch.tensor([one.state(k) + action])
        each = model(input_ids=ids, use_cache=False).logits[0, begin - 1 : -1].log_softmax(-1)
        logprobs.append(each.gather(1, ids[0, begin:, None])[:, 0])
    values = []
    for k in range(len(one.turns) + 1):
        ids = torch.tensor([one.state(k) + one.prompt])
        values.append(
            head(model.base_model(input_ids=ids, use_cache=False).last_hidden_state)[0, -1]
        )
    return torch.cat(logprobs), torch.stack(values)


def cached_values(
    model: PreTrainedModel, head: nn.Module, one: Row, *, train_prefix: bool
) -> Tensor:
    """V_0 … V_n from the prompt read behind each state's kept keys and values."""
    values = []
    for k in range(len(one.turns) + 1):
        cache = DynamicCache()
        with torch.set_grad_enabled(train_prefix):
            model.base_model(
                input_ids=torch.tensor([one.state(k)]), past_key_values=cache, use_cache=True
            )
        hidden = model.base_model(
            input_ids=torch.tensor([one.prompt]), past_key_values=cache, use_cache=True
        )
        values.append(head(hidden.last_hidden_state)[0, -1])
    return torch.stack(values)


def largest_gap(model: PreTrainedModel, head: nn.Module, rows: list[Row]) -> float:
    with torch.no_grad():
        gaps = [
            (a - b).abs().max()
            for one, found in zip(rows, read(model, head, rows), strict=True)
            for a, b in zip(found, alone(model, head, one), strict=True)
        ]
    return float(torch.stack(gaps).max())  # NaN, too
