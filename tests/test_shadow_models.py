"""Which models may read packed rows, and that nothing else about them changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
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

from agentrl_cli.errors import UserError
from agentrl_cli.models.policy import forward, pack
from agentrl_cli.models.shadow import enable, packing_gap
from agentrl_cli.types import Sample
from tests.sample_shadow import ALIKE, FAMILIES, MIXTRAL, PROMPT, USUAL, model_of, row


def test_plain_and_generating_passes_stay_torchs_own_attention_bit_for_bit():
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
        r"\(falcon\)",
    ),
    "experts with a balancing loss": (
        lambda: MixtralForCausalLM(MixtralConfig(**MIXTRAL, output_router_logits=True)),
        "mixtral with router logits",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_models_that_do_not_see_all_that_came_before_are_refused(name: str):
    make, words = REFUSED[name]
    with pytest.raises(UserError, match=words):
        enable(make().eval(), PROMPT, "visible_first", "full")


def test_attention_and_layouts_that_cannot_be_packed_are_refused():
    model = model_of("qwen2")
    model.set_attn_implementation("eager")
    with pytest.raises(UserError, match=r"'eager'.*set model\.attention=sdpa"):
        enable(model, PROMPT, "visible_first", "full")
    with pytest.raises(ValueError, match="'eager'"):
        forward(model, pack([row((6, 3), (2, 4)).sample()]))
    with pytest.raises(UserError, match=r"set algo\.layout=visible_first"):
        enable(model_of("qwen2"), PROMPT, "interleaved", "detach_prefix")


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_passes_its_check_in_float32_and_bfloat16(family: str):
    torch.manual_seed(0)  # some random routers of a mixture are near a tie, which bfloat16 decides
    model = FAMILIES[family]().eval()
    enable(model, PROMPT, "visible_first", "full")
    assert packing_gap(model, PROMPT) < 1e-5
    enable(model.to(torch.bfloat16), PROMPT, "visible_first", "full")


def test_samples_that_train_a_critic_prompt_or_begin_with_one_are_refused():
    for mask, labels in ([0, 0, 1], [0.0, 0.0, 1.0]), ([0, 0, 1], [1.0, 0.0, 0.0]):
        with pytest.raises(ValueError, match="critic prompt"):
            pack([Sample([1, 2, 3], mask, {"shadow": labels})])
