"""Packed attention: critic prompts lie between an episode's tokens as shadows, which nothing later
sees and whose positions are used again.

A packed row is in reading order; its labels say 0 of a visible token and k > 0 of the k-th shadow.
All layouts compute the same: `interleaved` keeps that order under one dense mask (the reference);
`visible_first` moves the shadows behind all visible tokens, which then are plainly causal; `flex`
does so, too, and gives the whole mask to FlexAttention (CUDA) as a rule and not as numbers.
"""

from __future__ import annotations

from functools import cache, partial
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention
from torch.nn.functional import pad
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from agentrl_cli.errors import UserError

Layout = Literal["visible_first", "interleaved", "flex"]
CriticGrad = Literal["full", "detach_prefix"]

SPLIT = {"full": "agentrl_shadow", "detach_prefix": "agentrl_shadow_detached"}
FLEX = "agentrl_shadow_flex"
READ_PACKED = ("sdpa", *SPLIT.values(), FLEX)
FAMILIES = (
    "gpt2", "gpt_neox", "llama", "mistral", "mixtral", "opt", "phi3", "qwen2", "qwen3", "qwen3_moe",
)  # fmt: skip
NUMBERS = ("gpt2",)  # compute with the mask they are given, so FlexAttention's is none for them
TOLERANCES = {torch.float32: 1e-4}  # nats, packed against unpacked
TOLERANCE = 0.25  # in coarser numbers


def positions(labels: Tensor, lengths: Tensor) -> Tensor:
    """Position ids [B, L]: of a visible token the visible tokens before it, of a shadow's i-th
    token those before the shadow plus i, of padding 0."""
    columns = _columns_like(labels)
    visible = labels == 0
    before = visible.long().cumsum(-1) - visible.long()
    begins = labels != pad(labels, (1, 0), value=-1)[:, :-1]
    rank = columns - torch.where(begins, columns, 0).cummax(-1).values
    return torch.where(columns < lengths[:, None], before + rank * ~visible, 0)


def predecessors(labels: Tensor) -> Tensor:
    """The column [B, L] of the nearest visible token before each token, -1 where there is none: the
    state that predicts a visible token, which never is a critic prompt's."""
    latest = torch.where(labels == 0, _columns_like(labels), -1).cummax(-1).values
    return pad(latest, (1, 0), value=-1)[:, :-1]


def visibility(queries: Tensor, keys: Tensor, labels: Tensor) -> Tensor:
    """Bool [B, 1, Q, K], true = attend: columns `queries` [B, Q] see columns `keys` [B, K] that are
    not later and are visible or of their own shadow. Column L stands for no token."""
    of_queries, of_keys = (_take(labels, columns, -1) for columns in (queries, keys))
    not_later = keys[:, None, :] <= queries[:, :, None]
    alike = of_keys[:, None, :] == of_queries[:, :, None]
    return (not_later & ((of_keys == 0)[:, None, :] | alike))[:, None]


def additive(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """What is added to attention scores for a bool mask, true = attend. Given a bool one, every
    layer would make this copy of its own and keep it for the backward pass."""
    return torch.zeros_like(mask, dtype=dtype).masked_fill(~mask, -torch.inf)


def block_mask(columns: Tensor, labels: Tensor) -> BlockMask:
    """`visibility` of `columns` [B, K] among themselves as a rule, of which FlexAttention skips the
    blocks that hold nothing; no number for each pair is kept."""
    kinds = _take(labels, columns, -1)

    def visible(row: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        not_later = columns[row, key] <= columns[row, query]
        kind = kinds[row, key]
        return not_later & ((kind == 0) | (kind == kinds[row, query]))

    rows, length = columns.shape
    return create_block_mask(visible, rows, None, length, length, device=str(columns.device))


def hidden_states(model: PreTrainedModel, ids: Tensor, labels: Tensor, lengths: Tensor) -> Tensor:
    """Last hidden states [B, L, width] of packed rows, by one call of the model's body; 0 on what
    the layout leaves out. Raises ValueError for a model that was not enabled.

    Mask and positions are always given: without a mask, positions that are used again would be
    taken for several documents.
    """
    implementation = model.config._attn_implementation
    if implementation not in READ_PACKED:
        raise ValueError(f"packed rows cannot be read with attention '{implementation}'")
    labels = labels.long()
    if implementation == "sdpa":
        queries = columns = _columns_like(labels)
    else:
        real = _columns_like(labels) < lengths[:, None]
        queries = _gathered(real & (labels > 0))
        columns = torch.cat([_gathered(real & (labels == 0)), queries], 1)
    if implementation == FLEX:
        mask = block_mask(columns, labels)
    else:
        mask = additive(visibility(queries, columns, labels), model.dtype)
    hidden = model.base_model(
        input_ids=_take(ids, columns, 0),
        attention_mask=mask,
        position_ids=_take(positions(labels, lengths), columns, 0),
        use_cache=False,
    ).last_hidden_state
    rows, length, width = *labels.shape, hidden.shape[-1]
    places = columns[..., None].expand(-1, -1, width)
    return hidden.new_zeros(rows, length + 1, width).scatter(1, places, hidden)[:, :length]


def split_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    detach: bool,
    **options: Any,
) -> tuple[Tensor, None]:
    """Attention under a mask [B, 1, M, V + M] that has rows for the last M tokens only: the first V
    are causal among themselves. With `detach` the last M pass no gradient to the keys and values of
    the first. Any other mask is torch's own attention, unchanged."""
    if attention_mask is not None and not attention_mask.shape[-2]:
        attention_mask = None
    if attention_mask is None or attention_mask.shape[-2] == query.shape[-2]:
        return sdpa_attention_forward(module, query, key, value, attention_mask, **options)
    seen = attention_mask.shape[-1] - attention_mask.shape[-2]
    queries, keys, values = query[:, :, :seen], key[:, :, :seen], value[:, :, :seen]
    visible, _ = sdpa_attention_forward(module, queries, keys, values, None, **options)
    if detach:
        key = torch.cat([keys.detach(), key[:, :, seen:]], 2)
        value = torch.cat([values.detach(), value[:, :, seen:]], 2)
    queries = query[:, :, seen:]
    shadows, _ = sdpa_attention_forward(module, queries, key, value, attention_mask, **options)
    return torch.cat([visible, shadows], 1), None


def ruled_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | BlockMask | None,
    **options: Any,
) -> tuple[Tensor, None]:
    """FlexAttention under a block mask, compiled on CUDA; its plain form elsewhere, without
    gradient, which is for checking. Any other mask is torch's own attention, unchanged."""
    if not isinstance(attention_mask, BlockMask):
        return sdpa_attention_forward(module, query, key, value, attention_mask, **options)
    attend = _compiled_flex() if query.is_cuda else flex_attention
    found = attend(
        query, key, value, block_mask=attention_mask, scale=options["scaling"],
        enable_gqa=query.shape[1] != key.shape[1],
    )  # fmt: skip
    assert isinstance(found, Tensor)
    return found.transpose(1, 2).contiguous(), None


@cache
def _compiled_flex() -> Any:
    return torch.compile(flex_attention, dynamic=True)


AttentionInterface.register(FLEX, ruled_attention)
AttentionMaskInterface.register(FLEX, sdpa_mask)
for _grad, _name in SPLIT.items():  # beyond packed rows these are sdpa: generation does not change
    AttentionInterface.register(_name, partial(split_attention, detach=_grad == "detach_prefix"))
    AttentionMaskInterface.register(_name, sdpa_mask)


def enable(model: PreTrainedModel, critic: list[int], layout: Layout, grad: CriticGrad) -> None:
    """Make `model` read packed rows in this layout, for good: a recomputed layer must find it, too.

    Raises UserError for a model whose attention cannot be packed, or for which packed and unpacked
    log-probs differ on two turns with the critic prompt `critic`.
    """
    _refuse_unknown(model)
    if layout != "visible_first" and grad == "detach_prefix":
        raise UserError(
            "algo.critic_grad=detach_prefix needs the layout visible_first; "
            "set algo.layout=visible_first"
        )
    if layout == "flex" and (model.device.type != "cuda" or model.config.model_type in NUMBERS):
        where = f"{model.config.model_type} on {model.device.type}"
        raise UserError(
            f"algo.layout=flex needs CUDA and a model that takes its mask as a rule, not {where}; "
            "set algo.layout=visible_first"
        )
    names = {"visible_first": SPLIT[grad], "interleaved": "sdpa", "flex": FLEX}
    model.set_attn_implementation(names[layout])
    gap, most = packing_gap(model, critic), TOLERANCES.get(model.dtype, TOLERANCE)
    if not gap <= most:
        raise UserError(
            f"packed and single log-probs of this model differ by {gap:.2g} nats (at most {most:g} "
            "is sound), so packed prompts would corrupt training; choose another model"
        )


@torch.no_grad()
def packing_gap(model: PreTrainedModel, critic: list[int]) -> float:
    """The largest difference in nats between packed and unpacked log-probs of the next token: after
    every token of an episode of two turns, and after every critic prompt."""
    parts = torch.randint(
        model.config.get_text_config().vocab_size,
        (3, 7),
        generator=torch.Generator().manual_seed(0),
    )
    asked = torch.tensor(critic)
    ids = torch.cat([row for part in parts for row in (part, asked)])[None].to(model.device)
    labels = [[0] * 7 + [k] * len(critic) for k in range(1, len(parts) + 1)]
    marks = torch.tensor(labels, device=model.device).flatten()[None]
    length = torch.tensor([ids.shape[1]], device=model.device)
    packed = _predictions(model, hidden_states(model, ids, marks, length)[0])
    gaps = []
    for k in range(1, len(parts) + 1):
        state = (marks[0] == 0) & (_columns_like(marks)[0] < k * len(labels[0]))
        chosen = state | (marks[0] == k)
        plain = model.base_model(input_ids=ids[:, chosen], use_cache=False).last_hidden_state
        gaps.append((_predictions(model, plain[0]) - packed[chosen]).abs().max())
    return float(torch.stack(gaps).max())


def _predictions(model: PreTrainedModel, hidden: Tensor) -> Tensor:
    head = model.get_output_embeddings()
    assert head is not None
    return head(hidden).float().log_softmax(-1)


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
    raise UserError(
        f"prompts cannot be packed for this model ({found}); choose one of "
        f"{', '.join(FAMILIES)} without a sliding window or router logits"
    )


def _columns_like(labels: Tensor) -> Tensor:
    """0, 1, …, L - 1 in every row."""
    return torch.arange(labels.shape[1], device=labels.device).expand_as(labels)


def _gathered(chosen: Tensor) -> Tensor:
    """The columns where `chosen` [B, L] is true, in order, L behind them in shorter rows."""
    length = chosen.shape[1]
    columns = torch.where(chosen, _columns_like(chosen), length).sort(-1).values
    return columns[:, : int(chosen.sum(-1).max())]


def _take(rows: Tensor, columns: Tensor, missing: int) -> Tensor:
    """The entries of `rows` [B, L] at `columns`, `missing` at column L."""
    return pad(rows, (0, 1), value=missing).gather(1, columns)
