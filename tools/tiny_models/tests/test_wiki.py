"""The corpus of the wiki: mediocre search in other encyclopedias, and roles that tell the truth by
the questions' own proofs."""

from __future__ import annotations

import copy
import random
import re
from collections import Counter

import pytest

from agentrl_cli.core.types import Message, Task
from agentrl_cli.envs.wiki.actions import line_numbers, parse
from agentrl_cli.envs.wiki.env import Wiki
from tests.builders.wiki import begun, wiki
from tools.tiny_models.played import Transition, rule_of, verdict
from tools.tiny_models.reader import (
    RULES,
    Reader,
    ReaderHabits,
    ReaderState,
    ask,
    broken_rule,
    check,
    due,
    observe,
)
from tools.tiny_models.tests.corpus_builder import record, seeds, wiki_corpus
from tools.tiny_models.wiki import WikiCorpus, worth

RECITED = re.compile(
    r"The (?P<relation>\w+) (?P<verb>is|are) (?P<value>[\w, ]+) \((?P<line>\d+)\)\."
)
ASKED = re.compile(r"The (?P<relation>\w+) of (?P<title>\w+)\?")
MISTAKES = ("unsaved", "neighbour", "stop", "astray", "skip", "miscount")


@pytest.fixture(scope="module")
def corpus() -> WikiCorpus:
    return wiki_corpus()


@pytest.fixture(scope="module")
def searches(corpus: WikiCorpus) -> list[list[Transition]]:
    return [corpus.episode(rng) for rng in seeds(200)]


def proof_of(move: Transition) -> set[tuple[str, int]]:
    """The lines that prove the answer to the question that is being searched for."""
    search = move.before.env.search
    assert search is not None
    return {line for step in search.proof for line in step}


def open_page(move: Transition) -> str:
    """The page that is open before a move; "" for none."""
    search = move.before.env.search
    assert search is not None
    return search.browser.view.title if search.browser.view else ""


def assert_true_check(move: Transition, rule: str) -> None:
    """What a check says of an action is so by the question's proof and the browser."""
    search, read = move.before.env.search, parse(move.action)
    assert search is not None
    if read.verb == "save":
        lines = {(open_page(move), number) for number in line_numbers(read.argument)}
        useful = bool(open_page(move)) and lines <= proof_of(move) - {*search.browser.saved}
        known = bool(open_page(move)) and lines <= {*search.browser.saved}
        if useful:  # a line may prove what the chain has not led to yet
            assert rule in ("Right.", "Not that line.")
        else:
            assert rule == ("Known." if known else "Not that line.")
    elif read.verb == "submit":
        right, proved = (move.step.info["privileged"][key] for key in ("right", "proved"))
        if rule == "Right.":  # the lines are saved, and perhaps too many others
            assert right and (proved or len(search.browser.saved) > 2 * len(search.proof))
        if rule == "Not the answer.":
            assert not right
    elif rule == "Save the line first.":
        unsaved = proof_of(move) - {*search.browser.saved}
        assert any(title == open_page(move) for title, _ in unsaved)


# the reader


def test_the_reader_is_mediocre(searches: list[list[Transition]]):
    won = sum(bool(moves[-1].step.reward) for moves in searches)
    assert 0.3 < won / len(searches) < 0.6
    ends = Counter(moves[-1].step.messages[-1].content.split(". ")[0] for moves in searches)
    assert ends["Right"] > 100 and sum(ends.values()) - ends["Right"] > 40


def test_without_habits_the_reader_makes_no_mistake():
    env = wiki()
    for task in env.tasks("train") + env.tasks("test"):
        state, one = ReaderState(), begun(env, task)
        ask(state, str(task.data["question"]))
        for _ in range(env.max_turns):
            action = Reader().choose_action(state, random.Random(0))
            assert broken_rule(state, action) == "Right."
            step = one.step(action)
            observe(state, action, step.messages[0].content)
            if step.done:
                break
        assert step.info["success"] is True, task.id


def test_the_reader_first_recites_what_it_acts_by(searches: list[list[Transition]]):
    recited, compared = Counter(), 0
    for move in (move for moves in searches for move in moves):
        line, _, action = move.action.partition("\n")
        read, told = parse(action), RECITED.fullmatch(line)
        recited[read.verb] += 1
        if read.verb == "save":
            assert told and told["line"] == read.argument
            shown = move.before.env.encyclopedia.pages[open_page(move)].lines
            said = f"The {told['relation']} {told['verb']} {told['value']}"
            assert shown[int(told["line"]) - 1].startswith(said)
        elif read.verb == "submit":
            found = re.fullmatch(r"(?:Of (.+)\. )?It is (\w+)\.", line)
            assert found and found[2] == read.argument
            compared += found[1] is not None
            assert_true_years(move, found[1] or "")
        else:
            assert line.startswith("Look for the ") or told
    assert min(recited[verb] for verb in ("search", "open", "save", "submit")) > 100
    assert compared > 10


def assert_true_years(move: Transition, told: str) -> None:
    """The years that are told of works stand on their pages; the answer is the first or last."""
    rows = [row.split() for row in told.split(", ") if row]
    pages = move.before.env.encyclopedia.pages
    assert all(f"The year is {year}." in pages[work].lines for work, year in rows)
    years = {work: int(year) for work, year in rows}
    answer = parse(move.action).argument
    assert not years or years[answer] in (min(years.values()), max(years.values()))


def test_a_mistake_is_bound_to_its_occasion_and_as_many_are_prone_as_configured():
    habits = ReaderHabits(prone=dict.fromkeys(MISTAKES, 0.3), often=0.7, seldom=0.04)
    for mistake in MISTAKES:
        chances = [habits.chance(mistake, f"relation {i}") for i in range(600)]
        assert chances == [habits.chance(mistake, f"relation {i}") for i in range(600)]
        assert set(chances) == {0.7, 0.04}
        assert chances.count(0.7) / 600 == pytest.approx(0.3, abs=0.06)


@pytest.mark.parametrize("mistake", MISTAKES)
def test_each_mistake_is_made_and_costs_wins(mistake: str):
    env = wiki(pages=120, questions=80, test_questions=4)
    reader = Reader(ReaderHabits(prone={mistake: 1.0}, often=1.0, seldom=0.0))
    won = Counter(bool(playing(reader, env, task)[-1].step.reward) for task in env.tasks("train"))
    if mistake == "astray":  # a detour, which there are turns enough for
        assert won[True] > 60
    else:
        assert won[False] > (5 if mistake in ("skip", "miscount") else 30)


def playing(reader: Reader, env: Wiki, task: Task) -> list[Transition]:
    """An episode of a reader."""
    from tools.tiny_models.wiki import Snapshot

    one, state, rng, played = begun(env, task), ReaderState(), random.Random(1), list[Transition]()
    ask(state, str(task.data["question"]))
    now = Snapshot(one, state, [Message("user", "")])
    while not played or not played[-1].step.done:
        before, action = now.fork(), reader.choose_action(now.state, rng)
        step = now.env.step(action)
        observe(now.state, action, step.messages[0].content)
        played.append(Transition(before, action, step))
    return played


def test_what_is_due_leads_from_the_question_to_the_answer():
    env = begun(wiki(), Task("x", "train", {"id": "x", "kind": "lookup", "answers": ["Dalo"],
                                            "question": "Name the mother of Fenick.",
                                            "proof": [[["Fenick", 2]]]}))  # fmt: skip
    state, said = ReaderState(), []
    ask(state, "Name the mother of Fenick. 16 left.")
    actions = ["SAVE 1", "SEARCH Fenick", "OPEN Fenick", "BACK", "OPEN Fenick", "SAVE 1", "SAVE 1",
               "SUBMIT Dalo", "SAVE 2", "OPEN Dalo", "SUBMIT Allow"]  # fmt: skip
    for action in actions:
        said.append(check(state, action))
        if not action.startswith("SUBMIT Dalo"):
            observe(state, action, env.step(action).messages[0].content)
    assert said == [
        "Look for the mother of Fenick. Not that line.",
        "Look for the mother of Fenick. Right.",
        "Look for the mother of Fenick. Right.",
        "The mother is Dalo (2). Save the line first.",
        "The mother is Dalo (2). Right.",
        "The mother is Dalo (2). Not that line.",
        "The mother is Dalo (2). Known.",
        "The mother is Dalo (2). Not done.",
        "The mother is Dalo (2). Right.",
        "It is Dalo. Answer now.",
        "It is Dalo. Not the answer.",
    ]
    assert due(state).value == "Dalo"


# texts


def test_no_text_is_of_the_environments_own_encyclopedia(searches: list[list[Transition]]):
    pages = wiki().encyclopedia
    own = {f"{page.heading}.\n{pages.numbered(page)[0]}" for page in pages.pages.values()}
    shown = [
        "\n".join(move.step.messages[-1].content.split("\n")[:2]) for s in searches for move in s
    ]
    read = {text for text in shown if text.endswith("(1).")}
    assert len(read) > 200 and not read & own
    asked = {task.data["question"] for split in ("train", "test") for task in wiki().tasks(split)}
    questions = [str(s[0].before.observation[0].content).split(". ")[0] + "." for s in searches]
    assert len(asked & {*questions}) <= 2  # names are few enough for the same words


def test_a_text_is_what_the_browser_showed(corpus: WikiCorpus):
    for seed in range(30):
        played, text = corpus.episode(random.Random(seed)), corpus.text("play", {}, seed)
        assert text.turns[0].observation[0].content == corpus.env.system()
        assert [turn.action for turn in text.turns] == [move.action for move in played]
        for turn, move in zip(text.turns[1:], played, strict=False):
            assert turn.observation == move.step.messages
        assert played[-1].step.done and not any(move.step.done for move in played[:-1])


def test_facts_recall_what_a_page_said_and_teach_no_action(corpus: WikiCorpus):
    for seed in range(20):
        text = corpus.text("facts", {}, seed)
        assert {turn.info["weight"] for turn in text.turns} == {0.0} and len(text.branches) > 2
        shown = "\n".join(turn.observation[-1].content for turn in text.turns)
        for branch in text.branches[:-1]:
            told, asked = RECITED.fullmatch(branch.answer), ASKED.fullmatch(branch.prompt)
            assert told and asked and told["relation"] == asked["relation"]
            if re.search(rf"^{asked['title']}, an? \w+\.\nThe ", shown, re.MULTILINE):
                assert branch.answer in shown


# roles


def test_every_check_is_true_by_the_proof(searches: list[list[Transition]], corpus: WikiCorpus):
    said = Counter()
    for rng, played in zip(seeds(80), searches, strict=False):
        for move in [*played, *corpus.wander(rng)]:
            rule = rule_of(check(move.before.state, move.action))
            assert_true_check(move, rule)
            said[rule] += 1
        for move in played:
            if rule_of(check(move.before.state, move.action)) == "Not that line.":
                lines = {(open_page(move), n) for n in line_numbers(parse(move.action).argument)}
                said["useful and not seen to be"] += lines <= proof_of(move)
    assert {*RULES} - {"Unclear."} <= {*said} and said["Right."] > 200
    assert said["useful and not seen to be"] < 0.1 * said["Not that line."]


def test_a_forecast_is_what_came_of_an_action(corpus: WikiCorpus):
    outcomes = Counter()
    for seed in range(40):
        played = corpus.episode(random.Random(seed))
        text = corpus.text("play", {"forecast": 1}, seed)
        end = "Success." if played[-1].step.reward else "Failure."
        for branch, move in zip(text.branches, played, strict=True):
            shown = move.step.messages[-1].content
            if move.step.done:
                assert branch.answer == f"{shown} {end}"
                continue
            checked, ends = (
                check(move.before.state, move.action),
                worth(played[-1].step.messages[-1].content),
            )
            assert branch.answer.startswith(checked) and branch.answer.endswith(f"{ends} {end}")
            told = branch.answer.removeprefix(checked).removesuffix(f"{ends} {end}").strip()
            assert shown.startswith(told.removesuffix(".")) and len(told) > 3
        outcomes[end] += 1
    assert min(outcomes["Success."], outcomes["Failure."]) > 8


def test_imagining_does_not_change_what_was_played(corpus: WikiCorpus):
    for rng in seeds(6):
        played = corpus.episode(rng)
        state = copy.deepcopy(played[2].before.state)
        views = list(played[2].before.env.search.browser.views)  # pyright: ignore
        for _ in range(3):
            corpus.imagine(played[2].before, corpus.reader.any_action(state, rng), rng)
        search = played[2].before.env.search
        assert search is not None and search.browser.views == views and not search.over
        assert played[2].before.state == state


def test_own_play_is_told_as_it_went(corpus: WikiCorpus):
    env = corpus.other_world(random.Random(3))
    outcomes = Counter()
    for task, rng in zip(env.tasks("train"), seeds(30), strict=False):
        state, last = ReaderState(), list[str]()
        ask(state, str(task.data["question"]))

        def choose(said: str, state=state, last=last, rng=rng) -> str:
            if last:
                observe(state, last[-1], said)
            last.append(corpus.reader.choose_action(state, rng))
            return last[-1]

        episode = record(env, task, choose, seed=7)
        forecasts = corpus.true_forecasts(episode)
        end = "Success." if episode.success else "Failure."
        assert len(forecasts) == len(episode.turns)
        assert all(forecast.endswith(end) for forecast in forecasts)
        assert forecasts[-1].startswith(episode.closing[-1].content)
        text = corpus.own_play(episode)
        assert {turn.info["weight"] for turn in text.turns} == {0.0}
        outcomes[end] += 1
    assert min(outcomes["Success."], outcomes["Failure."]) > 4


def test_own_play_is_in_other_encyclopedias(corpus: WikiCorpus):
    first, second = (corpus.other_world(random.Random(seed)) for seed in range(2))
    titles = [{*env.encyclopedia.pages} for env in (first, second, corpus.env)]  # pyright: ignore
    texts = [{str(task.data) for task in env.tasks("train")} for env in (first, second, corpus.env)]
    assert not texts[0] & texts[1] and not texts[0] & texts[2] and titles[0] != titles[1]


WON = "The mother is Dalo (2). Right. Saved. Right. Proved. Success."
LOST = "The mother is Dalo (2). Right. Saved. Wrong. Proved. Failure."
WRONG = "The mother is Dalo (2). Not that line. Saved. Right. Proved. {}"


@pytest.mark.parametrize(
    ("mine", "others", "critique"),
    [
        ([WON] * 4 + [LOST] * 4, [WON] * 5 + [LOST] * 3, "Yes. It ends as well as another turn."),
        ([WON] * 4 + [LOST] * 4, [WON] * 6 + [LOST] * 2, "No. It ends worse than another turn."),
        ([WRONG.format("Success.")], [WON], "No. Not that line."),
        ([WRONG.format("Success.")], [LOST], "Yes. It ends as well as another turn."),
        (["Wrong. It is Dalo. Proved. Failure."], [LOST], "Yes. It ends as well as another turn."),
    ],
)
def test_a_critique_names_a_broken_rule_unless_it_ends_better(
    mine: list[str], others: list[str], critique: str
):
    assert verdict(mine, others, RULES) == f"Optimality: {critique}"
