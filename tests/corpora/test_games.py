"""Games of the corpus: played and imagined ones are alike, and what is said of them is true."""

from __future__ import annotations

import copy
import itertools
import random
from collections import Counter

import pytest

from agentrl_cli.core.types import Message
from agentrl_cli.corpora.games import (
    Games,
    Move,
    end_points,
    ending,
    information_sentence,
    write_critique,
)
from agentrl_cli.corpora.player import PlayerState
from agentrl_cli.corpora.twentyq import TwentyQCorpus


@pytest.fixture(scope="module")
def games(corpus: TwentyQCorpus) -> Games:
    return corpus.games


# played games


def test_secrets_are_uniform_over_all_objects(games: Games):
    world, count = games.env.world_table, 40
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
            assert following.state.actions == [*move.state.actions, move.action]
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
    for seed in range(300):
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
    count, ends = 1200, {"played": Counter(), "imagined": Counter()}
    for seed in range(count):
        rng = random.Random(seed)
        moves, end = games.play(rng)
        ends["played"][games.describe(moves[0], end)] += 1
        text = games.imagine(moves[0].state, moves[0].action, games.env.turns, rng)
        ends["imagined"][text] += 1
    frequent = [text for text, times in ends["played"].items() if times >= 25]
    assert len(frequent) > 6
    for text in frequent:
        played, imagined = ends["played"][text], ends["imagined"][text]
        assert abs(played - imagined) < 4 * (played + imagined) ** 0.5, text


def test_more_turns_left_make_more_imagined_games_end_well(games: Games):
    wins = []
    for left in (3, 12):
        texts = [
            games.imagine(games.player.start(), "Is it alive?", left, random.Random(seed))
            for seed in range(300)
        ]
        wins.append(sum(text.endswith("Success.") for text in texts))
    assert wins[0] < wins[1] / 2


# what is said


@pytest.mark.parametrize(
    ("before", "after", "word"),
    [(20, 9, "much"), (20, 10, "some"), (20, 15, "some"), (20, 16, "little"), (20, 20, "nothing")],
)
def test_a_forecast_tells_how_many_objects_an_answer_left(
    games: Games, before: int, after: int, word: str
):
    left, right = (1 << before) - 1, (1 << after) - 1
    assert information_sentence(left, right) == f"It tells {word}."
    response = [Message("user", "Yes. 6 left.")]
    said = "Maybe a cat.\nIs it alive?"
    move = Move(PlayerState(left), [], "Is it alive?", said, response, right, is_last=False)
    assert games.describe(move, "Success.") == f"Yes. It tells {word}. Success."


def test_a_forecast_of_the_last_move_is_the_farewell_and_the_outcome(games: Games):
    response = [Message("user", "No. You lose. It was a dog. Near.")]
    move = Move(
        PlayerState(15), [], "Is it a cat?", "Maybe a cat.\nIs it a cat?", response, 7, is_last=True
    )
    assert games.describe(move, "Near. Failure.") == "No. You lose. It was a dog. Near. Failure."


@pytest.mark.parametrize(
    ("fits", "end"),
    [(1, "Close."), (3, "Close."), (4, "Near."), (8, "Near."), (9, "Far."), (96, "Far.")],
)
def test_an_ending_says_how_close_a_lost_game_was_and_nothing_of_a_won_one(fits: int, end: str):
    bits = (1 << fits) - 1 << 3
    assert ending(False, bits) == f"{end} Failure." and ending(True, bits) == "Success."


WIN, CLOSE, NEAR, FAR = (
    "Yes. It tells much. Success.", "No. It tells little. Close. Failure.",
    "No. You lose. It was a cat. Near. Failure.", "Yes. It tells nothing. Far. Failure.",
)  # fmt: skip


def test_a_success_is_worth_three_and_a_failure_what_it_came_close_to():
    assert [end_points(text) for text in (WIN, CLOSE, NEAR, FAR)] == [3, 2, 1, 0]
    assert end_points("Sometimes. You lose. It was a dog. Far. Failure.") == 0


@pytest.mark.parametrize(
    ("mine", "others", "optimal"),
    [
        ([WIN], [WIN], True),
        ([FAR], [FAR], True),
        ([CLOSE], [NEAR], True),
        ([NEAR], [CLOSE], False),
        ([CLOSE], [WIN], False),
        ([WIN, FAR], [CLOSE, NEAR], True),  # 3 points each
        ([WIN, FAR], [CLOSE, CLOSE], False),  # though it succeeds more often
        ([WIN, FAR, FAR], [NEAR], True),  # the mean counts, not the sum
        ([WIN], [WIN, WIN, FAR], True),
        ([CLOSE, FAR], [CLOSE], False),
    ],
)
def test_a_turn_is_optimal_unless_the_other_ends_better_on_average(
    mine: list[str], others: list[str], optimal: bool
):
    said = write_critique(mine, others)
    assert said.startswith(f"Optimality: {'Yes' if optimal else 'No'}. It")
    assert said.endswith(f"{'as well as' if optimal else 'worse than'} another turn.")


@pytest.mark.parametrize(
    ("mine", "why"),
    [
        ([WIN, CLOSE, CLOSE], "It tells little and ends"),
        ([NEAR, NEAR, WIN], "It tells much and ends"),
        ([NEAR], "It ends"),
        (["Sometimes. You lose. It was a dog. Far. Failure."], "It ends"),
    ],
)
def test_a_verdict_says_how_much_the_turn_mostly_tells(mine: list[str], why: str):
    assert write_critique(mine, [FAR]).startswith(f"Optimality: Yes. {why} as well as")
