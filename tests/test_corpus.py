"""The corpus of the embedded model tells the truth, at the level of a mediocre player."""

from __future__ import annotations

import copy
import itertools
import random
from collections import Counter

import pytest

from agentrl_cli import config
from agentrl_cli.algos.language import outcome, verdict
from agentrl_cli.chat import Chat
from agentrl_cli.collect import PlayCollector
from agentrl_cli.corpora.collector import CorpusCollector, Stage
from agentrl_cli.corpora.player import ODD, Notes
from agentrl_cli.corpora.twentyq import Move, TwentyQCorpus
from agentrl_cli.envs.twentyq.expert import entropy
from agentrl_cli.models.load import TINY
from agentrl_cli.types import Episode, Message, Task, Turn
from tests.sample_nlac import troupe

ROLES = ("forecast", "backup", "evaluate", "refine")
KINDS = ("facts", "fits", "game", *ROLES)


@pytest.fixture(scope="module")
def corpus() -> TwentyQCorpus:
    cfg = config.check(config.compose(["experiment=tiny_base"]))
    return config.build(cfg.rollout.corpus)


@pytest.fixture(scope="module")
def chat() -> Chat:
    from transformers import AutoTokenizer

    return Chat(AutoTokenizer.from_pretrained(TINY))


def drawn(corpus: TwentyQCorpus, kind: str, count: int, seed: int = 0) -> list[Episode]:
    return corpus.episodes(count, {kind: 1.0}, seed)


def texts(messages: list[Message]) -> list[str]:
    return [message.content for message in messages]


def told(turns: list[Turn], corpus: TwentyQCorpus) -> Notes:
    """The player's notes after these turns, each of which must have been answered."""
    notes = corpus.player.start()
    for turn, following in itertools.pairwise(turns):
        answer = following.observation[0].content.split(".")[0].lower()
        corpus.player.see(notes, turn.action, answer)
    return notes


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
    for episode in drawn(corpus, "facts", 20):
        first = episode.turns[0].observation[1].content
        (named,) = [noun for noun in nouns if first.startswith(noun)]
        for turn in episode.turns:
            asked = turn.observation[-1].content.removeprefix(named).strip()
            answer = world.answer(nouns[named], corpus.player.meaning[asked])
            assert turn.action == answer.capitalize() + "."


def test_every_named_object_fits_all_answers_so_far(corpus: TwentyQCorpus):
    world = corpus.env.world_table
    for episode in drawn(corpus, "fits", 20):
        known = []
        for question, guess in zip(episode.turns[::2], episode.turns[1::2], strict=True):
            answer = guess.observation[0].content.rstrip(".").lower()
            known.append((corpus.player.meaning[question.action], answer))
            assert world.objects[corpus.player.named[guess.action]] in world.fits(known)
            assert question.info["weight"] == 0 and guess.info["weight"] == corpus.guess_weight


@pytest.mark.parametrize("kind", ["game", *ROLES])
def test_a_game_is_what_the_world_answers_word_for_word(corpus: TwentyQCorpus, kind: str):
    for episode in drawn(corpus, kind, 25):
        turns = episode.turns if kind == "game" else episode.turns[:-1]
        fit = [replayed(turns, name, corpus) for name in corpus.env.world_table.objects]
        assert any(fit) and (not all(fit) or len(turns) == 1)


def test_a_guess_weighs_what_is_configured_and_other_turns_one(corpus: TwentyQCorpus):
    weights = Counter()
    for episode in drawn(corpus, "game", 50):
        for turn in episode.turns:
            weights[turn.action in corpus.player.named, turn.info["weight"]] += 1
    assert set(weights) == {(True, corpus.guess_weight), (False, 1.0)}


def ending(moves: list[Move]) -> str:
    return moves[-1].response[0].content


def test_secrets_are_uniform_over_all_objects(corpus: TwentyQCorpus):
    world, count = corpus.env.world_table, 40
    secrets = Counter()
    for seed in range(count * len(world.objects)):
        moves = corpus.play(random.Random(seed))
        lost = ending(moves).partition("It was ")[2].rstrip(".")
        named = {noun: name for name, noun in world.nouns.items()}
        won = world.objects[corpus.player.named[moves[-1].action]] if not lost else None
        secrets[won or named[lost]] += 1
    statistic = sum((secrets[name] - count) ** 2 / count for name in world.objects)
    degrees = len(world.objects) - 1
    assert statistic < degrees + 4 * (2 * degrees) ** 0.5


def test_reinforcement_learning_never_hides_an_object_of_the_test_split(corpus: TwentyQCorpus):
    collector = PlayCollector(episodes_per_step=32, max_tokens=8, temperature=1.0, max_context=64)
    collector.bind(make_env=lambda: corpus.env, chat=None, generator=troupe(), seed=0)  # type: ignore[arg-type]
    tests = {task.data["object"] for task in corpus.env.tasks("test")}
    hidden = {s.task.data["object"] for step in range(10) for s in collector.starts(step, 1)}
    assert hidden == set(corpus.env.world_table.objects) - tests and len(tests) == 40


# roles


def role_of(corpus: TwentyQCorpus, kind: str, seed: int) -> tuple[list[Move], int, str, str]:
    """The game behind a role's text, the move it is about, its prompt and what is written."""
    turns = getattr(corpus, kind)(random.Random(seed))
    moves = corpus.play(random.Random(seed))
    at = len(turns) - 2
    assert [turn.action for turn in turns[:-1]] == [move.action for move in moves[: at + 1]]
    return moves, at, turns[-1].observation[0].content, turns[-1].action


def test_a_forecast_says_what_really_came_and_how_the_game_really_ended(corpus: TwentyQCorpus):
    explored = 0
    for seed in range(60):
        moves = corpus.play(random.Random(seed))
        *game, asked = corpus.forecast(random.Random(seed))
        move, written = moves[len(game) - 1], asked.action
        assert asked.observation[0].content == corpus.prompts.forecast
        if game[-1].action != move.action:
            explored += 1
            assert game[-1].info["weight"] == 0 and outcome(written) is not None
        else:
            assert outcome(written) is ("You win." in ending(moves))
            head = move.response[0].content
            assert written.startswith(head if move.over else head.split(".")[0] + ".")
    assert 15 < explored < 45


def test_a_backup_reads_the_response_and_a_true_forecast_and_writes_a_true_one(
    corpus: TwentyQCorpus,
):
    found = 0
    for seed in range(60):
        if len(corpus.play(random.Random(seed))) < 2:
            continue  # such a game is played again, so the seed tells another one
        moves, at, prompt, written = role_of(corpus, "backup", seed)
        success = "You win." in ending(moves)
        assert f"The response was: {moves[at].response[0].content}\n" in prompt
        assert corpus.describe(moves[at + 1], success) in prompt
        assert written == corpus.describe(moves[at], success) and outcome(written) is success
        found += 1
    assert found > 40


@pytest.mark.parametrize(
    ("before", "after", "word"),
    [(20, 9, "much"), (20, 10, "some"), (20, 15, "some"), (20, 16, "little"), (20, 20, "nothing")],
)
def test_a_forecast_tells_how_many_objects_an_answer_left(
    corpus: TwentyQCorpus, before: int, after: int, word: str
):
    left, right = (1 << before) - 1, (1 << after) - 1
    response = [Message("user", "Yes. 6 left.")]
    move = Move(Notes(left), [], "Is it alive?", response, right, over=False, success=False)
    assert corpus.describe(move, True) == f"Yes. It tells {word}. Success."


def test_a_verdict_follows_from_the_outcomes_that_its_prompt_shows(corpus: TwentyQCorpus):
    verdicts = Counter()
    for episode in drawn(corpus, "evaluate", 200):
        prompt, written = episode.turns[-1].observation[0].content, episode.turns[-1].action
        rows = [line for line in prompt.splitlines() if outcome(line) is not None]
        mine, others = rows[: corpus.forecasts], rows[corpus.forecasts :]
        assert len(mine) == len(others) == corpus.forecasts
        right = sum(map(bool, map(outcome, mine))) >= sum(map(bool, map(outcome, others)))
        assert verdict(written) is right
        verdicts[right] += 1
    assert min(verdicts.values()) > 20


def refinements(corpus: TwentyQCorpus, count: int) -> list[tuple[Notes, str, str, bool | None]]:
    """Notes before the criticised action, that action, the refined one, and the verdict."""
    found = []
    for episode in drawn(corpus, "refine", count):
        *played, last = episode.turns
        critique = last.observation[0].content.removeprefix("Critique: ")
        found.append((told(played, corpus), played[-1].action, last.action, verdict(critique)))
    return found


def test_a_turn_found_optimal_stays_and_a_criticised_one_never_does(corpus: TwentyQCorpus):
    kept = [(a == b, optimal) for _, a, b, optimal in refinements(corpus, 300)]
    assert set(kept) == {(True, True), (False, False)}
    assert min(Counter(kept).values()) > 30


def test_a_refinement_is_another_draw_of_the_mediocre_player(corpus: TwentyQCorpus):
    rng, rows = random.Random(0), [row for row in refinements(corpus, 1500) if row[3] is False]
    refined = [habits_of(corpus, notes, action) for notes, _, action, _ in rows]
    again = [
        habits_of(corpus, notes, corpus.player.act(notes, rng, without=(old,)))
        for notes, old, _, _ in rows
        for _ in range(4)
    ]
    assert len(rows) > 200
    for habit in ("odd", "repeated", "guess", "bits"):
        mine, players = ([row[habit] for row in group] for group in (refined, again))
        mean = sum(players) / len(players)
        spread = (sum((x - mean) ** 2 for x in players) / len(players) / len(mine)) ** 0.5
        assert sum(mine) / len(mine) == pytest.approx(mean, abs=4 * spread), habit
    assert sum(row["odd"] for row in refined) > 0 < sum(row["repeated"] for row in refined)


def habits_of(corpus: TwentyQCorpus, notes: Notes, action: str) -> dict[str, float]:
    """What an action is: odd, repeated, a guess; and the bits that its answer tells."""
    world, player = corpus.env.world_table, corpus.player
    attribute = player.meaning.get(action)
    fits = tuple(player.objects(notes.fits))
    return {
        "odd": float(action in ODD),
        "repeated": float(action in notes.said),
        "guess": float(action in player.named),
        "bits": entropy(world, fits, attribute) if attribute else 0.0,
    }


def test_a_forecast_of_the_only_guess_that_fits_succeeds(corpus: TwentyQCorpus):
    guess = next(iter(corpus.player.named))
    notes = Notes(1 << corpus.player.named[guess])
    for seed in range(10):
        text = corpus.imagine(notes, guess, 3, random.Random(seed))
        assert text == "Yes. You win. Success."


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


def test_the_collector_follows_its_stages_and_depends_on_seed_and_step_only(
    corpus: TwentyQCorpus, chat: Chat
):
    stages = [Stage(until=2, mixture={"facts": 1.0}), Stage(until=4, mixture={"refine": 1.0})]
    made = CorpusCollector(
        corpus=corpus, stages=stages, texts_per_step=5, max_tokens=8, temperature=1.0,
        max_context=512,
    )  # fmt: skip
    made.bind(make_env=lambda: corpus.env, chat=chat, generator=troupe(), seed=3)
    steps = [made.collect(step, 1) for step in range(6)]
    assert [{e.group for e in step} for step in steps] == [{"facts"}] * 2 + [{"refine"}] * 4
    assert made.collect(3, 1) == steps[3] != made.collect(4, 1)
    assert made.count(4) == 5 == len(steps[0])


@pytest.mark.parametrize("kind", KINDS)
def test_a_text_fits_the_context_and_its_tokens_read_back(
    corpus: TwentyQCorpus, chat: Chat, kind: str
):
    for episode in drawn(corpus, kind, 20):
        chat.encode_turns(episode.turns)
        assert episode.tokens <= 512
        for turn in episode.turns:
            assert chat.decode(turn.action_ids) == turn.action
            assert turn.action_ids[-1] == chat.closing
