"""Worlds from a file of words: broken files, ambiguous words, an oracle that answers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agentrl_cli.core.errors import UserError
from agentrl_cli.envs.twentyq.oracle import Oracle
from agentrl_cli.envs.twentyq.questions import Guess, parse
from agentrl_cli.envs.twentyq.world import load_world
from tests.builders.twentyq import game, reply_to

# worlds from a file


@pytest.fixture
def words(tmp_path: Path) -> str:
    clothes, devices = [["Shoes", "Shoe", "Pair of shoes"]], [["Television", "TV"], ["Radio"]]
    lists = {"Clothes": clothes, "Electronics": devices}
    path = tmp_path / "words.json"
    path.write_text(json.dumps(lists))
    return str(path)


def test_a_word_list_is_a_world_of_guesses(words):
    world = load_world(words)
    assert (world.objects, world.attributes) == (("shoes", "television", "radio"), ())
    assert world.guess("shoes") == "Is it a pair of shoes?"
    assert parse("Is it a TV?", world) == Guess("television")
    assert parse("Is it a shoe?", world) == Guess("shoes")
    env = game("radio", world=words, test_objects=1)
    assert reply_to(env, "Is it alive?") == "I cannot answer that. 9 left."
    assert env.step("Is it a radio?").info["success"]


@pytest.mark.parametrize(
    ("guesses", "word"), [(1, "Far."), (2, "Near."), (6, "Near."), (7, "Close."), (9, "Close.")]
)
def test_each_wrong_guess_from_a_word_list_leaves_one_object_less(tmp_path, guesses, word):
    path = tmp_path / "letters.json"
    path.write_text(json.dumps({"letters": [[f"letter{i}"] for i in range(10)]}))
    env = game("letter0", world=str(path), test_objects=0, turns=guesses)
    texts = [reply_to(env, f"Maybe the first.\nIs it a letter{i + 1}?") for i in range(guesses)]
    assert texts[-1] == f"No. You lose. It was a letter0. {word}"
    assert env.game and len(env.game.candidates) == 10 - guesses


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"a": [[]]}', '{"a": [[1]]}', '{"a": [[""]]}'])
def test_a_broken_word_list_is_the_users_mistake(tmp_path, text):
    path = tmp_path / "broken.json"
    path.write_text(text)
    with pytest.raises(UserError, match=r"broken\.json"):
        load_world(str(path))
    with pytest.raises(UserError, match="nowhere"):
        load_world("nowhere.json")


def test_an_oracle_answers_each_question_once_and_cannot_leak_the_object(words):
    asked, replies = [], iter(["Yes, it is a radio.", "It is a radio!", " sometimes"])

    def chat(messages):
        asked.append(messages[-1].content)
        return next(replies)

    env = game("radio", world=words, test_objects=1)
    env.oracle = Oracle(chat)
    texts = ["Is it loud?", "Hm.\nis it LOUD", "What is it?", "Is it on?", "Is it a radio?"]
    steps = [env.step(text) for text in texts]
    answers = [step.messages[0].content.split(".")[0] for step in steps]
    assert answers == ["Yes", "Yes", "I cannot answer that", "Sometimes", "Yes"]
    assert asked[0] == "Object: radio\nQuestion: is it loud?" and len(asked) == 3
    kinds = [(step.info["kind"], step.info["repeated"]) for step in steps[:3]]
    assert kinds == [("question", False), ("question", True), ("invalid", False)]
