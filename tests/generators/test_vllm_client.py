"""Faulty vLLM servers cost an attempt, then their prompts; a refusal stops the run."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from agentrl_cli.core.errors import GeneratorError, RunAborted, UserError
from agentrl_cli.generators import vllm
from agentrl_cli.generators.base import Sampling
from agentrl_cli.generators.vllm import BLOCK, PrefixRouter
from agentrl_cli.models.model_set import ModelSet
from tests.builders.models import build
from tests.builders.vllm import generator, lora_models
from tests.fakes.vllm_server import serving

PROMPTS = [[5, 6, 7], [8, 9, 10], [11, 12, 13]]
SEEDS = [1, 2, 3]
SAMPLING = Sampling(max_tokens=4, temperature=0.0, stop_ids=())
NOBODY = "http://127.0.0.1:9"
SYSTEM = list(range(4 * BLOCK))


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm, "FIRST_PAUSE", 0.0)


@pytest.fixture(scope="module")
def models(model_folder: Path) -> ModelSet:
    return lora_models(model_folder)


def answer(ids: object = (1, 2, 3, 4), logprobs: object = (-1.0, -1.0, -1.0, -1.0)) -> str:
    choice = {"token_ids": ids, "logprobs": {"token_logprobs": logprobs}}
    return json.dumps({"choices": [choice]})


NONSENSE = [
    "[]", "{}", '{"choices": []}', '{"choices": [{"text": "hello"}]}',
    '{"choices": [{"token_ids": [1], "logprobs": null}]}',
    answer([], []), answer(logprobs=[-1.0]), answer(logprobs=["a", -1, -1, -1]),
    answer(logprobs=[float("nan"), -1.0, -1.0, -1.0]), answer(logprobs=[-1.0, 0.5, -1.0, -1.0]),
    answer("abcd"), answer([True, 2, 3, 4]), answer([-1, 2, 3, 4]), answer([10**9, 2, 3, 4]),
    answer([1, 2], [-1.0, -1.0]), answer([1] * 5, [-1.0] * 5),
]  # fmt: skip


def test_invalid_answers_are_retried_then_a_fault(model_folder: Path, models: ModelSet):
    with serving(model_folder, spoils=lambda i: NONSENSE[i // 2]) as server:
        ours = generator(models, server.url)
        for i in range(len(NONSENSE)):
            with pytest.raises(GeneratorError, match=server.url):
                ours.generate(PROMPTS[:1], SEEDS[:1], SAMPLING)
            assert len(server.asked) == 2 * i + 2


@pytest.mark.parametrize("fault", ["is busy", "hangs up", NONSENSE[3]])
def test_transient_fault_costs_one_retry(model_folder: Path, models: ModelSet, fault: str):
    with serving(model_folder) as server:
        whole = generator(models, server.url).generate(PROMPTS, SEEDS, SAMPLING)
    with serving(model_folder, spoils=lambda i: fault if i == 1 else None) as server:
        ours = generator(models, server.url)
        assert ours.generate(PROMPTS, SEEDS, SAMPLING) == whole
        assert ours.metrics()["generator/retries"] == 1


@pytest.mark.parametrize("fault", ["hangs", "drips"])
def test_attempt_has_time_limit(model_folder: Path, models: ModelSet, fault: str):
    with serving(model_folder, spoils=lambda i: fault) as server:
        ours = generator(models, server.url, timeout=0.5)
        began = time.monotonic()
        with pytest.raises(GeneratorError, match=r"0\.5 s"):
            ours.generate(PROMPTS, SEEDS, SAMPLING)
        assert time.monotonic() - began < 30


def test_other_prompts_keep_their_answers(model_folder: Path, models: ModelSet):
    def spoils(i: int) -> str | None:
        return "is busy" if server.asked[i]["prompt"] == PROMPTS[1] else None

    with serving(model_folder, spoils=spoils) as server:
        with pytest.raises(GeneratorError, match="503") as failed:
            generator(models, server.url).generate(PROMPTS, SEEDS, SAMPLING)
    assert [answers is None for answers in failed.value.answers] == [False, True, False]
    assert len(failed.value.answers[0][0].ids) == 4


def test_another_server_answers_for_a_lost_one(model_folder: Path, models: ModelSet):
    with serving(model_folder) as server:
        whole = generator(models, server.url).generate(PROMPTS, SEEDS, SAMPLING)
        ours = generator(models, NOBODY, server.url)
        assert ours.generate(PROMPTS, SEEDS, SAMPLING) == whole
        assert ours.metrics()["generator/retries"] > 0
        ours.close()


def test_prompts_are_shared_among_servers(model_folder: Path, models: ModelSet):
    with serving(model_folder) as one, serving(model_folder) as other:
        ours = generator(models, one.url, other.url)
        ours.generate(PROMPTS[:2], SEEDS[:2], SAMPLING)
        assert len(one.asked) == len(other.asked) == 1
        ours.close()
        assert one.adapters == other.adapters == {}


def test_restarted_server_gets_the_weights_again(model_folder: Path, models: ModelSet):
    with serving(model_folder) as server:
        ours = generator(models, server.url)
        whole = ours.generate(PROMPTS, SEEDS, SAMPLING)
        server.adapters.clear()
        assert ours.generate(PROMPTS, SEEDS, SAMPLING) == whole
        assert [line.split()[0] for line in server.history] == ["load", "load"]


def test_new_adapter_loads_before_old_unloads(model_folder: Path, models: ModelSet):
    with serving(model_folder) as server:
        ours = generator(models, server.url)
        for _ in range(2):
            ours.generate(PROMPTS, SEEDS, SAMPLING)
            models.mark_changed("policy")
        (first, second, gone) = server.history
        assert first.startswith("load ") and second.startswith("load ") and first != second
        assert gone == first.replace("load", "unload")
        assert not (Path(server.asked[0]["model"])).exists()


def test_request_overrides_server_defaults(model_folder: Path, models: ModelSet):
    with serving(model_folder) as server:
        generator(models, server.url).generate(PROMPTS[:1], SEEDS[:1], SAMPLING)
        (asked,) = server.asked
    neutral = {"top_p": 1, "top_k": -1, "min_p": 0, "repetition_penalty": 1, "n": 1}
    assert neutral.items() <= asked.items() and asked["ignore_eos"] is True
    assert 0 <= asked["seed"] < 2**63


@pytest.mark.parametrize(
    ("fault", "code"),
    [("refuses", "server-refused"), ("echoes", "server-refused"), ("wants a key", "key-refused")],
)
def test_refusal_stops_at_once_without_showing_keys(
    model_folder: Path, models: ModelSet, monkeypatch: pytest.MonkeyPatch, fault: str, code: str
):
    monkeypatch.setenv("VLLM_API_KEY", "a-long-secret")
    with serving(model_folder, spoils=lambda i: fault) as server:
        with pytest.raises(RunAborted) as stopped:
            generator(models, server.url).generate(PROMPTS[:1], SEEDS[:1], SAMPLING)
        assert len(server.asked) == 1
    assert stopped.value.code == code and "a-long-secret" not in str(stopped.value)
    assert fault != "echoes" or "Bearer ***" in str(stopped.value)


def test_unusable_servers_are_user_errors(model_folder: Path, models: ModelSet):
    with serving(model_folder, takes_adapters=False) as server:
        with pytest.raises(UserError) as refused:
            generator(models, server.url).check_context(64)
    assert (refused.value.code, refused.value.exit_code) == ("adapter-refused", 2)
    with pytest.raises(UserError, match="ConnectError") as refused:
        generator(models, NOBODY).check_context(64)
    assert refused.value.code == "server-unreachable"


@pytest.mark.parametrize(
    ("url", "code"),
    [
        *((url, "invalid-address") for url in
          ("localhost:8000", "http://", "ftp://h", "http://[::1", "http://h:8x")),
        ("http://me:secret@host:1", "user-in-address"),
    ],
)  # fmt: skip
def test_invalid_addresses_are_refused(models: ModelSet, url: str, code: str):
    with pytest.raises(UserError, match=r"hardware\.generator\.urls") as refused:
        generator(models, url)
    assert refused.value.code == code and "secret" not in str(refused.value)


def test_full_weights_and_empty_prompts_are_refused(model_folder: Path, models: ModelSet):
    with pytest.raises(UserError) as refused:
        generator(build(model_folder))
    assert refused.value.code == "lora-required"
    with pytest.raises(ValueError, match="prompt 1 is empty"):
        generator(models, NOBODY).generate([[1], []], [1, 2], SAMPLING)


def episode(number: int, turns: int) -> list[int]:
    """Return a prompt: a shared system message, then the turns of one episode."""
    return SYSTEM + [1000 * (number + 1) + k for k in range(turns * 2 * BLOCK)]


def test_router_keeps_episodes_on_their_server():
    router = PrefixRouter(3)
    first = router.route([episode(i, 1) for i in range(6)], "policy")
    assert sorted(first) == [0, 0, 1, 1, 2, 2]
    order = [4, 1, 5, 0, 3, 2]
    assert router.route([episode(i, 2) for i in order], "policy") == [first[i] for i in order]


def test_router_gives_equal_shares():
    router = PrefixRouter(2)
    assert router.route([SYSTEM] * 4, "policy").count(0) == 2
    router.route([episode(0, 1)], "policy")
    chosen = router.route([[*episode(0, 2), i] for i in range(4)], "policy")
    assert sorted(chosen) == [0, 0, 1, 1]


def test_router_separates_models_and_forgets():
    router = PrefixRouter(2)
    (first, second) = router.route([episode(0, 1), episode(1, 1)], "policy")
    assert first != second
    assert router.route([episode(1, 1)], "target") == [0]
    router.clear()
    assert router.route([episode(1, 2), episode(0, 2)], "policy") == [0, 1]
