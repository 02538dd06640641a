"""Packed attention: one pass over an episode with critic prompts says what single passes say, and
every known way to get it wrong is noticed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PreTrainedModel

from agentrl_cli.algos.self_ac import pack_episode
from agentrl_cli.core.errors import UserError
from agentrl_cli.core.types import Episode, Sample, Task, Turn
from agentrl_cli.models import packed_attention
from agentrl_cli.models.forward import collate, forward
from agentrl_cli.models.packable import enable_packing
from agentrl_cli.models.packed_attention import (
    hidden_states,
    positions,
    split_into_blocks,
    visibility,
)
from tests.builders.packed_rows import (
    FAMILIES,
    LAYOUTS,
    PROMPT,
    alone,
    head_of,
    largest_gap,
    model_of,
    read,
    row,
)

EXACT = 1e-5
SHAPES = [
    [(1, 1)],
    [(7, 3), (2, 5)],
    [(4, 1), (0, 4), (3, 2)],
    [(9, 2), (0, 1), (0, 1), (6, 7)],
    [(3, 8), (1, 1), (5, 2), (0, 3), (2, 1)],
    [(2, 1), (4, 6), (0, 2), (1, 9), (3, 1), (8, 4)],
]
THREE = row((6, 3), (2, 4), (0, 2))
HEAD = head_of()
attend = packed_attention.Block.attend


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("family", FAMILIES)
def test_packed_pass_equals_separate_passes(family: str, layout: str):
    model = model_of(family, layout)
    for turns in SHAPES:
        assert largest_gap(model, HEAD, [row(*turns)]) < EXACT, turns


@settings(deadline=None, max_examples=15)
@given(
    st.lists(
        st.tuples(
            st.integers(1, 6),
            st.lists(st.tuples(st.integers(0, 5), st.integers(1, 5)), min_size=1, max_size=6),
        ),
        min_size=1,
        max_size=3,
    ),
    st.integers(1, 4),
    st.sampled_from(LAYOUTS),
)
def test_any_batch_equals_separate_passes(drawn: Any, prompt: int, layout: str):
    rows = [
        row((first + seen, acted), *more, prompt=PROMPT[:1] * prompt, seed=i)
        for i, (first, [(seen, acted), *more]) in enumerate(drawn)
    ]
    assert largest_gap(model_of("qwen2", layout), HEAD, rows) < EXACT


@pytest.mark.parametrize("rows", [1, 2, 5])
@pytest.mark.parametrize("family", ["qwen2", "gpt2"])  # two heads share keys, and none
def test_any_block_size_equals_separate_passes(
    family: str, rows: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(packed_attention, "BLOCK_ROWS", rows)
    batch = [row(*turns) for turns in SHAPES]
    assert largest_gap(model_of(family), HEAD, batch) < EXACT
    for one in batch:
        assert largest_gap(model_of(family), HEAD, [one]) < EXACT


def too_short(queries: torch.Tensor, labels: torch.Tensor, mask: torch.Tensor):
    found = split_into_blocks(queries, labels, mask)
    for block in found.blocks:
        block.mask = torch.cat([block.mask[..., :1], block.mask[..., 2:]], -1)
        block.visible -= 1
    return found


def swapped(block: packed_attention.Block, query: Any, key: Any, value: Any, scale: Any):
    found = attend(block, query, key, value, scale)
    return found.flip(1)


def seeing_branches(queries: torch.Tensor, keys: torch.Tensor, labels: torch.Tensor):
    of_queries, of_keys = (
        packed_attention._take_columns(labels, columns, -1) for columns in (queries, keys)
    )
    both = (of_queries[:, :, None] > 0) & (of_keys[:, None, :] > 0)
    earlier = keys[:, None, :] <= queries[:, :, None]
    return visibility(queries, keys, labels) | (both & earlier)[:, None]


def eager_states(model: PreTrainedModel, ids: Any, labels: Any, lengths: Any):
    model.set_attn_implementation("eager")
    columns = torch.arange(ids.shape[1]).expand_as(ids)
    return model.base_model(
        input_ids=ids, attention_mask=visibility(columns, columns, labels.long()),
        position_ids=positions(labels.long(), lengths), use_cache=False,
    ).last_hidden_state  # fmt: skip


def counted(labels: torch.Tensor, lengths: torch.Tensor):
    return torch.arange(labels.shape[1]).expand_as(labels)


BROKEN: dict[str, tuple[str, Callable[..., Any], str]] = {
    "plain shift": ("predecessors", lambda labels: counted(labels, labels) - 1, "visible_first"),
    "no mask": ("additive", lambda mask, dtype: None, "interleaved"),
    "positions not reused": ("positions", counted, "visible_first"),
    "branches see branches": ("visibility", seeing_branches, "visible_first"),
    "bool mask under eager": ("hidden_states", eager_states, "interleaved"),
    "a block that stops early": ("split_into_blocks", too_short, "visible_first"),
    "heads out of order": ("Block.attend", swapped, "visible_first"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_wrong_packing_is_noticed(name: str, monkeypatch: pytest.MonkeyPatch):
    part, broken, layout = BROKEN[name]
    model = model_of("qwen2", layout)
    assert largest_gap(model, HEAD, [THREE]) < EXACT
    monkeypatch.setattr(f"agentrl_cli.models.packed_attention.{part}", broken)
    assert largest_gap(model, HEAD, [THREE]) > 0.05
    if part != "predecessors":  # labels are no matter of the model
        with pytest.raises(UserError, match="nats"):
            enable_packing(model_of("qwen2", layout), PROMPT, layout, "full")  # pyright: ignore[reportArgumentType]


def value_gap(sample: Sample) -> float:
    """The largest difference between single passes and the values where `value_at` reads them."""
    with torch.no_grad():
        values = forward(model_of("qwen2"), collate([sample]), HEAD).values
        _, expected = alone(model_of("qwen2"), HEAD, THREE)
    assert values is not None
    found = values[0][torch.tensor(sample.per_token["value_at"]).bool()]
    return float((found - expected).abs().max())


@pytest.mark.parametrize("state", range(4))
def test_value_read_too_early_is_noticed(state: int):
    turns = [Turn([], "", seen, acted, []) for seen, acted in THREE.turns]
    (sample,) = pack_episode(Episode("a", Task("a", "test", {}), "a", 0, turns), PROMPT, []).samples
    assert value_gap(sample) < EXACT
    at = sample.per_token["value_at"]
    column = [i for i, read in enumerate(at) if read][state]
    at[column - 1], at[column] = at[column], 0.0
    assert value_gap(sample) > 0.05


def states(model: PreTrainedModel, sample: Sample) -> tuple[torch.Tensor, torch.Tensor]:
    """Hidden states [L, width] of one packed sample, and its labels."""
    labels = torch.tensor([sample.per_token["branch"]])
    ids, length = torch.tensor([sample.ids]), torch.tensor([len(sample.ids)])
    with torch.no_grad():
        return hidden_states(model, ids, labels, length)[0], labels[0]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_shadows_do_not_change_visible_states(layout: str):
    model = model_of("llama", layout)
    hidden, labels = states(model, THREE.sample())
    bare = Sample(THREE.state(3), [], {"branch": [0.0] * len(THREE.state(3))})
    assert torch.allclose(hidden[labels == 0], states(model, bare)[0], atol=EXACT)
    plain = model.base_model(input_ids=torch.tensor([THREE.state(3)]), use_cache=False)
    assert torch.allclose(states(model, bare)[0], plain.last_hidden_state[0], atol=EXACT)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_edited_shadow_changes_itself_only(layout: str):
    model, sample = model_of("llama", layout), THREE.sample()
    before, labels = states(model, sample)
    sample.ids[sample.per_token["branch"].index(2.0)] = 5
    after, _ = states(model, sample)
    assert torch.equal(before[labels != 2], after[labels != 2])
    assert not torch.allclose(before[labels == 2], after[labels == 2], atol=1e-2)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_edited_action_changes_later_values_only(layout: str):
    model, edited = model_of("llama", layout), row((6, 3), (2, 4), (0, 2))
    edited.turns[1][1][0] = 1
    with torch.no_grad():
        (_, before), (_, after) = (read(model, HEAD, [one])[0] for one in (THREE, edited))
    assert torch.equal(before[:2], after[:2])
    assert ((before[2:] - after[2:]).abs() > 1e-3).all()


def test_positions_of_the_slides_example():
    labels = torch.tensor([[0] * 10 + [1] * 19 + [0] * 4 + [2] * 19 + [0] * 3])
    found = positions(labels, torch.tensor([53]))[0].tolist()
    # the state ends at 9, its critic prompt takes 10 to 28, and the action begins at 10 again
    expected = [*range(10), *range(10, 29), *range(10, 14), *range(14, 33), 14, 0, 0]
    assert found == expected


def test_mask_equals_the_formula():
    labels = torch.tensor([[0, 0, 1, 1, 0, 2, 2, 3, 0, 0], [0, 1, 0, 0, 2, 0, 0, 0, 0, 0]])
    columns = torch.arange(10).expand(2, 10)
    found = visibility(columns, columns, labels)
    for b, marks in enumerate(labels.tolist()):
        for q in range(10):
            for j in range(10):
                expected = j <= q and (marks[j] == 0 or marks[j] == marks[q])
                assert found[b, 0, q, j] == expected, (b, q, j)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_batch_equals_single_rows(layout: str):
    model = model_of("gpt2", layout)  # its positions are a table: padding must not leave it
    rows = [
        row((40, 30), (5, 70), prompt=PROMPT * 20),
        row((2, 1)),
        row((3, 2), (1, 1), (0, 4), (2, 2), (2, 2)),
    ]
    with torch.no_grad():
        together = read(model, HEAD, rows)
        for one, found in zip(rows, together, strict=True):
            for a, b in zip(found, read(model, HEAD, [one])[0], strict=True):
                assert torch.allclose(a, b, atol=EXACT)
