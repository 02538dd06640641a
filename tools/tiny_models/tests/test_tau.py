"""The corpus of the small shop: mediocre service in other shops, and roles that tell the truth."""

from __future__ import annotations

import copy
import random
import re
from collections import Counter
from dataclasses import dataclass

import pytest

from agentrl_cli.core.types import Message, Step
from agentrl_cli.envs.tau.database import Tables
from agentrl_cli.envs.tau.mini import ITEMS, mini_domain
from tools.tiny_models.base import Branch
from tools.tiny_models.clerk import ERRORS, RULES, ClerkState
from tools.tiny_models.played import Transition, verdict
from tools.tiny_models.tau import Snapshot, TauCorpus, redraw_unspoken_wish
from tools.tiny_models.tests.corpus_builder import record, seeds, tau_corpus
from tools.tiny_models.tests.shop_books import (
    SHOWN,
    allowed,
    assert_true_check,
    customer,
    done_in,
    rule_broken,
    rule_of,
    told,
)


@pytest.fixture(scope="module")
def corpus() -> TauCorpus:
    return tau_corpus()


@pytest.fixture(scope="module")
def conversations(corpus: TauCorpus) -> list[list[Transition]]:
    return [corpus.episode(rng) for rng in seeds(160)]


@dataclass
class Watched:
    """A role's branches in a conversation, with the futures that were imagined for each."""

    played: list[Transition]
    branches: list[Branch]
    futures: list[list[list[Transition]]]


def watch(
    corpus: TauCorpus, role: str, count: int, monkeypatch: pytest.MonkeyPatch
) -> list[Watched]:
    """So many conversations in which the role speaks of every turn."""
    imagine, drawn = TauCorpus.imagine, []

    def note(self: TauCorpus, before: Snapshot, action: str, rng: random.Random):
        drawn.append(imagine(self, before, action, rng))
        return drawn[-1]

    monkeypatch.setattr(TauCorpus, "imagine", note)
    found = []
    for seed in range(count):
        drawn.clear()
        played = corpus.episode(random.Random(seed))
        branches = corpus.text("play", {role: 1.0}, seed).branches
        each = len(drawn) // len(branches)
        assert each * len(branches) == len(drawn)
        parts = [drawn[i * each : (i + 1) * each] for i in range(len(branches))]
        found.append(Watched(played, branches, parts))
    return found


# the clerk


def test_the_clerk_is_mediocre_and_breaks_each_rule(conversations: list[list[Transition]]):
    won = sum(bool(moves[-1].step.reward) for moves in conversations)
    assert 0.3 < won / len(conversations) < 0.7
    flags = [
        {f for move in moves for f, value in move.step.info.items() if value is True}
        for moves in conversations
    ]
    assert sum("unconfirmed" in found for found in flags) > 20
    assert sum("tool_error" in found for found in flags) > 3
    asked = sum(any("more?" in move.action for move in moves) for moves in conversations)
    assert 20 < asked < 140


def test_an_error_is_bound_to_its_item_and_as_many_items_are_prone_as_configured(corpus: TauCorpus):
    habits, rng = corpus.habits, random.Random(0)
    for error in ERRORS:
        share = habits.prone[error]
        drawn = {
            item: [error in habits.draw_errors(item, rng) for _ in range(60)] for item in ITEMS
        }
        often = [item for item, errs in drawn.items() if sum(errs) / 60 > 0.4]
        assert len(often) / len(ITEMS) == pytest.approx(share, abs=0.25), error
        for item, errs in drawn.items():
            rate = habits.often if item in often else habits.seldom
            assert sum(errs) / 60 == pytest.approx(rate, abs=0.25), (error, item)


def test_habits_as_a_whole_are_as_frequent_as_configured(corpus: TauCorpus):
    habits = corpus.habits
    chances = [
        habits.chance(error, f"{item} {i}") for error in ERRORS for item in ITEMS for i in range(9)
    ]
    expected = sum(habits.prone[error] for error in ERRORS) / len(ERRORS)
    assert set(chances) == {habits.often, habits.seldom}
    assert chances.count(habits.often) / len(chances) == pytest.approx(expected, abs=0.04)


def test_no_text_is_about_the_environments_own_orders(conversations: list[list[Transition]]):
    def orders(tables: Tables) -> set[tuple[str, ...]]:
        return {(n, order["status"], *order["items"]) for n, order in tables["orders"].items()}

    own = orders(mini_domain().tables) | orders(mini_domain("val").tables)
    shops = [moves[0].before.env.domain_data.tables for moves in conversations]
    told = [move.step.messages[-1].content for moves in conversations for move in moves]
    assert sum(bool(SHOWN.match(text)) for text in told) > 100
    assert not own & set().union(*map(orders, shops))


def test_a_text_is_what_the_shop_answered(corpus: TauCorpus):
    for seed in range(30):
        played, text = corpus.episode(random.Random(seed)), corpus.text("play", {}, seed)
        assert text.turns[0].observation[0].content == corpus.env.system()
        assert [turn.action for turn in text.turns] == [move.action for move in played]
        for turn, move in zip(text.turns[1:], played, strict=False):
            assert turn.observation == move.step.messages
        assert played[-1].step.done and not any(move.step.done for move in played[:-1])


# roles


def test_every_check_is_true_by_the_shops_own_books(corpus: TauCorpus):
    said = Counter()
    for rng in seeds(60):
        played = corpus.episode(rng)
        for at, move in enumerate(played[:-1]):
            forecast = corpus._forecast(played, at, rng).answer
            assert_true_check(played, at, move.action, rule_of(forecast))
            said[rule_of(forecast)] += 1
    assert {"Right.", "Look first.", "Ask for more first.", "Not the items."} <= set(said)


def test_a_forecast_is_what_came_of_an_action(corpus: TauCorpus):
    outcomes = Counter()
    for seed in range(50):
        played, text = (
            corpus.episode(random.Random(seed)),
            corpus.text("play", {"forecast": 1}, seed),
        )
        assert len(text.branches) == len(played)
        for branch in text.branches:
            told(played, branch.turn, played[branch.turn :], branch.answer)
        outcomes[text.branches[0].answer.split()[-1]] += 1
    assert min(outcomes["Success."], outcomes["Failure."]) > 10


def test_a_forecast_of_another_action_is_what_then_came(
    corpus: TauCorpus, monkeypatch: pytest.MonkeyPatch
):
    said = Counter()
    for row in watch(corpus, "explored", 80, monkeypatch):
        for branch, (future,) in zip(row.branches, row.futures, strict=True):
            assert future[0].action == branch.action
            told(row.played, branch.turn, future, branch.answer)
            said[rule_of(branch.answer)] += 1
    assert set(RULES) <= set(said)


def test_actions_of_any_kind_are_forecast_and_not_taught(
    corpus: TauCorpus, monkeypatch: pytest.MonkeyPatch
):
    imagine, drawn, said, not_last = TauCorpus.imagine, list[list[Transition]](), Counter(), 0

    def note(self: TauCorpus, before: Snapshot, action: str, rng: random.Random):
        drawn.append(imagine(self, before, action, rng))
        return drawn[-1]

    monkeypatch.setattr(TauCorpus, "imagine", note)
    for seed in range(120):
        drawn.clear()
        text, played = corpus.text("wild", {}, seed), corpus.wander(random.Random(seed))
        assert {turn.info["weight"] for turn in text.turns} == {0.0}
        for branch, future in zip(text.branches, drawn, strict=True):
            assert future[0].action == branch.action
            told(played, branch.turn, future, branch.answer)
            said[rule_of(branch.answer)] += 1
        seen = played[-1].before.state.seen
        not_last += played[-1].before.state.item in [*seen][:-1]
    assert set(RULES) <= set(said) and not_last > 15


def test_a_search_for_what_nobody_asked_for_is_not_called_right(corpus: TauCorpus):
    for rng in seeds(10):
        played = corpus.episode(rng)
        zip_code = customer(played[1].before).zip
        future = corpus.play_on(played[1].before.fork(), rng, f"find({zip_code}, needles)")
        assert future[0].step.info["tool_error"]
        forecast = corpus._forecast([*played[:1], *future], 1, rng).answer
        told(played, 1, future, forecast)
        assert rule_of(forecast) == "Not asked for."


def test_a_backup_reads_the_response_and_a_true_forecast_and_writes_a_true_one(
    corpus: TauCorpus, monkeypatch: pytest.MonkeyPatch
):
    count = 0
    for row in watch(corpus, "backup", 60, monkeypatch):
        for branch, (future,) in zip(row.branches, row.futures, strict=True):
            response, later = re.split(
                r"The response was: |\nA forecast from there: |\nForecast this turn\.",
                branch.prompt,
            )[1:3]
            move = row.played[branch.turn]
            assert response == "\n".join(m.content for m in move.step.messages)
            told(row.played, branch.turn + 1, future, later)
            told(row.played, branch.turn, [move, *future], branch.answer)
            count += 1
    assert count > 150


def test_an_aggregate_reads_how_its_plays_ended(corpus: TauCorpus, monkeypatch: pytest.MonkeyPatch):
    for row in watch(corpus, "aggregate", 8, monkeypatch):
        for branch, futures in zip(row.branches, row.futures, strict=True):
            outcomes = ["Success." if f[-1].step.info["success"] else "Failure." for f in futures]
            shown = [
                t.split()[-1] for t in branch.prompt.splitlines() if t.endswith(("ess.", "ure."))
            ]
            assert shown[-4:] == outcomes and branch.answer.split()[-1] in outcomes
            assert any(agrees(row, branch, future) for future in futures)


def agrees(row: Watched, branch: Branch, future: list[Transition]) -> bool:
    """Whether a forecast tells of this future."""
    try:
        told(row.played, branch.turn, [row.played[branch.turn], *future], branch.answer)
    except AssertionError:
        return False
    return True


def test_a_verdict_follows_from_the_rules_and_the_ends_played_for_it(
    corpus: TauCorpus, monkeypatch: pytest.MonkeyPatch
):
    said = Counter()
    for row in watch(corpus, "evaluate", 16, monkeypatch):
        for branch, futures in zip(row.branches, row.futures, strict=True):
            wins, others = (
                sum(future[-1].step.info["success"] for future in part)
                for part in (futures[:8], futures[8:])
            )
            assert len(futures) == 16 and branch.action is not None
            broken = rule_broken(row.played, branch.turn, branch.action)
            found = re.fullmatch(r"Optimality: (Yes|No)\. (.+\.)", branch.answer)
            assert found
            if found[2] in RULES:
                assert found[1] == "No" and wins <= others and found[2] in broken
            elif wins < others - 0.2 * 8:
                assert found[1] == "No" and found[2] == "It ends worse than another turn."
            else:
                assert found[1] == "Yes" and found[2] == "It ends as well as another turn."
                ended = all(len(future) == 1 for future in futures[:8])
                right = done_in(branch.action) in allowed(row.played, branch.turn)
                assert ended or right or wins > others
            said["rule" if found[2] in RULES else found[1]] += 1
    assert min(said[key] for key in ("rule", "Yes", "No")) > 1


WON, LOST = "zip 12. Right. Yes. Success.", "zip 12. Right. Yes. Failure."


@pytest.mark.parametrize(
    ("mine", "others", "critique"),
    [
        ([WON] * 4 + [LOST] * 4, [WON] * 5 + [LOST] * 3, "Yes. It ends as well as another turn."),
        ([WON] * 4 + [LOST] * 4, [WON] * 6 + [LOST] * 2, "No. It ends worse than another turn."),
        (["zip 12. Look first. Yes. Success."], [WON], "No. Look first."),
        (["zip 12. Look first. Yes. Success."], [LOST], "Yes. It ends as well as another turn."),
        (["###STOP### Failure."], [LOST], "Yes. It ends as well as another turn."),
    ],
)
def test_a_critique_names_a_broken_rule_unless_it_ends_better(
    mine: list[str], others: list[str], critique: str
):
    assert verdict(mine, others, RULES) == f"Optimality: {critique}"


def test_the_action_that_succeeded_most_often_is_written_again(
    corpus: TauCorpus, monkeypatch: pytest.MonkeyPatch
):
    best = 0
    for row in watch(corpus, "rollouts", 10, monkeypatch):
        for branch, futures in zip(row.branches, row.futures, strict=True):
            wins = Counter(f[0].action for f in futures if f[-1].step.info["success"])
            shown = branch.prompt.splitlines()[1:-1]
            assert len(shown) == len(futures) == 4
            for line, future in zip(shown, futures, strict=True):
                outcome = "Success." if future[-1].step.info["success"] else "Failure."
                assert line.startswith(" ".join(future[0].action.split()))
                assert line.endswith(outcome)
            if wins:
                best += 1
                assert wins[branch.answer] == max(wins.values())
    assert best > 30


def test_really_played_conversations_are_told_as_they_went(corpus: TauCorpus):
    outcomes = Counter()
    for task, rng in zip(corpus.env.tasks("train")[:45], seeds(45), strict=True):
        env, state, played = copy.copy(corpus.env), ClerkState(), list[Transition]()

        def choose(said: str, env=env, state=state, rng=rng, played=played) -> str:
            corpus.clerk.observe(state, said, rng)
            action = corpus.clerk.choose_action(state, rng)
            corpus.clerk.note(state, action)
            now = Snapshot(copy.copy(env), state, [Message("user", said)]).fork()  # pyright: ignore
            played.append(Transition(now, action, Step([], 0.0, False, False)))
            return action

        episode = record(env, task, choose, seed=7)
        for at, (move, turn) in enumerate(zip(played, episode.turns, strict=True)):
            success = episode.success
            move.step = Step(
                episode.response(at), 0.0, False, False, {**turn.info, "success": success}
            )
        for at, forecast in enumerate(corpus.true_forecasts(episode)):
            told(played, at, played[at:], forecast)
        outcomes[episode.success] += 1
    assert min(outcomes.values()) > 8


def test_what_nobody_was_told_is_imagined_anew(conversations: list[list[Transition]]):
    rng, counts = random.Random(2), Counter()
    for moves in conversations:
        wishes = customer(moves[0].before).wishes
        done = [done_in(move.action) for move in moves]
        at = next((i for i, words in enumerate(done) if words.startswith("Return")), None)
        if wishes[0]["kind"] != "return" or at is None or len(wishes) > 1:
            continue
        asked = "Is there more?" in done[:at]
        wants = [redrawn(moves[at].before, rng) for _ in range(40)]
        assert (len(set(wants)) == 1) == asked
        assert customer(moves[at].before).wishes[0]["more"] == wishes[0]["more"]
        counts[asked] += 1
    assert min(counts[True], counts[False]) > 4


def redrawn(snapshot: Snapshot, rng: random.Random) -> tuple[str, ...]:
    """What the customer wants more in another draw, which the ground truth must then hold."""
    fork = snapshot.fork()
    redraw_unspoken_wish(fork, rng)
    first, now = customer(fork).wishes[0], fork.env.conversation
    truth = [action["kwargs"]["items"] for action in now.task["actions"]] if now else []
    assert truth in ([], [[first["item"], *first["more"]]])
    return tuple(first["more"])
