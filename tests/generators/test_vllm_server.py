"""A vLLM server that a run starts, and servers that fail: each fault costs an attempt, then its
prompt; a refusal stops the run."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest
import torch

from agentrl_cli.core.errors import GeneratorError, RunAborted, UserError
from agentrl_cli.generators import vllm
from agentrl_cli.generators.base import Sampling
from agentrl_cli.generators.vllm import (
    BLOCK,
    PrefixRouter,
    ServedModel,
    choose_port,
    serve_command,
    serve_variables,
)
from agentrl_cli.models.model_set import ModelSet
from tests.builders.command_line import agentrl
from tests.builders.models import build
from tests.builders.vllm import generator, lora_models, server_settings, write_program
from tests.fakes.vllm_server import FakeVLLM, serving
from tests.paths import ROOT

PROMPTS = [[5, 6, 7], [8, 9, 10], [11, 12, 13]]
SEEDS = [1, 2, 3]
SAMPLING = Sampling(max_tokens=4, temperature=0.0, stop_ids=())
NOBODY = "http://127.0.0.1:9"
SYSTEM = list(range(4 * BLOCK))
SERVED = ServedModel(path="some/model", dtype="bfloat16", rank=20, models=2)
LORA = "model.lora={rank: 20, alpha: 32, targets: [all-linear]}"


@pytest.fixture(scope="module")
def models(model_folder: Path) -> ModelSet:
    return lora_models(model_folder)


def ends(pid: int) -> bool:
    """Whether the process ends within some seconds."""
    state, until = Path(f"/proc/{pid}/stat"), time.monotonic() + 20
    while time.monotonic() < until:
        if not state.exists() or state.read_text().rpartition(")")[2].split()[0] == "Z":
            return True
        time.sleep(0.05)
    return False


def test_command_serves_adapters():
    settings = server_settings(arguments=["--enforce-eager"])
    command = " ".join(serve_command(settings, SERVED, 8000))
    assert command.startswith("vllm serve some/model --host 127.0.0.1 --port 8000 ")
    assert "--dtype bfloat16 --max-model-len auto --generation-config vllm" in command
    assert "--enable-lora --max-lora-rank 32 --max-loras 4 --max-cpu-loras 4" in command
    assert command.endswith(" --enforce-eager")
    assert serve_variables(settings)["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] == "1"


def test_gpus_are_indices_into_visible_ones(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert "CUDA_VISIBLE_DEVICES" not in serve_variables(server_settings())
    chosen = server_settings(gpus=[1, 2])
    assert serve_variables(chosen)["CUDA_VISIBLE_DEVICES"] == "1,2"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,7")
    assert serve_variables(chosen)["CUDA_VISIBLE_DEVICES"] == "5,7"
    with pytest.raises(UserError, match=r"\[3\]") as refused:
        serve_variables(server_settings(gpus=[3]))
    assert refused.value.code == "missing-gpu"


def test_invalid_server_settings_are_refused(models: ModelSet, tmp_path: Path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        in_use = server_settings(port=port, program=str(write_program(tmp_path)))
        with pytest.raises(UserError, match=str(port)) as refused:
            choose_port(in_use)
        assert refused.value.code == "port-in-use"
        with pytest.raises(UserError, match=str(port)):
            generator(models, server=in_use).check_context(64)
    assert choose_port(server_settings()) > 0
    with pytest.raises(UserError, match="no-such-vllm") as refused:
        generator(models, server=server_settings(program="no-such-vllm")).check_context(64)
    assert refused.value.code == "missing-program"
    with pytest.raises(UserError, match="513"):
        served = ServedModel(path="m", dtype="float32", rank=513, models=1)
        serve_command(server_settings(), served, 8000)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("echo 'ValueError: no memory' >&2; echo bye; exit 3", r"code 3 \(ValueError: no memory\)"),
        ("exec sleep 1000", "not ready after 1 s"),
    ],
)
def test_server_that_does_not_start_is_stopped(
    models: ModelSet, tmp_path: Path, text: str, shown: str
):
    program = str(write_program(tmp_path, f"echo $$ > {tmp_path}/pid; {text}"))
    settings = server_settings(program=program, start_timeout=300.0 if "exit" in text else 1.0)
    with pytest.raises(UserError, match=shown) as refused:
        generator(models, server=settings).check_context(64)
    assert refused.value.code == "server-not-started"
    assert ends(int((tmp_path / "pid").read_text()))


@pytest.mark.slow
def test_run_starts_a_server_and_ends_it(models: ModelSet, tmp_path: Path):
    ours = generator(models, server=server_settings(program=str(write_program(tmp_path))))
    ours.check_context(64)
    assert len(ours.generate([[5, 6, 7]], [1], SAMPLING)[0][0].ids) == 4
    started, folder = ours.process, ours.folder
    assert started is not None and folder is not None and folder.is_dir()
    assert httpx.get(f"{started.url}/health").is_success
    ours.close()
    assert started.process.poll() is not None and not folder.exists()


@pytest.mark.slow
def test_killed_server_is_named_in_the_fault(models: ModelSet, tmp_path: Path):
    ours = generator(models, server=server_settings(program=str(write_program(tmp_path))))
    ours.generate([[5, 6, 7]], [1], SAMPLING)
    assert ours.process is not None
    os.killpg(ours.process.process.pid, signal.SIGKILL)
    with pytest.raises(GeneratorError, match="ended with code -9"):
        ours.generate([[5, 6, 8]], [1], SAMPLING)
    ours.close()


@pytest.mark.slow
def test_server_ends_when_its_parent_is_killed(tmp_path: Path):
    program = write_program(tmp_path, "exec sleep 1000")
    code = f"""
import time
from pathlib import Path
from agentrl_cli.generators.vllm import ServedModel, ServerProcess
from tests.builders.vllm import server_settings
served = ServedModel(path="m", dtype="float32", rank=8, models=1)
settings = server_settings(program={str(program)!r})
started = ServerProcess(settings, served, Path({str(tmp_path / "log")!r}))
print(started.process.pid, flush=True)
time.sleep(1000)
"""
    parent = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    os.kill(pid, 0)  # it is alive
    parent.kill()
    parent.wait()
    assert ends(pid)


def test_serve_prints_the_command(tmp_path: Path):
    given = ["model=hf", f"model.path={tmp_path}", "model.dtype=bfloat16", "model.lora.rank=64"]
    result = agentrl("serve", "--print", *given, "algo=nlac")
    assert result.exit_code == 0, result.output
    (line,) = result.stdout.splitlines()
    assert "VLLM_ALLOW_RUNTIME_LORA_UPDATING=1 " in line and "CUDA_VISIBLE_DEVICES=1 " in line
    assert f" serve {tmp_path} --host 127.0.0.1 --port 8000 --dtype bfloat16 " in line
    assert "--max-lora-rank 64 " in line


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ((), "model.lora"),
        (("hardware=cpu",), "hardware=cpu"),
        ((LORA, "--print"), "model=tiny"),
        ((LORA, "hardware.generator.server.program=no-such"), "no-such"),
        ((LORA, "hardware.generator.server.prot=1"), "hardware.generator.server.prot"),
    ],
)
def test_serve_refuses_unusable_settings(given: tuple[str, ...], shown: str):
    result = agentrl("serve", *given)
    assert result.exit_code == 2 and shown in result.stderr and result.stdout == ""


@pytest.mark.slow
def test_serve_writes_the_bundled_model(tmp_path: Path):
    program = write_program(tmp_path, f'ls "$2" > {tmp_path}/files; exit 4')
    given = [LORA, f"hardware.generator.server.program={program}", "hardware.device=cpu"]
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    result = agentrl("serve", *given, f"hardware.generator.server.port={port}")
    assert result.exit_code == 1 and "code 4" in result.stderr
    assert f"hardware=vllm hardware.generator.urls=[http://127.0.0.1:{port}]" in result.stderr
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= set(
        (tmp_path / "files").read_text().split()
    )


# faults and refusals of servers


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm, "FIRST_PAUSE", 0.0)


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


@torch.no_grad()
def change_weights(server: FakeVLLM) -> None:
    server.base.get_input_embeddings().weight.mul_(-1)


def test_one_wrong_server_of_several_is_refused(model_folder: Path, models: ModelSet):
    prompts, seeds = [PROMPTS[0]] * 3, [1] * 3
    with serving(model_folder) as a, serving(model_folder) as b, serving(model_folder) as wrong:
        change_weights(wrong)
        alone = generator(models, wrong.url, max_logp_diff=None)
        alone.generate(prompts[:1], seeds[:1], SAMPLING)
        limit = 0.7 * alone.metrics()["generator/logp_diff_mean"]
        with pytest.raises(RunAborted, match=wrong.url) as stopped:
            ours = generator(models, a.url, b.url, wrong.url, max_logp_diff=limit)
            ours.generate(prompts, seeds, SAMPLING)
    assert stopped.value.code == "logprob-gap"


def test_restarted_server_is_checked_again(model_folder: Path, models: ModelSet):
    with serving(model_folder) as server:
        ours = generator(models, server.url)
        ours.generate(PROMPTS, SEEDS, SAMPLING)
        change_weights(server)
        server.adapters.clear()
        with pytest.raises(RunAborted) as stopped:
            ours.generate(PROMPTS, SEEDS, SAMPLING)
    assert stopped.value.code == "logprob-gap"


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
