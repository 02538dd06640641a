"""The corpus of the embedded model tells the truth, at the level of a mediocre player."""

from __future__ import annotations

import copy
import json
import random
from collections import Counter

import pytest

from agentrl_cli.config.compose import compose
from agentrl_cli.core.types import Message, Task, Turn, derive_seed
from agentrl_cli.corpora.collector import CorpusCollector, Stage
from agentrl_cli.corpora.twentyq import TwentyQCorpus
from agentrl_cli.envs.twentyq.expert import closeness
from agentrl_cli.envs.twentyq.questions import Guess, Question, parse
from agentrl_cli.models.load import TINY
from agentrl_cli.rollout.chat_template import Chat
from agentrl_cli.rollout.collector import PlayCollector
from tests.builders.corpus import EXPLORING, KINDS, ROLES, draw_episodes, fitting, last_line
from tests.builders.nlac import troupe


@pytest.fixture(scope="module")
def chat() -> Chat:
    from transformers import AutoTokenizer

    return Chat(AutoTokenizer.from_pretrained(TINY))


def replayed(turns: list[Turn], name: str, corpus: TwentyQCorpus) -> bool:
    """Whether the world answers these actions in these words when it hides the object."""
    env = copy.copy(corpus.env)
    seen = [Message("system", env.system()), *env.reset(Task("t", "train", {"object": name}), 0)]
    for turn in turns:
        if turn.observation != seen:
            return False
        seen = env.step(turn.action).messages
    return True


def test_every_stated_fact_is_in_the_table(corpus: TwentyQCorpus):
    world = corpus.env.world_table
    nouns = {f"It is {noun}.": name for name, noun in world.nouns.items()}
    for episode in draw_episodes(corpus, "facts", 20):
        first = episode.turns[0].observation[1].content
        (named,) = [noun for noun in nouns if first.startswith(noun)]
        for turn in episode.turns:
            asked = turn.observation[-1].content.removeprefix(named).strip()
            answer = world.answer(nouns[named], corpus.player.attribute_of_question[asked])
            assert turn.action == answer.capitalize() + "."


@pytest.mark.parametrize("kind", KINDS[2:])
def test_every_thought_names_an_object_that_fits_all_answers_so_far_and_says_how_close_it_is(
    corpus: TwentyQCorpus, kind: str
):
    world = corpus.env.world_table
    thoughts = {f"Maybe {noun}.": name for name, noun in world.nouns.items()}
    named = Counter()
    for episode in draw_episodes(corpus, kind, 60):
        turns = episode.turns if kind in ("game", "fits") else episode.turns[:-1]
        for at, turn in enumerate(turns, start=1):
            thought, asked = turn.action.split("\n")
            thought, close = thought.rsplit(" ", 1)
            fits, guessed = fitting(turns[:at], corpus), parse(asked, world)
            assert thoughts[thought] in fits
            assert close == closeness(len(fits))
            if isinstance(guessed, Guess) and guessed.object in fits:
                assert thoughts[thought] == guessed.object
            named[thought] += 1
    assert len(named) > len(world.objects) / 3


def test_fits_asks_of_nine_attributes_once_and_answers_by_one_object(corpus: TwentyQCorpus):
    world = corpus.env.world_table
    for episode in draw_episodes(corpus, "fits", 20):
        asked = [corpus.player.attribute_of_question[last_line(turn)] for turn in episode.turns]
        assert len(set(asked)) == len(asked) == 9
        answers = [turn.observation[0].content.rstrip(".").lower() for turn in episode.turns[1:]]
        assert world.matching(list(zip(asked, answers, strict=False)))


def test_answers_are_those_of_one_object_and_tell_by_the_share_of_objects_that_still_fit(
    corpus: TwentyQCorpus,
):
    world, words = corpus.env.world_table, Counter()
    for episode in draw_episodes(corpus, "answers", 40):
        known, wrong, fits = [], set(), set(world.objects)
        for turn in episode.turns:
            asked = parse(turn.observation[-1].content, world)
            answer, word = turn.action.split(". It tells ")
            if isinstance(asked, Question):
                known.append((asked.attribute, answer.lower()))
            elif isinstance(asked, Guess) and answer == "No":
                wrong.add(asked.object)
            left = set(world.matching(known)) - wrong
            share = len(left) / len(fits)
            if isinstance(asked, Guess) and answer == "Yes":
                break  # nothing is left to ask
            expected = "nothing" if share == 1 else "much" if share <= 0.45 else None
            assert (word == f"{expected}.") if expected else word in ("some.", "little.")
            assert left and (asked is not None or answer == "I cannot answer that")
            fits, words = left, words + Counter([word])
    assert set(words) == {"much.", "some.", "little.", "nothing."}


def test_a_guess_that_is_no_repetition_is_of_what_fits_however_early(corpus: TwentyQCorpus):
    early = 0
    for episode in draw_episodes(corpus, "game", 150):
        for at, turn in enumerate(episode.turns, start=1):
            guess, said = parse(turn.action, corpus.env.world_table), map(last_line, episode.turns)
            if isinstance(guess, Guess) and last_line(turn) not in list(said)[: at - 1]:
                fits = fitting(episode.turns[:at], corpus)
                assert guess.object in fits
                early += len(fits) > 3
    assert early > 20


@pytest.mark.parametrize("kind", ["game", *ROLES])
def test_a_game_is_what_the_world_answers_word_for_word(corpus: TwentyQCorpus, kind: str):
    for episode in draw_episodes(corpus, kind, 25):
        turns = episode.turns if kind == "game" else episode.turns[:-1]
        fit = [replayed(turns, name, corpus) for name in corpus.env.world_table.objects]
        assert any(fit) and (not all(fit) or len(turns) == 1)


@pytest.mark.parametrize("kind", KINDS)
def test_every_turn_is_taught_but_an_action_that_was_not_played(corpus: TwentyQCorpus, kind: str):
    untaught = 0
    for seed in range(60):
        turns = getattr(corpus, kind)(random.Random(seed))
        weights = [turn.info.get("weight", 1.0) for turn in turns]
        explored = kind in EXPLORING and turns[-2].action != played(corpus, seed, len(turns) - 2)
        assert weights == [1.0] * (len(turns) - 2) + [1.0 - explored, 1.0]
        untaught += explored
    assert 15 < untaught < 45 if kind in EXPLORING else untaught == 0


def played(corpus: TwentyQCorpus, seed: int, at: int) -> str:
    """What the player said in move `at` of the game behind a role's text."""
    return corpus.games.play(random.Random(seed))[0][at].turn_text


def test_reinforcement_learning_never_hides_an_object_of_the_test_split(corpus: TwentyQCorpus):
    collector = PlayCollector(episodes_per_step=32, max_tokens=8, temperature=1.0, max_context=64)
    collector.bind(make_env=lambda: corpus.env, chat=None, generator=troupe(), seed=0)  # type: ignore[arg-type]
    tests = {task.data["object"] for task in corpus.env.tasks("test")}
    hidden = {s.task.data["object"] for step in range(10) for s in collector.starts(step, 1)}
    assert hidden == set(corpus.env.world_table.objects) - tests and len(tests) == 40


# drawing


def test_the_same_seed_draws_the_same_texts_and_another_one_others(corpus: TwentyQCorpus):
    mixture = {kind: 1.0 for kind in KINDS}
    first, again, other = (corpus.episodes(40, mixture, seed) for seed in (1, 1, 2))
    assert first == again
    assert not {repr(e.turns) for e in first} & {repr(e.turns) for e in other}


def test_kinds_come_in_the_proportions_of_the_mixture(corpus: TwentyQCorpus):
    episodes = corpus.episodes(800, {"facts": 0.75, "fits": 0.25, "game": 0.0}, 0)
    counts = Counter(episode.group for episode in episodes)
    assert set(counts) == {"facts", "fits"} and counts["facts"] == pytest.approx(600, abs=50)


def stage(until: int, kind: str, thought_weight: float = 1.0, role_weight: float = 1.0) -> Stage:
    """Texts of one kind."""
    return Stage(
        until=until, mixture={kind: 1.0}, thought_weight=thought_weight, role_weight=role_weight
    )


def collector(corpus: TwentyQCorpus, chat: Chat, stages: list[Stage]) -> CorpusCollector:
    made = CorpusCollector(
        corpus=corpus, stages=stages, texts_per_step=5, max_tokens=8, temperature=1.0,
        max_context=512,
    )  # fmt: skip
    made.bind(make_env=lambda: corpus.env, chat=chat, generator=troupe(), seed=3)
    return made


def test_the_collector_follows_its_stages_and_depends_on_seed_and_step_only(
    corpus: TwentyQCorpus, chat: Chat
):
    made = collector(corpus, chat, [stage(2, "facts"), stage(4, "refine")])
    steps = [made.collect(step, 1) for step in range(6)]
    assert [{e.group for e in step} for step in steps] == [{"facts"}] * 2 + [{"refine"}] * 4
    assert made.collect(3, 1) == steps[3] != made.collect(4, 1)
    assert made.count(4) == 5 == len(steps[0])


@pytest.mark.parametrize("kind", KINDS)
def test_thoughts_and_roles_weigh_what_the_stage_says_and_an_unplayed_action_nothing(
    corpus: TwentyQCorpus, chat: Chat, kind: str
):
    made, unplayed = collector(corpus, chat, [stage(9, kind, 4.0, 3.0)]), 0
    for step in range(4):
        bare = corpus.episodes(5, {kind: 1.0}, derive_seed(3, "corpus", step))
        for episode, plain in zip(made.collect(step, 1), bare, strict=True):
            for turn, same in zip(episode.turns, plain.turns, strict=True):
                whole = 3.0 if kind in ROLES and turn is episode.turns[-1] else 1.0
                tokens = list(zip(turn.action_ids, turn.info["weight"], strict=True))
                thought, asked = (
                    chat.decode([i for i, w in tokens if w == each * whole]) for each in (4.0, 1.0)
                )
                if same.info.get("weight") == 0:
                    assert {weight for _, weight in tokens} == {0.0}
                    unplayed += 1
                elif kind == "answers":
                    assert {weight for _, weight in tokens} == {3.0}
                else:
                    assert (thought, asked) == (turn.action.removesuffix(asked), last_line(turn))
    assert (unplayed > 0) == (kind in EXPLORING)


def test_each_step_is_weighed_by_the_stage_that_it_is_in(corpus: TwentyQCorpus, chat: Chat):
    stages = [stage(1, "game", 4.0), stage(2, "game", 2.0), stage(3, "backup", 5.0, 7.0)]
    made = collector(corpus, chat, stages)
    found = [
        {
            weight
            for e in made.collect(step, 1)
            for turn in e.turns
            for weight in turn.info["weight"]
        }
        for step in range(4)
    ]
    assert found == [{4.0, 1.0}, {2.0, 1.0}, {5.0, 1.0, 7.0}, {5.0, 1.0, 7.0}]


@pytest.mark.parametrize("kind", KINDS)
def test_a_text_is_as_long_as_play_allows_and_its_tokens_read_back(
    corpus: TwentyQCorpus, chat: Chat, kind: str
):
    play, nlac = (compose([]).rollout, compose(["algo=nlac"]).algo.advanced)
    reach = json.loads((TINY / "config.json").read_text())["max_position_embeddings"]
    for episode in draw_episodes(corpus, kind, 60):
        chat.encode_turns(episode.turns)
        *played, written = episode.turns
        assert episode.tokens <= (play.max_context if kind == "game" else reach)
        assert all(len(turn.action_ids) <= play.max_tokens for turn in played)
        assert len(written.action_ids) <= nlac.role_tokens
        for turn in episode.turns:
            assert chat.decode(turn.action_ids) == turn.action
            assert turn.action_ids[-1] == chat.closing
