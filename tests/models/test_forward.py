"""One pass over packed samples: numbers, padding, chunks, checkpointing."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from agentrl_cli.core.distributed import Ranks
from agentrl_cli.core.types import Sample
from agentrl_cli.models import forward as module_of_forward
from agentrl_cli.models.forward import (
    ModelForward,
    Pass,
    Passes,
    causal_lm,
    collate,
    forward,
    micro_batches,
    rank_passes,
    read_in_chunks,
    token_logprobs,
    vocabulary_head,
)
from agentrl_cli.models.model_set import ModelSet
from tests.builders.models import LORA, SAMPLES, SPECS, build, disturb, model_config
from tests.builders.tiny_models import tiny_model, tiny_tokenizer


def naive_logprobs(module, ids):
    """log p(ids[t] | ids[:t]) of one unpadded sequence by the model's own logits."""
    logits = module(input_ids=torch.tensor([ids])).logits[0].log_softmax(-1)
    return [0.0] + [logits[t - 1, ids[t]].item() for t in range(1, len(ids))]


def test_logprobs_equal_those_of_transformers(model_folder):
    module = build(model_folder).module("policy")
    found = token_logprobs(ModelForward(module, passes=Passes(ids=8)), SAMPLES)
    for sample, row in zip(SAMPLES, found, strict=True):
        plain = naive_logprobs(module, sample.ids)
        expected = [p * m for p, m in zip(plain, sample.mask, strict=True)]
        assert row == pytest.approx(expected, abs=1e-5)


def test_padding_reaches_no_trained_token(model_folder):
    module = build(model_folder).module("policy")
    zero, other = forward(module, collate(SAMPLES)), forward(module, collate(SAMPLES, pad_id=77))
    assert torch.equal(zero.logprobs, other.logprobs)
    assert torch.equal(zero.entropy, other.entropy)


def test_a_mask_in_bfloat16_rounds_no_number(model_folder):
    module, batch = build(model_folder).module("policy"), collate(SAMPLES)
    expected = forward(module, batch)
    found = forward(module, replace(batch, mask=batch.mask.bfloat16()))  # as FSDP casts inputs
    assert torch.equal(found.logprobs, expected.logprobs)


def test_entropy_and_its_gradient(model_folder, monkeypatch):
    module = build(model_folder).module("policy")
    found = []
    for chunk in (2**26, 2 * module.config.vocab_size):  # whole, and two rows at once
        monkeypatch.setattr(module_of_forward, "LOGITS_AT_ONCE", chunk)
        forward(module, collate(SAMPLES[1:2]), entropy_gradient=True).entropy.sum().backward()
        found.append([p.grad.clone() for p in module.parameters() if p.grad is not None])
        module.zero_grad()
    logits = module(input_ids=torch.tensor([SAMPLES[1].ids])).logits[0]
    torch.distributions.Categorical(logits=logits).entropy()[:2].sum().backward()
    plain = [p.grad for p in module.parameters() if p.grad is not None]
    assert len(found[0]) == len(found[1]) == len(plain) and plain[0].abs().max() > 1e-3
    for whole, chunked, expected in zip(*found, plain, strict=True):
        assert torch.allclose(whole, expected, atol=1e-5)
        assert torch.allclose(chunked, expected, atol=1e-5)
    module.zero_grad()


def test_logits_exist_a_chunk_at_a_time(model_folder, monkeypatch):
    module = build(model_folder).module("policy")
    seen = []
    head = vocabulary_head(causal_lm(module))
    head.register_forward_hook(lambda m, i, o: seen.append(len(o)))
    forward(module, collate(SAMPLES))
    assert seen == [5]
    monkeypatch.setattr(module_of_forward, "LOGITS_AT_ONCE", 2 * module.config.vocab_size)
    forward(module, collate(SAMPLES))
    assert seen[1:] == [2, 2, 1]


@pytest.mark.parametrize("lora", [None, LORA])
def test_checkpointing_changes_no_gradient(model_folder, lora):
    plain = build(model_folder, lora).module("policy")
    saved = ModelSet(model_config(model_folder, lora=lora, checkpointing=True), SPECS, "cpu", 0)
    grads = []
    for module in (plain, saved.module("policy")):
        forward(module, collate(SAMPLES)).logprobs.sum().backward()
        grads.append([p.grad for p in module.parameters() if p.grad is not None])
    assert all(torch.equal(a, b) for a, b in zip(*grads, strict=True))
    with torch.no_grad():
        cache = saved.module("policy")(input_ids=torch.tensor([[5, 6]]), use_cache=True)
    assert cache.past_key_values.get_seq_length() == 2


def test_value_reads_no_later_token(model_folder):
    models = build(model_folder)
    disturb(models, "critic")
    ids = [[5, 6, 7, 8], [5, 6, 9, 8]]
    batch = collate([Sample(row, [0, 0, 0, 0]) for row in ids])
    values = forward(models.module("critic"), batch, models.head("critic")).values
    assert values is not None
    one, other = values
    assert torch.allclose(one[:2], other[:2], atol=1e-6)
    assert one[2] != other[2]


def test_invalid_samples_are_refused():
    with pytest.raises(ValueError, match="first token"):
        collate([Sample([1, 2], [1, 1])])
    with pytest.raises(ValueError, match="per-token fields"):
        collate([Sample([1, 2], [0, 1], {"advantage": [1.0]})])
    with pytest.raises(ValueError, match="begins with a branch"):
        collate([Sample([1, 2, 3], [0, 0, 1], {"branch": [1.0, 1.0, 0.0]})])


def test_micro_batches_respect_budget_and_groups():
    lengths = [3, 9, 4, 1, 7, 7, 2, 20]
    samples = [Sample([1] * n, [0] * n) for n in lengths]
    groups = [[0, 1], [2, 3], [4, 5], [6, 7]]
    found = list(micro_batches(groups, samples, 18, 0))
    assert sorted(i for rows in found for i in rows) == list(range(8))
    for rows in found:
        assert rows in groups or max(lengths[i] for i in rows) * len(rows) <= 18
        assert all(set(g) <= set(rows) or not set(g) & set(rows) for g in groups)


def test_dropout_is_off(tmp_path):
    tokenizer = tiny_tokenizer()
    model = tiny_model(tokenizer, "llama")
    model.config.attention_dropout = 0.5
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    module = ModelSet(model_config(tmp_path, checkpointing=True), SPECS, "cpu", 0).module("policy")
    one, other = (forward(module, collate(SAMPLES)).logprobs for _ in range(2))
    assert torch.equal(one, other)


LENGTHS = [5, 9, 2, 7, 7, 3, 8]
UNEQUAL = [Sample([1] * length, [0] + [1] * (length - 1)) for length in LENGTHS]


def passes(size: int, groups: list[list[int]], tokens: int) -> list[list[Pass]]:
    """Those of each of so many ranks."""
    found = []
    for rank in range(size):
        ranks = Ranks()
        ranks.rank, ranks.size = rank, size
        found.append(rank_passes(groups, UNEQUAL, tokens, "cpu", ranks))
    return found


@pytest.mark.parametrize("size", [1, 2, 3, 10])
@pytest.mark.parametrize("groups", [[[i] for i in range(7)], [[0, 1], [2, 3], [4, 5, 6]]])
@pytest.mark.parametrize("tokens", [8, 20, 999])
def test_ranks_share_samples_in_equal_passes(size: int, groups: list[list[int]], tokens: int):
    by_rank = passes(size, groups, tokens)
    assert len({len(row) for row in by_rank}) == 1
    counted = [i for row in by_rank for part in row if part.counts for i in part.rows]
    assert sorted(counted) == list(range(7))
    batches = [set(part.rows) for row in by_rank for part in row if part.counts]
    assert all(any(set(group) <= batch for batch in batches) for group in groups)


def test_idle_rank_repeats_the_shortest():
    rows = passes(2, [[0], [2]], 999)
    assert rows == [[Pass([0])], [Pass([2])]]
    assert passes(3, [[0], [2]], 999)[2] == [Pass([2], counts=False)]


@pytest.mark.parametrize("entropy", [False, True])
@pytest.mark.parametrize("autocast", [False, True])
def test_chunks_equal_one_pass(entropy: bool, autocast: bool):
    torch.manual_seed(0)
    head = nn.Linear(8, 50, bias=False)
    states, targets, scale = 3 * torch.randn(7, 8), torch.randint(50, [7]), torch.randn(2, 7)
    found: list[list[Tensor]] = []
    for rows in (3, 7):
        read = states.clone().requires_grad_()
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            parts = read.split(rows), targets.split(rows)
            logprobs, entropies = read_in_chunks(head, entropy, *parts)
        assert entropies.requires_grad == entropy
        loss = (scale[0] * logprobs).sum() + (scale[1] * entropies).sum()
        found.append([logprobs, entropies, *torch.autograd.grad(loss, [read, head.weight])])
    near = 2e-2 if autocast else 1e-5
    for one, other in zip(*found, strict=True):
        assert torch.allclose(one, other, rtol=near, atol=near * float(other.abs().max()))
