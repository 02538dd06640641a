"""The instructions of environments: those of the bundled model stay as it learned them, and the
examples of the others are in the form that the environment reads."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from agentrl_cli.config.compose import build, compose_checked
from agentrl_cli.core.types import Message, Task
from agentrl_cli.envs.base import SPLITS
from agentrl_cli.envs.check import answer, opening, preamble
from agentrl_cli.envs.tau.mini import mini_domain
from agentrl_cli.envs.twentyq.questions import Guess, Question, parse, read_freely
from agentrl_cli.envs.twentyq.world import load_world
from agentrl_cli.rollout.demos import DemoReader, expert_episode
from tests.rollout.test_families import FAMILIES, chat_of

OPENINGS = {  # of the first train task with the bundled model, as a hash of the texts
    "twentyq": "794b4777837e",
    "twentyq_full": "1b992bc739a1",
    "arithmetic": "f5c4b8811fec",
    "tau_mini": "449cb8e11e44",
    "wiki": "a80d1661d197",
    "wiki_full": "572d8e662739",
    "courier": "55901fd3d2d0",
}
FULL = ("twentyq", "twentyq_full", "arithmetic", "tau_mini", "wiki", "wiki_full")


@cache
def env_of(name: str, *overrides: str, model: str = "hf") -> Any:
    chosen = ["model=hf", "model.path=x"] if model == "hf" else ["model=tiny"]
    return build(compose_checked([f"env={name}", *chosen, *overrides]).env)


def texts(messages: list[Message]) -> str:
    return json.dumps([[message.role, message.content] for message in messages])


@pytest.mark.parametrize("name", OPENINGS)
def test_bundled_model_reads_the_texts_it_learned(name: str):
    env = env_of(name, model="tiny")
    found = opening(env, env.tasks("train")[0], 0)
    assert [message.role for message in found] == ["system", "user"]
    assert hashlib.blake2b(texts(found).encode(), digest_size=6).hexdigest() == OPENINGS[name]


@pytest.mark.parametrize("name", FULL)
def test_example_stands_before_the_same_first_message(name: str):
    full, short = env_of(name), env_of(name, model="tiny")
    task = full.tasks("train")[0]
    begun = opening(full, task, 0)
    assert begun[: len(preamble(full))] == preamble(full)
    assert begun[len(preamble(full)) :] == opening(short, task, 0)[1:]
    roles = [message.role for message in begun]
    assert roles[0] == "system" and set(roles[1::2]) <= {"user", "tool"}
    assert set(roles[2::2]) == {"assistant"} and len(full.example()) >= 2


@pytest.mark.parametrize("size", ["small", "full"])
def test_example_game_asks_what_the_table_answers(size: str):
    env, world = env_of("twentyq" if size == "small" else "twentyq_full"), load_world(size)
    said = [m.content for m in env.example() if m.role == "assistant"]
    read = parse if env.parser == "exact" else read_freely
    *asked, last = [read(text, world) for text in said]
    replies = [m.content.split()[0] for m in env.example() if m.role == "user"][1:]
    assert isinstance(last, Guess)
    for question, reply in zip(asked, replies, strict=True):
        assert isinstance(question, Question) and not question.negated
        assert reply.lower() == f"{world.answer(last.object, question.attribute)}."


@pytest.mark.parametrize("actions", ["call", "native", "react"])
def test_example_of_the_shop_wins_in_its_own_parser(actions: str):
    env = env_of("tau_mini", f"env.actions={actions}")
    (data, *_) = mini_domain("example").tasks["train"]
    steps = replayed(env, Task("example", "example", data))
    assert steps[-1].info["success"]
    assert not any(step.info["invalid"] or step.info["tool_error"] for step in steps)


@pytest.mark.parametrize("overrides", [(), ("env.world=full",), ("env.task=article",)])
def test_example_of_the_wiki_wins_in_its_own_parser(overrides: tuple[str, ...]):
    env = env_of("wiki", *overrides)
    wiki = env.wiki("example")
    rows = (wiki.questions if env.task == "question" else wiki.articles)["example"]
    asked = env.example()[0].content
    row = next(row for row in rows if asked.startswith(row["question"]))
    steps = replayed(env, Task("example", "example", row))
    assert steps[-1].info["success"] and not any(step.info["invalid"] for step in steps)


def test_example_problem_is_solved_and_read():
    env = env_of("arithmetic", "env.turn_mode=single")
    problem = {"problem": env.example()[0].content, "answer": "46"}
    steps = replayed(env, Task("example", "example", problem))
    assert [step.info["success"] for step in steps] == [True]


@pytest.mark.parametrize("name", ["arithmetic", "wiki", "wiki_full"])
def test_example_is_no_task(name: str):
    env = env_of(name)
    asked = env.example()[0].content
    asked = asked.removesuffix(f" {getattr(env, 'max_turns', 0)} left.")
    for task in (task for split in SPLITS for task in env.tasks(split)):
        assert asked not in (task.data.get("question"), task.data.get("problem"))


def replayed(env: Any, task: Task) -> list[Any]:
    """Play the assistant's messages of the example in a copy of the environment."""
    played = replace(env)
    seen = played.reset(task, 0)
    steps, example = [], env.example()
    for message in example:
        if message.role == "assistant":
            steps.append(answer(played, message.content))
            seen += [message, *steps[-1].messages]
    assert seen[: len(example)] == example
    return steps


@pytest.mark.parametrize("name", FULL)
@pytest.mark.parametrize("family", ["chatml", "gemma", "llama3_1", "qwen3"])
def test_templates_show_the_example(name: str, family: str):
    if (name, family) == ("tau_mini", "gemma"):
        pytest.skip("the template has no tool role")
    env, chat = env_of(name), chat_of(FAMILIES[family])
    messages, at = opening(env, env.tasks("train")[0], 0), 0
    shown = chat.text_of(chat.start(messages, env.tools))
    for message in messages:
        begin = shown.find(message.content.strip(), at)
        assert begin >= at
        at = begin + len(message.content.strip())


@pytest.mark.parametrize("name", FULL)
def test_demonstrations_serve_both_instructions(name: str):
    chat, short, full = chat_of(FAMILIES["chatml"]), env_of(name, model="tiny"), env_of(name)
    task = short.tasks("train")[0]
    lines = [json.dumps(expert_episode(replace(env), task, 0, "x").to_json())
             for env in (short, full)]  # fmt: skip
    for env in (short, full):
        reader = DemoReader(env, chat, 100_000)
        one, other = (reader.read(text, 1) for text in lines)
        assert one.turns == other.turns
        assert one.turns[0].observation == opening(replace(env), task, 0)
        assert [turn.action for turn in one.turns] == [
            turn.action for turn in expert_episode(replace(short), task, 0, "x").turns
        ]


def test_dialogue_gets_the_example_and_does_not_train_on_it():
    env, chat = env_of("twentyq"), chat_of(FAMILIES["chatml"])
    said = [Message("user", "Ask. 12 left."), Message("assistant", "Is it an animal?")]
    begins = ([], [preamble(env)[0]], preamble(env))
    rows = [json.dumps({"messages": [{"role": m.role, "content": m.content} for m in [*b, *said]]})
            for b in begins]  # fmt: skip
    reader = DemoReader(env, chat, 100_000)
    for row in rows:
        (turn,) = reader.read(row, 1).turns
        assert turn.observation == [*preamble(env), said[0]] and turn.action == "Is it an animal?"


def test_example_of_a_short_game_counts_no_turns_below_zero():
    env = build(compose_checked(["env=twentyq", "env.instructions=full", "env.max_turns=2"]).env)
    texts = [message.content for message in env.example()]
    assert len(texts) == 4 and not any("-" in text for text in texts)
