"""Packed attention: one pass over an episode with critic prompts says what single passes say, and
every known way to get it wrong is noticed."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from peft import LoraConfig, get_peft_model
from torch.nn.attention import flex_attention
from transformers import PreTrainedModel, Qwen2Config, Qwen2ForCausalLM

from agentrl_cli.algos.self_ac import pack_episode
from agentrl_cli.core.errors import UserError
from agentrl_cli.core.types import Episode, Sample, Task, Turn
from agentrl_cli.models import packed_attention
from agentrl_cli.models.forward import causal_lm, collate, forward
from agentrl_cli.models.packed_attention import (
    block_mask,
    enable_packing,
    packing_gap,
    positions,
    predecessors,
    split_into_blocks,
    twin,
    visibility,
)
from tests.builders.packed_rows import (
    ALIKE,
    FAMILIES,
    LAYOUTS,
    MIXTRAL,
    PROMPT,
    USUAL,
    alone,
    cached_values,
    head_of,
    largest_gap,
    model_of,
    random_model,
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


@pytest.mark.parametrize("layout", LAYOUTS)
def test_bfloat16_weights_are_read_under_autocast(layout: str):
    """On a CPU attention is then computed in float32."""
    batch, model = [row(*turns) for turns in SHAPES], deepcopy(model_of("qwen2", layout))
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        mixed = read(model.bfloat16(), HEAD, batch)
    with torch.no_grad():
        exact = read(model_of("qwen2", layout), HEAD, batch)
    for one, other in zip(mixed, exact, strict=True):
        assert all((a - b).abs().max() < 0.2 for a, b in zip(one, other, strict=True))


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
    sample = pack_episode(Episode("a", Task("a", "test", {}), "a", 0, turns), PROMPT, []).sample
    assert value_gap(sample) < EXACT
    at = sample.per_token["value_at"]
    column = [i for i, read in enumerate(at) if read][state]
    at[column - 1], at[column] = at[column], 0.0
    assert value_gap(sample) > 0.05


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


def test_predecessor_is_in_its_shadow_or_visible():
    labels = torch.tensor([[0, 0, 1, 1, 2, 2, 0, 0, 3, 0], [0, 1, 0, 2, 2, 2, 3, 0, 0, 0]])
    assert predecessors(labels).tolist() == [
        [-1, 0, 1, 2, 1, 4, 1, 6, 7, 7],
        [-1, 0, 0, 2, 3, 4, 2, 2, 7, 8],
    ]


# which models may read packed rows, and that nothing else about them changes


def test_other_passes_use_torch_attention_bit_for_bit():
    ids = torch.tensor([[0, 0, 5, 6, 7], [3, 4, 5, 6, 7]])
    inside = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]])
    longer = torch.cat([inside, torch.ones(2, 1, dtype=torch.long)], 1)
    found = []
    for layout, grad in (
        ("interleaved", "full"), ("visible_first", "full"), ("visible_first", "detach_prefix"),
    ):  # fmt: skip
        model: Any = model_of("qwen2", layout, grad)
        with torch.no_grad():
            first = model(input_ids=ids, attention_mask=inside, use_cache=True)
            cache = first.past_key_values
            then = model(input_ids=ids[:, :1] + 1, attention_mask=longer, past_key_values=cache)
            found.append(torch.cat([first.logits, then.logits, model(input_ids=ids).logits], 1))
    assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])


REFUSED = {
    "mistral": USUAL | {"sliding_window": 8},
    "qwen2": USUAL | {"sliding_window": 8, "use_sliding_window": True, "max_window_layers": 1},
    "falcon": ALIKE | {"alibi": True},  # distances in place of positions
    "mixtral": MIXTRAL | {"output_router_logits": True},  # a balancing loss
}


@pytest.mark.parametrize("family", REFUSED)
def test_models_without_full_attention_are_refused(family: str):
    model = random_model(family, REFUSED[family]).eval()
    with pytest.raises(UserError, match=family) as caught:
        enable_packing(model, PROMPT, "visible_first", "full")
    assert caught.value.code == "not-packable"


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
        model = random_model(family).eval()
        enable_packing(model, PROMPT, "visible_first", "full")
        assert packing_gap(model, PROMPT) < 1e-5
        enable_packing(model.to(torch.bfloat16), PROMPT, "visible_first", "full")


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
    sizes = USUAL | {"num_hidden_layers": 5, "tie_word_embeddings": True}
    model = random_model("qwen2", sizes).eval().bfloat16()
    model.set_attn_implementation("agentrl_branch")
    adapted = get_peft_model(model, LoraConfig(target_modules=["q_proj"]))
    before = torch.get_rng_state()
    made: Any = twin(causal_lm(adapted))  # pyright: ignore[reportArgumentType]
    assert torch.get_rng_state().equal(before)
    assert type(made) is Qwen2ForCausalLM and made.dtype == torch.float32
    assert made.config.num_hidden_layers == 2 and model.config.num_hidden_layers == 5
    assert made.config._attn_implementation == "agentrl_branch"
    assert not any("lora" in name for name, _ in made.named_parameters())


# gradients


def gradients(model: PreTrainedModel, loss: torch.Tensor) -> dict[str, torch.Tensor]:
    model.zero_grad()
    loss.backward()
    return {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


def assert_alike(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    assert one.keys() == other.keys()
    for name, grad in one.items():
        assert torch.allclose(grad, other[name], atol=2e-4, rtol=1e-4), name


@pytest.fixture(params=[2, 128], ids="blocks of {}".format)
def block_rows(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(packed_attention, "BLOCK_ROWS", request.param)


@pytest.mark.usefixtures("block_rows")
@pytest.mark.parametrize("layout", [*LAYOUTS, "checkpointed"])
def test_gradients_equal_separate_passes(layout: str):
    model = model_of("qwen2", "interleaved" if layout == "interleaved" else "visible_first")
    if layout == "checkpointed":
        model.activation_checkpointing_enable({"use_reentrant": False})
    rows = [THREE, row((2, 2), (3, 1))]
    packed = gradients(
        model, torch.cat([torch.cat(pair) for pair in read(model, HEAD, rows)]).sum()
    )
    model.activation_checkpointing_disable()
    single = torch.cat([torch.cat(alone(model, HEAD, one)) for one in rows]).sum()
    assert_alike(packed, gradients(model, single))


@pytest.mark.usefixtures("block_rows")
def test_detached_prefix_gets_no_gradient():
    full, cut = (
        read(model_of("qwen2", grad=g), HEAD, [THREE])[0][1] for g in packed_attention.SPLIT
    )
    assert torch.equal(full, cut)
    model = model_of("qwen2", grad="detach_prefix")
    found = gradients(model, read(model, HEAD, [THREE])[0][1].sum())
    assert_alike(
        found, gradients(model, cached_values(model, HEAD, THREE, train_prefix=False).sum())
    )
    whole = gradients(model, cached_values(model, HEAD, THREE, train_prefix=True).sum())
    with pytest.raises(AssertionError):
        assert_alike(found, whole)


def test_packed_pass_is_one_call():
    model, sizes = model_of("qwen2"), []
    hook = model.base_model.register_forward_pre_hook(
        lambda module, args, kwargs: sizes.append(tuple(kwargs["input_ids"].shape)),
        with_kwargs=True,
    )
    forward(model, collate([THREE.sample()]), HEAD)
    forward(model, collate([THREE.sample(), row((3, 17), prompt=PROMPT * 5).sample()]), HEAD)
    hook.remove()
    visible, prompts = len(THREE.state(3)), 4 * len(PROMPT)
    assert sizes == [(1, visible + prompts), (2, 20 + 30)]  # the longest of each part


# FlexAttention: on the CPU its plain form without gradient

ROWS = [row((6, 3), (2, 4), (0, 2)), row((40, 30), (5, 70), prompt=PROMPT * 20), row((1, 1))]


@pytest.fixture
def plain_form(monkeypatch: pytest.MonkeyPatch) -> None:
    """Off CUDA nothing is traced: that would take longer than all the rest."""
    traced = torch.cuda.is_available()
    monkeypatch.setattr(flex_attention, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", not traced)


@pytest.mark.usefixtures("plain_form")
@pytest.mark.parametrize(
    "family", [name for name in FAMILIES if name not in packed_attention.DENSE_MASK_FAMILIES]
)
def test_flex_equals_separate_passes(family: str):
    model = model_of(family, "flex")
    assert largest_gap(model, HEAD, ROWS) < EXACT
    assert packing_gap(model, PROMPT) < EXACT


@pytest.mark.usefixtures("plain_form")
def test_flex_rule_equals_dense_mask():
    labels = torch.tensor([[0, 0, 1, 1, 0, 2, 2, 3, 0, 0], [0, 1, 0, 0, 2, 0, 0, 0, 0, 0]])
    columns = torch.tensor([[0, 1, 4, 8, 9, 2, 3, 5, 6, 7], [0, 2, 3, 5, 6, 10, 1, 4, 10, 10]])
    rule = block_mask(columns, labels).mask_mod
    at = torch.arange(10)
    dense = visibility(columns, columns, labels)
    for b in range(2):
        found = rule(torch.tensor(b), torch.tensor(0), at[:, None], at[None, :])
        assert torch.equal(found, dense[b, 0])
        assert found.any(-1).all()  # no row is empty: it would be no number


@pytest.mark.usefixtures("plain_form")
def test_wrong_flex_rule_is_noticed(monkeypatch: pytest.MonkeyPatch):
    model = model_of("qwen2", "flex")
    right = packed_attention._take_columns

    def blind(rows: torch.Tensor, columns: torch.Tensor, missing: int) -> torch.Tensor:
        found = right(rows, columns, missing)
        return found.clamp(max=1) if missing == -1 else found  # all branches are one

    monkeypatch.setattr(packed_attention, "_take_columns", blind)
    assert largest_gap(model, HEAD, ROWS[:1]) > 0.05


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_flex_gradients_equal_dense_on_cuda():
    model, head = random_model("qwen2").eval().cuda(), head_of().cuda()
    batch = collate([one.sample() for one in ROWS]).to(torch.device("cuda"))
    grads = []
    for layout in ("interleaved", "flex"):
        enable_packing(model, PROMPT, layout, "full")  # pyright: ignore[reportArgumentType]
        model.zero_grad()
        outputs = forward(model, batch, head)
        assert outputs.values is not None
        (outputs.logprobs.sum() + (outputs.values * batch.per_token["branch"]).sum()).backward()
        grads.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
    for one, other in zip(*grads, strict=True):
        assert torch.allclose(one, other, rtol=1e-3, atol=1e-3 * float(one.abs().max()))
