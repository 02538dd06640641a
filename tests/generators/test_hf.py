"""The hf generator samples from the model, and its caches never change a result."""

import dataclasses
import random
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from agentrl_cli.config.compose import check, compose
from agentrl_cli.config.settings import LoraConfig
from agentrl_cli.core.errors import UserError
from agentrl_cli.core.types import Sample
from agentrl_cli.generators.base import Completion, Sampling
from agentrl_cli.generators.hf import HFGenerator, draw, invert_cdf, merged_layers
from agentrl_cli.models.forward import collate, token_logprobs
from agentrl_cli.training.memory_plan import read_shapes
from tests.builders.errors import user_error
from tests.builders.models import SAMPLES, build, disturb
from tests.builders.tiny_models import tiny_model, tiny_tokenizer

WORDS = range(3, 250)
STOP = tuple(range(5, 25))
GREEDY = Sampling(max_tokens=12, temperature=0, stop_ids=STOP)
SAMPLED = dataclasses.replace(GREEDY, temperature=1.0)


class Weights:
    """Random models by name; counts the tokens they read."""

    device = torch.device("cpu")

    def __init__(self, kind: str = "qwen2", **names: float):
        tokenizer = tiny_tokenizer()
        self.read = 0
        self.modules = {"policy": tiny_model(tokenizer, kind)}
        for name, scale in names.items():
            self.modules[name] = tiny_model(tokenizer, kind)
            self.change(name, scale)
        for module in self.modules.values():
            module.register_forward_pre_hook(self.count, with_kwargs=True)

    def module(self, name):
        return self.modules[name]

    def change(self, name, scale):
        with torch.no_grad():
            for parameter in self.modules[name].parameters():
                parameter.mul_(scale)

    def count(self, module, args, kwargs):
        self.read += kwargs["input_ids"].numel()


@pytest.fixture(scope="module", params=["qwen2", "llama", "mistral"])
def weights(request):
    torch.set_num_threads(1)
    return Weights(request.param)


@pytest.fixture(scope="module")
def policy():
    return Weights()


def engine(weights, max_batch=64, cache_tokens=100_000):
    return HFGenerator(weights, max_batch=max_batch, cache_tokens=cache_tokens)


def some_prompts(count, low=1, high=40, seed=0):
    rng = random.Random(seed)
    return [rng.choices(WORDS, k=rng.randrange(low, high)) for _ in range(count)]


def to_bfloat16(module: torch.nn.Module, device: torch.device) -> None:
    module.to(device, torch.bfloat16)


def same(ours: list[list[Completion]], theirs: list[list[Completion]]) -> None:
    """The same ids; log-probs up to rounding."""
    for mine, other in zip(chain(*ours), chain(*theirs), strict=True):
        assert (mine.ids, mine.finish_reason) == (other.ids, other.finish_reason)
        assert mine.logprobs == pytest.approx(other.logprobs, abs=1e-4)


def agrees_with_forward(weights, prompt, completion, model="policy"):
    """A completion's log-probs are those of one plain forward pass over everything."""
    with torch.no_grad():
        logits = weights.module(model)(input_ids=torch.tensor([prompt + completion.ids])).logits[0]
    logprobs = logits.float().log_softmax(-1)[len(prompt) - 1 : -1]
    expected = logprobs[range(len(completion.ids)), completion.ids].tolist()
    assert completion.logprobs == pytest.approx(expected, abs=1e-4)


def test_greedy_equals_transformers_generate(weights):
    prompts = some_prompts(12)
    answers = engine(weights).generate(prompts, [0] * 12, GREEDY)
    for prompt, (ours,) in zip(prompts, answers, strict=True):
        theirs = weights.module("policy").generate(
            input_ids=torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.int64),
            do_sample=False,
            max_new_tokens=GREEDY.max_tokens,
            eos_token_id=list(STOP),
            pad_token_id=0,
        )
        assert ours.ids == theirs[0, len(prompt) :].tolist()


@pytest.mark.parametrize("temperature", [0.5, 1.0])
def test_logprobs_equal_a_plain_forward_pass(weights, temperature):
    prompts = some_prompts(12)
    sampling = dataclasses.replace(SAMPLED, temperature=temperature)
    answers = engine(weights).generate(prompts, [*range(12)], sampling)
    for prompt, (ours,) in zip(prompts, answers, strict=True):
        agrees_with_forward(weights, prompt, ours)


@pytest.mark.parametrize("max_batch", [1, 3, 7])
def test_order_and_split_do_not_change_results(policy, max_batch):
    prompts, seeds = some_prompts(10), list(range(10))
    sampling = dataclasses.replace(SAMPLED, n=2)
    whole = engine(policy).generate(prompts, seeds, sampling)
    same(whole, engine(policy, max_batch).generate(prompts, seeds, sampling))
    same(whole, engine(policy).generate(prompts[::-1], seeds[::-1], sampling)[::-1])


@pytest.mark.parametrize("cache_tokens", [0, 50, 300, 100_000])
def test_cached_continuation_equals_uncached(policy, cache_tokens):
    prompts, seeds = some_prompts(10), list(range(10))
    kept = engine(policy, cache_tokens=cache_tokens)
    for _ in range(4):
        answers = kept.generate(prompts, seeds, SAMPLED)
        same(answers, engine(policy).generate(prompts, seeds, SAMPLED))
        prompts = [p + c.ids + [30, 31, 32] for p, (c,) in zip(prompts, answers, strict=True)]
        assert len(kept.caches["policy"].slot_of) <= cache_tokens


def test_continuation_reads_new_tokens_only(policy):
    prompts, kept = some_prompts(8, 30, 31), engine(policy)
    answers = kept.generate(prompts, [*range(8)], SAMPLED)
    longer = [p + c.ids + [30, 31, 32] for p, (c,) in zip(prompts, answers, strict=True)]
    policy.read = 0
    kept.generate(longer, [*range(8)], dataclasses.replace(SAMPLED, max_tokens=1))
    assert policy.read == 8 * 4  # the last sampled token and the three new ones


def test_shared_beginnings_are_read_once(policy):
    head, *rest = some_prompts(21, 150, 151)
    branches, tails = [row[:100] for row in rest[:4]], [row[:50] for row in rest[4:]]
    prompts = [head + branches[i // 4] + tail for i, tail in enumerate(tails)]
    policy.read = 0
    answers = engine(policy).generate(prompts, [0] * 16, dataclasses.replace(GREEDY, max_tokens=1))
    assert policy.read == 150 + 4 * 100 + 16 * 50
    for prompt, (answer,) in zip(prompts, answers, strict=True):
        agrees_with_forward(policy, prompt, answer)


def test_prefill_stops_at_the_last_layers_keys(policy):
    layers, counts = policy.modules["policy"].model.layers, [0, 0]
    hooks = [
        layer.mlp.register_forward_hook(
            lambda mlp, args, out, i=i: counts.__setitem__(i, counts[i] + args[0].shape[1])
        )
        for i, layer in enumerate(layers)
    ]
    engine(policy).generate([[*range(20, 40)]], [0], dataclasses.replace(GREEDY, max_tokens=1))
    for hook in hooks:
        hook.remove()
    assert counts == [20, 1]


def test_n_completions_read_the_prompt_once(policy):
    prompts, n = some_prompts(3, 20, 30), 4
    policy.read = 0
    once = dataclasses.replace(SAMPLED, n=n, max_tokens=1)
    engine(policy).generate(prompts, [1, 2, 3], once)
    assert policy.read <= 3 * max(map(len, prompts)) + 3 * n
    answers = engine(policy).generate(prompts, [1, 2, 3], dataclasses.replace(SAMPLED, n=n))
    assert len({tuple(c.ids) for c in answers[0]}) > 1
    alone = engine(policy).generate(prompts, [1, 2, 3], SAMPLED)
    same([[row[0]] for row in answers], alone)


@pytest.mark.slow
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_sharing_cache_rows_does_not_change_samples(weights, attention):
    module = weights.module("policy")
    prompts, seeds = some_prompts(7), list(range(7))
    sampling = dataclasses.replace(SAMPLED, n=11, max_tokens=20)
    engines = [engine(weights, max_batch) for max_batch in (64, 1)]
    module.set_attn_implementation(attention)
    answers, again = [kept.generate(prompts, seeds, sampling) for kept in engines]
    module.set_attn_implementation("sdpa")
    same(answers, again)
    longer = [p + row[3].ids + [30] for p, row in zip(prompts, answers, strict=True)]
    resumed = engines[0].generate(longer, seeds, sampling)
    for prompt, (answer, *_) in zip(longer, resumed, strict=True):
        agrees_with_forward(weights, prompt, answer)


def test_finished_rows_leave_the_batch(policy):
    prompts = some_prompts(32, 5, 6)
    sampling = dataclasses.replace(SAMPLED, max_tokens=40, stop_ids=tuple(range(3, 120)))
    policy.read = 0
    answers = engine(policy).generate(prompts, [*range(32)], sampling)
    lengths = [len(row[0].ids) for row in answers]
    assert max(lengths) > 2 * sum(lengths) / len(lengths)
    assert policy.read - 32 * 4 < 0.75 * 32 * max(lengths)
    for prompt, (answer,) in zip(prompts, answers, strict=True):
        agrees_with_forward(policy, prompt, answer)


def test_completion_ends_at_stop_or_limit(policy):
    answers = engine(policy).generate(some_prompts(32), [*range(32)], SAMPLED)
    finishes = set()
    for (answer,) in answers:
        finishes.add(answer.finish_reason)
        assert not set(answer.ids[:-1]) & set(STOP)
        assert (answer.ids[-1] in STOP) == (answer.finish_reason == "stop")
        assert answer.finish_reason == "stop" or len(answer.ids) == SAMPLED.max_tokens
    assert finishes == {"stop", "length"}


def test_load_and_clear_drop_cached_states():
    weights = Weights(target=1.3)
    kept, prompts = engine(weights), some_prompts(6, 20, 21)
    once = dataclasses.replace(GREEDY, max_tokens=1)
    first = {name: kept.generate(prompts, [0] * 6, GREEDY, name) for name in ("policy", "target")}
    for name, answers in first.items():
        for prompt, (answer,) in zip(prompts, answers, strict=True):
            agrees_with_forward(weights, prompt, answer, name)
    weights.change("policy", 0.7)
    kept.mark_changed("policy")
    weights.read = 0
    kept.generate(prompts, [0] * 6, once, "target")
    assert weights.read == 6
    changed = kept.generate(prompts, [0] * 6, GREEDY)
    same(changed, engine(weights).generate(prompts, [0] * 6, GREEDY))
    kept.clear()
    weights.read = 0
    assert kept.generate(prompts, [0] * 6, GREEDY) == changed
    assert weights.read >= 6 * 20


@pytest.fixture
def adapted(model_folder):
    """Models with adapters that are far from zero."""
    models = build(model_folder, LoraConfig(rank=4, alpha=8, targets=["all-linear"]))
    for seed, name in enumerate(("policy", "target")):
        disturb(models, name, seed)
    return models


def trainer_gap(models, name, prompts, answers):
    samples = [
        Sample(prompt + one.ids, [0] * len(prompt) + [1] * len(one.ids))
        for prompt, (one,) in zip(prompts, answers, strict=True)
    ]
    theirs = token_logprobs(models.forward(name), samples)
    return max(
        abs(ours - other)
        for prompt, (one,), row in zip(prompts, answers, theirs, strict=True)
        for ours, other in zip(one.logprobs, row[len(prompt) :], strict=True)
    )


def test_merged_adapters_sample_as_the_trainer_computes(adapted):
    generator, prompts = engine(adapted), some_prompts(8, low=2)
    for name in ("policy", "target", "policy"):
        answers = generator.generate(prompts, [*range(8)], SAMPLED, name)
        assert trainer_gap(adapted, name, prompts, answers) < 1e-4
    disturb(adapted, "policy", 5)
    generator.mark_changed("policy")
    answers = generator.generate(prompts, [*range(8)], SAMPLED)
    assert trainer_gap(adapted, "policy", prompts, answers) < 1e-4


def test_merging_restores_every_weight(adapted):
    generator = engine(adapted)
    before = {k: (w.data_ptr(), w.clone()) for k, w in adapted.module("policy").named_parameters()}
    generator.generate(some_prompts(2), [0, 1], SAMPLED)
    with pytest.raises(IndexError):
        generator.generate([[10**6, 5]], [0], SAMPLED)
    for key, weight in adapted.module("policy").named_parameters():
        assert (weight.data_ptr(), True) == (before[key][0], torch.equal(weight, before[key][1]))
    adapted.forward("policy").compute(collate(SAMPLES)).logprobs.sum().backward()
    assert all(weight.grad is not None for _, weight in adapted.trainable("policy"))


def test_merging_in_bfloat16_keeps_small_adapters(model_folder):
    lora = LoraConfig(rank=4, alpha=8, targets=["up_proj"])
    models = build(model_folder, lora, dtype="bfloat16")
    disturb(models, "policy")
    with torch.no_grad():
        for key, weight in models.weights("policy").items():
            weight.mul_(1e-3 if "lora_B" in key else 1)
    (entry, _) = merged_layers(models.module("policy"), "policy")
    base = entry.base.detach().float()
    exact = entry.layer.get_delta_weight("policy").detach().float()
    moved = entry.weight.float() - base
    nearest = (base + exact).bfloat16().float() - base
    kept, left = (float((d * exact).sum() / exact.square().sum()) for d in (moved, nearest))
    assert entry.weight.dtype == torch.bfloat16
    assert abs(kept - 1) < 0.3 and left < 0.5
    (again, _) = merged_layers(models.module("policy"), "policy")
    assert torch.equal(entry.weight, again.weight)


def test_adapter_on_tied_weights_is_not_merged(model_folder):
    models = build(model_folder, LoraConfig(rank=4, alpha=8, targets=["lm_head", "q_proj"]))
    disturb(models, "policy")
    assert len(merged_layers(models.module("policy"), "policy")) == 2  # the q_proj of two layers
    prompts = some_prompts(4, low=2)
    answers = engine(models).generate(prompts, [*range(4)], SAMPLED)
    assert trainer_gap(models, "policy", prompts, answers) < 1e-4


def test_sampling_follows_the_distribution():
    logits = torch.tensor([[0.0, 1.0, 2.0, -100.0]])
    uniform = (torch.arange(10_000) / 10_000)[:, None]
    ids, logprobs = draw(logits.repeat(10_000, 1), 0.5, uniform)
    share = torch.bincount(ids, minlength=4) / 10_000
    assert share.tolist() == pytest.approx(torch.softmax(logits[0] / 0.5, -1).tolist(), abs=1e-3)
    assert logprobs[0].item() == pytest.approx(torch.log_softmax(logits[0], -1)[0].item())


@pytest.mark.parametrize("words", [300, 16_385, 50_000])
def test_inverse_cdf_equals_that_of_all_words(words: int):
    generator = torch.Generator().manual_seed(0)
    scores = 4 * torch.randn(1, words, generator=generator)
    scores[:, ::3] = -torch.inf
    probs = torch.softmax(scores, -1)
    uniform = torch.cat([torch.arange(5000) / 5000, torch.tensor([1 - 2**-24])])[:, None]
    found = invert_cdf(probs.expand(len(uniform), -1), uniform)[:, 0]
    above = probs[0].double().cumsum(-1)[found] - uniform[:, 0]
    assert above.min() > -1e-5 and (above - probs[0, found]).max() < 1e-5
    assert (probs[0, found] > 0).all()


def test_uniform_near_one_draws_no_impossible_token():
    logits = torch.full((1, 50_000), -1e4)
    logits[0, :100] = 0
    ids, _ = draw(logits, 1.0, torch.tensor([[1 - 2**-24]]))
    assert ids.item() == 99


def test_prompts_of_one_token_are_read(policy):
    alone, pair = (
        engine(policy).generate(rows, [4] * len(rows), SAMPLED) for rows in ([[3]], [[3], [3]])
    )
    assert alone[0][0].ids == pair[1][0].ids


def test_empty_prompt_is_named(policy):
    assert engine(policy).generate([], [], SAMPLED) == []
    with pytest.raises(ValueError, match="prompt 1 is empty"):
        engine(policy).generate([[3], []], [0, 0], SAMPLED)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)])
def test_bfloat16_continues_from_its_cache(device):
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    weights = Weights()
    weights.device = torch.device(device)
    to_bfloat16(weights.modules["policy"], weights.device)
    kept, prompts = engine(weights), some_prompts(20)
    answers = kept.generate(prompts, [*range(20)], SAMPLED)
    longer = [p + c.ids + [30] for p, (c,) in zip(prompts, answers, strict=True)]
    weights.read = 0
    first = dataclasses.replace(SAMPLED, max_tokens=1)
    for (answer,) in kept.generate(longer, [*range(20)], first):
        assert answer.logprobs[0] <= 0
    assert weights.read == 20 * 2


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_non_finite_logits_are_refused(temperature, value):
    spoiled = Weights(spoiled=1.0)
    with torch.no_grad():
        next(iter(spoiled.modules["spoiled"].parameters())).fill_(value)
    sampling = Sampling(max_tokens=3, temperature=temperature, stop_ids=())
    with pytest.raises(UserError, match="spoiled") as refused:
        engine(spoiled).generate([[5, 6], [7]], [0, 1], sampling, "spoiled")
    assert refused.value.code == "logits-not-finite"
    assert engine(spoiled).generate([[5, 6]], [0], sampling)[0][0].ids


SMALL = {
    "vocab_size": 64, "vocab_size_per_layer_input": 64, "hidden_size": 32, "head_dim": 8,
    "intermediate_size": 32, "num_hidden_layers": 4, "num_attention_heads": 2,
    "num_key_value_heads": 1, "hidden_size_per_layer_input": 8, "layer_types": None,
}  # fmt: skip


@pytest.mark.parametrize("kind", ["gemma3n_text", "gemma4_text"])
def test_layers_that_differ_or_share_keys_are_refused(kind: str, tmp_path: Path):
    more = {"num_kv_shared_layers": 2} if kind == "gemma3n_text" else {}
    config = AutoConfig.for_model(kind, **(SMALL | more))
    weights: Any = Weights()
    weights.modules["policy"] = AutoModelForCausalLM.from_config(config)
    with user_error("layer-not-cacheable", config.model_type):
        HFGenerator(weights, max_batch=4, cache_tokens=100).check_context(8)
    config.save_pretrained(tmp_path)
    cfg = check(compose(["model=hf", f"model.path={tmp_path}"]))
    with user_error("layer-not-cacheable", config.model_type):
        read_shapes(cfg)
