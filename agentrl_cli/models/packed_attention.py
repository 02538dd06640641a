"""Packed attention: critic prompts or alternative actions lie between an episode's tokens as
branches, which no later token sees and whose positions are used again.

A packed row is in reading order. Its labels are 0 for visible tokens and k > 0 for the k-th branch:

    position  visible token: visible tokens before it; i-th token of a branch: those before it + i
    mask      M[q, j] = (j <= q) and (j is visible, or j and q are in the same branch)

All layouts compute the same. `interleaved` keeps the order, with one dense mask (the reference).
`visible_first` moves the branches after all visible tokens, which then are plainly causal. `flex`
does so, too, and gives the mask to FlexAttention (CUDA) as a rule. `enable_packing` refuses models
for which packed and separate passes may differ.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, Literal

import torch
from torch import Tensor
from torch._C import _disabled_torch_function_impl
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention
from torch.nn.functional import pad, scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward, use_gqa_in_sdpa
from transformers.masking_utils import sdpa_mask

from agentrl_cli.core.errors import UserError

Layout = Literal["visible_first", "interleaved", "flex"]
CriticGrad = Literal["full", "detach_prefix"]

SPLIT = {"full": "agentrl_branch", "detach_prefix": "agentrl_branch_detached"}
FLEX = "agentrl_branch_flex"
READ_PACKED = ("sdpa", *SPLIT.values(), FLEX)
BLOCK_ROWS = 128  # branch tokens that attend together
FAMILIES = (
    "gpt2", "gpt_neox", "llama", "mistral", "mixtral", "opt", "phi3", "qwen2", "qwen3", "qwen3_moe",
)  # fmt: skip
DENSE_MASK_FAMILIES = ("gpt2",)  # compute with a given mask, which FlexAttention lacks
TOLERANCE = 1e-4  # nats, packed against separate passes, in float32
TWIN_LAYERS, TWIN_VOCABULARY, TWIN_INNER_SIZE = 2, 128, 64
CHECKED_PARTS, CHECKED_TOKENS = 3, 7  # of the row that is compared
INNER_KEYS = ("intermediate_size", "moe_intermediate_size", "ffn_dim", "n_inner")


@dataclass
class Block:
    """Branch tokens `rows`, which attend only to the first `visible` visible tokens and to the
    branch tokens `branches`, under an additive mask [B, 1, rows, visible + branches]."""

    rows: slice
    visible: int
    branches: slice
    mask: Tensor

    def attend(self, query: Tensor, key: Tensor, value: Tensor, scale: float | None) -> Tensor:
        """Return [B, H, rows, D] for keys and values [B, K, visible + branches, D]. The H / K heads
        that share keys become rows of one head, so that keys are not copied for each; the mask is
        repeated once, in the first layer."""
        batch, heads, rows, width = query.shape
        sharing = heads // key.shape[1]  # heads that share keys
        if self.mask.shape[-2] != sharing * rows:
            self.mask = self.mask.repeat(1, 1, sharing, 1)
        query = query.reshape(batch, -1, sharing * rows, width)
        attended = scaled_dot_product_attention(query, key, value, self.mask, scale=scale)
        return attended.view(batch, heads, rows, width)


class BlockedMask(Tensor):
    """An additive mask of the branch rows that carries its blocks, because half of the whole mask
    is for later tokens. Operations on it return plain tensors."""

    blocks: list[Block]
    __torch_function__ = _disabled_torch_function_impl  # pyright: ignore[reportAssignmentType]


def positions(labels: Tensor, lengths: Tensor) -> Tensor:
    """Return position ids [B, L]; 0 for padding."""
    columns = _column_numbers(labels)
    visible = labels == 0
    before = visible.long().cumsum(-1) - visible.long()
    begins = labels != pad(labels, (1, 0), value=-1)[:, :-1]
    rank = columns - torch.where(begins, columns, 0).cummax(-1).values
    return torch.where(columns < lengths[:, None], before + rank * ~visible, 0)


def predecessors(labels: Tensor) -> Tensor:
    """Return the column [B, L] that predicts each token, -1 without one: the token before within a
    branch, else the nearest visible token."""
    columns = _column_numbers(labels)
    latest = torch.where(labels == 0, columns, -1).cummax(-1).values
    visible_before = pad(latest, (1, 0), value=-1)[:, :-1]
    label_before = pad(labels, (1, 0), value=0)[:, :-1]
    return torch.where((labels > 0) & (labels == label_before), columns - 1, visible_before)


def visibility(queries: Tensor, keys: Tensor, labels: Tensor) -> Tensor:
    """Return the mask above, bool [B, 1, Q, K], for columns `queries` [B, Q] and `keys` [B, K].
    Column L stands for no token."""
    query_labels, key_labels = (_take_columns(labels, columns, -1) for columns in (queries, keys))
    not_later = keys[:, None, :] <= queries[:, :, None]  # [B, Q, K]
    same_label = key_labels[:, None, :] == query_labels[:, :, None]  # [B, Q, K]
    return (not_later & ((key_labels == 0)[:, None, :] | same_label))[:, None]


def additive(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a bool mask (true = attend) as a number to add to attention scores. With a bool mask
    every layer would make this copy and keep it for the backward pass."""
    return torch.zeros_like(mask, dtype=dtype).masked_fill(~mask, -torch.inf)


def split_into_blocks(queries: Tensor, labels: Tensor, mask: Tensor) -> BlockedMask:
    """Return the additive `mask` [B, 1, M, V + M] of branch columns `queries` [B, M] with its
    blocks of `BLOCK_ROWS` rows."""
    row_count, all_visible = mask.shape[-2], mask.shape[-1] - mask.shape[-2]  # M, V
    of_rows = _take_columns(labels, queries, -1)  # [B, M]
    before = (queries - _column_numbers(queries)).clamp(max=all_visible).amax(0)  # [M]
    blocked = mask.as_subclass(BlockedMask)
    blocked.blocks = []
    for begin in range(0, row_count, BLOCK_ROWS):
        rows = slice(begin, min(begin + BLOCK_ROWS, row_count))
        first = (of_rows == of_rows[:, begin, None]).long().argmax(-1).min()
        visible, branches = int(before[rows].max()), slice(int(first), rows.stop)
        in_mask = slice(all_visible + branches.start, all_visible + branches.stop)
        parts = [mask[:, :, rows, :visible], mask[:, :, rows, in_mask]]
        blocked.blocks.append(Block(rows, visible, branches, torch.cat(parts, -1)))
    return blocked


def block_mask(columns: Tensor, labels: Tensor) -> BlockMask:
    """Return `visibility` of `columns` [B, K] among themselves for FlexAttention."""
    of_columns = _take_columns(labels, columns, -1)  # [B, K]

    def visible(row: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        not_later = columns[row, key] <= columns[row, query]
        label = of_columns[row, key]
        return not_later & ((label == 0) | (label == of_columns[row, query]))

    rows, length = columns.shape
    return create_block_mask(visible, rows, None, length, length, device=str(columns.device))


def hidden_states(model: PreTrainedModel, ids: Tensor, labels: Tensor, lengths: Tensor) -> Tensor:
    """Return the last hidden states [B, L, width] of packed rows, 0 for padding, from one call of
    the model's body. Mask and positions are always given, because transformers takes positions that
    repeat for several documents. Raises ValueError if `enable_packing` was not called."""
    implementation = model.config._attn_implementation
    if implementation not in READ_PACKED:
        raise ValueError(f"packed rows cannot be read with attention '{implementation}'")
    labels = labels.long()
    numbers = _column_numbers(labels)
    if implementation == "sdpa":  # columns [B, K] in reading order, of which [B, Q] have mask rows
        queries = columns = numbers
    else:
        real = numbers < lengths[:, None]
        queries = _true_columns(real & (labels > 0))
        columns = torch.cat([_true_columns(real & (labels == 0)), queries], 1)
    if implementation == FLEX:
        mask = block_mask(columns, labels)
    else:
        is_mixed = numbers.device.type == "cpu" and torch.is_autocast_enabled("cpu")
        dtype = torch.float32 if is_mixed else model.dtype  # that of queries, see below
        mask = additive(visibility(queries, columns, labels), dtype)
        if implementation in SPLIT.values() and mask.device.type == "cpu":
            mask = split_into_blocks(queries, labels, mask)
    hidden = model.base_model(
        input_ids=_take_columns(ids, columns, 0),
        attention_mask=mask,
        position_ids=_take_columns(positions(labels, lengths), columns, 0),
        use_cache=False,
    ).last_hidden_state
    rows, length, width = *labels.shape, hidden.shape[-1]
    targets = columns[..., None].expand(-1, -1, width)  # [B, K, width]
    return hidden.new_zeros(rows, length + 1, width).scatter(1, targets, hidden)[:, :length]


def torch_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **options: Any,
) -> tuple[Tensor, None]:
    """Run the attention that transformers calls "sdpa".

    In float32 on CUDA no fused kernel of torch accepts heads that share keys, and without a mask
    transformers does not repeat them. The kernel left needs memory quadratic in the length, so keys
    and values are repeated here.
    """
    if query.is_cuda and query.dtype == torch.float32:
        sharing = query.shape[1] // key.shape[1]
        if sharing > 1 and use_gqa_in_sdpa(attention_mask, key, value):
            key, value = (x.repeat_interleave(sharing, 1) for x in (key, value))
    return sdpa_attention_forward(module, query, key, value, attention_mask, **options)


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
    """Attention under a mask [B, 1, M, V + M] for the last M tokens; the first V are causal.

    With `detach` the last M tokens give no gradient to the keys and values of the first V. Any
    other mask is passed to torch's own attention.
    """
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
        return torch_attention(module, query, key, value, attention_mask, **options)
    count = attention_mask.shape[-1] - attention_mask.shape[-2]  # V
    queries, keys, values = query[:, :, :count], key[:, :, :count], value[:, :, :count]
    visible, _ = torch_attention(module, queries, keys, values, None, **options)
    if detach:
        key = torch.cat([keys.detach(), key[:, :, count:]], 2)
        value = torch.cat([values.detach(), value[:, :, count:]], 2)
    queries = query[:, :, count:]
    if not isinstance(attention_mask, BlockedMask):
        branches, _ = torch_attention(module, queries, key, value, attention_mask, **options)
        return torch.cat([visible, branches], 1), None
    attended = []
    for block in attention_mask.blocks:
        part = slice(count + block.branches.start, count + block.branches.stop)
        read = [torch.cat([x[:, :, : block.visible], x[:, :, part]], 2) for x in (key, value)]
        attended.append(
            block.attend(queries[:, :, block.rows], *read, scale=options.get("scaling"))
        )
    return torch.cat([visible, torch.cat(attended, 2).transpose(1, 2)], 1), None


def flex_attention_forward(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | BlockMask | None,
    **options: Any,
) -> tuple[Tensor, None]:
    """FlexAttention under a block mask, compiled on CUDA; elsewhere its plain form, without
    gradient, for tests. Any other mask is passed to torch's own attention."""
    if not isinstance(attention_mask, BlockMask):
        return torch_attention(module, query, key, value, attention_mask, **options)
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


AttentionInterface.register("sdpa", torch_attention)
AttentionInterface.register(FLEX, flex_attention_forward)
AttentionMaskInterface.register(FLEX, sdpa_mask)
for _grad, _name in SPLIT.items():  # for other rows these are sdpa, so generation does not change
    _forward = partial(split_attention_forward, detach=_grad == "detach_prefix")
    AttentionInterface.register(_name, _forward)
    AttentionMaskInterface.register(_name, sdpa_mask)


def _column_numbers(labels: Tensor) -> Tensor:
    return torch.arange(labels.shape[1], device=labels.device).expand_as(labels)


def _true_columns(chosen: Tensor) -> Tensor:
    """Return the columns where `chosen` [B, L] is true, in order, then L in shorter rows."""
    length = chosen.shape[1]
    columns = torch.where(chosen, _column_numbers(chosen), length).sort(-1).values
    return columns[:, : int(chosen.sum(-1).max())]


def _take_columns(rows: Tensor, columns: Tensor, missing: int) -> Tensor:
    """Return the entries of `rows` [B, L] at `columns`, `missing` at column L."""
    return pad(rows, (0, 1), value=missing).gather(1, columns)


# which models support packed rows


def enable_packing(
    model: PreTrainedModel, critic_prompt: list[int], layout: Layout, grad: CriticGrad
) -> None:
    """Set the model's attention so that it reads packed rows in this layout.

    Raises UserError if the model does not support it, or if packed and separate log-probs differ.
    They are compared in float32 on a small twin of the model, because rounding in bfloat16 or
    TF32 can be as large as the error of wrong packing.
    """
    family, device = model.config.model_type, model.device.type
    _check_family(model)
    if layout != "visible_first" and grad == "detach_prefix":
        line = f"algo.advanced.critic_grad=detach_prefix cannot be used with algo.layout={layout}"
        raise UserError(f"{line}; set algo.layout=visible_first", code="bad-layout")
    if layout == "flex" and (device != "cuda" or family in DENSE_MASK_FAMILIES):
        line = f"algo.layout=flex does not support {family} on {device}"
        raise UserError(f"{line}; set algo.layout=visible_first", code="bad-layout")
    names = {"visible_first": SPLIT[grad], "interleaved": "sdpa", "flex": FLEX}
    model.set_attn_implementation(names[layout])
    precision = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        gap = packing_gap(twin(model), [i % TWIN_VOCABULARY for i in critic_prompt])
    finally:
        torch.set_float32_matmul_precision(precision)
    if not gap <= TOLERANCE:  # NaN too
        line = f"packed and separate log-probs of this model differ by {gap:.2g} nats"
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
    """Return a small random float32 model of the same class and configuration. Global random states
    do not change."""
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
    head: Any = model.get_output_embeddings()

    def logprobs(hidden: Tensor) -> Tensor:
        return head(hidden).float().log_softmax(-1)

    words, generator = model.config.get_text_config().vocab_size, torch.Generator().manual_seed(0)
    parts = torch.randint(words, (CHECKED_PARTS, CHECKED_TOKENS), generator=generator).tolist()
    row = [i for part in parts for i in part + critic_prompt]
    size, numbers = len(critic_prompt), range(1, CHECKED_PARTS + 1)
    row_labels = [label for k in numbers for label in [0] * CHECKED_TOKENS + [k] * size]
    ids, labels = (torch.tensor([values], device=model.device) for values in (row, row_labels))
    length = torch.tensor([len(row)], device=model.device)
    packed = logprobs(hidden_states(model, ids, labels, length)[0])  # [L, words]
    columns = torch.arange(len(row), device=model.device)
    gaps = []
    for k in numbers:
        state = (labels[0] == 0) & (columns < k * (CHECKED_TOKENS + size))
        chosen = state | (labels[0] == k)  # [L]: the k-th critic prompt and the tokens it sees
        hidden = model.base_model(input_ids=ids[:, chosen], use_cache=False).last_hidden_state
        gaps.append((logprobs(hidden[0]) - packed[chosen]).abs().max())
    return float(torch.stack(gaps).max())
