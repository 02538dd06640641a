"""Sampling through a vLLM server: the fake one and the real one (marker vllm)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch

from agentrl_cli.cli.train import start
from agentrl_cli.core.errors import UserError
from agentrl_cli.core.types import Sample
from agentrl_cli.generators.base import Completion, Sampling
from agentrl_cli.generators.hf import HFGenerator
from agentrl_cli.generators.vllm import ServedModel, ServerProcess
from agentrl_cli.models.forward import token_logprobs
from agentrl_cli.models.model_set import ModelSet
from agentrl_cli.runs.run import Run
from tests.builders.models import LORA, disturb, write_model
from tests.builders.runs import folders
from tests.builders.vllm import TIGHT, generator, lora_models, real, real_settings, vllm_run
from tests.fakes.vllm_server import serving

PROMPTS = [[5, 6, 7, 8, 9], [10, 11, 12], list(range(20, 60)), [5, 6, 7, 30]]
SEEDS = [1, 2, 3, 4]
GREEDY = Sampling(max_tokens=12, temperature=0.0, stop_ids=(2,))
DRAWN = Sampling(max_tokens=12, temperature=1.0, stop_ids=(2,), n=3)


@pytest.fixture(scope="module")
def served_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model of two layers, its heads as wide as every attention kernel takes them."""
    return write_model(tmp_path_factory.mktemp("served"), width=128, head=64)


@pytest.fixture(scope="module", params=["fake", real])
def url(
    request: pytest.FixtureRequest, served_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """The address of a server of that model."""
    if request.param == "fake":
        with serving(served_folder) as server:
            yield server.url
        return
    served = ServedModel(path=str(served_folder), dtype="float32", rank=LORA.rank, models=3)
    with real_settings() as settings:
        log = tmp_path_factory.mktemp("log") / "server.log"
        process = ServerProcess(settings, served, log)
        try:
            process.wait_until_ready()
            yield process.url
        finally:
            process.stop()


@pytest.fixture
def models(served_folder: Path) -> ModelSet:
    """Three models whose weights differ."""
    models = lora_models(served_folder)
    for seed, name in enumerate(models.names):
        disturb(models, name, seed)
        models.mark_changed(name)
    return models


def ids_of(rows: list[list[Completion]]) -> list[list[list[int]]]:
    return [[completion.ids for completion in row] for row in rows]


def recomputed(models: ModelSet, name: str, prompt: list[int], ids: list[int]) -> list[float]:
    sample = Sample(prompt + ids, [0] * len(prompt) + [1] * len(ids))
    return token_logprobs(models.forward(name), [sample])[0][len(prompt) :]


def listed(url: str) -> list[str]:
    """What the server says that it serves, the base left out."""
    return [card["id"] for card in httpx.get(f"{url}/v1/models").json()["data"]][1:]


def test_greedy_tokens_equal_the_hf_engine(url: str, models: ModelSet):
    weights: Any = models
    ours, own = generator(models, url), HFGenerator(weights, max_batch=8, cache_tokens=0)
    found = {name: ids_of(ours.generate(PROMPTS, SEEDS, GREEDY, name)) for name in models.names}
    for name in models.names:
        assert found[name] == ids_of(own.generate(PROMPTS, SEEDS, GREEDY, name)), name
    assert len({json.dumps(ids) for ids in found.values()}) == 3
    ours.close()


def test_sampled_logprobs_equal_a_recomputation(url: str, models: ModelSet):
    ours = generator(models, url)
    for name in models.names:
        for prompt, row in zip(PROMPTS, ours.generate(PROMPTS, SEEDS, DRAWN, name), strict=True):
            for completion in row:
                again = recomputed(models, name, prompt, completion.ids)
                assert completion.logprobs == pytest.approx(again, abs=TIGHT)
    metrics = ours.metrics()
    assert 0 < metrics["generator/logp_diff_mean"] <= metrics["generator/logp_diff_max"] < TIGHT
    assert metrics["generator/loads"] == 3 and metrics["generator/retries"] == 0
    ours.close()


def test_samples_depend_on_seeds_not_on_batch(url: str, models: ModelSet):
    ours = generator(models, url)
    together = ours.generate(PROMPTS, SEEDS, DRAWN)
    alone = [ours.generate([p], [s], DRAWN)[0] for p, s in zip(PROMPTS, SEEDS, strict=True)]
    assert ids_of(together) == ids_of(alone)
    assert len({tuple(completion.ids) for completion in together[0]}) == DRAWN.n
    assert ids_of(ours.generate(PROMPTS, [9, 9, 9, 9], DRAWN)) != ids_of(together)
    ours.close()


def test_completion_ends_at_stop_or_limit(url: str, models: ModelSet):
    ours = generator(models, url)
    first = ours.generate(PROMPTS[:1], [1], GREEDY)[0][0]
    assert first.finish_reason == "length" and len(first.ids) == GREEDY.max_tokens
    stop = first.ids[4]
    sampling = Sampling(max_tokens=12, temperature=0.0, stop_ids=(stop,))
    closed = ours.generate(PROMPTS[:1], [1], sampling)[0][0]
    assert closed.finish_reason == "stop" and closed.ids == first.ids[: first.ids.index(stop) + 1]
    ours.close()


def test_update_replaces_the_loaded_weights(url: str, models: ModelSet):
    ours = generator(models, url)
    before = ours.generate(PROMPTS, SEEDS, GREEDY)
    first = ours.metrics()
    assert ours.generate(PROMPTS, SEEDS, GREEDY) == before
    assert ours.metrics()["generator/loads"] == 0
    old = listed(url)
    disturb(models, "policy", seed=7)
    models.mark_changed("policy")
    after = ours.generate(PROMPTS, SEEDS, GREEDY)
    second = ours.metrics()
    assert ids_of(after) != ids_of(before)
    assert second["generator/policy_fingerprint"] != first["generator/policy_fingerprint"]
    assert second["generator/policy_version"] == first["generator/policy_version"] + 1
    assert second["generator/loads"] == 1 and second["generator/logp_diff_max"] < TIGHT
    (new,) = listed(url)
    assert [new] != old and new.endswith(models.fingerprint("policy"))
    ours.close()
    assert listed(url) == []


@torch.no_grad()
def test_server_with_another_model_is_refused(url: str, models: ModelSet):
    embedding: Any = models.module("policy").get_input_embeddings()
    embedding.weight.copy_(torch.randn_like(embedding.weight))
    ours = generator(models, url)
    with pytest.raises(UserError, match="'policy'") as refused:
        ours.check_context(64)
    ours.close()
    assert refused.value.code == "logprob-gap"


def test_too_long_episodes_are_refused(url: str, models: ModelSet):
    ours = generator(models, url)
    ours.check_context(2048)
    assert listed(url) == [] and ours.loaded == {}
    with pytest.raises(UserError, match=r"2048 .* 2049") as refused:
        ours.check_context(2049)
    assert refused.value.code == "context-too-long"


@pytest.mark.slow
@pytest.mark.parametrize("algo", ["grpo", "nlac", "self_ac"])
def test_algorithm_trains_three_steps(url: str, served_folder: Path, tmp_path: Path, algo: str):
    short = ["steps=3", "eval.baseline=false", "eval_every=0", "eval.tasks=1", "eval.greedy=false"]
    start(vllm_run(url, served_folder, tmp_path, algo, *short), config_dirs=[folders(tmp_path)])
    run = Run(tmp_path / "it")
    rows = [row for row in run.metrics() if "reward/mean" in row]
    assert len(rows) == 3
    assert all(row["generator/logp_diff_max"] < TIGHT for row in rows)
    assert all(row["sampling/logp_diff_max"] < TIGHT for row in rows)
    versions = [row["generator/policy_version"] for row in rows]
    assert versions == sorted(set(versions)), "the server had new weights in every step"
    assert listed(url) == []
