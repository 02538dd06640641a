"""A search keeps its rules: what is shown is there, what cannot be done is said, and only what was
read and proved is paid."""

from __future__ import annotations

import copy
import itertools
import pickle
from typing import Any

import pytest

from agentrl_cli.core.errors import UserError
from agentrl_cli.core.types import Episode, Task, Turn
from agentrl_cli.envs import check_env
from agentrl_cli.envs.wiki.actions import Action, line_numbers, parse
from agentrl_cli.envs.wiki.answers import f1, is_right, normalise, proves
from tests.builders.wiki import begun, expert_steps, shown, wiki

DAY: dict[str, Any] = {
    "id": "x",
    "kind": "lookup",
    "question": "Name the mother of Fenick.",
    "answers": ["Dalo"],
    "proof": [[["Fenick", 2]]],
}


@pytest.fixture
def env():
    return begun(wiki(), Task("x", "train", DAY))


# the browser


def test_a_search_reads_as_documented(env):
    first = env.reset(Task("x", "train", DAY), 0)
    assert first[0].content == "Name the mother of Fenick. 16 left."
    results = env.step("SEARCH Fenick").messages[0].content.splitlines()
    assert results[0] == "5 pages, page 1 of 2." and results[1] == "Fenick, a painter."
    assert results[-2:] == ["[next]", "15 left."] and len(results) == 7
    assert env.step("OPEN Fenick").messages[0].content == (
        "Fenick, a painter.\nThe teacher is Allow (1).\nThe mother is Dalo (2).\n"
        "The year is 435 (3).\nThe town is Veron (4).\n14 left."
    )
    assert env.step("FIND mother").messages[0].content == "The mother is Dalo (2). 13 left."
    assert env.step("SAVE 2").messages[0].content == "Saved: The mother is Dalo. 12 left."
    step = env.step("SUBMIT Dalo")
    assert step.messages[0].content == "Right. Proved."
    assert (step.reward, step.done, step.truncated, step.info["success"]) == (
        1.0,
        True,
        False,
        True,
    )


def test_back_leads_to_what_was_open_before(env):
    pages = [shown(env, action) for action in ("SEARCH Fenick", "OPEN Fenick", "OPEN Dalo")]
    assert [shown(env, "BACK") for _ in range(2)] == [pages[1], pages[0]]
    assert shown(env, "BACK") == "There is nothing to go back to."


def test_results_are_turned_and_only_what_is_shown_can_be_opened(env):
    first = shown(env, "SEARCH Fenick").splitlines()
    second = shown(env, "OPEN next").splitlines()
    assert second[0] == "5 pages, page 2 of 2." and second[-1] == "[previous]"
    assert len(second) == 3 and second[1] not in first
    assert shown(env, "OPEN Fenick") == "There is no link Fenick here."
    assert shown(env, "OPEN next") == "There is no link next here."
    assert shown(env, "OPEN previous").splitlines() == first
    assert shown(env, "OPEN Fenick").startswith("Fenick, a painter.")


def test_a_long_page_is_shown_in_parts_whose_lines_keep_their_numbers():
    env = begun(wiki("wiki_full", page_lines=2))
    row = env.tasks("train")[0].data
    title, number = row["proof"][0][0]
    parts = [shown(env, f"SEARCH {title}", f"OPEN {title}")]
    while parts[-1].endswith("[next]"):
        parts.append(shown(env, "OPEN next"))
    lines = [line for part in parts for line in part.splitlines() if line[0].isdigit()]
    assert lines == [f"{n} {text}" for n, text in enumerate(env.encyclopedia.pages[title].lines, 1)]
    assert len(parts) > 1 and lines[number - 1].startswith(f"{number} ")


@pytest.mark.parametrize(
    ("action", "answer"),
    [
        ("", "Unknown action."),
        ("xyzzy", "Unknown action."),
        ("SEARCHING it", "Unknown action."),
        ("SEARCH", "SEARCH needs words."),
        ("SEARCH ???", "No page found."),
        ("OPEN Fenick", "There is no link Fenick here."),
        ("OPEN", "OPEN needs a link."),
        ("BACK", "There is nothing to go back to."),
        ("SAVE 1", "No page is open."),
        ("FIND year", "No page is open."),
        ("SUBMIT", "SUBMIT needs an answer."),
    ],
)
def test_what_cannot_be_done_is_said_and_costs_a_turn(env, action: str, answer: str):
    step = env.step(action)
    assert step.messages[0].content.startswith(answer)
    assert step.messages[0].content.endswith(" 15 left.") and not step.done
    assert step.info["invalid"] is (answer != "No page found.")


@pytest.mark.parametrize(
    ("action", "answer"),
    [
        ("SAVE 9", "There is no line 9 here."),
        ("SAVE 0", "There is no line 0 here."),
        ("SAVE it", "SAVE needs the numbers of lines."),
        ("SAVE 1-3", "Saved 3 lines."),
        ("SAVE lines 1, 3 and 4", "Saved 3 lines."),
        ("FIND dragons", "No line has dragons."),
        (
            "FIND is",
            "The teacher is Allow (1).\nThe mother is Dalo (2).\nThe year is 435 (3).\n"
            "The town is Veron (4).",
        ),
    ],
)
def test_lines_of_the_open_page_are_found_and_saved(env, action: str, answer: str):
    assert shown(env, "SEARCH Fenick", "OPEN Fenick", action) == answer


def test_a_line_is_saved_once_and_what_was_done_before_is_marked(env):
    assert shown(env, "SEARCH Fenick", "OPEN Fenick", "SAVE 2", "SAVE 2") == "Saved before."
    env = begun(wiki())
    flags = [
        env.step(action).info["repeated"]
        for action in ("SEARCH Dalo", "SEARCH Moren", "SEARCH Dalo")
    ]
    assert flags == [False, False, False]  # what is open differs
    assert env.step("search dalo").info["repeated"] is False
    assert [env.step(a).info["repeated"] for a in ("OPEN x", "OPEN X")] == [False, True]


@pytest.mark.parametrize(
    ("text", "action"),
    [
        ("search two words", Action("search", "two words")),
        ("I think so.\n\nAction: OPEN [The Long Page]", Action("open", "The Long Page")),
        ("SUBMIT: 42\n", Action("submit", "42")),
        ("BACK", Action("back")),
        ("OPEN a\nSAVE 2", Action("save", "2")),
        ("SAVE 2\nThat is all.", Action("")),
        ("opens it", Action("")),
        ("OPEN Page (book)", Action("open", "Page (book)")),
    ],
)
def test_the_last_line_acts(text: str, action: Action):
    assert parse(text) == action


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("3", [3]),
        ("1 4", [1, 4]),
        ("1, 2 and 5", [1, 2, 5]),
        ("2-4", [2, 3, 4]),
        ("line 7", [7]),
        ("4-2", []),
        ("2 2", [2]),
        ("two", []),
        ("", []),
        ("-", []),
        ("1-999999", [*range(1, 102)]),
    ],
)
def test_numbers_of_lines_are_read(text: str, numbers: list[int]):
    assert line_numbers(text) == numbers


def test_long_and_hostile_text_is_answered_in_short():
    for text in (
        "OPEN " + "x" * 10**6,
        "SEARCH " + '"' * 10**5,
        "FIND \0\ud800",
        "OPEN \ud800",
        "SAVE " + "and" * 10**5,
        'SEARCH a" OR title:b NEAR(',
        "SEARCH " + "word " * 10**5,
    ):
        env = begun(wiki())
        env.step("SEARCH a")
        told = env.step(text).messages[0].content
        assert len(told) < 400 and told.encode("utf-8")


# the end


def play(env, *actions: str):
    *_, last = [env.step(action) for action in actions]
    return last


READ = ("SEARCH Fenick", "OPEN Fenick")


@pytest.mark.parametrize(
    ("actions", "words", "rewards"),
    [
        (("SAVE 2", "SUBMIT dalo."), "Right. Proved.", (1, 1, 1)),
        (("SAVE 2", "SUBMIT Alice"), "Wrong. It is Dalo. Proved.", (0, 0, 1)),
        (("SUBMIT the Dalo"), "Right. Not proved.", (0, 1, 0)),
        (("SAVE 1", "SUBMIT Dalo"), "Right. Not proved.", (0, 1, 0)),
        (("SAVE 1-2", "SUBMIT Dalo"), "Right. Proved.", (1, 1, 1)),
        (("SAVE 1-3", "SUBMIT Dalo"), "Right. Not proved.", (0, 1, 0)),
        (("SAVE 1", "SUBMIT Allow"), "Wrong. It is Dalo. Not proved.", (0, 0, 0)),
    ],
)
def test_a_reward_is_for_the_answer_the_evidence_or_both(actions, words, rewards):
    actions = (actions,) if isinstance(actions, str) else actions
    for reward, paid in zip(("both", "answer", "evidence"), rewards, strict=True):
        last = play(begun(wiki(reward=reward), Task("x", "train", DAY)), *READ, *actions)
        assert (last.messages[0].content, last.reward) == (words, paid)
        assert last.info["success"] is bool(paid) and last.done


def test_running_out_of_turns_is_done_and_no_success():
    env = begun(wiki(turns=3), Task("x", "train", DAY))
    last = play(env, *READ, "SAVE 2")
    assert last.done and not last.truncated and last.reward == 0.0
    assert last.info["success"] is False
    assert last.messages[0].content == "No turns left. Wrong. It is Dalo. Not proved."
    after = env.step("SUBMIT Dalo")
    assert after.done and after.reward == 0.0


def test_an_article_pays_the_f1_of_what_was_saved():
    env = wiki(task="article")
    task = env.tasks("test")[0]
    steps = expert_steps(env, task)
    assert steps[-1][1].reward == 1.0 and steps[-1][1].info["success"] is True
    kept = [action for action, _ in steps]
    first_save = next(i for i, action in enumerate(kept) if action.startswith("SAVE"))
    last = play(begun(env, task), *kept[: first_save + 1], "SUBMIT")
    count = len(task.data["proof"])
    saved = len(kept[first_save].split()) - 1
    assert last.reward == pytest.approx(2 * saved / (saved + count)) and not last.info["success"]
    assert last.messages[0].content == f"You saved {saved} of {count} lines."
    assert play(begun(env, task), "SUBMIT").reward == 0.0
    ends = [begun(wiki(task="article", turns=1), task).step("SEARCH a") for _ in range(2)]
    assert ends[0].done and ends[0].reward == 0.0


@pytest.mark.parametrize(
    ("given", "known", "right"),
    [
        ("The Dalo!", ["Dalo"], True),
        ("dalo", ["x", "Dalo"], True),
        ("Dalo Dalo", ["Dalo"], False),
        ("", ["Dalo"], False),
        ("the", ["Dalo"], False),
        ("A", ["A"], True),
        ("an", ["A"], False),
        ("1,000", ["1000"], True),
    ],
)
def test_answers_are_compared_without_case_articles_and_punctuation(given, known, right):
    assert is_right(given, known) is right
    assert normalise("  The  Old-Man, and the Sea. ") == "oldman and sea"


def test_a_proof_takes_one_line_a_step_and_suffers_one_spare_line_each():
    proof = [[("a", 1), ("b", 1)], [("c", 2)]]
    assert proves([("b", 1), ("c", 2)], proof) and not proves([("a", 1), ("b", 1)], proof)
    spare = [("a", 1), ("c", 2), ("c", 3), ("c", 4)]
    assert proves(spare, proof) and not proves([*spare, ("c", 5)], proof)
    assert f1(spare, proof) == pytest.approx(2 * 0.5 * 1 / 1.5) and f1([], proof) == 0.0
    assert f1([("a", 1)], proof) == pytest.approx(2 * 1 * 0.5 / 1.5) and f1([], []) == 1.0


# the contract


@pytest.mark.parametrize("task", ["question", "article"])
@pytest.mark.parametrize("name", ["wiki", "wiki_full"])
def test_the_environment_keeps_its_contract(name: str, task: str):
    env = wiki(name, task=task)
    assert check_env(lambda: copy.copy(env)) == []


def test_an_instance_travels_without_its_pages():
    env = begun(wiki())
    env.step("SEARCH a")
    twin = pickle.loads(pickle.dumps(env))
    assert len(pickle.dumps(env)) < 5000
    assert twin.step("OPEN next") == env.step("OPEN next")


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"world": "large"}, "env.world is 'large'; use one of small, full"),
        ({"task": "answer"}, "env.task is 'answer'; use one of question, article"),
        ({"reward": "f1"}, "env.reward is 'f1'; use one of both, answer, evidence"),
        ({"turns": 0}, "turns is 0; give at least 1"),
        ({"page_lines": 0}, "page_lines is 0"),
        ({"questions": 0}, "questions is 0"),
        ({"test_share": 2.0}, "test_share is 2"),
        ({"pages": 5}, "env.pages is 5; give 40 to 1000"),
        ({"pages": 1001}, "env.pages is 1001"),
        (
            {"questions": 10**5, "pages": 40},
            "this encyclopedia has .* give fewer, or more env.pages",
        ),
    ],
)
def test_settings_that_cannot_be_are_refused(changes: dict[str, Any], sentence: str):
    with pytest.raises(UserError, match=sentence):
        wiki(**changes).tasks("train")


def test_an_unknown_split_is_refused():
    with pytest.raises(UserError, match="unknown split 'dev'"):
        wiki().tasks("dev")


def test_an_evaluation_counts_answers_proofs_and_kinds():
    ends = [(True, True, 1.0, "lookup"), (True, False, 0.5, "lookup"), (False, False, 0.0, "count")]
    played = []
    for i, (right, proved, score, kind) in enumerate(ends):
        privileged = {"right": right, "proved": proved, "f1": score}
        info = {"success": right and proved, "privileged": privileged}
        task = Task(f"t{i}", "test", {**DAY, "kind": kind})
        played.append(Episode(f"e{i}", task, "g", 0, [Turn([], "", [], [], [], info=info)]))
    found = wiki().summarise(played)
    assert found["answered"] == pytest.approx(2 / 3) and found["proved"] == pytest.approx(1 / 3)
    assert (found["evidence_f1"], found["kind_lookup"], found["kind_count"]) == (0.5, 0.5, 0.0)
    assert wiki().summarise([]) == {}


def test_an_episode_without_an_end_counts_as_wrong():
    task = Task("t", "test", DAY)
    empty = [Episode("e", task, "g", 0, []), Episode("f", task, "g", 0, [Turn([], "", [], [], [])])]
    assert wiki().summarise(empty)["answered"] == 0.0


def test_threads_may_search_the_same_encyclopedia():
    from concurrent.futures import ThreadPoolExecutor

    env, tasks = wiki(), wiki().tasks("train")[:40]
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(lambda task: expert_steps(env, task), tasks))
    assert together == [expert_steps(env, task) for task in tasks]
    assert all(itertools.chain(steps[-1][1].info["success"] for steps in together))
