"""Evaluation of a model on a server: episodes, roles, counted tokens, and refused requests."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from agentrl_cli.core.types import Message
from agentrl_cli.generators.endpoint import messages_of
from agentrl_cli.training.endpoint import END, ROLE, MessageChat
from tests.builders.command_line import agentrl, refused

pytest.importorskip("openai", reason="the client library asks the server")
pytestmark = pytest.mark.extras
FEW = ["eval.tasks=2", "eval.episodes_per_task=1", "eval.splits=[test]", "eval.greedy=false"]
ROLES = {  # how an instruction of prompts=instruct begins, and what a model answers to it
    "Predictions of": "**Optimality: No.** It repeats what is known.",
    "Predict": "The answer is no and the game is lost.\n\n**Outcome: Failure**",
    "A critique": "Is it a tool?",
}


class Server:
    """An OpenAI-compatible server with one model, `player`, that asks whether it is alive, unless
    it says something else."""

    def __init__(self) -> None:
        self.says, self.refusal = "Is it alive?", 400
        self.refuses: Callable[[int, str], bool] = lambda number, last: False
        self.requests: list[dict[str, Any]] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                outer.requests.append(asked)
                known = asked["model"] == "player"
                body = outer.answer(asked) if known else {"error": {"message": "no such model"}}
                last = asked["messages"][-1]["content"]
                is_refused = outer.refuses(len(outer.requests), last)
                if is_refused:
                    body = {"error": {"message": "the prompt is too long"}}
                self.send_response(outer.refusal if is_refused else 200 if known else 404)
                self.send_header("Content-Type", "application/json")
                self.end_headers()
                self.wfile.write(json.dumps(body).encode())

            def log_message(self, *arguments: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_port}/v1"

    def answer(self, asked: dict[str, Any]) -> dict[str, Any]:
        last = asked["messages"][-1]["content"]
        text = next((said for begin, said in ROLES.items() if last.startswith(begin)), self.says)
        message = {"role": "assistant", "content": text}
        choice = {"index": 0, "finish_reason": "stop", "message": message}
        usage = {"prompt_tokens": 10, "completion_tokens": 2, "total_tokens": 12}
        return {
            "id": "x", "object": "chat.completion", "created": 0, "model": "player",
            "choices": [choice], "usage": usage,
        }  # fmt: skip


@pytest.fixture
def server() -> Iterator[Server]:
    found = Server()
    yield found
    found.server.shutdown()
    found.server.server_close()


def evaluated(server: Server, *overrides: str) -> dict[str, Any]:
    named = ["model=endpoint", f"model.url={server.url}", "model.name=player"]
    done = agentrl("eval", *named, "env=twentyq", "env.max_turns=2", *FEW, *overrides, "--json")
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def test_messages_are_restored_from_ids():
    chat = MessageChat()
    first = [Message("system", "Play ÄÖ."), Message("user", "Ask.")]
    ids = chat.start(first) + chat.encode_action("Is it\nalive?")
    more = [Message("user", "Yes."), Message("tool", "{}")]
    ids += chat.extend(more, ids[-1])
    assert messages_of(ids, ROLE, END) == [*first, Message("assistant", "Is it\nalive?"), *more]
    assert chat.decode(chat.encode_action("ÄÖ")) == "ÄÖ" and chat.extend([], 5) == []
    prompt = chat.role_prompt(chat.start(first), chat.encode_action("Hm."), "Judge.", "system")
    assert messages_of(prompt, ROLE, END)[-1] == Message("system", "Judge.")


def test_tokens_and_cost_are_counted(server: Server):
    prices = ["model.request.input_price=1.0", "model.request.output_price=10.0"]
    record = evaluated(server, *prices)
    assert record["model"] == "player" and record["eval/test_episodes"] == 2
    assert record["eval/test_repeated"] == 0.5 and record["eval/test_turns"] == 2
    assert (record["endpoint/tokens_read"], record["endpoint/tokens_written"]) == (40, 8)
    assert record["endpoint/cost"] == pytest.approx((40 + 80) / 1e6)
    first = server.requests[0]
    roles = [row["role"] for row in first["messages"]]
    assert roles[0] == "system" and set(roles[1::2]) == {"user"}  # the example lies between
    assert set(roles[2::2]) == {"assistant"} and first["messages"][-1]["content"].startswith("Ask.")
    assert {"seed", "temperature", "max_tokens"} <= first.keys()


def test_roles_of_the_model_refine_its_actions(server: Server):
    acts = [
        "eval.act=refined",
        "env.instructions=short",
        "algo=nlac",
        "algo.policy_target=refined",
        "algo.num_candidates=2",
    ]
    record = evaluated(server, *acts, "algo.num_forecasts=1", "algo.separate_critic=false")
    roles = [request["messages"][-1]["role"] for request in server.requests]
    assert roles.count("system") >= 3 * 4  # forecast, critique, refinement of each of four turns
    assert record["eval/test_episodes"] == 2
    played = [r["messages"] for r in server.requests if r["messages"][-1]["role"] == "user"]
    assert any(row["content"] == "Is it a tool?" for rows in played for row in rows)


def test_refused_prompt_fails_its_episode(server: Server):
    server.refuses = lambda number, last: number == 1
    record = evaluated(server, "eval.episodes_per_task=3")
    assert record["eval/test_episodes"] == 6 and record["eval/test_failed"] == 1 / 6
    assert record["endpoint/tokens_read"] == 10 * (len(server.requests) - 1)
    server.refuses = lambda number, last: True
    named = ["model=endpoint", f"model.url={server.url}", "model.name=player", "env=twentyq"]
    done = agentrl("eval", *named, *FEW)
    assert done.exit_code == 1 and len(done.stderr.strip().splitlines()) == 1


def test_refused_account_stops_the_evaluation(server: Server):
    server.refusal, server.refuses = 402, lambda number, last: number == 1
    named = ["model=endpoint", f"model.url={server.url}", "model.name=player", "env=twentyq"]
    done = agentrl("eval", *named, *FEW, "eval.episodes_per_task=3")
    assert done.exit_code == 1 and "402" in done.stderr


def test_refused_role_fails_the_episodes(server: Server):
    """A refused prompt of a role leaves no unrefined action to play."""
    server.refuses = lambda number, last: last.startswith("A critique")
    acts = ["eval.act=refined", "env.instructions=short", "env=twentyq", "algo=nlac"]
    acts += ["algo.policy_target=refined", "algo.num_candidates=2", "algo.separate_critic=false"]
    named = ["model=endpoint", f"model.url={server.url}", "model.name=player"]
    done = agentrl("eval", *named, *FEW, *acts)
    assert done.exit_code == 1 and "too long" in done.stderr


def test_impossible_requests_are_refused(server: Server):
    named = ["model=endpoint", f"model.url={server.url}", "model.name=player"]
    refused(agentrl("train", *named, "env=twentyq"), "model=endpoint")
    refused(agentrl("eval", "model=endpoint", *FEW), "model=endpoint")
    search = agentrl("eval", *named, "search=tot", *FEW)
    refused(search, "search")
    other = agentrl("eval", *named[:2], "model.name=other", "env=twentyq", *FEW)
    refused(other, "'other'")
    tools = agentrl("eval", *named, "env=tau_mini", "env.actions=native", *FEW)
    refused(tools, "model=endpoint")


def test_empty_answers_agree_with_nothing(server: Server):
    server.says = ""
    named = ["env.llm.model=player", f"env.llm.base_url={server.url}", "n=1", "--json"]
    done = agentrl("calibrate", "env=twentyq", *named)
    assert done.exit_code == 0, done.output
    record = json.loads(done.stdout)
    assert record["questions"] == len(server.requests) > 10
    assert record["agreement"] == record["contradicted"] == 0


def test_unreachable_server_stops():
    named = ["model=endpoint", "model.url=http://127.0.0.1:9/v1", "model.name=player"]
    quick = ["model.request.retries=0", "model.request.timeout=1"]
    done = agentrl("eval", *named, *quick, "env=twentyq", *FEW)
    assert done.exit_code == 1 and len(done.stderr.strip().splitlines()) == 1
