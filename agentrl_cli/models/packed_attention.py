"""Packed attention: critic prompts, and texts behind them, lie between an episode's tokens as
shadows, which nothing later sees and whose positions are used again.

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
    """Shadow tokens `rows`, which attend to none but the first `visible` visible tokens and the
    shadow tokens `shadows`, under an additive mask [B, 1, rows, visible + shadows]."""

    rows: slice
    visible: int
    shadows: slice
    mask: Tensor

    def attend(self, query: Tensor, key: Tensor, value: Tensor, scale: float | None) -> Tensor:
        """[B, H, rows, D]: what the rows `query` read of keys and values
        [B, K, visible + shadows, D]. The H / K heads that share keys are rows of one head, which
        spares a copy of the keys for each; the mask is repeated once, in the first layer."""
        batch, heads, rows, width = query.shape
        sharing = heads // key.shape[1]  # heads that share keys
        if self.mask.shape[-2] != sharing * rows:
            self.mask = self.mask.repeat(1, 1, sharing, 1)
        query = query.reshape(batch, -1, sharing * rows, width)
        attended = scaled_dot_product_attention(query, key, value, self.mask, scale=scale)
        return attended.view(batch, heads, rows, width)


class BlockedMask(Tensor):
    """An additive mask of the shadow rows that also knows its blocks: half of the whole stands for
    tokens that are still to come. What is computed from it is a plain tensor."""

    blocks: list[Block]
    __torch_function__ = _disabled_torch_function_impl  # pyright: ignore[reportAssignmentType]


def positions(labels: Tensor, lengths: Tensor) -> Tensor:
    """Position ids [B, L]: of a visible token the visible tokens before it, of a shadow's i-th
    token those before the shadow plus i, of padding 0."""
    columns = _column_numbers(labels)
    visible = labels == 0
    before = visible.long().cumsum(-1) - visible.long()
    begins = labels != pad(labels, (1, 0), value=-1)[:, :-1]
    rank = columns - torch.where(begins, columns, 0).cummax(-1).values
    return torch.where(columns < lengths[:, None], before + rank * ~visible, 0)


def predecessors(labels: Tensor) -> Tensor:
    """The column [B, L] whose state predicts each token, -1 where there is none: within a shadow
    the token before, else the nearest visible one, which never is a critic prompt's."""
    columns = _column_numbers(labels)
    latest = torch.where(labels == 0, columns, -1).cummax(-1).values
    visible_before = pad(latest, (1, 0), value=-1)[:, :-1]
    label_before = pad(labels, (1, 0), value=0)[:, :-1]
    return torch.where((labels > 0) & (labels == label_before), columns - 1, visible_before)


def visibility(queries: Tensor, keys: Tensor, labels: Tensor) -> Tensor:
    """Bool [B, 1, Q, K], true = attend: columns `queries` [B, Q] see columns `keys` [B, K] that are
    not later and are visible or of their own shadow. Column L stands for no token."""
    query_labels, key_labels = (_take_columns(labels, columns, -1) for columns in (queries, keys))
    not_later = keys[:, None, :] <= queries[:, :, None]  # [B, Q, K]
    same_label = key_labels[:, None, :] == query_labels[:, :, None]  # [B, Q, K]
    return (not_later & ((key_labels == 0)[:, None, :] | same_label))[:, None]


def additive(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """What is added to attention scores for a bool mask, true = attend. Given a bool one, every
    layer would make this copy of its own and keep it for the backward pass."""
    return torch.zeros_like(mask, dtype=dtype).masked_fill(~mask, -torch.inf)


def split_into_blocks(queries: Tensor, labels: Tensor, mask: Tensor) -> BlockedMask:
    """The additive `mask` [B, 1, M, V + M] of shadow columns `queries` [B, M] with its blocks of
    `BLOCK_ROWS` rows."""
    row_count, all_visible = mask.shape[-2], mask.shape[-1] - mask.shape[-2]  # M, V
    of_rows = _take_columns(labels, queries, -1)  # [B, M]
    before = (queries - _column_numbers(queries)).clamp(max=all_visible).amax(0)  # [M]
    blocked = mask.as_subclass(BlockedMask)
    blocked.blocks = []
    for begin in range(0, row_count, BLOCK_ROWS):
        rows = slice(begin, min(begin + BLOCK_ROWS, row_count))
        first = (of_rows == of_rows[:, begin, None]).long().argmax(-1).min()
        visible, shadows = int(before[rows].max()), slice(int(first), rows.stop)
        in_mask = slice(all_visible + shadows.start, all_visible + shadows.stop)
        parts = [mask[:, :, rows, :visible], mask[:, :, rows, in_mask]]
        blocked.blocks.append(Block(rows, visible, shadows, torch.cat(parts, -1)))
    return blocked


def block_mask(columns: Tensor, labels: Tensor) -> BlockMask:
    """`visibility` of `columns` [B, K] among themselves as a rule, of which FlexAttention skips the
    blocks that hold nothing; no number for each pair is kept."""
    of_columns = _take_columns(labels, columns, -1)  # [B, K]

    def visible(row: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        not_later = columns[row, key] <= columns[row, query]
        label = of_columns[row, key]
        return not_later & ((label == 0) | (label == of_columns[row, query]))

    rows, length = columns.shape
    return create_block_mask(visible, rows, None, length, length, device=str(columns.device))


def hidden_states(model: PreTrainedModel, ids: Tensor, labels: Tensor, lengths: Tensor) -> Tensor:
    """Last hidden states [B, L, width] of packed rows, by one call of the model's body; 0 on what
    the layout leaves out. Raises ValueError for a model that was not enabled. Mask and positions
    are always given: without a mask, positions that are used again would be taken for several
    documents."""
    implementation = model.config._attn_implementation
    if implementation not in READ_PACKED:
        raise ValueError(f"packed rows cannot be read with attention '{implementation}'")
    labels = labels.long()
    queries, columns = _order_of_reading(implementation, labels, lengths)  # [B, Q], [B, K]
    mask = _mask(implementation, queries, columns, labels, model.dtype)
    hidden = model.base_model(
        input_ids=_take_columns(ids, columns, 0),
        attention_mask=mask,
        position_ids=_take_columns(positions(labels, lengths), columns, 0),
        use_cache=False,
    ).last_hidden_state
    rows, length, width = *labels.shape, hidden.shape[-1]
    targets = columns[..., None].expand(-1, -1, width)  # [B, K, width]
    return hidden.new_zeros(rows, length + 1, width).scatter(1, targets, hidden)[:, :length]


def _order_of_reading(
    implementation: str, labels: Tensor, lengths: Tensor
) -> tuple[Tensor, Tensor]:
    """Columns [B, K] in the order in which the model reads them, and those [B, Q] for which the
    mask has a row: all of them under `sdpa`, else the shadows, which come last."""
    numbers = _column_numbers(labels)
    if implementation == "sdpa":
        return numbers, numbers
    real = numbers < lengths[:, None]
    queries = _true_columns(real & (labels > 0))
    return queries, torch.cat([_true_columns(real & (labels == 0)), queries], 1)


def _mask(
    implementation: str, queries: Tensor, columns: Tensor, labels: Tensor, dtype: torch.dtype
) -> Tensor | BlockMask:
    """`visibility` as the implementation takes it."""
    if implementation == FLEX:
        return block_mask(columns, labels)
    mask = additive(visibility(queries, columns, labels), dtype)
    if implementation in SPLIT.values() and mask.device.type == "cpu":
        return split_into_blocks(queries, labels, mask)
    return mask


def split_attention_forward(
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
    the first. A blocked mask is read block by block. Any other mask is torch's own attention."""
    if query.device.type == "cpu" and torch.is_autocast_enabled("cpu"):
        # torch's bfloat16 attention is slower than float32's on a CPU
        with torch.autocast("cpu", enabled=False):
            q, k, v = query.float(), key.float(), value.float()
            read, _ = split_attention_forward(
                module, q, k, v, attention_mask, detach=detach, **options
            )
        return read, None
    if attention_mask is not None and not attention_mask.shape[-2]:
        attention_mask = None
    if attention_mask is None or attention_mask.shape[-2] == query.shape[-2]:
        return sdpa_attention_forward(module, query, key, value, attention_mask, **options)
    count = attention_mask.shape[-1] - attention_mask.shape[-2]  # V
    queries, keys, values = query[:, :, :count], key[:, :, :count], value[:, :, :count]
    visible, _ = sdpa_attention_forward(module, queries, keys, values, None, **options)
    if detach:
        key = torch.cat([keys.detach(), key[:, :, count:]], 2)
        value = torch.cat([values.detach(), value[:, :, count:]], 2)
    queries = query[:, :, count:]
    if isinstance(attention_mask, BlockedMask):
        scale = options.get("scaling")
        shadows = _attend_by_block(attention_mask.blocks, queries, key, value, scale)
    else:
        shadows, _ = sdpa_attention_forward(module, queries, key, value, attention_mask, **options)
    return torch.cat([visible, shadows], 1), None


def _attend_by_block(
    blocks: list[Block], queries: Tensor, keys: Tensor, values: Tensor, scale: float | None
) -> Tensor:
    """[B, M, H, D]: each block of the shadow rows with the keys and values that it reaches."""
    visible, attended = keys.shape[2] - queries.shape[2], []
    for block in blocks:
        shadows = slice(visible + block.shadows.start, visible + block.shadows.stop)
        read = [torch.cat([x[:, :, : block.visible], x[:, :, shadows]], 2) for x in (keys, values)]
        attended.append(block.attend(queries[:, :, block.rows], *read, scale=scale))
    return torch.cat(attended, 2).transpose(1, 2)


def flex_attention_forward(
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
    attended = attend(
        query, key, value, block_mask=attention_mask, scale=options["scaling"],
        enable_gqa=query.shape[1] != key.shape[1],
    )  # fmt: skip
    assert isinstance(attended, Tensor)
    return attended.transpose(1, 2).contiguous(), None


@cache
def _compiled_flex() -> Any:
    return torch.compile(flex_attention, dynamic=True)


AttentionInterface.register(FLEX, flex_attention_forward)
AttentionMaskInterface.register(FLEX, sdpa_mask)
for _grad, _name in SPLIT.items():  # beyond packed rows these are sdpa: generation does not change
    _forward = partial(split_attention_forward, detach=_grad == "detach_prefix")
    AttentionInterface.register(_name, _forward)
    AttentionMaskInterface.register(_name, sdpa_mask)


def _column_numbers(labels: Tensor) -> Tensor:
    """0, 1, …, L - 1 in every row."""
    return torch.arange(labels.shape[1], device=labels.device).expand_as(labels)


def _true_columns(chosen: Tensor) -> Tensor:
    """The columns where `chosen` [B, L] is true, in order, L behind them in shorter rows."""
    length = chosen.shape[1]
    columns = torch.where(chosen, _column_numbers(chosen), length).sort(-1).values
    return columns[:, : int(chosen.sum(-1).max())]


def _take_columns(rows: Tensor, columns: Tensor, missing: int) -> Tensor:
    """The entries of `rows` [B, L] at `columns`, `missing` at column L."""
    return pad(rows, (0, 1), value=missing).gather(1, columns)
