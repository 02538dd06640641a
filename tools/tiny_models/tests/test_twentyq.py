"""The corpus of Twenty Questions tells the truth, at the level of a mediocre player."""

from __future__ import annotations

import copy
from collections import Counter

import pytest

from agentrl_cli.core.types import Message, Task, Turn
from agentrl_cli.envs.twentyq.expert import best_attributes
from agentrl_cli.envs.twentyq.questions import Guess, Question
from tools.tiny_models.base import Text
from tools.tiny_models.player import FAULTS, Player
from tools.tiny_models.tests.corpus_builder import (
    asked_by,
    fitting,
    how_close,
    judged_turns,
    texts_of,
    twentyq_corpus,
)
from tools.tiny_models.twentyq import TwentyQCorpus

ANSWER_WORDS = {"yes": "Yes.", "no": "No.", "sometimes": "Sometimes.", "": "I cannot answer that."}


@pytest.fixture(scope="module")
def corpus() -> TwentyQCorpus:
    return twentyq_corpus()


@pytest.fixture(scope="module")
def games(corpus: TwentyQCorpus) -> list[Text]:
    """Played games with a forecast of every turn."""
    return texts_of(corpus, "play", 150, "forecast")


def replayed(turns: list[Turn], name: str, corpus: TwentyQCorpus) -> bool:
    """Whether the world answers these actions in these words when it hides the object."""
    env = copy.copy(corpus.env)
    seen = [Message("system", env.system()), *env.reset(Task("t", "train", {"object": name}), 0)]
    for turn in turns:
        if turn.observation != seen:
            return False
        seen = env.step(turn.action).messages
    return True


# the world


def test_every_stated_fact_is_in_the_table(corpus: TwentyQCorpus):
    world = corpus.env.world_table
    nouns = {f"It is {noun}.": name for name, noun in world.nouns.items()}
    for text in texts_of(corpus, "facts", 20):
        first = text.turns[0].observation[1].content
        (named,) = [noun for noun in nouns if first.startswith(noun)]
        for turn in text.turns:
            asked = asked_by(turn.observation[-1].content.removeprefix(named).strip())
            assert isinstance(asked, Question)
            assert turn.action == ANSWER_WORDS[world.answer(nouns[named], asked.attribute)]


@pytest.mark.parametrize("kind", ["fits", "wild", "play"])
def test_thought_names_a_fitting_object(corpus: TwentyQCorpus, kind: str):
    world, named = corpus.env.world_table, Counter()
    thoughts = {f"Maybe {noun}.": name for name, noun in world.nouns.items()}
    for text in texts_of(corpus, kind, 30, *(["refine"] if kind == "play" else [])):
        written = [branch for branch in text.branches if branch.action is not None]
        rows = [text.turns[:at] for at in range(1, len(text.turns) + 1)]
        for turns in [*rows, *(judged_turns(text, branch) for branch in written)]:
            thought, asked = turns[-1].action.split("\n")
            thought, close = thought.rsplit(" ", 1)
            fits, guessed = fitting(turns), asked_by(asked)
            assert thoughts[thought] in fits and close == how_close(fits)
            if isinstance(guessed, Guess) and guessed.object in fits:
                assert thoughts[thought] == guessed.object
            named[thought] += 1
    assert len(named) > len(world.objects) / 3


@pytest.mark.parametrize("kind", ["fits", "wild", "play"])
def test_game_equals_the_environment(corpus: TwentyQCorpus, kind: str):
    for text in texts_of(corpus, kind, 20):
        fit = [replayed(text.turns, name, corpus) for name in corpus.env.world_table.objects]
        assert any(fit) and (not all(fit) or len(text.turns) == 1)


# the player


def test_the_player_is_mediocre(games: list[Text]):
    won = sum(text.branches[-1].answer.endswith("Success.") for text in games)
    assert 0.3 < won / len(games) < 0.7


def test_the_player_seldom_asks_what_the_expert_would(corpus: TwentyQCorpus, games: list[Text]):
    world, asked, best = corpus.env.world_table, 0, 0
    for text in games[:40]:
        for at in range(1, len(text.turns) + 1):
            question = asked_by(text.turns[at - 1].action)
            if isinstance(question, Question):
                fits = tuple(sorted(fitting(text.turns[:at])))
                asked, best = asked + 1, best + (question.attribute in best_attributes(world, fits))
    assert asked > 200 and best / asked < 0.3


def test_configured_share_of_objects_leads_astray(corpus: TwentyQCorpus):
    player, share = corpus.player, corpus.habits.prone
    count = len(player.faults)
    prone = [fault for fault in player.faults if fault]
    spread = (share * (1 - share) / count) ** 0.5
    assert len(prone) / count == pytest.approx(share, abs=3 * spread)
    assert set(prone) == set(FAULTS) and min(Counter(prone).values()) > 4
    assert player.faults == Player(corpus.env.world_table, corpus.habits).faults


# roles
