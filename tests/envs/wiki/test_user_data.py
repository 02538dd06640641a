"""A user's own pages: read, linked, bounded, and refused in one sentence where they cannot be."""

from __future__ import annotations

import inspect
import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from agentrl_cli.core.errors import UserError
from agentrl_cli.envs.wiki import folder as folder_module
from tests.builders.wiki import (
    HOTPOT,
    PAGES,
    PARAGRAPHS,
    ROWS,
    TWO_WIKI,
    begun,
    expert_steps,
    shown,
    wiki,
    write_folder,
)


def own(data: Path, **changes: Any):
    return wiki(data=str(data), **{"test_share": 0.0, **changes})


def refused(data: Path, **changes: Any) -> str:
    """The sentence in which the data is refused."""
    with pytest.raises(UserError) as caught:
        own(data, **changes).tasks("train")
    assert "\n" not in str(caught.value)
    return str(caught.value)


# pages


def test_a_folder_is_shown_as_it_was_written(tmp_path: Path):
    env = begun(own(write_folder(tmp_path)))
    assert shown(env, "SEARCH welcome", "OPEN Home") == (
        "Home.\n1 Welcome to [the guide] and [all rivers].\n2 See a site, a map, [up], [gone]."
    )
    assert shown(env, "OPEN the guide").startswith("guide.\n1 The guide is long.")
    assert shown(env, "OPEN home").startswith("Home.")
    assert shown(env, "OPEN All Rivers").splitlines()[2] == "2 So it goes: [Home]."


def test_links_out_of_the_folder_and_to_no_page_are_dead(tmp_path: Path):
    secret = tmp_path / "secret.md"
    secret.write_text("A secret.")
    root = write_folder(
        tmp_path / "in", {**PAGES, "sub/up.md": "[key](../../secret.md) [etc](/etc/x)"}
    )
    env = begun(own(root))
    shown(env, "SEARCH Home", "OPEN Home")
    assert shown(env, "OPEN up") == "The link up leads to no page."
    assert shown(env, "OPEN gone") == "The link gone leads to no page."
    assert shown(env, "OPEN a site") == "There is no link a site here."
    assert shown(env, "SEARCH up", "OPEN up", "OPEN key") == "The link key leads to no page."
    assert shown(env, "OPEN etc") == "The link etc leads to no page."
    assert shown(env, "SEARCH secret") == "No page found."


def test_long_lines_are_cut_at_spaces_and_nothing_is_lost(tmp_path: Path):
    words = [f"word{i}" for i in range(400)]
    pages = {"long.txt": " ".join(words) + "\n" + "x" * 1000, "empty.md": ""}
    row = {"question": "q?", "answer": "a", "evidence": [["long", 1]]}
    lines = own(write_folder(tmp_path, pages, [row])).encyclopedia.pages["long"].lines
    assert max(map(len, lines)) <= 400 and " ".join(lines[:-3]).split() == words
    assert "".join(lines[-3:]) == "x" * 1000


def test_pages_with_one_title_are_told_apart_by_their_place(tmp_path: Path):
    pages = {"a/one.md": "# Intro\nFirst.", "b/two.md": "# Intro\nSecond.", "c.md": "[[Intro]]"}
    row = {"question": "Which?", "answer": "First", "evidence": [["a/one.md", 1]]}
    env = begun(own(write_folder(tmp_path, pages, [row])))
    assert {*env.encyclopedia.pages} == {"Intro (a/one.md)", "Intro (b/two.md)", "c"}
    assert expert_steps(env, env.tasks("train")[0])[-1][1].reward == 1.0


def test_titles_that_differ_by_case_alone_are_told_apart(tmp_path: Path):
    pages = {"a.md": "# Home\nFirst.", "b.md": "# home\nSecond.", "B.MD": "# HOME\nThird."}
    rows = [
        {"question": f"{n}?", "answer": n, "evidence": [[place, n]]}
        for place, n in (("a.md", "First"), ("b.md", "Second"), ("B.MD", "Third"))
    ]
    env = own(write_folder(tmp_path, pages, rows))
    assert {*env.encyclopedia.pages} == {"HOME (B.MD)", "Home (a.md)", "home (b.md) (2)"}
    for task in env.tasks("train"):
        assert expert_steps(env, task)[-1][1].reward == 1.0


def test_a_title_is_short_enough_to_be_opened(tmp_path: Path):
    deep = f"{'/'.join(['folder' * 10] * 8)}/a.md"
    pages = {deep: "# One\nFirst.", "b.md": "# One\nSecond.", "c.md": f"# {'w ' * 300}\nThird."}
    row = {"question": "Which?", "answer": "First", "evidence": [[deep, 1]]}
    env = own(write_folder(tmp_path, pages, [row]))
    assert max(map(len, env.encyclopedia.pages)) < 250
    assert expert_steps(env, env.tasks("train")[0])[-1][1].reward == 1.0


def test_a_folder_may_be_deeper_than_calls_may(tmp_path: Path):
    root, here = write_folder(tmp_path), tmp_path
    for _ in range(300):
        here = here / "d"
        os.mkdir(here)
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(len(inspect.stack()) + 250)
    try:
        pages = own(root).encyclopedia.pages
    finally:
        sys.setrecursionlimit(limit)
    assert len(pages) == 3


def test_the_expert_finds_a_line_far_down_a_page(tmp_path: Path):
    lines = [f"Line {n} is about fact{n}." for n in range(1, 301)]
    row = {"question": "Which?", "answer": "250", "evidence": [["long", 250], ["long", 3]]}
    env = own(write_folder(tmp_path, {"long.txt": "\n".join(lines)}, [row]))
    steps = expert_steps(env, env.tasks("train")[0])
    assert steps[-1][1].reward == 1.0 and len(steps) < 8
    assert any(step.messages[0].content.startswith(f"250 {lines[249]}") for _, step in steps)


def test_a_save_of_too_many_lines_saves_none(tmp_path: Path):
    lines = [f"Line {n}." for n in range(1, 301)]
    row = {"question": "Which?", "answer": "3", "evidence": [["long", 3]]}
    env = begun(own(write_folder(tmp_path, {"long.txt": "\n".join(lines)}, [row])))
    shown(env, "SEARCH long", "OPEN long")
    assert shown(env, "SAVE 3-999999") == "SAVE takes 100 lines at most."
    assert shown(env, "SAVE 3-102") == "Saved 100 lines."


def test_what_is_not_a_page_is_left_alone(tmp_path: Path):
    pages = {**PAGES, ".git/x.md": "hidden", "photo.png": b"\x89PNG\0", "data.csv": "a,b"}
    assert len(own(write_folder(tmp_path, pages)).encyclopedia.pages) == 3


def test_every_page_and_line_stays_as_it_is_on_the_disk(tmp_path: Path):
    root = write_folder(tmp_path)
    before = {f: (f.read_bytes(), f.stat().st_mtime_ns) for f in root.rglob("*") if f.is_file()}
    env = own(root)
    expert_steps(env, env.tasks("train")[0])
    assert before == {
        f: (f.read_bytes(), f.stat().st_mtime_ns) for f in root.rglob("*") if f.is_file()
    }


# questions


def test_questions_are_read_with_their_evidence_and_split(tmp_path: Path):
    env = own(write_folder(tmp_path))
    (train,), (test,) = env.tasks("train"), env.tasks("test")
    assert train.data["proof"] == [[["guide", 2]]] and train.data["answers"] == ["42", "forty-two"]
    assert test.data["proof"] == [[["Rivers", 1]]]
    for task in (train, test):
        assert expert_steps(env, task)[-1][1].info["success"] is True
    article = own(tmp_path, task="article").tasks("train")[0]
    assert article.data["question"] == "Collect the lines about apples."
    assert expert_steps(own(tmp_path, task="article"), article)[-1][1].reward == 1.0


def test_a_share_of_the_questions_is_tested_by_the_seed(tmp_path: Path):
    rows = [
        {"question": f"Number {i}?", "answer": "x", "evidence": [["guide", 1]]} for i in range(60)
    ]
    write_folder(tmp_path, rows=rows)
    splits = [own(tmp_path, test_share=0.3, world_seed=seed) for seed in (0, 0, 1)]
    tested = [[task.id for task in env.tasks("test")] for env in splits]
    assert tested[0] == tested[1] != tested[2] and 8 < len(tested[0]) < 30
    assert {*tested[0]} | {task.id for task in splits[0].tasks("train")} == {
        f"wiki-data-q{i}" for i in range(1, 61)
    }


def test_test_questions_may_be_a_file_of_their_own(tmp_path: Path):
    write_folder(tmp_path)
    file = tmp_path / "more.jsonl"
    file.write_text("\n".join(json.dumps({**row, "split": "train"}) for row in ROWS[:1]))
    env = own(tmp_path, test_data=str(file))
    assert [task.data["question"] for task in env.tasks("test")] == [
        "What do rivers do?",
        "How many apples?",
    ]
    assert env.tasks("train") == []


@pytest.mark.parametrize(
    ("rows", "sentence"),
    [
        ([{"question": "Why?"}], "row 1 of .* is no question \\(no 'answer'\\); mend or delete it"),
        ([ROWS[0], {"question": "Why?", "answer": "  "}], "row 2 .*no 'answer'"),
        ([{"question": "Why?", "answer": True}], "no 'answer'"),
        ('{"question": "Why?", "answer": NaN}', "no 'answer'"),
        ([{**ROWS[0], "answer": "w" * 401}], "its answer has 401 characters, and SUBMIT takes 400"),
        ([{"answer": "x"}], "no 'question'"),
        ([["x"]], "not an object"),
        ("{", "no JSON"),
        ("", "holds no question"),
        ("[" * 5000, "no JSON"),
        ([{"question": "q", "answer": "a"}], "no 'evidence', which env.reward=both"),
        (
            [{"question": "q", "answer": "a", "evidence": [["nowhere", 1]]}],
            "no page is called 'nowhere'",
        ),
        (
            [{"question": "q", "answer": "a", "evidence": [["guide", 9]]}],
            "'guide' has lines 1 to 3",
        ),
        ([{"question": "q", "answer": "a", "evidence": [["guide", True]]}], "no line True"),
        (
            [{"question": "q", "answer": "a", "evidence": [["guide", "pears"]]}],
            "has no line with 'pears'",
        ),
        ([{"question": "q", "answer": "a", "evidence": [[1, 2]]}], r"a line is \[1, 2\]"),
        ([{"question": "q", "answer": "a", "evidence": "guide"}], "its lines are no list"),
        ([{**ROWS[0], "split": "dev"}], "its split is 'dev'"),
        ([{"topic": "apples"}], "its lines are no list"),
        ([{"topic": "apples", "lines": []}], "no 'lines' of its topic"),
    ],
)
def test_rows_that_are_no_question_are_refused_by_number(tmp_path: Path, rows: Any, sentence: str):
    assert re.search(sentence, refused(write_folder(tmp_path, rows=rows)))


def test_questions_without_evidence_are_played_for_the_answer(tmp_path: Path):
    write_folder(tmp_path, rows=[{"question": "How many?", "answer": 42}])
    env = own(tmp_path, reward="answer")
    assert begun(env).step("SUBMIT 42").reward == 1.0
    assert "no row with a 'topic'" in refused(tmp_path, task="article", reward="answer")


# folders that cannot be


def test_a_folder_of_binaries_is_refused(tmp_path: Path):
    write_folder(tmp_path / "a", {"one.txt": b"\xff\xfe\x00\x01"})
    assert "page 'one.txt'" in refused(tmp_path / "a") and "no text" in refused(tmp_path / "a")
    write_folder(tmp_path / "b", {"two.md": b"text\0more"})
    assert "page 'two.md'" in refused(tmp_path / "b") and "(byte 4)" in refused(tmp_path / "b")
    write_folder(tmp_path / "c", {"photo.png": b"\x89PNG"})
    assert "holds no pages (.md, .markdown, .txt)" in refused(tmp_path / "c")


def test_a_page_of_ten_megabytes_is_refused(tmp_path: Path):
    write_folder(tmp_path, {"big.txt": b"word " * 2 * 2**20})
    assert "page 'big.txt'" in refused(tmp_path) and "split it" in refused(tmp_path)


def test_too_many_pages_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(folder_module, "MOST_PAGES", 2)
    assert "holds 3 pages, and 2 can be read" in refused(write_folder(tmp_path))
    monkeypatch.setattr(folder_module, "MOST_PAGES", 9)
    monkeypatch.setattr(folder_module, "MOST_BYTES_IN_ALL", 9)
    assert "and 9 can be read" in refused(tmp_path)


def test_a_page_that_is_a_link_out_of_the_folder_is_refused(tmp_path: Path):
    (tmp_path / "secret.md").write_text("A secret.")
    root = write_folder(tmp_path / "in")
    (root / "key.md").symlink_to(tmp_path / "secret.md")
    assert "is a link out of the folder" in refused(root)


def test_data_that_is_not_there_is_refused(tmp_path: Path):
    assert "neither a folder nor a .json file" in refused(tmp_path / "nowhere")
    assert "cannot be read" in refused(tmp_path / "nowhere.json")
    (tmp_path / "page.md").write_text("text")
    assert "has no questions.jsonl" in refused(tmp_path)


def test_the_key_that_names_no_file_is_named(tmp_path: Path):
    line = refused(write_folder(tmp_path), test_data=str(tmp_path))
    assert line.startswith("env.test_data '") and "is no .json file" in line
    with pytest.raises(UserError, match=r"env.test_data needs env.data"):
        wiki(test_data="more.jsonl")


# HotpotQA and 2WikiMultiHopQA


def write_json(file: Path, value: Any) -> Path:
    file.write_text(value if isinstance(value, str) else json.dumps(value))
    return file


def test_questions_in_both_public_forms_are_played(tmp_path: Path):
    env = own(write_json(tmp_path / "dev.json", [HOTPOT, TWO_WIKI]))
    bridge, comparison = env.tasks("train")
    assert bridge.data["kind"] == "bridge" and comparison.data["kind"] == "bridge_comparison"
    assert bridge.data["proof"] == [[["Anna", 1]], [["Grey Castle", 2]]]
    assert comparison.data["proof"] == [[["Velm", 1]]]
    for task in (bridge, comparison):
        assert expert_steps(env, task)[-1][1].info["success"] is True
    assert {*env.encyclopedia.pages} == {"Anna", "Anna (2)", "Grey Castle", "Velm"}


def test_paragraphs_whose_titles_differ_by_case_or_are_long_are_pages_of_their_own(tmp_path: Path):
    long = "w" * 500
    context = [["The Who", ["A band."]], ["The who", ["A word."]], [long, ["Long."]]]
    facts = [[["The who", 0]], [["The Who", 0]], [[long, 0]]]
    rows = [{**HOTPOT, "context": context, "supporting_facts": fact} for fact in facts]
    env = own(write_json(tmp_path / "dev.json", rows))
    for task in env.tasks("train"):
        assert expert_steps(env, task)[-1][1].info["success"] is True
    assert max(map(len, env.encyclopedia.pages)) <= 100


def test_a_question_without_a_fact_within_its_paragraphs_is_left_out(tmp_path: Path):
    rows = [{**HOTPOT, "supporting_facts": [["Anna", 9]]}, TWO_WIKI]
    env = own(write_json(tmp_path / "dev.json", rows))
    assert [task.data["question"] for task in env.tasks("train")] == [TWO_WIKI["question"]]
    assert len(own(tmp_path / "dev.json", reward="answer").tasks("train")) == 2


def test_a_paragraph_links_to_those_beside_it_that_it_names(tmp_path: Path):
    env = begun(own(write_json(tmp_path / "dev.json", [HOTPOT])))
    assert shown(env, "SEARCH tall", "OPEN Anna") == (
        "Anna.\n1 Anna lived in [Grey Castle].\n2 She was tall."
    )
    page = shown(env, "OPEN grey castle")
    assert page == "Grey Castle.\n1 It is old.\n2 The [Velm] flows by it."


def test_lines_of_a_jsonl_and_a_test_file_are_read(tmp_path: Path):
    train = write_json(
        tmp_path / "train.jsonl", f"{json.dumps(HOTPOT)}\n\n{json.dumps(TWO_WIKI)}\n"
    )
    tested = write_json(tmp_path / "dev.json", [TWO_WIKI])
    env = own(train, test_data=str(tested))
    assert [len(env.tasks(split)) for split in ("train", "test")] == [1, 1]


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        ("{", "is no JSON"),
        ("{}", "is no list of questions"),
        ("[]", "is no list of questions"),
        ("[" * 100000, "is no JSON"),
        ([3], "row 1 .*not an object"),
        ([{**HOTPOT, "answer": ""}], "row 1 .*no 'answer'"),
        ([HOTPOT, {**HOTPOT, "question": None}], "row 2 .*no 'question'"),
        ([{**HOTPOT, "context": "x"}], "its 'context' is no list of pairs"),
        ([{**HOTPOT, "context": [["A", "x"]]}], "the paragraph 'A' is no list of sentences"),
        ([{**HOTPOT, "context": {"title": ["A"], "sentences": []}}], "its 'context' is no list"),
        ([{**HOTPOT, "supporting_facts": []}], "no 'supporting_facts', which env.reward=both"),
        (
            [{**HOTPOT, "supporting_facts": [["Anna", "x"]]}],
            r"a supporting fact is \['Anna', 'x'\]",
        ),
        (
            [{**HOTPOT, "supporting_facts": [["Bob", 0]]}],
            "no paragraph is called 'Bob', as a supporting fact is",
        ),
        ([{**HOTPOT, "answer": None, "supporting_facts": None}], "no 'answer'"),
        ([{**HOTPOT, "answer": "w " * 300}], "its answer has 599 characters, and SUBMIT takes 400"),
        (
            [{**HOTPOT, "supporting_facts": [["Anna", 9]]}],
            "no question of .* has a supporting fact",
        ),
    ],
)
def test_files_of_another_form_are_refused(tmp_path: Path, value: Any, sentence: str):
    assert re.search(sentence, refused(write_json(tmp_path / "dev.json", value)))


def test_hostile_text_is_cleaned(tmp_path: Path):
    row = {
        **HOTPOT,
        "question": "Which\x1b[31m river\ud800?\n",
        "context": [*PARAGRAPHS, ["\x00", []]],
    }
    env = own(write_json(tmp_path / "dev.json", [row]))
    (task,) = env.tasks("train")
    assert task.data["question"] == "Which [31m river??"
    assert "Untitled" in env.encyclopedia.pages
    assert shown(begun(env), "SEARCH Untitled", "OPEN Untitled").endswith("This page is empty.")
