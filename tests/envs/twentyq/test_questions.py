"""The parser of Twenty Questions reads one question or one guess, in any form, and nothing else."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl_cli.envs.twentyq import questions
from agentrl_cli.envs.twentyq.questions import Guess, Question, parse
from tests.builders.twentyq import FULL, SMALL, game


@pytest.mark.parametrize("world", [SMALL, FULL], ids=lambda world: world.name)
def test_phrasings_are_parsed_as_their_attribute(world):
    for attribute in world.attributes:
        phrasings = world.phrasings(attribute)
        assert sum(negated for _, negated in phrasings) >= 1
        for text, negated in phrasings:
            assert parse(text, world) == Question(attribute, negated), text


@pytest.mark.parametrize("world", [SMALL, FULL], ids=lambda world: world.name)
def test_guesses_are_parsed_as_their_object(world):
    owner: dict[str, str] = {}
    for name in world.objects:
        assert parse(world.guess(name), world) == Guess(name)
        for form in [name, world.nouns[name], *questions._plural_and_singular(name)]:
            key = questions._name_key(questions.normalise(form) or "")
            assert owner.setdefault(key, name) == name, (key, name)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("is it dog", "dog"), ("IS IT THE DOG???", "dog"), ("Is it dogs?", "dog"),
        ("Is it a puppy?", "dog"), ("Are they mice?", "mouse"),
        ("Is it strawberries?", "strawberry"), ("Are they scissors?", "scissors"),
        ("Is it a scissor?", "scissors"), ("Is it knives?", "knife"),
        ("Is it a teddy-bear?", "teddy"), ("Is it a tooth-brush?", "toothbrush"),
        ('Is it a "tea pot"?', "teapot"), ("Is it a piece of bread?", "bread"),
        ("I guess it is a piano.", "piano"), ("My guess is that it's a TV!", "television"),
        ("Is the hidden object an aeroplane?", "plane"), ("Could it be an orange?", "orange"),
        ("Thought: it barks, is it a cat?\nAction: Is it a dog?", "dog"),
        ("action: Is it a cat?\n  Action:Is it a dog?\nthat is all", "dog"),
        ("Thought: it barks, no cat\nIs it a dog?", "dog"),
        ("Maybe a cat.\nIs it a cat?\nIs it a dog?", "dog"),
        ("Maybe a dog.\r\nIs it a dog?\r\n", "dog"), ("\n  Is it a dog?  \n\n", "dog"),
    ],
)  # fmt: skip
def test_forms_of_a_guess_are_parsed(text, name):
    assert parse(text, FULL) == Guess(name)


@pytest.mark.parametrize(
    "text",
    [
        "a cat or a dog", "Is it a cat or a dog?", "Is it a cat, a dog?",
        "Is it a cat? Is it a dog?", "Is it a cat and a dog", "[apple banana car]",
        "Is it [apple banana car]?", "Is it an apple banana car?",
        "Is it bigger than a breadbox?", "Is it like bread?", "Is it not a dog?",
        "Isn't it alive?", "Is it a dog house?", "Is it orange?", "dog", "Is it a", "Is it ?",
        "Is it alive? Can it fly?", "Is it alive or not alive?",
        "Is it a dog?\nThought: it barks", "Is it a dog?\nhm", "Is it a\ndog?",
        "Maybe a cat. Is it a dog?", "Is it a dog?\nAction:", "Action: Is it a dog?\nAction: hm",
        "Is it a dog" + "?" * 200, "", "?!.",
    ],
)  # fmt: skip
def test_other_text_is_not_parsed(text):
    assert parse(text, FULL) is None


def test_long_questions_are_not_parsed():
    text = "Is it a dog" + "?" * (200 - 11)
    assert (parse(text, FULL), parse(text + "?", FULL)) == (Guess("dog"), None)
    for asked in ("\nAction: Is it a dog?", "\nIs it a dog?"):
        assert parse("Thought: " + "hm " * 500 + asked, FULL) == Guess("dog")


THOUGHTS = st.one_of(
    st.text(), st.sampled_from(FULL.objects).map(lambda name: f"Maybe that.\n{FULL.guess(name)}")
).filter(lambda text: "action" not in text.lower())


@settings(max_examples=200, deadline=None)
@given(THOUGHTS, st.sampled_from(["Is it a dog?", "Is it not alive?", "Hm.", "Is it", "a cat"]))
def test_only_the_last_line_counts(thought, last):
    assert parse(f"{thought}\n{last}", FULL) == parse(last, FULL)


WORDS = st.sampled_from([
    "is it", "a", "not", "dog", "alive", "action:", "\n", "or", "?", "pair of", "\0", "ÄÖ", "[",
])  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(st.one_of(st.text(), st.lists(WORDS).map(" ".join)), st.sampled_from(["exact", "free"]))
def test_hostile_text_never_raises_or_wins(text, parser):
    env = game("dog", world="full", max_turns=20, parser=parser)
    step = env.step(text)
    assert step.info["kind"] in ("question", "guess", "invalid")
    assert not step.done or any(name in text.lower() for name in ("dog", "hound", "pupp"))


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(FULL.objects), st.sampled_from(FULL.objects))
def test_two_objects_at_once_are_never_a_guess(one, other):
    for between in (" ", " or ", ", ", " and a ", "? Is it "):
        assert parse(f"Is it a {one}{between}{other}?", FULL) is None
