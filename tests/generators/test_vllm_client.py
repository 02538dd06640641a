"""Servers that are busy, silent, lost or talk nonsense cost an attempt, then their prompts; those
that refuse say why."""

from __future__ import annotations

import gc
import json
import time
from pathlib import Path

import pytest

from agentrl_cli.core.errors import GeneratorError, StoppedRun, UserError
from agentrl_cli.generators import vllm_client
from agentrl_cli.generators.background import wait_for
from agentrl_cli.generators.base import Sampling
from agentrl_cli.models.model_set import ModelSet
from tests.builders.models import build
from tests.builders.vllm import generator, lora_models
from tests.fakes.vllm_server import serving

PROMPTS = [[5, 6, 7], [8, 9, 10], [11, 12, 13]]
SEEDS = [1, 2, 3]
SAMPLING = Sampling(max_tokens=4, temperature=0.0, stop_ids=())
NOBODY = "http://127.0.0.1:9"


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm_client, "FIRST_PAUSE", 0.0)


@pytest.fixture(scope="module")
def models(model_folder: Path) -> ModelSet:
    return lora_models(model_folder)


def answer(ids: object = (1, 2, 3, 4), logprobs: object = (-1.0, -1.0, -1.0, -1.0)) -> str:
    choice = {"token_ids": ids, "logprobs": {"token_logprobs": logprobs}}
    return json.dumps({"choices": [choice]})


NONSENSE = {
    "no object": "[]",
    "no choices": "{}",
    "an empty list of them": '{"choices": []}',
    "no ids": '{"choices": [{"text": "hello"}]}',
    "no log-probs": '{"choices": [{"token_ids": [1], "logprobs": null}]}',
    "nothing": answer([], []),
    "too few log-probs": answer(logprobs=[-1.0]),
    "log-probs that are no numbers": answer(logprobs=["a", -1, -1, -1]),
    "log-probs that are not finite": answer(logprobs=[float("nan"), -1.0, -1.0, -1.0]),
    "a chance above one": answer(logprobs=[-1.0, 0.5, -1.0, -1.0]),
    "a text for ids": answer("abcd"),
    "an id that is true": answer([True, 2, 3, 4]),
    "an id below zero": answer([-1, 2, 3, 4]),
    "an id beyond the vocabulary": answer([10**9, 2, 3, 4]),
    "an end before its limit": answer([1, 2], [-1.0, -1.0]),
    "more than was asked for": answer([1] * 5, [-1.0] * 5),
}


@pytest.mark.parametrize("name", sorted(NONSENSE))
def test_nonsense_is_asked_for_again_and_then_no_answer(
    model_folder: Path, models: ModelSet, name: str
):
    with serving(model_folder, spoils=lambda i: NONSENSE[name]) as server:
        with pytest.raises(GeneratorError, match=f"the server at {server.url} gave an answer"):
            generator(models, server.url).generate(PROMPTS[:1], SEEDS[:1], SAMPLING)
        assert len(server.asked) == 2


@pytest.mark.parametrize("fault", ["is busy", "hangs up", NONSENSE["no ids"]])
def test_a_fault_that_passes_is_an_attempt_more(model_folder: Path, models: ModelSet, fault: str):
    with serving(model_folder) as server:
        whole = generator(models, server.url).generate(PROMPTS, SEEDS, SAMPLING)
    with serving(model_folder, spoils=lambda i: fault if i == 1 else None) as server:
        ours = generator(models, server.url)
        assert ours.generate(PROMPTS, SEEDS, SAMPLING) == whole
        assert ours.metrics()["generator/retries"] == 1


@pytest.mark.parametrize("fault", ["hangs", "drips"])
def test_an_attempt_has_a_limit_of_time(model_folder: Path, models: ModelSet, fault: str):
    with serving(model_folder, spoils=lambda i: fault) as server:
        ours = generator(models, server.url, timeout=0.5)
        began = time.monotonic()
        with pytest.raises(GeneratorError, match=r"gave no answer within 0\.5 s"):
            ours.generate(PROMPTS, SEEDS, SAMPLING)
        assert time.monotonic() - began < 30


def test_prompts_without_an_answer_are_named_and_the_others_keep_theirs(
    model_folder: Path, models: ModelSet
):
    def spoils(i: int) -> str | None:
        return "is busy" if server.asked[i]["prompt"] == PROMPTS[1] else None

    with serving(model_folder, spoils=spoils) as server:
        with pytest.raises(GeneratorError, match="answers 503 to /v1/completions") as failed:
            generator(models, server.url).generate(PROMPTS, SEEDS, SAMPLING)
    assert [answers is None for answers in failed.value.answers] == [False, True, False]
    assert len(failed.value.answers[0][0].ids) == 4


def test_another_server_answers_for_one_that_is_lost(model_folder: Path, models: ModelSet):
    with serving(model_folder) as server:
        whole = generator(models, server.url).generate(PROMPTS, SEEDS, SAMPLING)
        ours = generator(models, NOBODY, server.url)
        assert ours.generate(PROMPTS, SEEDS, SAMPLING) == whole
        assert ours.metrics()["generator/retries"] > 0
        ours.close()


@pytest.mark.timeout(60)
def test_a_generator_may_be_collected_where_its_calls_are_made(
    model_folder: Path, models: ModelSet
):
    async def collect() -> None:
        gc.collect()

    with serving(model_folder) as server:
        for _ in range(2):
            cycle = [generator(models, server.url)]
            cycle.append(cycle)  # pyright: ignore[reportArgumentType]
            cycle[0].generate(PROMPTS, SEEDS, SAMPLING)
            del cycle
            wait_for(collect())
        limit = time.monotonic() + 30
        while server.adapters and time.monotonic() < limit:
            time.sleep(0.01)
        assert server.adapters == {}


def test_prompts_are_shared_among_servers(model_folder: Path, models: ModelSet):
    with serving(model_folder) as one, serving(model_folder) as other:
        ours = generator(models, one.url, other.url)
        ours.generate(PROMPTS[:2], SEEDS[:2], SAMPLING)
        assert len(one.asked) == len(other.asked) == 1
        ours.close()
        assert one.adapters == other.adapters == {}


def test_a_server_that_was_started_anew_is_given_the_weights_again(
    model_folder: Path, models: ModelSet
):
    with serving(model_folder) as server:
        ours = generator(models, server.url)
        whole = ours.generate(PROMPTS, SEEDS, SAMPLING)
        server.adapters.clear()
        assert ours.generate(PROMPTS, SEEDS, SAMPLING) == whole
        assert [line.split()[0] for line in server.history] == ["load", "load"]


def test_weights_are_changed_by_new_names_before_the_old_ones_go(
    model_folder: Path, models: ModelSet
):
    with serving(model_folder) as server:
        ours = generator(models, server.url)
        for _ in range(2):
            ours.generate(PROMPTS, SEEDS, SAMPLING)
            models.mark_changed("policy")
        (first, second, gone) = server.history
        assert first.startswith("load ") and second.startswith("load ") and first != second
        assert gone == first.replace("load", "unload")
        assert not (Path(server.asked[0]["model"])).exists()


def test_nothing_of_the_server_s_own_defaults_is_left_to_it(model_folder: Path, models: ModelSet):
    with serving(model_folder) as server:
        generator(models, server.url).generate(PROMPTS[:1], SEEDS[:1], SAMPLING)
        (asked,) = server.asked
    neutral = {"top_p": 1, "top_k": -1, "min_p": 0, "repetition_penalty": 1, "n": 1}
    assert neutral.items() <= asked.items() and asked["ignore_eos"] is True
    assert 0 <= asked["seed"] < 2**63


@pytest.mark.parametrize(
    ("fault", "sentence"),
    [
        ("refuses", r"answers 400 to /v1/completions \(the prompt is too long\); mend that"),
        ("wants a key", r"answers 401 .*; set VLLM_API_KEY to the key that it was started with"),
    ],
)
def test_a_refusal_stops_the_run_at_once(
    model_folder: Path, models: ModelSet, fault: str, sentence: str
):
    with serving(model_folder, spoils=lambda i: fault) as server:
        with pytest.raises(StoppedRun, match=sentence):
            generator(models, server.url).generate(PROMPTS[:1], SEEDS[:1], SAMPLING)
        assert len(server.asked) == 1


def test_a_key_is_sent_and_never_shown(
    model_folder: Path, models: ModelSet, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("VLLM_API_KEY", "a-long-secret")
    with serving(model_folder, spoils=lambda i: "echoes") as server:
        with pytest.raises(StoppedRun, match=r"answers 400 .*Bearer \*\*\*") as no:
            generator(models, server.url).generate(PROMPTS[:1], SEEDS[:1], SAMPLING)
    assert "a-long-secret" not in str(no.value)


def test_a_server_that_takes_no_adapters_is_refused(model_folder: Path, models: ModelSet):
    with serving(model_folder, takes_adapters=False) as server:
        with pytest.raises(UserError, match="takes no adapters while it runs; start it with") as no:
            generator(models, server.url).check_context(64)
    assert no.value.exit_code == 2


def test_a_server_that_cannot_be_reached_is_refused(models: ModelSet):
    with pytest.raises(UserError, match=r"gave no answer \(ConnectError.*; start a server with"):
        generator(models, NOBODY).check_context(64)


@pytest.mark.parametrize(
    "url", ["localhost:8000", "http://", "ftp://h", "http://[::1", "http://h:8x"]
)
def test_what_is_no_address_is_refused(models: ModelSet, url: str):
    with pytest.raises(UserError, match=r"hardware.generator.urls holds .*; give addresses"):
        generator(models, url)


def test_a_password_in_an_address_is_refused_and_not_shown(models: ModelSet):
    with pytest.raises(UserError, match="holds a user; give the address alone, and a key") as no:
        generator(models, "http://me:secret@host:1")
    assert "secret" not in str(no.value)


def test_full_fine_tuning_is_refused(model_folder: Path):
    with pytest.raises(UserError, match=r"carries LoRA adapters to its servers, and model.lora is"):
        generator(build(model_folder))


@pytest.mark.parametrize(
    "wrong", [{"requests": 0}, {"timeout": 0}, {"retries": -1}, {"max_logprob_gap": 0}]
)
def test_numbers_that_cannot_be_are_refused(models: ModelSet, wrong: dict[str, float]):
    with pytest.raises(UserError, match=next(iter(wrong))):
        generator(models, NOBODY, **wrong)


def test_an_empty_prompt_is_our_own_mistake(models: ModelSet):
    with pytest.raises(ValueError, match="prompt 1 is empty"):
        generator(models, NOBODY).generate([[1], []], [1, 2], SAMPLING)
