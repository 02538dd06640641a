"""A real server with a tiny random model, `transformers serve`: the model plays, answers as oracle
and as customer, is not there, comes late. A server whose answers are chosen is in
tests/cli/test_endpoint.py."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from agentrl_cli.core.errors import SimulatorError
from agentrl_cli.core.types import Message
from agentrl_cli.generators.endpoint import OpenAIChat
from tests.builders.command_line import agentrl, refused
from tests.builders.transformers_server import (
    free_port,
    transformers_server,
    write_talking_model,
)

pytestmark = [pytest.mark.slow, pytest.mark.extras]
pytest.importorskip("openai", reason="needs the extra 'openai'")
MODEL = "played"
TOKENS = 6  # of an answer at most
FEW = ["eval.tasks=2", "eval.episodes_per_task=1", "eval.splits=[test]", "eval.greedy=false",
       f"rollout.max_new_tokens={TOKENS}", "hardware.threads=1"]  # fmt: skip


@dataclass
class Place:
    """A folder with the model, in which a server of it runs at `url`."""

    folder: Path
    url: str

    @property
    def model(self) -> list[str]:
        return ["model=endpoint", f"model.url={self.url}", f"model.name={MODEL}"]

    @property
    def simulator(self) -> list[str]:
        return [f"env.llm.model={MODEL}", f"env.llm.base_url={self.url}", "env.llm.max_tokens=6"]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("server")
    write_talking_model(folder / MODEL)
    with transformers_server(MODEL, free_port(), folder) as url:
        yield Place(folder, url)


def evaluated(*overrides: str) -> dict[str, Any]:
    done = agentrl("eval", *overrides, *FEW, "--json")
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def chat(url: str, retries: int) -> OpenAIChat:
    return OpenAIChat(
        model=MODEL, base_url=url, key_variable="NO_SUCH_API_KEY", temperature=0.0, max_tokens=4,
        timeout=60.0, retries=retries, cache=None,
    )  # fmt: skip


def test_what_it_plays_is_counted_and_paid(place: Place):
    prices = ["model.request.input_price=2.0", "model.request.output_price=10.0"]
    record = evaluated(*place.model, "env=twentyq", "env.max_turns=3", *prices)
    assert record["model"] == MODEL and record["eval/test_episodes"] == 2
    read, written = record["endpoint/tokens_read"], record["endpoint/tokens_written"]
    requests = 2 * record["eval/test_turns"]
    assert requests <= written <= TOKENS * requests
    assert read > 20 * requests  # what was said before is read again at every turn
    assert record["endpoint/cost"] == pytest.approx((2 * read + 10 * written) / 1e6)


def test_a_command_is_repeated_from_its_cache_when_the_server_is_gone(tmp_path: Path):
    write_talking_model(tmp_path / MODEL)
    port = free_port()
    command = ["model=endpoint", f"model.url=http://127.0.0.1:{port}/v1", f"model.name={MODEL}"]
    command += [
        "env=twentyq",
        "env.max_turns=2",
        f"model.request.cache={tmp_path / 'answers.jsonl'}",
    ]
    with transformers_server(MODEL, port, tmp_path):
        first = evaluated(*command)
    again = evaluated(*command)
    assert first["endpoint/tokens_written"] > 0 == again["endpoint/tokens_written"]
    played = {name: value for name, value in first.items() if name.startswith("eval/")}
    assert played == {name: value for name, value in again.items() if name.startswith("eval/")}


def test_it_criticises_and_refines_what_it_plays(place: Place):
    roles = [
        "algo=nlac",
        "algo.policy_target=refined",
        "algo.num_candidates=2",
        "algo.num_forecasts=1",
    ]
    roles += ["algo.advanced.role_tokens=6", "algo.separate_critic=false", "eval.act=refined"]
    plain = evaluated(*place.model, "env=twentyq", "env.max_turns=1")
    refined = evaluated(*place.model, "env=twentyq", "env.max_turns=1", *roles)
    assert refined["eval/test_episodes"] == 2
    assert refined["endpoint/tokens_read"] > 2 * plain["endpoint/tokens_read"]


def test_it_answers_as_oracle_and_as_customer(place: Place):
    rows = agentrl("calibrate", "env=twentyq", *place.simulator, "n=1", "--json")
    assert rows.exit_code == 0, rows.output
    record = json.loads(rows.stdout)
    assert record["questions"] == len(record["attributes"]) > 10
    assert record["agreement"] + record["contradicted"] <= 1
    customer = ["env=tau_mini", "env.user=llm", "env.max_turns=2", *place.simulator]
    done = agentrl("eval", "model=tiny", *customer, *FEW)
    assert done.exit_code == 0, done.output
    assert f"model '{MODEL}' at {place.url} was asked " in done.stderr
    assert " was asked 0 times" not in done.stderr


def test_a_model_that_it_does_not_serve_is_one_sentence(place: Place):
    other = [*place.model[:2], "model.name=another", "model.request.retries=0"]
    said = agentrl("eval", *other, "env=twentyq", *FEW)
    refused(said, "the server has no model 'another' (the endpoint gave no answer (BadRequestError")
    assert f"Server is pinned to '{MODEL}'" in said.stderr and "name one that" in said.stderr


def test_a_server_that_comes_late_is_asked_again(tmp_path: Path):
    write_talking_model(tmp_path / MODEL)
    port, answers = free_port(), []
    url, asked = f"http://127.0.0.1:{port}/v1", [Message("user", "Ask.")]
    with pytest.raises(SimulatorError, match="APIConnectionError"):
        chat(url, retries=0)(asked, 0)
    waiting = threading.Thread(target=lambda: answers.append(chat(url, retries=20)(asked, 0)))
    waiting.start()
    with transformers_server(MODEL, port, tmp_path):
        waiting.join(300)
    assert len(answers) == 1 and answers[0]
