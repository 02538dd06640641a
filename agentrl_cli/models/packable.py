"""Which models may read packed rows (packed_attention.py): an allow-list of families, and a check
at the start that packed and single passes agree. Whether packing is right is a matter of the
architecture and not of the weights, which in coarse numbers differ by rounding alone as much as
wrong packing does. So a small twin with random weights is compared, in float32, of a model in any
numbers."""

from __future__ import annotations

from copy import deepcopy

import torch
from torch import Tensor
from transformers import PreTrainedModel

from agentrl_cli.core.errors import UserError
from agentrl_cli.models import packed_attention
from agentrl_cli.models.packed_attention import FLEX, READ_PACKED, SPLIT, CriticGrad, Layout
from agentrl_cli.models.policy import vocabulary_head

FAMILIES = (
    "gpt2", "gpt_neox", "llama", "mistral", "mixtral", "opt", "phi3", "qwen2", "qwen3", "qwen3_moe",
)  # fmt: skip
DENSE_MASK_FAMILIES = ("gpt2",)  # compute with a given mask, which FlexAttention lacks
TOLERANCE = 1e-4  # nats, packed against single passes, in float32
TWIN_LAYERS, TWIN_VOCABULARY, TWIN_INNER_SIZE = 2, 128, 64
CHECKED_PARTS, CHECKED_TOKENS = 3, 7  # of the row on which packed and single passes are compared
INNER_KEYS = ("intermediate_size", "moe_intermediate_size", "ffn_dim", "n_inner")


def enable_packing(
    model: PreTrainedModel, critic_prompt: list[int], layout: Layout, grad: CriticGrad
) -> None:
    """Make `model` read packed rows in this layout, for good: a recomputed layer must find it, too.
    Raises UserError for a model whose attention cannot be packed, or for which packed and single
    log-probs differ on two turns with the ids `critic_prompt`."""
    _refuse_unknown(model)
    _refuse_layout(model, layout, grad)
    names = {"visible_first": SPLIT[grad], "interleaved": "sdpa", "flex": FLEX}
    model.set_attn_implementation(names[layout])
    twin_prompt = [i % TWIN_VOCABULARY for i in critic_prompt]
    _refuse_gap(packing_gap(twin(model), twin_prompt), TOLERANCE)
    exact = model.dtype == torch.float32
    _refuse_gap(packing_gap(model, critic_prompt), TOLERANCE if exact else torch.inf)


def _refuse_layout(model: PreTrainedModel, layout: Layout, grad: CriticGrad) -> None:
    """Raise UserError for a layout that lacks this gradient, or that this model cannot have."""
    remedy, family, device = "set algo.layout=visible_first", model.config.model_type, model.device
    if layout != "visible_first" and grad == "detach_prefix":
        need = "algo.critic_grad=detach_prefix needs the layout visible_first"
        raise UserError(f"{need}; {remedy}")
    if layout == "flex" and (device.type != "cuda" or family in DENSE_MASK_FAMILIES):
        need = "algo.layout=flex needs CUDA and a model that takes its mask as a rule"
        raise UserError(f"{need}, not {family} on {device.type}; {remedy}")


def twin(model: PreTrainedModel) -> PreTrainedModel:
    """A small model of the same class, configuration and attention on the same device, in float32,
    with random weights of its own; no random stream but a local one moves."""
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
        if weight.dim() > 1:  # a scale at which attention matters; norms and biases stay
            weight.data.normal_(0.0, weight.shape[-1] ** -0.5, generator=draw)
    return made.to(model.device)  # pyright: ignore[reportArgumentType]


@torch.no_grad()
def packing_gap(model: PreTrainedModel, critic_prompt: list[int]) -> float:
    """The largest difference in nats between packed and unpacked log-probs of the next token: after
    every token of an episode of two turns, and after every critic prompt."""
    ids, labels = _packed_row(model, critic_prompt)
    length = torch.tensor([ids.shape[1]], device=model.device)
    packed = _logprobs(model, packed_attention.hidden_states(model, ids, labels, length)[0])
    columns = torch.arange(ids.shape[1], device=model.device)
    part_length = CHECKED_TOKENS + len(critic_prompt)
    gaps = []
    for k in range(1, CHECKED_PARTS + 1):
        state = (labels[0] == 0) & (columns < k * part_length)
        chosen = state | (labels[0] == k)  # [L]: what the k-th critic prompt may see, and itself
        hidden = model.base_model(input_ids=ids[:, chosen], use_cache=False).last_hidden_state
        gaps.append((_logprobs(model, hidden[0]) - packed[chosen]).abs().max())
    return float(torch.stack(gaps).max())


def _packed_row(model: PreTrainedModel, critic_prompt: list[int]) -> tuple[Tensor, Tensor]:
    """Ids and labels [1, L] of random visible tokens, the critic prompt behind each part."""
    words, generator = model.config.get_text_config().vocab_size, torch.Generator().manual_seed(0)
    parts = torch.randint(words, (CHECKED_PARTS, CHECKED_TOKENS), generator=generator)
    prompt = torch.tensor(critic_prompt)
    ids = torch.cat([row for part in parts for row in (part, prompt)])
    numbers = range(1, CHECKED_PARTS + 1)
    labels = torch.tensor([[0] * CHECKED_TOKENS + [k] * len(prompt) for k in numbers])
    return ids[None].to(model.device), labels.flatten()[None].to(model.device)


def _logprobs(model: PreTrainedModel, hidden: Tensor) -> Tensor:
    """Of every next token: hidden states [L, width] to log-probs [L, vocabulary]."""
    return vocabulary_head(model)(hidden).float().log_softmax(-1)


def _refuse_gap(gap: float, most: float) -> None:
    """Raise UserError for a gap above `most`, or one that is no number."""
    if not gap <= most:
        raise UserError(
            f"packed and single log-probs of this model differ by {gap:.2g} nats (at most "
            f"{TOLERANCE:g} is sound), so packed prompts would corrupt training; choose another "
            "model"
        )


def _refuse_unknown(model: PreTrainedModel) -> None:
    """Allowed are families whose every layer attends to all that came before, experts only without
    a balancing loss, which would count critic prompts."""
    config = model.config.get_text_config()
    if config._attn_implementation not in READ_PACKED:
        raise UserError(
            f"model.attention is '{config._attn_implementation}', which cannot read prompts "
            "packed into an episode; set model.attention=sdpa"
        )
    settings = config.to_dict()
    window = [settings.get("sliding_window")] if "layer_types" not in settings else []
    layers = settings.get("layer_types") or [f"window of {size}" for size in window if size]
    other = sorted(set(layers) - {"full_attention"})
    other += ["router logits"] if settings.get("output_router_logits") else []
    if config.model_type in FAMILIES and not other:
        return
    found = f"{config.model_type} with {other[0]}" if other else config.model_type
    remedy = f"choose one of {', '.join(FAMILIES)} without a sliding window or router logits"
    raise UserError(f"prompts cannot be packed for this model ({found}); {remedy}")
