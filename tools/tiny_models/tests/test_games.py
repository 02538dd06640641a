"""Games of the corpus: played and imagined ones are alike, and what is said of them is true."""

from __future__ import annotations

import copy
import itertools
import random
import re
from collections import Counter

import pytest

from agentrl_cli.core.types import Message
from tools.tiny_models.games import (
    Games,
    Move,
    end_points,
    ending,
    information_sentence,
    write_critique,
)
from tools.tiny_models.player import PlayerState
from tools.tiny_models.tests.corpus_builder import twentyq_corpus


@pytest.fixture(scope="module")
def games() -> Games:
    return twentyq_corpus().games


# played games


def test_secrets_are_uniform_over_all_objects(games: Games):
    world, count = games.env.world_table, 10
    named = {noun: name for name, noun in world.nouns.items()}
    secrets = Counter()
    for seed in range(count * len(world.objects)):
        moves, end = games.play(random.Random(seed))
        if end == "Success.":
            secrets[world.objects[games.player.object_of_guess[moves[-1].action]]] += 1
        else:
            lost = moves[-1].response[0].content.partition("It was ")[2]
            secrets[named[lost.partition(".")[0]]] += 1
    statistic = sum((secrets[name] - count) ** 2 / count for name in world.objects)
    degrees = len(world.objects) - 1
    assert statistic < degrees + 4 * (2 * degrees) ** 0.5


def test_a_move_says_its_action_last_and_its_notes_are_those_before_it(games: Games):
    for seed in range(40):
        moves, _ = games.play(random.Random(seed))
        for move, following in itertools.pairwise(moves):
            assert following.state.actions == (*move.state.actions, move.action)
            assert following.state.candidates == move.candidates_after and not move.is_last
            assert following.observation == move.response
        assert moves[0].state == games.player.start() and moves[-1].is_last
        assert all(move.turn_text.split("\n")[1:] == [move.action] for move in moves)
        assert all(
            move.candidates_after & ~move.state.candidates == 0 < move.candidates_after
            for move in moves
        )


def test_how_a_game_ended_is_what_the_environment_says(games: Games):
    ends = Counter()
    for seed in range(200):
        moves, end = games.play(random.Random(seed))
        farewell, left = moves[-1].response[0].content, moves[-1].candidates_after.bit_count()
        if "You win." in farewell:
            assert end == "Success."
        else:
            word = "Close." if left <= 3 else "Near." if left <= 8 else "Far."
            assert farewell.endswith(word) and end == f"{word} Failure."
        ends[end] += 1
    assert len(ends) == 4 and min(ends.values()) > 5


def test_playing_leaves_the_environment_as_it_was(games: Games):
    before = copy.deepcopy(games.env)
    games.play(random.Random(0))
    assert games.env == before


# imagined games


def test_a_forecast_of_the_only_guess_that_fits_succeeds(games: Games):
    guess = next(iter(games.player.object_of_guess))
    state = PlayerState(1 << games.player.object_of_guess[guess])
    for seed in range(10):
        text = games.imagine(state, guess, 3, random.Random(seed))
        assert text == "Yes. You win. Success."


def test_an_imagined_last_turn_is_one_that_a_fitting_object_would_answer(games: Games):
    player, nouns = games.player, games.env.world_table.nouns
    heads = Counter()
    for seed in range(60):
        rng = random.Random(seed)
        state = rng.choice(games.play(rng)[0]).state
        action = player.any_action(state, rng)
        possible = {
            last_words(games, state, action, nouns[name]) for name in player.names(state.candidates)
        }
        text = games.imagine(state, action, 1, rng)
        assert text in possible
        heads[text.split(".")[0]] += 1
    assert {"Yes", "No", "I cannot answer that"} <= set(heads)


def last_words(games: Games, state: PlayerState, action: str, noun: str) -> str:
    """The forecast of a last turn in a world that hides what the noun names."""
    player, world = games.player, games.env.world_table
    secret = player.object_of_guess[f"Is it {noun}?"]
    answer, after = player.answer(action, secret), copy.deepcopy(state)
    player.observe(after, action, answer)
    head = f"{answer.capitalize()}." if answer else "I cannot answer that."
    if action == world.guess(world.objects[secret]):
        return f"{head} You win. Success."
    left = after.candidates.bit_count()
    word = "Close." if left <= 3 else "Near." if left <= 8 else "Far."
    return f"{head} You lose. It was {noun}. {word} Failure."


def test_imagining_leaves_the_notes_as_they_were(games: Games):
    state = games.player.start()
    games.imagine(state, "Is it alive?", 12, random.Random(0))
    assert state == games.player.start()


def test_an_imagined_game_ends_as_often_in_each_way_as_a_played_one(games: Games):
    count, ends = 700, {"played": Counter(), "imagined": Counter()}
    for seed in range(count):
        rng = random.Random(seed)
        moves, end = games.play(rng)
        ends["played"][games.describe(moves[0], end, moves[0].secret)] += 1
        text = games.imagine(moves[0].state, moves[0].action, games.env.max_turns, rng)
        ends["imagined"][text] += 1
    ends = {kind: without_noun(texts) for kind, texts in ends.items()}
    frequent = [text for text, times in ends["played"].items() if times >= 15]
    assert len(frequent) > 6
    for text in frequent:
        played, imagined = ends["played"][text], ends["imagined"][text]
        assert abs(played - imagined) < 4 * (played + imagined) ** 0.5, text


def without_noun(texts: Counter[str]) -> Counter[str]:
    """What is said behind the object that a forecast names first, if it names one."""
    counts = Counter[str]()
    for text, times in texts.items():
        counts[text if "You " in text else text.split(". ", 1)[1]] += times
    return counts


def test_more_turns_left_make_more_imagined_games_end_well(games: Games):
    wins = []
    for left in (3, 12):
        texts = [
            games.imagine(games.player.start(), "Is it alive?", left, random.Random(seed))
            for seed in range(200)
        ]
        wins.append(sum(text.endswith("Success.") for text in texts))
    assert wins[0] < wins[1] / 2


# what is said


@pytest.mark.parametrize(
    ("before", "after", "word"),
    [(50, 17, "much"), (50, 18, "some"), (50, 33, "some"), (50, 34, "little"), (50, 50, "nothing")],
)
def test_a_forecast_tells_how_many_objects_an_answer_left(
    games: Games, before: int, after: int, word: str
):
    left, right = (1 << before) - 1, (1 << after) - 1
    assert information_sentence(left, right) == f"It tells {word}."
    response = [Message("user", "Yes. 6 left.")]
    said = "Maybe a cat.\nIs it alive?"
    told = (response, right, False, "cat")
    move = Move(PlayerState(left), [], "Is it alive?", said, *told)
    found = games.describe(move, "Success.", "dog")
    assert found.startswith("a dog. ") and found.endswith(f". Yes. It tells {word}. Success.")


def test_a_forecast_of_the_last_move_is_the_farewell_and_the_outcome(games: Games):
    response = [Message("user", "No. You lose. It was a dog. Near.")]
    said = "Maybe a cat.\nIs it a cat?"
    move = Move(PlayerState(15), [], "Is it a cat?", said, response, 7, True, "dog")
    told = games.describe(move, "Near. Failure.", "dog")
    assert told == "No. You lose. It was a dog. Near. Failure."


@pytest.mark.parametrize(
    ("fits", "end"),
    [(1, "Close."), (3, "Close."), (4, "Near."), (8, "Near."), (9, "Far."), (96, "Far.")],
)
def test_an_ending_says_how_close_a_lost_game_was_and_nothing_of_a_won_one(fits: int, end: str):
    bits = (1 << fits) - 1 << 3
    assert ending(False, bits) == f"{end} Failure." and ending(True, bits) == "Success."


WIN, CLOSE, NEAR, FAR = (
    "a cat. New. Yes. It tells much. Success.",
    "a cat. It may be. No. It tells little. Close. Failure.",
    "No. You lose. It was a cat. Near. Failure.", "a dog. New. Yes. It tells little. Far. Failure.",
)  # fmt: skip
REPEATED = "a cat. Asked before. Yes. It tells nothing. Success."


def test_a_success_is_worth_three_and_a_failure_what_it_came_close_to():
    assert [end_points(text) for text in (WIN, CLOSE, NEAR, FAR)] == [3, 2, 1, 0]
    assert end_points("Sometimes. You lose. It was a dog. Far. Failure.") == 0


@pytest.mark.parametrize(
    ("mine", "others", "critique"),
    [
        ([WIN], [WIN], "Yes. It ends as well as another turn."),
        ([CLOSE], [NEAR], "Yes. It ends as well as another turn."),
        ([NEAR], [CLOSE], "No. It ends worse than another turn."),
        ([WIN, FAR], [CLOSE, NEAR], "Yes. It ends as well as another turn."),  # 3 points each
        ([WIN, FAR], [CLOSE, CLOSE], "No. It ends worse than another turn."),  # wins more often
        ([WIN, FAR, FAR], [NEAR], "Yes. It ends as well as another turn."),  # the mean, not the sum
        ([WIN, WIN, CLOSE], [WIN], "Yes. It ends as well as another turn."),  # a third less
        ([WIN, WIN, NEAR], [WIN], "No. It ends worse than another turn."),  # two thirds less
        ([REPEATED], [FAR], "No. Asked before."),  # it tells nothing, however it ends
        ([REPEATED, WIN], [FAR], "Yes. It ends as well as another turn."),  # half is not most
        ([REPEATED, REPEATED, WIN], [FAR], "No. Asked before."),
        (["a cat. Ruled out. No. It tells nothing. Success."], [FAR], "No. Ruled out."),
        (
            ["a cat. Unclear. I cannot answer that. It tells nothing. Success."],
            [FAR],
            "No. Unclear.",
        ),
        (["a cat. Known. Yes. It tells nothing. Success."], [FAR], "No. Known."),
    ],
)
def test_a_turn_is_optimal_unless_it_tells_nothing_or_the_other_ends_clearly_better(
    mine: list[str], others: list[str], critique: str
):
    assert write_critique(mine, others) == f"Optimality: {critique}"


def test_how_a_game_is_played_on_ends_in_the_worlds_words(games: Games):
    nouns, ends = set(games.env.world_table.nouns.values()), Counter()
    for seed in range(80):
        moves, _ = games.play(random.Random(seed))
        state = moves[len(moves) // 2].state
        secret = games.any_secret(state, random.Random(seed))
        text = games.last_words(state, 4, random.Random(seed), secret)
        found = re.fullmatch(
            r"(?:Yes|No|Sometimes|I cannot answer that)\. "
            r"(?:You win\. Success|You lose\. It was (.+)\. (?:Close|Near|Far)\. Failure)\.",
            text,
        )
        assert found, text
        assert (
            found[1] is None
            or found[1]
            in {games.env.world_table.nouns[name] for name in games.player.names(state.candidates)}
            <= nouns
        )
        ends[text.split()[-1]] += 1
    assert min(ends["Success."], ends["Failure."]) > 5
