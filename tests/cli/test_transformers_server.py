"""A tiny random model on a real server, `transformers serve`, as agent, oracle and customer."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.builders.command_line import agentrl
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


def test_model_criticises_and_refines(place: Place):
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


def test_model_answers_as_oracle_and_customer(place: Place):
    rows = agentrl("calibrate", "env=twentyq", *place.simulator, "n=1", "--json")
    assert rows.exit_code == 0, rows.output
    record = json.loads(rows.stdout)
    assert record["questions"] == len(record["attributes"]) > 10
    assert record["agreement"] + record["contradicted"] <= 1
    customer = ["env=tau_mini", "env.user=llm", "env.max_turns=2", *place.simulator]
    done = agentrl("eval", "model=tiny", *customer, *FEW)
    assert done.exit_code == 0, done.output
    last = done.stderr.splitlines()[-1]
    assert last.startswith(f"model '{MODEL}' at {place.url}: ") and ": 0 " not in last
