"""Keys and values stay within their memory limit and change no result."""

import dataclasses
import random

import pytest
import torch

from agentrl_cli.core.errors import UserError
from agentrl_cli.generators.base import Sampling
from agentrl_cli.generators.hf import HFGenerator, token_bytes
from agentrl_cli.generators.prefix_cache import BatchLayer
from agentrl_cli.rollout.play import EpisodeStart, play
from tests.fakes.echo import CHAT, EchoEnv
from tests.generators.test_hf import SAMPLED, Weights, agrees_with_forward, same, some_prompts

TOKEN = 2 * 2 * 32 * 4  # keys and values, layers, width, float32
SAMPLING = Sampling(max_tokens=8, temperature=1.0, stop_ids=CHAT.stop_ids)


@pytest.fixture(scope="module")
def weights():
    torch.set_num_threads(1)
    return Weights(target=1.3)


class Peak:
    """Notes, whenever a layer is called, the bytes of the generator's pools and of the cache."""

    def __init__(self, generator: HFGenerator, weights: Weights):
        self.generator, self.cache, self.most, self.pools = generator, None, 0, 0
        self.hooks = []
        for module in weights.modules.values():
            self.hooks.append(module.register_forward_pre_hook(self.see, with_kwargs=True))
            self.hooks += [
                layer.mlp.register_forward_pre_hook(self.count)  # behind the layer's attention
                for layer in module.model.layers
            ]

    def __enter__(self):
        return self

    def __exit__(self, *raised):
        self.count()
        for hook in self.hooks:
            hook.remove()

    def see(self, module, args, kwargs):
        self.count()  # what the last batch kept, beside its cache
        self.cache = kwargs["past_key_values"]
        self.count()

    def count(self, *called):
        layers = self.cache.layers if self.cache is not None else []
        copied = [
            part.nbytes
            for layer in layers
            if isinstance(layer, BatchLayer) and layer.is_initialized
            for part in layer.buffers
        ]
        pools = sum(store.nbytes for store in self.generator.caches.values())
        self.pools = max(self.pools, pools)
        self.most = max(self.most, pools + sum(copied))


def limited(weights: Weights, tokens: int | None, cache_tokens: int = 100_000) -> HFGenerator:
    """A generator with room for so many tokens, kept and copied."""
    mib = tokens and tokens * TOKEN / 2**20
    return HFGenerator(weights, max_batch=64, cache_tokens=cache_tokens, cache_mib=mib)


def turns(engine: HFGenerator, prompts: list[list[int]], n: int):
    """What two turns of every prompt say, and those that follow another model's name."""
    sampling, said = dataclasses.replace(SAMPLED, n=n), []
    for _ in range(2):
        answers = engine.generate(prompts, list(range(len(prompts))), sampling)
        said += [*answers, *engine.generate(prompts, [7] * len(prompts), sampling, "target")]
        prompts = [p + row[0].ids + [30, 31] for p, row in zip(prompts, answers, strict=True)]
    return said


@pytest.mark.parametrize(("tokens", "n"), [(250, 1), (900, 8)])
def test_keys_and_values_stay_within_the_limit(weights, tokens, n):
    assert token_bytes(weights.module("policy")) == TOKEN
    prompts = some_prompts(12)
    free = limited(weights, None)
    with Peak(free, weights) as unlimited:
        expected = turns(free, prompts, n)
    engine = limited(weights, tokens)
    with Peak(engine, weights) as peak:
        same(turns(engine, prompts, n), expected)
    assert TOKEN * tokens / 3 < peak.most <= TOKEN * tokens < unlimited.most


def test_long_prefixes_are_read_in_passes_that_fit(weights):
    prompts = some_prompts(12, 90, 91)
    engine = limited(weights, 2500)
    engine.generate(prompts, [0] * 12, SAMPLED)
    longer = [[*prompt, 33] for prompt in prompts] + some_prompts(12, 60, 61, seed=4)
    with Peak(engine, weights) as peak:
        answers = engine.generate(longer, list(range(24)), SAMPLED)
    assert peak.most <= TOKEN * 2500
    for prompt, (answer,) in zip(longer, answers, strict=True):
        agrees_with_forward(weights, prompt, answer)


def test_pool_shrinks_to_its_limit(weights):
    engine = limited(weights, None, cache_tokens=1500)
    with Peak(engine, weights) as peak:
        engine.generate(some_prompts(64, 90, 91), [0] * 64, SAMPLED)
    store = engine.caches["policy"]
    assert 64 * 90 * TOKEN < peak.pools and store.nbytes == 1500 * TOKEN
    prompts = some_prompts(8, 60, 61, seed=3)
    for prompt, (answer,) in zip(
        prompts, engine.generate(prompts, list(range(8)), SAMPLED), strict=True
    ):
        agrees_with_forward(weights, prompt, answer)


def test_sequence_that_cannot_fit_is_refused(weights):
    engine = limited(weights, 100)
    engine.check_context(50)
    with pytest.raises(UserError, match="51 tokens") as refused:
        engine.check_context(51)
    assert refused.value.code == "cache-too-small"
    with pytest.raises(UserError, match="52 tokens"):
        engine.generate([[5] * 41], [0], SAMPLED)


class AllAtOnce(HFGenerator):
    """Continues all sequences together, whatever fits."""

    def fitting(self, prompts, model="policy"):
        return len(prompts)


class Rambling(EchoEnv):
    """A world of many turns whose answers are long and of each episode its own."""

    def step(self, action):
        step = super().step(action)
        rng = random.Random(self.task.id + str(self.played))
        step.messages[0] = dataclasses.replace(
            step.messages[0], content=" ".join(str(rng.random()) for _ in range(2))
        )
        return step


def test_episodes_that_do_not_fit_wait():
    weights = Weights()
    task = EchoEnv().tasks("train")[0]
    starts = [EpisodeStart(task, "g", i, f"e{i}") for i in range(16)]

    def played(kind: type[HFGenerator], cache_tokens: int):
        weights.read = 0
        engine = kind(weights, max_batch=64, cache_tokens=cache_tokens)
        episodes = play(starts, lambda: Rambling(turns=8), CHAT, engine, SAMPLING, max_seq_len=2000)
        return [[turn.action_ids for turn in e.turns] for e in episodes], weights.read

    expected, read = played(HFGenerator, 100_000)
    small = sum(len(ids) for turns in expected for ids in turns) * 3
    waited, read_once = played(HFGenerator, small)
    thrashed, read_often = played(AllAtOnce, small)
    assert waited == thrashed == expected
    assert read_once < 2 * read and read_often > 1.5 * read_once, (read, read_once, read_often)
