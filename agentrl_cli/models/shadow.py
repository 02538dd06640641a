"""Packed attention: critic prompts lie between an episode's tokens as shadows, which nothing later
sees and whose positions are used again.

A packed row is in reading order; its labels say 0 of a visible token and k > 0 of the k-th shadow.
All layouts compute the same: `interleaved` keeps that order under one dense mask (the reference);
`visible_first` moves the shadows behind all visible tokens, which then are plainly causal; `flex`
does so, too, and gives the whole mask to FlexAttention (CUDA) as a rule and not as numbers. Which
models may read packed rows, packable.py says.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, partial
from typing import Any, Literal

import torch
from torch import Tensor
from torch._C import _disabled_torch_function_impl
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention
from torch.nn.functional import pad, scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

Layout = Literal["visible_first", "interleaved", "flex"]
CriticGrad = Literal["full", "detach_prefix"]

SPLIT = {"full": "agentrl_shadow", "detach_prefix": "agentrl_shadow_detached"}
FLEX = "agentrl_shadow_flex"
READ_PACKED = ("sdpa", *SPLIT.values(), FLEX)
BLOCK_ROWS = 128  # shadow tokens that attend together


@dataclass
class Block:
    """Shadow tokens `rows`, which attend to none but the first `seen` visible tokens and the shadow
    tokens `own`, under an additive mask [B, 1, rows, seen + own]."""

    rows: slice
    seen: int
    own: slice
    mask: Tensor

    def attend(self, query: Tensor, key: Tensor, value: Tensor, scale: float | None) -> Tensor:
        """[B, H, rows, D]: what the rows `query` read of keys and values [B, K, seen + own, D]. The
        H / K heads that share keys are rows of one head, which spares a copy of the keys for each;
        the mask is repeated for them once, in the first layer."""
        batch, heads, rows, width = query.shape
        shared = heads // key.shape[1]
        if self.mask.shape[-2] != shared * rows:
            self.mask = self.mask.repeat(1, 1, shared, 1)
        asked = query.reshape(batch, -1, shared * rows, width)
        found = scaled_dot_product_attention(asked, key, value, self.mask, scale=scale)
        return found.view(batch, heads, rows, width)


class ThinMask(Tensor):
    """An additive mask of the shadow rows that also knows its blocks: half of the whole stands for
    tokens that are still to come. What is computed from it is a plain tensor."""

    blocks: list[Block]
    __torch_function__ = _disabled_torch_function_impl  # pyright: ignore[reportAssignmentType]


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


def in_blocks(queries: Tensor, labels: Tensor, mask: Tensor) -> ThinMask:
    """The additive `mask` [B, 1, M, V + M] of shadow columns `queries` [B, M] with its blocks of
    `BLOCK_ROWS` rows."""
    rows, visible = mask.shape[-2], mask.shape[-1] - mask.shape[-2]
    kinds = _take(labels, queries, -1)
    before = (queries - _columns_like(queries)).clamp(max=visible).amax(0)
    found = mask.as_subclass(ThinMask)
    found.blocks = []
    for begin in range(0, rows, BLOCK_ROWS):
        chosen = slice(begin, min(begin + BLOCK_ROWS, rows))
        first = (kinds == kinds[:, begin, None]).long().argmax(-1).min()
        seen, own = int(before[chosen].max()), slice(int(first), chosen.stop)
        shown = mask[:, :, chosen]
        parts = [shown[..., :seen], shown[..., visible + own.start : visible + own.stop]]
        found.blocks.append(Block(chosen, seen, own, torch.cat(parts, -1)))
    return found


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
        if implementation in SPLIT.values() and mask.device.type == "cpu":
            mask = in_blocks(queries, labels, mask)
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
    the first. A thin mask is read block by block. Any other is torch's own attention, unchanged."""
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
    if isinstance(attention_mask, ThinMask):
        shadows = _by_block(attention_mask.blocks, queries, key, value, options.get("scaling"))
    else:
        shadows, _ = sdpa_attention_forward(module, queries, key, value, attention_mask, **options)
    return torch.cat([visible, shadows], 1), None


def _by_block(
    blocks: list[Block], queries: Tensor, keys: Tensor, values: Tensor, scale: float | None
) -> Tensor:
    """[B, M, H, D]: each block of the shadow rows with the keys and values that it reaches."""
    visible, found = keys.shape[2] - queries.shape[2], []
    for block in blocks:
        own = slice(visible + block.own.start, visible + block.own.stop)
        read = [torch.cat([x[:, :, : block.seen], x[:, :, own]], 2) for x in (keys, values)]
        found.append(block.attend(queries[:, :, block.rows], *read, scale=scale))
    return torch.cat(found, 2).transpose(1, 2)


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
