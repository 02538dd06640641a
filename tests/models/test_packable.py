"""Which models may read packed rows, and that nothing else about them changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import (
    FalconConfig,
    FalconForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from agentrl_cli.core.errors import UserError
from agentrl_cli.models.forward import causal_lm, collate, forward
from agentrl_cli.models.packed_attention import enable_packing, packing_gap, twin
from tests.builders.packed_rows import ALIKE, FAMILIES, MIXTRAL, PROMPT, USUAL, WORDS, model_of, row


def test_other_passes_use_torch_attention_bit_for_bit():
    ids = torch.tensor([[0, 0, 5, 6, 7], [3, 4, 5, 6, 7]])
    inside = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]])
    found = []
    for model in (
        model_of("qwen2", "interleaved"),
        model_of("qwen2"),
        model_of("qwen2", grad="detach_prefix"),
    ):
        with torch.no_grad():
            first = model(input_ids=ids, attention_mask=inside, use_cache=True)
            longer = torch.cat([inside, torch.ones(2, 1, dtype=torch.long)], 1)
            then = model(
                input_ids=ids[:, :1] + 1,
                attention_mask=longer,
                past_key_values=first.past_key_values,
            )
            found.append(torch.cat([first.logits, then.logits, model(input_ids=ids).logits], 1))
    assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])


WINDOW = {**USUAL, "sliding_window": 8}
REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "mistral with window": (lambda: MistralForCausalLM(MistralConfig(**WINDOW)), "window of 8"),
    "qwen2 with window": (
        lambda: Qwen2ForCausalLM(
            Qwen2Config(**WINDOW, use_sliding_window=True, max_window_layers=1)
        ),
        "sliding_attention",
    ),
    "distances in the place of positions": (
        lambda: FalconForCausalLM(FalconConfig(**ALIKE, alibi=True)),
        "falcon",
    ),
    "experts with a balancing loss": (
        lambda: MixtralForCausalLM(MixtralConfig(**MIXTRAL, output_router_logits=True)),
        "mixtral with router logits",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_models_without_full_attention_are_refused(name: str):
    make, words = REFUSED[name]
    with pytest.raises(UserError, match=words):
        enable_packing(make().eval(), PROMPT, "visible_first", "full")


def test_unpackable_attention_and_layouts_are_refused():
    model = model_of("qwen2")
    model.set_attn_implementation("eager")
    with pytest.raises(UserError, match="eager") as caught:
        enable_packing(model, PROMPT, "visible_first", "full")
    assert caught.value.code == "not-packable"
    with pytest.raises(ValueError, match="'eager'"):
        forward(model, collate([row((6, 3), (2, 4)).sample()]))
    for layout, grad in (
        ("interleaved", "detach_prefix"), ("flex", "full"), ("flex", "detach_prefix"),
    ):  # fmt: skip
        with pytest.raises(UserError) as caught:  # flex needs CUDA
            enable_packing(model_of("qwen2"), PROMPT, layout, grad)  # pyright: ignore[reportArgumentType]
        assert caught.value.code == "bad-layout"


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_passes_the_check(family: str):
    for seed in range(4):
        torch.manual_seed(seed)
        model = FAMILIES[family]().eval()
        enable_packing(model, PROMPT, "visible_first", "full")
        assert packing_gap(model, PROMPT) < 1e-5
        enable_packing(model.to(torch.bfloat16), PROMPT, "visible_first", "full")


def test_rounding_does_not_fail_the_check():
    torch.manual_seed(0)
    sizes = {**USUAL, "vocab_size": 8000, "num_hidden_layers": 24}
    model = Qwen2ForCausalLM(Qwen2Config(**sizes)).eval().bfloat16()
    with torch.no_grad():
        model.lm_head.weight.mul_(20)
    enable_packing(model, PROMPT, "visible_first", "full")
    assert packing_gap(model, PROMPT) > 0.25


class Positionless(Qwen2ForCausalLM):
    """Counts its positions by itself, whatever it is given."""

    def __init__(self, config: Qwen2Config):
        super().__init__(config)
        rotary = self.model.rotary_emb.forward

        def counted(x: torch.Tensor, position_ids: torch.Tensor) -> Any:
            return rotary(x, torch.arange(x.shape[1])[None].expand_as(position_ids))

        self.model.rotary_emb.forward = counted


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_wrong_attention_is_refused_in_any_dtype(dtype: torch.dtype):
    model = Positionless(Qwen2Config(**USUAL)).eval().to(dtype)  # pyright: ignore[reportArgumentType]
    with torch.no_grad():  # its own predictions hide it: all words are alike
        model.lm_head.weight.zero_()
    assert packing_gap(model, PROMPT) == 0
    with pytest.raises(UserError, match="nats"):
        enable_packing(model, PROMPT, "visible_first", "full")


def test_twin_is_small_and_keeps_random_state():
    config = Qwen2Config(**{**USUAL, "num_hidden_layers": 5, "tie_word_embeddings": True})
    model = Qwen2ForCausalLM(config).eval().bfloat16()
    model.set_attn_implementation("agentrl_branch")
    adapted = causal_lm(get_peft_model(model, LoraConfig(target_modules=["q_proj"])))  # pyright: ignore[reportArgumentType]
    before = torch.get_rng_state()
    made = twin(adapted)
    assert torch.get_rng_state().equal(before)
    assert type(made) is Qwen2ForCausalLM and made.dtype == torch.float32
    assert (made.config.num_hidden_layers, made.config.layer_types) == (2, ["full_attention"] * 2)
    assert made.config._attn_implementation == "agentrl_branch"
    assert made.lm_head.weight is made.model.embed_tokens.weight
    assert not any("lora" in name for name, _ in made.named_parameters())
    kept = model.config
    assert (kept.num_hidden_layers, kept.vocab_size) == (5, WORDS)
    assert kept.layer_types == ["full_attention"] * 5
