"""Worlds from a file of words: broken files, ambiguous words, an oracle that answers."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from agentrl_cli.core.errors import SimulatorError, UserError
from agentrl_cli.core.types import Message
from agentrl_cli.envs.twentyq.oracle import calibrate, model_answer
from agentrl_cli.envs.twentyq.questions import Guess, Question, parse
from agentrl_cli.envs.twentyq.world import load_world
from tests.builders.twentyq import FULL, game, reply_to

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
def test_wrong_guess_removes_one_object(tmp_path, guesses, word):
    path = tmp_path / "letters.json"
    path.write_text(json.dumps({"letters": [[f"letter{i}"] for i in range(10)]}))
    env = game("letter0", world=str(path), test_objects=0, max_turns=guesses)
    texts = [reply_to(env, f"Maybe the first.\nIs it a letter{i + 1}?") for i in range(guesses)]
    assert texts[-1] == f"No. You lose. It was a letter0. {word}"
    assert env.game and len(env.game.candidates) == 10 - guesses


@pytest.mark.parametrize("second", ["dog,toy,plush", "fox,animal,pet", "pet,animal,"])
def test_ambiguous_name_is_refused(tmp_path, second):
    path = tmp_path / "words.csv"
    path.write_text(f"\ufeffname,category,variants\ndog,animal,pet\n{second}\n")
    with pytest.raises(UserError, match=r"'(dog|pet)'"):
        load_world(str(path))


@pytest.mark.parametrize(("name", "text"), [
    *(("a.json", text) for text in ("", "[]", "{}", '{"a": [[]]}', '{"a": [[1]]}')),
    ("a.txt", "# none\n"), ("a.csv", ""), ("a.csv", "word\n"),
])  # fmt: skip
def test_broken_word_list_is_refused(tmp_path, name, text):
    path = tmp_path / name
    path.write_text(text)
    for file in (str(path), "nowhere.json"):
        with pytest.raises(UserError) as error:
            load_world(file)
        assert error.value.code == "bad-word-list" and file in str(error.value)


def test_oracle_leaks_nothing(words):
    asked, replies = [], iter(["Yes, it is a radio.", "yes!", "It is a radio!", " sometimes"])

    def chat(messages, seed):
        asked.append(messages[-1].content)
        return next(replies)

    env = game("radio", world=words, test_objects=1, oracle="llm", llm=chat)
    texts = ["Is it loud?", "Hm.\nis it LOUD", "What is it?", "Is it on?", "Is it a radio?"]
    steps = [env.step(text) for text in texts]
    answers = [step.messages[0].content.split(".")[0] for step in steps]
    assert answers == ["Yes", "Yes", "I cannot answer that", "Sometimes", "Yes"]
    assert asked[0] == asked[1] == "Object: radio\nQuestion: is it loud?" and len(asked) == 4
    kinds = [(step.info["kind"], step.info["repeated"]) for step in steps[:3]]
    assert kinds == [("question", False), ("question", True), ("invalid", False)]


# other files


def test_all_formats_of_word_lists_are_equal(tmp_path: Path):
    texts = {
        "a.txt": "# mine\n[Toys]\nYo-yo, yo yo\nball\n\n[Tools]\nhammer\n",
        "a.csv": "word,category,variants\nYo-yo,Toys,yo yo\nball,toys,\nhammer,Tools,\n",
        "b.csv": "Yo-yo,yo yo\nball\nhammer\n",
        "b.json": '["Yo-yo", ["ball"], "hammer"]',
        "c.json": '{"Toys": ["Yo-yo", ["ball"]], "Tools": [["hammer"]]}',
    }
    for name, text in texts.items():
        path = tmp_path / name
        path.write_text(text)
        world = load_world(str(path))
        assert world.objects == ("yo-yo", "ball", "hammer"), name
        assert parse("Is it a yo yo?", world) == Guess("yo-yo")
    assert load_world(str(tmp_path / "a.csv")).categories["ball"] == "toys"


# a model as oracle, and how far it agrees with the table


def truth(messages: list[Message], seed: int) -> str:
    """A model that knows the table by heart, and thinks before it answers."""
    name, question = re.findall(r": (.*)", messages[-1].content)
    asked = parse(question, FULL)
    assert isinstance(asked, Question)
    return f"<think>no?</think> **{FULL.answer(name, asked.attribute)}**, of course: a {name}"


def test_model_answers_questions():
    env = game("dog", world="full", oracle="llm", llm=truth, parser="free", show_turns_left=False)
    assert reply_to(env, "Question 1: Is it alive?") == "Yes."
    assert reply_to(env, "Is it a cat?") == "No."
    assert env.step("Is it a dog?").info["success"]
    with pytest.raises(UserError) as error:
        game("dog", oracle="llm")
    assert error.value.code == "missing-model"


@pytest.mark.parametrize(
    "said, word", [("The answer is yes.", "yes"), ("Answer: **No**", "no"), ("Answers vary.", "")]
)
def test_answer_may_follow_a_lead_in(said: str, word: str):
    assert model_answer(lambda messages: said, "dog", "Is it big?") == word


@pytest.mark.parametrize("said", ["", "<think>A dog is alive, so"])
def test_oracle_without_words_breaks_the_episode(said: str):
    with pytest.raises(SimulatorError):
        model_answer(lambda messages: said, "dog", "Is it big?")


def test_answer_without_words_does_not_agree():
    rows = calibrate(FULL, lambda messages: "<think>Hm", 2, 0)
    assert not any(row.agreed or row.contradicted for row in rows)


def test_calibration_counts_agreement_by_attribute():
    rows = calibrate(FULL, lambda messages: truth(messages, 0), 6, 0)
    assert {row.attribute for row in rows} == set(FULL.attributes)
    assert all(row.share == 1 and not row.contradicted for row in rows)
    rows = calibrate(FULL, lambda messages: "Yes.", 6, 0)
    assert all(0 < row.share < 1 and row.agreed + row.contradicted == row.asked for row in rows)
    mute = calibrate(FULL, lambda messages: "It depends.", 2, 0)
    assert all(row.agreed == row.contradicted == 0 for row in mute)
