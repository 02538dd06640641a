"""Twenty Questions keeps its rules, tells no lie, and its expert wins every game."""

from __future__ import annotations

import copy
import json

import pytest

from agentrl_cli.config.compose import build, check, compose
from agentrl_cli.core.errors import UserError
from agentrl_cli.core.types import Task
from agentrl_cli.envs.twentyq.env import best_attributes, closeness, entropy
from agentrl_cli.envs.twentyq.world import load_world
from tests.builders.twentyq import SMALL, game, reply_to


def lengths(world: str, turns: int) -> list[int]:
    env, counts = game(world=world, max_turns=turns, secret="dog"), []
    for name in load_world(world).objects:
        one = copy.copy(env)
        task = Task(name, "train", {"object": name})
        one.reset(task, 0)
        steps = [one.step(action) for action in one.expert(task)]
        assert steps[-1].info["success"], name
        counts.append(len(steps))
    return counts


# the game


def test_game_has_exact_texts():
    env = game("dog", max_turns=5)
    assert env.reset(Task("t", "train", {"object": "dog"}), 0)[0].content == "Ask. 5 left."
    assert reply_to(env, "Is it alive?") == "Yes. 4 left."
    assert reply_to(env, "Can it fly?") == "No. 3 left."
    assert reply_to(env, "Is it mostly outdoors?") == "Sometimes. 2 left."
    assert reply_to(env, "Is it nice?") == "I cannot answer that. 1 left."
    assert reply_to(env, "Maybe a cat.\nIs it a cat?") == "No. You lose. It was a dog. Close."


def test_negated_questions_get_the_opposite_answer():
    env = game("dog")
    assert reply_to(env, "Is it not alive?") == "No. 9 left."
    assert reply_to(env, "Can it not fly?") == "Yes. 8 left."
    assert reply_to(env, "Is it not mostly outdoors?") == "Sometimes. 7 left."
    known = {"alive": "yes", "fly": "no", "outdoors": "sometimes"}.items()
    fitting = tuple(name for name in SMALL.objects if known <= SMALL.answers[name].items())
    assert env.game and env.game.candidates == fitting


def test_right_guess_wins():
    step = game("dog").step("Is it a dog?")
    assert (step.reward, step.done, step.truncated) == (1.0, True, False)
    assert step.info["success"] is True and step.messages[0].content == "Yes. You win."


def test_turn_limit_ends_in_a_loss():
    env = game("oak", max_turns=2)
    env.step("Is it alive?")
    step = env.step("Is it green?")
    assert (step.reward, step.done, step.truncated) == (0.0, True, False)
    assert step.info["success"] is False
    assert step.messages[0].content == "Yes. You lose. It was an oak. Near."


@pytest.mark.parametrize(
    ("fits", "word"),
    [(1, "Close."), (3, "Close."), (4, "Near."), (8, "Near."), (9, "Far."), (238, "Far.")],
)
def test_final_hint_depends_on_fitting_objects(fits, word):
    assert closeness(fits) == word
    lost = game().farewell_text("no", False, "oak", fits)
    assert lost == f"No. You lose. It was an oak. {word}"


def test_lmrl_reward_is_minus_one_per_turn():
    env = game("dog", reward="lmrl")
    actions = ["Is it alive?", "hm", "Is it a cat?", "Is it a dog?"]
    assert [env.step(action).reward for action in actions] == [-1.0, -1.0, -1.0, 0.0]
    env = game("dog", reward="lmrl", max_turns=2)
    assert [env.step("Is it a cat?").reward for _ in range(2)] == [-1.0, -1.0]


def test_graded_reward_equals_the_final_hint():
    seen = set()
    for turns in range(1, 7):
        env = game("dog", max_turns=turns, reward="graded")
        *_, last = [env.step(action) for action in env.expert(Task("t", "train", {}))]
        word = last.messages[0].content.split()[-1]
        if not last.info["success"]:
            assert last.reward == {"Close.": 2 / 3, "Near.": 1 / 3, "Far.": 0.0}[word]
            seen.add(word)
    assert seen == {"Close.", "Near.", "Far."}
    won = game("dog", max_turns=2, reward="graded")
    assert [won.step(a).reward for a in ("Is it alive?", "Is it a dog?")] == [0.0, 1.0]


def test_only_the_last_line_is_asked():
    env = game("dog", max_turns=6)
    thoughts = ["Is it a dog?", "Maybe a dog.", "Action says: is it a dog?", "A dog\nIs it a dog?"]
    for left, thought in zip((5, 4, 3, 2), thoughts, strict=True):
        step = env.step(f"{thought}\nIs it alive?")
        assert step.messages[0].content == f"Yes. {left} left." and not step.done
        assert (step.info["kind"], step.info["attribute"]) == ("question", "alive")
    assert reply_to(env, "Is it a dog?\nHm.") == "I cannot answer that. 1 left."
    assert reply_to(env, "Maybe a cat.\nIs it a dog?") == "Yes. You win."


def test_repetition_ignores_thoughts():
    env = game("dog")
    texts = ["Maybe a cat.\nIs it alive?", "Maybe an oak.\nIs it alive?", "Is it a cat?"]
    texts += ["Not a dog.\nIs it a cat?", "Is it alive?\nIs it green?"]
    repeated = [env.step(text).info["repeated"] for text in texts]
    assert repeated == [False, True, False, True, False]


def test_info_separates_public_and_privileged():
    env = game("penguin")
    infos = [
        env.step(text).info
        for text in (
            "Is it an animal?", "Does it not fly?", "Is it often in water?", "hm", "Is it alive?",
            "Can it fly?", "Is it a whale?", "Is it whales?", "Is it a penguin?",
        )
    ]  # fmt: skip
    kinds = "question question question invalid question question guess guess guess".split()
    assert [info["kind"] for info in infos] == kinds
    assert [info.get("attribute", info.get("guess")) for info in infos] == [
        "animal", "fly", "water", None, "alive", "fly", "whale", "whale", "penguin",
    ]  # fmt: skip
    assert [info["repeated"] for info in infos] == [False] * 5 + [True, False, True, False]
    assert [info["invalid"] for info in infos] == [False] * 3 + [True] + [False] * 5
    hidden = [info["privileged"] for info in infos]
    land = 24 - 11  # animals, less those that fly
    assert [row["fits"] for row in hidden] == [24, land, 2, 2, 2, 2, 1, 1, 1]
    assert [row["known"] for row in hidden] == [False] * 4 + [True, True, False, True, True]
    assert all("penguin" not in json.dumps({**info, "privileged": 0}) for info in infos[:-1])


def test_a_step_needs_a_running_game():
    env = game("dog")
    env.step("Is it a dog?")
    with pytest.raises(RuntimeError):
        env.step("Is it a dog?")
    with pytest.raises(RuntimeError):
        build(check(compose(["env=twentyq"])).env).step("Is it a dog?")


@pytest.mark.parametrize(
    ("key", "value"), [("max_turns", 0), ("test_objects", 96), ("world", "tiny"), ("secret", "x")]
)
def test_invalid_settings_are_refused(key, value):
    with pytest.raises(UserError, match=str(value)):
        game(**{key: value})


@pytest.mark.parametrize(
    ("name", "train", "test"), [("twentyq", 44, 40), ("twentyq_full", 158, 60)]
)
def test_configured_games_have_their_splits(name: str, train: int, test: int):
    env = build(check(compose([f"env={name}"])).env)
    assert (len(env.tasks("train")), len(env.tasks("test"))) == (train, test)
    assert env.tasks("test")[0].id.startswith(f"twentyq-{env.world}-")


# the expert, and playing without questions


def test_entropy_by_hand():
    assert entropy(SMALL, ("dog", "oak", "car", "piano"), "alive") == 1.0
    assert entropy(SMALL, ("dog", "oak", "cat", "crow"), "animal") == pytest.approx(0.8112781)
    assert best_attributes(SMALL, ("dog",)) == ()


@pytest.mark.parametrize(("world", "turns", "mean"), [("small", 10, 6.7), ("full", 13, 7.3)])
def test_the_expert_wins_every_game(world, turns, mean):
    counts = lengths(world, turns)
    assert max(counts) <= turns and sum(counts) / len(counts) < mean
