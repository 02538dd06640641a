"""The environment: contract, action styles, hostile input, confirmation, reward."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentrl_cli.core.errors import UserError
from agentrl_cli.core.types import Step
from agentrl_cli.envs.check import check_env
from agentrl_cli.envs.tau.actions import RESPOND, Action, format_action, parse
from agentrl_cli.envs.tau.data import Domain
from agentrl_cli.envs.tau.env import TauBench, ground_truth
from agentrl_cli.envs.tau.mini import mini_domain
from agentrl_cli.envs.tau.tools import Database, parameters
from agentrl_cli.envs.tau.users import LLMUser
from tests.builders.tau import domain, services, tau_env

__all__ = ["services"]


def tool(name: str, **arguments: Any) -> str:
    return format_action(Action(name, arguments), "native")


def played(env: TauBench, actions: list[str], number: int = 0, split: str = "train") -> list[Step]:
    env.reset(env.tasks(split)[number], 0)
    return [env.step(action) for action in actions]


@pytest.mark.parametrize("style", ["react", "native", "call"])
def test_mini_keeps_the_contract(style: str):
    assert check_env(lambda: tau_env("mini", None, actions=style)) == []


def test_retail_keeps_the_contract(services: Path):
    assert check_env(lambda: tau_env("retail", services, user="silent")) == []


@pytest.mark.parametrize("style", ["react", "native"])
def test_expert_wins_with_the_scripted_user(services: Path, style: str):
    env = tau_env("retail", services, actions=style)
    task = env.tasks("train")[0]
    env.reset(task, 0)
    steps = [env.step(action) for action in env.expert(task) or ()]
    assert (steps[-1].reward, steps[-1].done, steps[-1].info["success"]) == (1.0, True, True)
    assert not any(step.info["unconfirmed"] or step.info["invalid"] for step in steps)


def test_expert_wins_every_mini_task():
    env, customers = tau_env("mini", None), []
    for split in ("train", "val", "test"):
        tasks = env.tasks(split)
        customers.append({task.data["user_id"] for task in tasks})
        for task in tasks:
            env.reset(task, 0)
            assert [env.step(action) for action in env.expert(task) or ()][-1].reward == 1.0
    assert customers[0] and customers[2] and not customers[0] & customers[2]


@pytest.mark.parametrize("hasty", ["more", "confirm"])
def test_hasty_agent_breaks_a_mini_rule(hasty: str):
    env = tau_env("mini", None)
    task = next(t for t in env.tasks("train") if t.data["requests"][0]["more"])
    env.reset(task, 0)
    steps: list[Step] = []
    for action in env.expert(task) or ():
        if hasty == "confirm" and "yes or no" in action:
            continue
        if hasty == "more":
            item, more = (task.data["requests"][0][key] for key in ("item", "more"))
            action = "Hm." if action.endswith("Is there more?") else action
            action = action.replace(f"{item}, {', '.join(more)}", item)
        steps.append(env.step(action))
        if steps[-1].done:
            break
    assert steps[-1].info["success"] == (hasty == "confirm")
    assert any(step.info["unconfirmed"] for step in steps) == (hasty == "confirm")


def test_unconfirmed_write_is_noted_and_still_rewarded(services: Path):
    env = tau_env("retail", services)
    calls = [tool(a["name"], **a["kwargs"]) for a in env.tasks("train")[0].data["actions"]]
    steps = played(env, [*calls, "All done.", "All done."])
    assert [step.info["unconfirmed"] for step in steps] == [True, True, False, False]
    assert steps[-1].reward == 1.0


def test_reward_needs_the_required_outputs(services: Path):
    env = tau_env("retail", services, user="silent")
    assert played(env, ["It was red."], split="test")[-1].reward == 0.0
    assert played(env, ["It was $5.25, thanks."], split="test")[-1].reward == 1.0


@pytest.mark.parametrize("domain", ["retail", "airline", "mini"])
def test_turn_limit_ends_in_a_loss(services: Path, domain: str):
    env = tau_env(domain, services, max_turns=2, user="scripted" if domain == "mini" else "silent")
    steps = played(env, [tool("think", thought="a")] * 2, split="test")
    assert [(s.done, s.truncated, s.reward) for s in steps] == [(False, False, 0), (True, False, 0)]
    assert steps[-1].info["success"] is False


def test_step_after_the_end_changes_nothing(services: Path):
    env = tau_env("retail", services, user="silent")
    before = Database(env.domain_data.tables).digest()
    assert played(env, ["Hello."])[-1].done
    assert env.digest() == before  # the verdict leaves the agent's state as it is
    assert before != ground_truth(env.domain_data, env.tasks("train")[0].data).digest()
    for late in ("more", tool("cancel_pending_order", order_id="#W1", reason="no longer needed")):
        step = env.step(late)
        assert (step.done, step.truncated, step.reward) == (True, False, 0.0)
        assert step.info["invalid"] and not step.info.get("success")
    assert env.digest() == before
    with pytest.raises(RuntimeError):
        tau_env("retail", services).step("early")


def test_transfer_ends_the_episode_with_a_verdict(services: Path):
    env = tau_env("retail", services)
    (step,) = played(env, [tool("transfer_to_human_agents", summary="x")])
    assert step.done and step.reward == 0.0 and step.messages[0].content == "Transfer successful"
    assert step.info["privileged"] == {"database": False, "outputs": True}


def test_episode_continues_after_pickling(services: Path):
    env = tau_env("retail", services)
    played(env, [tool("get_order_details", order_id="#W1")])
    twin = pickle.loads(pickle.dumps(env))
    assert twin.step("Anything else?") == env.step("Anything else?")


@pytest.mark.parametrize(
    "text, answer",
    [
        ("<tool_call>{</tool_call>", "Error: the tool call is not JSON"),
        ("<tool_call>[]</tool_call>", "Error: "),
        ('<tool_call>{"name": 3, "arguments": {}}</tool_call>', "Error: a call is"),
        ('<tool_call>{"name": "think", "arguments": "x"}</tool_call>', "Error: a call is"),
        ('{"name": "sing", "arguments": {}}', "Unknown action sing"),
        ('{"name": "respond", "arguments": {"content": 5}}', "Error: the content of respond"),
        ('{"name": "think", "arguments": {"thought": %s}}' % ("[" * 60 + "]" * 60), ""),
        ('<tool_call>{"name": "think", "arguments": {"thought": "%s"}}' % ("x" * 200_000), "Error"),
        ("<tool_call>" + "[" * 100_000, "Error: the tool call is not JSON"),
        ('{"name": "\\ud800", "arguments": {}}', "Unknown action ?"),
    ],
    ids=range(10),
)
def test_bad_calls_are_observations(services: Path, text: str, answer: str):
    (step,) = played(tau_env("retail", services), [text])
    content = step.messages[0].content
    assert content.startswith(answer) and step.info["invalid"] and not step.done
    assert content.encode() and json.dumps(step.info, ensure_ascii=False).encode()


@pytest.mark.parametrize(
    "name, text",
    [
        ("retail", tool("respond", content="\ud800 hello")),
        ("retail", tool("get_order_details", order_id="\ud800")),
        ("mini", tool("find", zip="\ud800", item="hat")), ("mini", tool("cancel", order="\ud800")),
        ("mini", tool("return", order="\ud800", items=["\ud800"])),
        ("mini", tool("respond", content="\ud800 zip?")),
    ],
)  # fmt: skip
def test_lone_surrogates_reach_neither_user_nor_agent(services: Path, name: str, text: str):
    env = tau_env(name, services, actions="native", user="llm", llm=lambda messages, seed: "Hm.")
    (step,) = played(env, [text])
    assert step.messages[0].content.encode() and not step.done
    assert env.conversation is not None and isinstance(env.conversation.user, LLMUser)
    assert all(m.content.encode() for m in env.conversation.user.messages)


@pytest.mark.parametrize(
    "text, style, name, arguments",
    [
        ('Thought:\nx\nAction:\n{"name": "think", "arguments": {"thought": "a"}}', "react",
         "think", {"thought": "a"}),
        ('Action: {"name": "respond", "arguments": {"content": "Hi"}}', "react", RESPOND,
         {"content": "Hi"}),
        ("Hello there", "react", RESPOND, {"content": "Hello there"}),
        ("Thought: a\nAction: Hello", "react", RESPOND, {"content": "Hello"}),
        ('Action: {"name": "think"', "react", RESPOND, {"content": '{"name": "think"'}),
        ("Action: 5", "react", RESPOND, {"content": "5"}),
        ('Well.<tool_call>{"name": "a", "arguments": {}}</tool_call><tool_call>{}</tool_call>',
         "native", "a", {}),
        ('<think>no</think>{"name": "a", "parameters": {"b": 1}}', "native", "a", {"b": 1}),
        ('[{"name": "a", "arguments": "{\\"b\\": 1}"}]', "native", "a", {"b": 1}),
        ('{"function": {"name": "a", "arguments": {}}}', "native", "a", {}),
        ("<think>hm</think> Hello", "native", RESPOND, {"content": "Hello"}),
        ('<think>I could write {"name": "a", "arguments": {}}. Let me', "native", RESPOND,
         {"content": ""}),
        ('maybe <tool_call>{"name": "a"}</tool_call>\n</think>\n\nYour zip?', "native", RESPOND,
         {"content": "Your zip?"}),
        ('<thought>Action: {"name": "a", "arguments": {}}</thought>Action: Hi', "react", RESPOND,
         {"content": "Hi"}),
        ('```json\n{"name": "a", "arguments": {}}\n```', "native", "a", {}),
        ("Action: `cancel(31)`", "call", "cancel", {"order": "31"}),
        ('return("31", "lamp").', "call", "return", {"order": "31", "items": "lamp"}),
        ("My next action: cancel(31)", "call", RESPOND, {"content": "My next action: cancel(31)"}),
        ('cancel(a 27")', "call", "cancel", {"order": 'a 27"'}),
        ('return(31, "lamp", "hat")', "call", "return", {"order": "31", "items": "lamp, hat"}),
        ("```\nOrder 1\n```\nIs that right?", "native", RESPOND,
         {"content": "```\nOrder 1\n```\nIs that right?"}),
        ('Action: {"name": "respond", "arguments": {"content": "Use <think> tags"}}', "react",
         RESPOND, {"content": "Use <think> tags"}),
        ("The tag <reasoning> is shown. Action: Hello", "react", RESPOND, {"content": "Hello"}),
        ("<think>x</think>cancel(31)", "call", "cancel", {"order": "31"}),
        ("I look.\ncancel(31)", "call", "cancel", {"order": "31"}),
        ("return(31, lamp, hat)", "call", "return", {"order": "31", "items": "lamp, hat"}),
        ("transfer()", "call", "transfer", {}), ("cancel()", "call", "cancel", {}),
        ("Is it (31)?", "call", RESPOND, {"content": "Is it (31)?"}),
        ("respond(Hello)", "call", RESPOND, {"content": "Hello"}),
    ],
)  # fmt: skip
def test_text_parses_as_call_or_words(text: str, style: str, name: str, arguments: dict):
    action = parse(text, style, mini_domain().tools)
    assert (action.name, action.arguments) == (name, arguments)


@pytest.mark.parametrize("text", ["```json\n{}\n```", "**\n{}", "json {}", "{}"])
def test_words_around_a_call_are_marked(text: str):
    call = '{"name": "cancel", "arguments": {}'  # a brace is missing
    action = parse("Action: " + text.replace("{}", call), "react", mini_domain().tools)
    assert action.name == RESPOND and action.malformed
    assert not parse("Action: json is a format", "react", mini_domain().tools).malformed


def test_thoughts_are_not_said(services: Path):
    text = "<think>\nThe order may be pending or delivered. Let me"
    for style in ("react", "native", "call"):
        action = parse(text, style, mini_domain().tools)
        assert action.malformed and action.arguments == {"content": ""}


def test_invalid_settings_are_refused(services: Path):
    for change in ({"user": "me"}, {"actions": "xml"}, {"max_turns": 0}, {"holdout": -1}):
        with pytest.raises(UserError, match=next(iter(change))):
            tau_env("retail", services, **change)
    with pytest.raises(UserError) as error:
        tau_env("retail", None).tasks("train")
    assert error.value.code == "missing-data"
    with pytest.raises(UserError, match="all"):
        tau_env("mini", None).tasks("all")
    with pytest.raises(UserError) as error:
        played(tau_env("retail", services, user="llm"), [])
    assert error.value.code == "missing-model"


def test_held_out_train_tasks_form_the_test_split(services: Path):
    kept = tau_env("retail", services, holdout=1)
    assert [len(kept.tasks(split)) for split in ("train", "dev", "test")] == [0, 0, 1]
    assert kept.tasks("test")[0].id == "retail-train-0"
    official = tau_env("retail", services, holdout=1, user="silent")
    assert official.tasks("test")[0].id == "retail-test-0"
    with pytest.raises(UserError) as error:
        played(tau_env("retail", services), [], split="test")
    assert error.value.code == "unsupported-instruction"


def words(service: Domain) -> st.SearchStrategy[Any]:
    """Arguments of a call: ids of the tables, and any other JSON value."""
    ids = [key for table in service.tables.values() for key in table]
    known = st.sampled_from(
        [*ids, "101", "201", "credit_card_1", "gift_card_2", "no longer needed"]
    )
    plain = st.none() | st.booleans() | st.integers(-9, 9) | st.floats() | st.text(max_size=4)
    return st.recursive(known | plain, lambda x: st.lists(x, max_size=3) | st.dictionaries(
        st.sampled_from(["payment_id", "amount", "flight_number", "date"]), x, max_size=3),
        max_leaves=6)  # fmt: skip


@pytest.mark.parametrize("name", ["retail", "airline", "mini"])
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_random_calls_keep_database_invariants(services: Path, name: str, data: st.DataObject):
    service = mini_domain() if name == "mini" else domain(name, services)
    env = tau_env(name, services, user="silent", actions="native")
    shared = Database(service.tables).digest()
    env.reset(env.tasks("test")[0], 0)
    for _ in range(data.draw(st.integers(1, 5))):
        chosen = data.draw(st.sampled_from(sorted(service.tools)))
        about = {p: data.draw(words(service)) for p in parameters(service.tools[chosen])}
        before, step = env.digest(), env.step(tool(chosen, **about))
        assert isinstance(step.messages[0].content, str)
        wrote = chosen in service.writes and not step.info["tool_error"]
        assert wrote or env.digest() == before or used_up(env)
        if step.done:
            break
    assert Database(service.tables).digest() == shared
    assert env.conversation is not None
    for table_name, table in env.conversation.database.tables.items():
        base = list(service.tables[table_name])  # records stay, new ones come last, all is JSON
        assert list(table)[: len(base)] == base and len(table) == len(list(table))
        json.dumps(list(table.values()))


def used_up(env: TauBench) -> bool:
    """The one write of the benchmark that fails half-way: a certificate named twice."""
    user = env.conversation.database["users"].get("bo_dahl_2") if env.conversation else None
    return user is not None and "certificate_3" not in user["payment_methods"]
