"""Which models support packed rows (packed_attention.py): an allow-list, and a check at the start
that packed and separate passes agree.

The check runs in float32 on a small copy of the architecture with random weights, because rounding
in bfloat16 can be as large as the error of wrong packing.
"""

from __future__ import annotations

from copy import deepcopy

import torch
from torch import Tensor
from transformers import PreTrainedModel

from agentrl_cli.core.errors import UserError
from agentrl_cli.models import packed_attention
from agentrl_cli.models.forward import vocabulary_head
from agentrl_cli.models.packed_attention import FLEX, READ_PACKED, SPLIT, CriticGrad, Layout

FAMILIES = (
    "gpt2", "gpt_neox", "llama", "mistral", "mixtral", "opt", "phi3", "qwen2", "qwen3", "qwen3_moe",
)  # fmt: skip
DENSE_MASK_FAMILIES = ("gpt2",)  # compute with a given mask, which FlexAttention lacks
TOLERANCE = 1e-4  # nats, packed against separate passes, in float32
TWIN_LAYERS, TWIN_VOCABULARY, TWIN_INNER_SIZE = 2, 128, 64
CHECKED_PARTS, CHECKED_TOKENS = 3, 7  # of the row that is compared
INNER_KEYS = ("intermediate_size", "moe_intermediate_size", "ffn_dim", "n_inner")


def enable_packing(
    model: PreTrainedModel, critic_prompt: list[int], layout: Layout, grad: CriticGrad
) -> None:
    """Set the model's attention so that it reads packed rows in this layout. Raises UserError if
    the model does not support it, or if packed and separate log-probs differ."""
    family, device = model.config.model_type, model.device.type
    _check_family(model)
    if layout != "visible_first" and grad == "detach_prefix":
        line = f"algo.critic_grad=detach_prefix cannot be used with algo.layout={layout}"
        raise UserError(f"{line}; set algo.layout=visible_first", code="bad-layout")
    if layout == "flex" and (device != "cuda" or family in DENSE_MASK_FAMILIES):
        line = f"algo.layout=flex does not support {family} on {device}"
        raise UserError(f"{line}; set algo.layout=visible_first", code="bad-layout")
    names = {"visible_first": SPLIT[grad], "interleaved": "sdpa", "flex": FLEX}
    model.set_attn_implementation(names[layout])
    gap = packing_gap(twin(model), [i % TWIN_VOCABULARY for i in critic_prompt])
    exact = model.dtype == torch.float32
    own_gap = packing_gap(model, critic_prompt)
    for value, limit in ((gap, TOLERANCE), (own_gap, TOLERANCE if exact else torch.inf)):
        if not value <= limit:  # NaN too
            line = f"packed and separate log-probs of this model differ by {value:.2g} nats"
            raise UserError(f"{line}; choose another model", code="not-packable")


def _check_family(model: PreTrainedModel) -> None:
    """Raise UserError unless every layer is known to attend to all earlier tokens. Router logits
    are refused because their balancing loss would count critic prompts."""
    config = model.config.get_text_config()
    if config._attn_implementation not in READ_PACKED:
        line = f"model.attention={config._attn_implementation} cannot read packed prompts"
        raise UserError(f"{line}; set model.attention=sdpa", code="not-packable")
    settings = config.to_dict()
    window = [settings.get("sliding_window")] if "layer_types" not in settings else []
    layers = settings.get("layer_types") or [f"window of {size}" for size in window if size]
    other = sorted(set(layers) - {"full_attention"})
    other += ["router logits"] if settings.get("output_router_logits") else []
    if config.model_type in FAMILIES and not other:
        return
    found = f"{config.model_type} with {other[0]}" if other else config.model_type
    remedy = f"choose one of {', '.join(FAMILIES)} without a sliding window or router logits"
    line = f"this model cannot read packed prompts: {found}"
    raise UserError(f"{line}; {remedy}", code="not-packable")


def twin(model: PreTrainedModel) -> PreTrainedModel:
    """Return a small float32 model of the same class, configuration, attention and device, with
    random weights. Global random states do not change."""
    config = deepcopy(model.config)
    text = config.get_text_config()
    text.num_hidden_layers = min(TWIN_LAYERS, text.num_hidden_layers)
    settings = text.to_dict()
    if settings.get("layer_types"):
        text.layer_types = settings["layer_types"][: text.num_hidden_layers]
    for key in INNER_KEYS:
        if key in settings:
            setattr(text, key, TWIN_INNER_SIZE)
    text.vocab_size, text.pad_token_id = TWIN_VOCABULARY, None
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        made = type(model)(config).float().eval()
    draw = torch.Generator().manual_seed(0)
    for weight in made.parameters():
        if weight.dim() > 1:  # at this scale attention matters
            weight.data.normal_(0.0, weight.shape[-1] ** -0.5, generator=draw)
    return made.to(model.device)  # pyright: ignore[reportArgumentType]


@torch.no_grad()
def packing_gap(model: PreTrainedModel, critic_prompt: list[int]) -> float:
    """Return the largest difference in nats between packed and separate next-token log-probs, at
    all tokens of a row of random tokens with the critic prompt after each part."""
    words, generator = model.config.get_text_config().vocab_size, torch.Generator().manual_seed(0)
    parts = torch.randint(words, (CHECKED_PARTS, CHECKED_TOKENS), generator=generator)
    numbers = range(1, CHECKED_PARTS + 1)
    prompt = torch.tensor(critic_prompt)
    row = torch.cat([piece for part in parts for piece in (part, prompt)])
    row_labels = torch.tensor([[0] * CHECKED_TOKENS + [k] * len(prompt) for k in numbers])
    ids, labels = row[None].to(model.device), row_labels.flatten()[None].to(model.device)  # [1, L]
    length = torch.tensor([ids.shape[1]], device=model.device)
    packed = _logprobs(model, packed_attention.hidden_states(model, ids, labels, length)[0])
    columns = torch.arange(ids.shape[1], device=model.device)
    gaps = []
    for k in numbers:
        state = (labels[0] == 0) & (columns < k * (CHECKED_TOKENS + len(critic_prompt)))
        chosen = state | (labels[0] == k)  # [L]: the k-th critic prompt and the tokens it sees
        hidden = model.base_model(input_ids=ids[:, chosen], use_cache=False).last_hidden_state
        gaps.append((_logprobs(model, hidden[0]) - packed[chosen]).abs().max())
    return float(torch.stack(gaps).max())


def _logprobs(model: PreTrainedModel, hidden: Tensor) -> Tensor:
    """Return next-token log-probs [L, vocabulary] for hidden states [L, width]."""
    return vocabulary_head(model)(hidden).float().log_softmax(-1)
