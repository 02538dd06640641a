"""The corpus of Twenty Questions tells the truth, at the level of a mediocre player."""

from __future__ import annotations

import copy
import random
import re
from collections import Counter

import pytest

from agentrl_cli.core.types import Message, Task, Turn
from agentrl_cli.envs.twentyq.expert import best_attributes
from agentrl_cli.envs.twentyq.questions import Guess, Question
from tools.tiny_models.base import Branch, Text
from tools.tiny_models.player import FAULTS, UNANSWERABLE, Player, PlayerHabits
from tools.tiny_models.tests.corpus_builder import (
    answer_in,
    asked_by,
    check_of,
    fits_after,
    fitting,
    how_close,
    judged_turns,
    last_line,
    record,
    seeds,
    spoken,
    texts_of,
    told,
    twentyq_corpus,
)
from tools.tiny_models.twentyq import TwentyQCorpus

ANSWER_WORDS = {"yes": "Yes.", "no": "No.", "sometimes": "Sometimes.", "": "I cannot answer that."}
ENDS = ("Success.", "Close. Failure.", "Near. Failure.", "Far. Failure.")
PLAYED_TURN = re.compile(r"Maybe [^.]+\. (?:Close|Near|Far)\. [^?.]+[?.]")


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


def answer_of(corpus: TwentyQCorpus, action: str, name: str) -> str:
    """What the world answers when it hides the object."""
    asked = asked_by(action)
    if isinstance(asked, Question):
        return corpus.env.world_table.answer(name, asked.attribute)
    return ("yes" if asked == Guess(name) else "no") if isinstance(asked, Guess) else ""


def can_come_true(corpus: TwentyQCorpus, turns: list[Turn], forecast: str) -> bool:
    """Whether an object that fits before the last of these turns makes the forecast true."""
    action, before, nouns = last_line(turns[-1]), fitting(turns), corpus.env.world_table.nouns
    checked = check_of(turns)
    for name in before:
        answer = answer_of(corpus, action, name)
        after, word = fits_after(before, action, answer), ANSWER_WORDS[answer]
        if asked_by(action) == Guess(name):
            ends = [f"{word} You win. Success."]
        elif len(turns) == corpus.env.max_turns:
            ends = [f"{word} You lose. It was {nouns[name]}. {how_close(after)} Failure."]
        else:
            head = f"{nouns[name]}. {checked} {word} {told(before, after)}"
            ends = [f"{head} {end}" for end in ENDS]
        if forecast in ends:
            return True
    return False


def head_of(turns: list[Turn], following: Turn) -> str:
    """A check of the last of these turns, the answer, how much it told."""
    before, answer = fitting(turns), answer_in(following.observation[-1])
    after = fits_after(before, turns[-1].action, answer)
    return f"{check_of(turns)} {ANSWER_WORDS[answer]} {told(before, after)}"


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
def test_every_thought_names_an_object_that_fits_and_says_how_close_it_is(
    corpus: TwentyQCorpus, kind: str
):
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
def test_a_game_is_what_the_world_answers_word_for_word(corpus: TwentyQCorpus, kind: str):
    for text in texts_of(corpus, kind, 20):
        fit = [replayed(text.turns, name, corpus) for name in corpus.env.world_table.objects]
        assert any(fit) and (not all(fit) or len(text.turns) == 1)


def test_fits_asks_of_nine_attributes_once_and_teaches_no_question(corpus: TwentyQCorpus):
    for text in texts_of(corpus, "fits", 20):
        asked = [asked_by(turn.action) for turn in text.turns]
        assert all(isinstance(question, Question) for question in asked)
        assert len(set(map(str, asked))) == len(asked) == 9
        assert all(turn.info == {"action_weight": 0.0} for turn in text.turns)


def test_actions_of_any_kind_are_forecast_and_not_taught(corpus: TwentyQCorpus):
    checks, actions = Counter(), 0
    for text in texts_of(corpus, "wild", 60):
        assert [branch.turn for branch in text.branches] == list(range(len(text.turns)))
        assert all(turn.info == {"action_weight": 0.0} for turn in text.turns)
        for branch in text.branches:
            turns, actions = judged_turns(text, branch), actions + 1
            assert can_come_true(corpus, turns, branch.answer)
            checks[check_of(turns)] += 1
    assert len(checks) == 6 and min(checks.values()) > 0.01 * actions


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


def test_as_many_objects_lead_astray_as_configured_each_in_its_own_way(corpus: TwentyQCorpus):
    player, share = corpus.player, corpus.habits.prone
    count = len(player.faults)
    prone = [fault for fault in player.faults if fault]
    spread = (share * (1 - share) / count) ** 0.5
    assert len(prone) / count == pytest.approx(share, abs=3 * spread)
    assert set(prone) == set(FAULTS) and min(Counter(prone).values()) > 4
    assert player.faults == Player(corpus.env.world_table, corpus.habits).faults


def errs(corpus: TwentyQCorpus, player: Player, number: int, rng: random.Random) -> bool:
    """Whether the player goes astray when it thinks of an object in a game that has begun."""
    state = player.start()
    world = corpus.env.world_table
    player.observe(state, world.question(world.attributes[0]), "no")
    state.wasted = False
    action = player._draw_action(state, number, rng)
    implied = asked_by(action) == asked_by(state.actions[-1])
    return action in UNANSWERABLE or implied or isinstance(asked_by(action), Guess)


def test_at_an_object_that_leads_astray_the_player_mostly_does(corpus: TwentyQCorpus):
    rng, player = random.Random(0), corpus.player
    rates = {
        number: sum(errs(corpus, player, number, rng) for _ in range(40)) / 40
        for number, fault in enumerate(player.faults)
        if fault != "implied"
    }
    for number, rate in rates.items():
        assert (rate > 0.4) == bool(player.faults[number]), (number, rate)


def test_the_player_never_goes_astray_twice_in_a_row(corpus: TwentyQCorpus):
    always = PlayerHabits(prone=1.0, often=1.0, seldom=0.0, first=0.5, guess_one=0.0, guess_few=0.0)
    player, rng = Player(corpus.env.world_table, always), random.Random(0)
    wasted = 0
    for secret in range(0, 96, 4):
        state = player.start()
        for _ in range(8):
            before, was_wasted = state.candidates, state.wasted
            action, _ = player.choose_turn(state, rng)
            player.observe(state, action, player.answer(action, secret))
            several = before.bit_count() > 1
            assert not (several and was_wasted and action in UNANSWERABLE)
            wasted += state.candidates == before
    assert wasted > 40


# roles


def test_a_forecast_of_a_played_turn_is_what_the_world_said(games: list[Text]):
    checks = Counter()
    for text in games:
        *heads, last = text.branches
        lost = re.search(r"It was (.+?)\.", last.answer)
        noun = lost[1] if lost else last_line(text.turns[-1])[len("Is it ") : -1]
        end = last.answer.split()[-1]
        if end == "Failure.":
            end = " ".join(last.answer.split()[-2:])
        for branch in heads:
            turns = judged_turns(text, branch)
            assert branch.answer == f"{noun}. {head_of(turns, text.turns[branch.turn + 1])} {end}"
            checks[check_of(turns)] += 1
    assert len(checks) >= 5  # the player guesses nothing that it has ruled out


def test_the_forecast_of_a_last_turn_is_the_worlds_farewell(
    corpus: TwentyQCorpus, games: list[Text]
):
    for text in games[:40]:
        env, said = copy.copy(corpus.env), set()
        for name in corpus.env.world_table.objects:
            if replayed(text.turns, name, corpus):
                env.reset(Task("t", "train", {"object": name}), 0)
                step = [env.step(turn.action) for turn in text.turns][-1]
                if not step.done:
                    continue
                outcome = "Success." if step.info["success"] else "Failure."
                said.add(f"{step.messages[0].content} {outcome}")
        assert text.branches[-1].answer in said


def test_a_forecast_of_another_action_is_one_that_can_come_true(corpus: TwentyQCorpus):
    checks = Counter()
    for text, branch in spoken(corpus, "explored", 60):
        turns = judged_turns(text, branch)
        assert can_come_true(corpus, turns, branch.answer)
        checks[check_of(turns)] += 1
    assert len(checks) >= 5 and min(checks.values()) > 5


def test_really_played_games_are_told_as_they_went(corpus: TwentyQCorpus):
    outcomes, player = Counter(), corpus.player
    for task, rng in zip(corpus.env.tasks("train"), seeds(50), strict=False):
        state, asked = player.start(), []

        def choose(said: str, rng=rng, state=state, asked=asked) -> str:
            if asked:
                player.observe(state, asked[-1], answer_in(Message("user", said)))
            action, text = player.choose_turn(state, rng)
            asked.append(action)
            return text

        episode = record(copy.copy(corpus.env), task, choose)
        farewell = episode.closing[0].content
        outcome = "Success." if episode.success else "Failure."
        close = [] if episode.success else [farewell.split()[-1]]
        heads = [
            head_of(episode.turns[:at], episode.turns[at]) for at in range(1, len(episode.turns))
        ]
        noun = corpus.env.world_table.nouns[task.data["object"]]
        expected = [" ".join([f"{noun}.", head, *close, outcome]) for head in heads]
        assert corpus.true_forecasts(episode) == [*expected, f"{farewell} {outcome}"]
        outcomes[episode.success] += 1
    assert min(outcomes.values()) > 10


def quoted(branch: Branch, after: str) -> str:
    """The line of a prompt that begins so."""
    return next(row for row in branch.prompt.splitlines() if row.startswith(after))[len(after) :]


def nouns_that_fit(corpus: TwentyQCorpus, turns: list[Turn]) -> set[str]:
    """Of the objects that fit before the last of these turns."""
    return {corpus.env.world_table.nouns[name] for name in fitting(turns)}


def test_a_backup_reads_the_response_and_a_true_forecast_and_keeps_its_end(corpus: TwentyQCorpus):
    for text, branch in spoken(corpus, "backup", 50):
        following = text.turns[branch.turn + 1]
        assert quoted(branch, "The response was: ") == following.observation[-1].content
        words = quoted(branch, "A forecast from there: ").split()
        end = " ".join(words[-1:] if words[-1] == "Success." else words[-2:])
        noun, said = branch.answer.split(". ", 1)
        assert said == f"{head_of(judged_turns(text, branch), following)} {end}"
        assert noun in nouns_that_fit(corpus, text.turns[: branch.turn + 2])
        later = " ".join(words)
        assert later.startswith(f"{noun}. ") or "You win." in later or f"It was {noun}." in later


def test_an_aggregate_tells_one_of_the_ends_that_it_reads(corpus: TwentyQCorpus):
    for text, branch in spoken(corpus, "aggregate", 30):
        following = text.turns[branch.turn + 1]
        assert quoted(branch, "The response was: ") == following.observation[-1].content
        rows = [row.split() for row in branch.prompt.split("ended:\n")[1].splitlines()[:-1]]
        ends = {" ".join(row[-1:] if row[-1] == "Success." else row[-2:]) for row in rows}
        head = head_of(judged_turns(text, branch), following)
        noun, said = branch.answer.split(". ", 1)
        assert len(rows) == 4 and said in {f"{head} {end}" for end in ends}
        assert noun in nouns_that_fit(corpus, text.turns[: branch.turn + 2])


def test_the_turn_that_succeeded_most_often_is_written_again(corpus: TwentyQCorpus):
    best = 0
    for _, branch in spoken(corpus, "rollouts", 25):
        wins, rows = Counter[str](), branch.prompt.splitlines()[1:-1]
        for row in rows:
            turn = PLAYED_TURN.match(row)
            assert turn and row.endswith(("Success.", "Failure."))
            wins[turn[0]] += row.endswith("Success.")
        assert len(rows) == 4
        if max(wins.values()):
            best += 1
            assert wins[" ".join(branch.answer.split())] == max(wins.values())
    assert best > 100
