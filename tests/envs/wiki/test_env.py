"""The environment: browser, parsers, hostile input, rewards, contract, metrics."""

from __future__ import annotations

import copy
import pickle
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from agentrl_cli.core.errors import UserError
from agentrl_cli.core.types import Episode, Step, Task, Turn
from agentrl_cli.envs import check_env
from agentrl_cli.envs.wiki.browser import Action, line_numbers, parse
from agentrl_cli.envs.wiki.env import Wiki, f1, is_right, proves
from agentrl_cli.envs.wiki.pages import normalise
from tests.builders.wiki import begun, expert_steps, shown, wiki

ROW: dict[str, Any] = {
    "id": "x",
    "kind": "lookup",
    "question": "Name the mother of Fenick.",
    "answers": ["Dalo"],
    "proof": [[["Fenick", 2]]],
}
TASK = Task("x", "train", ROW)
OPENED = ("SEARCH Fenick", "OPEN Fenick")
PAGE = (
    "The teacher is Allow (1).\nThe mother is Dalo (2).\nThe year is 435 (3).\n"
    "The town is Veron (4)."
)


@pytest.fixture
def env() -> Wiki:
    return begun(wiki(), TASK)


def play(env: Wiki, *actions: str) -> Step:
    return [env.step(action) for action in actions][-1]


def test_whole_episode_has_exact_texts(env: Wiki):
    first = env.reset(TASK, 0)
    assert first[0].content == "Name the mother of Fenick. 16 left."
    results = env.step("SEARCH Fenick").messages[0].content.splitlines()
    assert results[0] == "5 pages, page 1 of 2." and results[1] == "Fenick, a painter."
    assert results[-2:] == ["[next]", "15 left."] and len(results) == 7
    opened = env.step("OPEN Fenick").messages[0].content
    assert opened == f"Fenick, a painter.\n{PAGE}\n14 left."
    assert env.step("FIND mother").messages[0].content == "The mother is Dalo (2). 13 left."
    assert env.step("SAVE 2").messages[0].content == "Saved: The mother is Dalo. 12 left."
    step = env.step("SUBMIT Dalo")
    assert step.messages[0].content == "Right. Proved."
    assert (step.reward, step.done, step.truncated, step.info["success"]) == (1, True, False, True)


def test_only_shown_results_can_be_opened(env: Wiki):
    first = shown(env, "SEARCH Fenick").splitlines()
    second = shown(env, "OPEN next").splitlines()
    assert second[0] == "5 pages, page 2 of 2." and second[-1] == "[previous]"
    assert len(second) == 3 and second[1] not in first
    assert shown(env, "OPEN Fenick") == "There is no link Fenick here."
    assert shown(env, "OPEN next") == "There is no link next here."
    assert shown(env, "OPEN previous").splitlines() == first
    assert shown(env, "OPEN Fenick").startswith("Fenick, a painter.")


def test_results_open_by_their_headings(env: Wiki):
    for link in ("Fenick, a painter.", "fenick, a painter", "Fenick."):
        shown(env, "SEARCH Fenick")
        assert shown(env, f"OPEN {link}").startswith("Fenick, a painter.")


def test_parts_of_a_page_keep_line_numbers():
    env = begun(wiki("wiki_full", page_lines=2))
    title, number = env.tasks("train")[0].data["proof"][0][0]
    parts = [shown(env, f"SEARCH {title}", f"OPEN {title}")]
    while parts[-1].endswith("[next]"):
        parts.append(shown(env, "OPEN next"))
    lines = [line for part in parts for line in part.splitlines() if line[0].isdigit()]
    assert lines == [f"{n} {text}" for n, text in enumerate(env.encyclopedia.pages[title].lines, 1)]
    assert len(parts) > 1 and lines[number - 1].startswith(f"{number} ")


@pytest.mark.parametrize(
    "action, answer",
    [
        ("", "Unknown action."), ("xyzzy", "Unknown action."), ("SEARCHING it", "Unknown action."),
        ("SEARCH", "SEARCH needs words."), ("SEARCH ???", "No page found."),
        ("OPEN Fenick", "There is no link Fenick here."), ("OPEN", "OPEN needs a link."),
        ("BACK", "There is nothing to go back to."), ("SAVE 1", "No page is open."),
        ("FIND year", "No page is open."), ("SUBMIT", "SUBMIT needs an answer."),
    ],
)  # fmt: skip
def test_invalid_actions_cost_a_turn(env: Wiki, action: str, answer: str):
    step = env.step(action)
    assert step.messages[0].content.startswith(answer)
    assert step.messages[0].content.endswith(" 15 left.") and not step.done
    assert step.info["invalid"] is (answer != "No page found.")


@pytest.mark.parametrize(
    "action, answer",
    [
        ("SAVE 9", "There is no line 9 here."), ("SAVE 0", "There is no line 0 here."),
        ("SAVE it", "SAVE needs the numbers of lines."), ("SAVE 1-3", "Saved 3 lines."),
        ("SAVE lines 1, 3 and 4", "Saved 3 lines."), ("FIND dragons", "No line has dragons."),
        ("FIND is", PAGE),
    ],
)  # fmt: skip
def test_lines_of_the_open_page(env: Wiki, action: str, answer: str):
    assert shown(env, *OPENED, action) == answer


def test_repeated_actions_are_marked(env: Wiki):
    assert shown(env, *OPENED, "SAVE 2", "SAVE 2") == "Saved before."
    env = begun(wiki())
    searches = ("SEARCH Dalo", "SEARCH Moren", "SEARCH Dalo", "search dalo")
    assert not any(env.step(action).info["repeated"] for action in searches)  # open views differ
    assert [env.step(a).info["repeated"] for a in ("OPEN x", "OPEN X")] == [False, True]


@pytest.mark.parametrize(
    "text, action",
    [
        ("search two words", Action("search", "two words")),
        ("I think so.\n\nAction: OPEN [The Long Page]", Action("open", "The Long Page")),
        ("SUBMIT: 42\n", Action("submit", "42")), ("BACK", Action("back")),
        ("OPEN a\nSAVE 2", Action("save", "2")), ("SAVE 2\nThat is all.", Action("")),
        ("opens it", Action("")), ("**Search:** two", Action("search", "two")),
        ("`BACK`", Action("back")), ("OPEN M*A*S*H", Action("open", "M*A*S*H")),
        ("SUBMIT 3*4", Action("submit", "3*4")),
        ("OPEN Page (book)", Action("open", "Page (book)")),
    ],
)  # fmt: skip
def test_last_line_is_the_action(text: str, action: Action):
    assert parse(text) == action


@pytest.mark.parametrize(
    "text, numbers",
    [
        ("3", [3]), ("1 4", [1, 4]), ("1, 2 and 5", [1, 2, 5]), ("2-4", [2, 3, 4]),
        ("line 7", [7]), ("4-2", []), ("2 2", [2]), ("two", []), ("", []), ("-", []),
        ("1-999999", [*range(1, 102)]), ("2.", [2]), ("(2)", [2]),
    ],
)  # fmt: skip
def test_line_numbers_are_parsed(text: str, numbers: list[int]):
    assert line_numbers(text) == numbers


@pytest.mark.parametrize(
    "text",
    [
        "OPEN " + "x" * 10**6, "SEARCH " + '"' * 10**5, "FIND \0\ud800", "OPEN \ud800",
        "SAVE " + "and" * 10**5, 'SEARCH a" OR title:b NEAR(', "SEARCH " + "word " * 10**5,
    ],
    ids=range(7),
)  # fmt: skip
def test_hostile_text_gets_a_short_answer(text: str):
    answer = play(begun(wiki()), "SEARCH a", text).messages[0].content
    assert len(answer) < 400 and answer.encode("utf-8")


@pytest.mark.parametrize(
    "actions, words, rewards",
    [
        (("SAVE 2", "SUBMIT dalo."), "Right. Proved.", (1, 1, 1)),
        (("SAVE 2", "SUBMIT Alice"), "Wrong. It is Dalo. Proved.", (0, 0, 1)),
        (("SUBMIT the Dalo",), "Right. Not proved.", (0, 1, 0)),
        (("SAVE 1", "SUBMIT Dalo"), "Right. Not proved.", (0, 1, 0)),
        (("SAVE 1-2", "SUBMIT Dalo"), "Right. Proved.", (1, 1, 1)),
        (("SAVE 1-3", "SUBMIT Dalo"), "Right. Not proved.", (0, 1, 0)),
        (("SAVE 1", "SUBMIT Allow"), "Wrong. It is Dalo. Not proved.", (0, 0, 0)),
    ],
)  # fmt: skip
def test_reward_for_answer_evidence_or_both(actions: Any, words: str, rewards: Any):
    for reward, paid in zip(("both", "answer", "evidence"), rewards, strict=True):
        last = play(begun(wiki(reward=reward), TASK), *OPENED, *actions)
        assert (last.messages[0].content, last.reward) == (words, paid)
        assert last.info["success"] is bool(paid) and last.done


def test_turn_limit_ends_in_a_loss():
    env = begun(wiki(max_turns=3), TASK)
    last = play(env, *OPENED, "SAVE 2")
    assert (last.done, last.truncated, last.reward, last.info["success"]) == (True, False, 0, False)
    assert last.messages[0].content == "No turns left. Wrong. It is Dalo. Not proved."
    after = env.step("SUBMIT Dalo")
    assert after.done and after.reward == 0.0


def test_article_pays_the_f1_of_saved_lines():
    env = wiki(task="article")
    task = env.tasks("test")[0]
    steps = expert_steps(env, task)
    assert steps[-1][1].reward == 1.0 and steps[-1][1].info["success"] is True
    kept = [action for action, _ in steps]
    first_save = next(i for i, action in enumerate(kept) if action.startswith("SAVE"))
    last = play(begun(env, task), *kept[: first_save + 1], "SUBMIT")
    count, saved = len(task.data["proof"]), len(kept[first_save].split()) - 1
    assert last.reward == pytest.approx(2 * saved / (saved + count)) and not last.info["success"]
    assert last.messages[0].content == f"You saved {saved} of {count} lines."
    assert play(begun(env, task), "SUBMIT").reward == 0.0
    end = begun(wiki(task="article", max_turns=1), task).step("SEARCH a")
    assert end.done and end.reward == 0.0


@pytest.mark.parametrize(
    "given, known, right",
    [
        ("The Dalo!", ["Dalo"], True), ("dalo", ["x", "Dalo"], True),
        ("Dalo Dalo", ["Dalo"], False), ("", ["Dalo"], False), ("the", ["Dalo"], False),
        ("A", ["A"], True), ("an", ["A"], False), ("1,000", ["1000"], True),
    ],
)  # fmt: skip
def test_answers_match_after_normalisation(given: str, known: list[str], right: bool):
    assert is_right(given, known) is right
    assert normalise("  The  Old-Man, and the Sea. ") == "oldman and sea"


def test_proof_and_f1_by_hand():
    proof = [[("a", 1), ("b", 1)], [("c", 2)]]
    assert proves([("b", 1), ("c", 2)], proof) and not proves([("a", 1), ("b", 1)], proof)
    spare = [("a", 1), ("c", 2), ("c", 3), ("c", 4)]
    assert proves(spare, proof) and not proves([*spare, ("c", 5)], proof)
    assert f1(spare, proof) == pytest.approx(2 * 0.5 * 1 / 1.5) and f1([], proof) == 0.0
    assert f1([("a", 1)], proof) == pytest.approx(2 * 1 * 0.5 / 1.5) and f1([], []) == 1.0


@pytest.mark.parametrize("task", ["question", "article"])
@pytest.mark.parametrize("name", ["wiki", "wiki_full"])
def test_environment_keeps_its_contract(name: str, task: str):
    env = wiki(name, task=task)
    assert check_env(lambda: copy.copy(env)) == []


def test_pickled_instance_is_small_and_continues():
    env = begun(wiki())
    env.step("SEARCH a")
    twin = pickle.loads(pickle.dumps(env))
    assert len(pickle.dumps(env)) < 5000
    assert twin.step("OPEN next") == env.step("OPEN next")


@pytest.mark.parametrize(
    "changes, code",
    [
        ({"world": "large"}, "unknown-option"), ({"task": "answer"}, "unknown-option"),
        ({"reward": "f1"}, "unknown-option"), ({"max_turns": 0}, "too-small"),
        ({"page_lines": 0}, "too-small"), ({"questions": 0}, "too-small"),
        ({"test_share": 2.0}, "too-large"), ({"pages": 5}, "too-small"),
        ({"pages": 1001}, "too-large"), ({"test_data": "more.jsonl"}, "missing-data"),
        ({"questions": 10**5, "pages": 40}, "too-few-questions"),
    ],
)  # fmt: skip
def test_invalid_settings_are_refused(changes: dict[str, Any], code: str):
    with pytest.raises(UserError) as error:
        wiki(**changes).tasks("train")
    assert error.value.code == code and next(iter(changes)) in str(error.value)


def test_metrics_count_answers_proofs_and_kinds():
    ends = [(True, True, 1.0, "lookup"), (True, False, 0.5, "lookup"), (False, False, 0.0, "count")]
    played = []
    for i, (right, proved, score, kind) in enumerate(ends):
        privileged = {"right": right, "proved": proved, "f1": score}
        info = {"success": right and proved, "privileged": privileged}
        task = Task(f"t{i}", "test", {**ROW, "kind": kind})
        played.append(Episode(f"e{i}", task, "g", 0, [Turn([], "", [], [], [], info=info)]))
    found = wiki().summarise(played)
    assert found["answered"] == pytest.approx(2 / 3) and found["proved"] == pytest.approx(1 / 3)
    assert (found["evidence_f1"], found["kind_lookup"], found["kind_count"]) == (0.5, 0.5, 0.0)
    empty = [Episode("e", TASK, "g", 0, []), Episode("f", TASK, "g", 0, [Turn([], "", [], [], [])])]
    assert wiki().summarise(empty)["answered"] == 0.0 and wiki().summarise([]) == {}


def test_threads_share_an_encyclopedia():
    env, tasks = wiki(), wiki().tasks("train")[:40]
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(lambda task: expert_steps(env, task), tasks))
    assert together == [expert_steps(env, task) for task in tasks]
    assert all(steps[-1][1].info["success"] for steps in together)
