"""Questions as real models ask them: read where the table can say, told apart where it cannot."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from agentrl_cli.envs.twentyq.questions import Guess, Question, Unanswerable, parse, read_freely
from tests.builders.twentyq import FULL, game

ASKED = json.loads(Path(__file__).with_name("asked_questions.json").read_text(encoding="utf-8"))


def label(text: str) -> str | None:
    """What the text is read as: an attribute, `-` before it where it is negated, `=` before an
    object, None where no attribute answers it, `unread`."""
    found = read_freely(text, FULL)
    if isinstance(found, Question):
        return f"-{found.attribute}" if found.negated else found.attribute
    if isinstance(found, Guess):
        return f"={found.object}"
    return None if isinstance(found, Unanswerable) else "unread"


def test_published_questions_get_no_wrong_answer():
    read = [label(row["text"]) for row in ASKED]
    assert len(ASKED) == 60 and len({row["text"] for row in ASKED}) == 60
    assert sum(found == row["read"] for found, row in zip(read, ASKED, strict=True)) >= 57
    for found, row in zip(read, ASKED, strict=True):
        assert found in (None, row["read"]), row["text"]  # else a No could be a lie


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("Question 1: Is it alive?", "alive"), ("1. Is it man-made?", "man_made"),
        ("**Is it an animal?**", "animal"), ("Q3) Is it larger than a person", "big"),
        ("My guess is: a cat.", "=cat"), ("Could it be a cat?", "=cat"),
        ("Final guess: toothbrush", "=toothbrush"), ("I think it's a piano.", "=piano"),
        ("<think>Is it a dog? Maybe.</think>\n\nIs it alive?", "alive"),
        ("It is not alive.\nSo it may be a tool.\n\nIs it a hand tool?", "tool"),
        ("Okay, is it something that you can eat?", "eaten"),
        ("Is it an object that can fly?", "fly"), ("Is it inanimate?", "-alive"),
        ("Is it not alive?", "-alive"),
        ("Great! Is it a container (like a bowl)?\n\nShall I go on?", "container"),
        ("Thought: small\nAction: Is it a dog?", "=dog"), ("Is it sometimes eaten?", None),
        ("Is it a cat or a dog?", None), ("Is it a toothpaste?", None),
        ("Is it bigger than a breadbox?", None), ("Is it a cat? Is it a dog?", "unread"),
        ("Is it alive? Can it fly?", "unread"), ("<think>Is it alive?", "unread"),
        ("<think>I could ask\nIs it a dog?", "unread"), ("Is it found indoors?", None),
        ("Would you like a hint?", "unread"), ("hm", "unread"), ("", "unread"),
    ],
)  # fmt: skip
def test_question_is_found_in_text_of_models(text: str, read: str | None):
    assert label(text) == read


def test_no_two_attributes_share_a_wording():
    owner: dict[str, str] = {}
    lines = Path(parse.__code__.co_filename).with_name("synonyms.txt").read_text().splitlines()
    for line in lines[2:]:
        key, *texts = (part.strip() for part in line.split("|"))
        for text in texts:
            assert label(text) == key, text
            assert owner.setdefault(text, key) == key


def test_unanswerable_question_suggests_three_others():
    env = game("dog", world="full", parser="free", show_turns_left=False)
    step = env.step("Question 2: Is it larger than a microwave oven?")
    text = step.messages[0].content
    assert text.startswith("I cannot answer that. You could ask: Is it bigger than a person? ")
    assert text.count("?") == 3 and step.info["invalid"]
    assert env.step("Hm.").messages[0].content == "I cannot answer that."
    assert env.step("**Question 4:** Is it a living organism?").messages[0].content == "Yes."


@pytest.mark.parametrize("read", [parse, read_freely])
@pytest.mark.parametrize(
    "text", ["\n", " ", "Is it a ", "question 1: ", "action: ", "<think>", "(like ", "? "]
)
def test_long_text_is_parsed_fast(read, text: str):
    began = time.process_time()
    read(text * 100_000, FULL)
    assert time.process_time() - began < 3
