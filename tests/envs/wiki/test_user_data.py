"""A user's own pages and questions: folders, HotpotQA's forms, and invalid or hostile data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agentrl_cli.core.errors import UserError
from agentrl_cli.envs.wiki import user_data
from agentrl_cli.envs.wiki.env import Wiki
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

WHY = {"question": "Why?", "answer": "a"}


def own(data: Path, **changes: Any) -> Wiki:
    return wiki(data=str(data), **{"test_share": 0.0, **changes})


def refused(data: Path, **changes: Any) -> UserError:
    with pytest.raises(UserError) as caught:
        own(data, **changes).tasks("train")
    assert "\n" not in str(caught.value)
    return caught.value


def all_won(env: Wiki, split: str = "train") -> bool:
    return all(expert_steps(env, task)[-1][1].reward == 1.0 for task in env.tasks(split))


def write_json(file: Path, value: Any) -> Path:
    file.write_text(value if isinstance(value, str) else json.dumps(value))
    return file


def test_folder_is_shown_with_links(tmp_path: Path):
    env = begun(own(write_folder(tmp_path)))
    assert shown(env, "SEARCH welcome", "OPEN Home") == (
        "Home.\n1 Welcome to [the guide] and [all rivers].\n2 See a site, a map, [up], [gone]."
    )
    assert shown(env, "OPEN the guide").startswith("guide.\n1 The guide is long.")
    assert shown(env, "OPEN home").startswith("Home.")
    assert shown(env, "OPEN All Rivers").splitlines()[2] == "2 So it goes: [Home]."


def test_links_out_of_the_folder_are_dead(tmp_path: Path):
    (tmp_path / "secret.md").write_text("A secret.")
    pages = {**PAGES, "sub/up.md": "[key](../../secret.md) [etc](/etc/x)"}
    env = begun(own(write_folder(tmp_path / "in", pages)))
    shown(env, "SEARCH Home", "OPEN Home")
    assert shown(env, "OPEN up") == "The link up leads to no page."
    assert shown(env, "OPEN gone") == "The link gone leads to no page."
    assert shown(env, "OPEN a site") == "There is no link a site here."
    assert shown(env, "SEARCH up", "OPEN up", "OPEN key") == "The link key leads to no page."
    assert shown(env, "OPEN etc") == "The link etc leads to no page."
    assert shown(env, "SEARCH secret") == "No page found."


def test_long_lines_are_cut_without_loss(tmp_path: Path):
    words = [f"word{i}" for i in range(400)]
    pages = {"long.txt": " ".join(words) + "\n" + "x" * 1000, "empty.md": ""}
    row = {**WHY, "evidence": [["long", 1]]}
    lines = own(write_folder(tmp_path, pages, [row])).encyclopedia.pages["long"].lines
    assert max(map(len, lines)) <= 400 and " ".join(lines[:-3]).split() == words
    assert "".join(lines[-3:]) == "x" * 1000


@pytest.mark.parametrize(
    "pages, titles",
    [
        ({"a/one.md": "# Intro\nFirst.", "b/two.md": "# Intro\nSecond.", "c.md": "[[Intro]]"},
         {"Intro (a/one.md)", "Intro (b/two.md)", "c"}),
        ({"a.md": "# Home\nFirst.", "b.md": "# home\nSecond.", "B.MD": "# HOME\nThird."},
         {"HOME (B.MD)", "Home (a.md)", "home (b.md) (2)"}),
    ],
)  # fmt: skip
def test_equal_titles_become_unique(tmp_path: Path, pages: dict[str, str], titles: set[str]):
    rows = [{"question": f"{p}?", "answer": "x", "evidence": [[p, 1]]} for p in pages]
    env = own(write_folder(tmp_path, pages, rows))
    assert {*env.encyclopedia.pages} == titles and all_won(env)


def test_long_pages_are_searched_and_saved(tmp_path: Path):
    lines = [f"Line {n} is about fact{n}." for n in range(1, 301)]
    row = {"question": "Which?", "answer": "250", "evidence": [["long", 250], ["long", 3]]}
    env = own(write_folder(tmp_path, {"long.txt": "\n".join(lines)}, [row]))
    steps = expert_steps(env, env.tasks("train")[0])
    assert steps[-1][1].reward == 1.0 and len(steps) < 8
    assert any(step.messages[0].content.startswith(f"250 {lines[249]}") for _, step in steps)
    env = begun(env)
    shown(env, "SEARCH long", "OPEN long")
    assert shown(env, "SAVE 3-999999") == "SAVE takes 100 lines at most."
    assert shown(env, "SAVE 3-102") == "Saved 100 lines."


def test_files_stay_unchanged_and_others_are_ignored(tmp_path: Path):
    pages = {**PAGES, ".git/x.md": "hidden", "photo.png": b"\x89PNG\0", "data.csv": "a,b"}
    root = write_folder(tmp_path, pages)

    def state() -> dict[Path, tuple[bytes, int]]:
        found = (f for f in root.rglob("*") if f.is_file())
        return {f: (f.read_bytes(), f.stat().st_mtime_ns) for f in found}

    before, env = state(), own(root)
    assert all_won(env) and len(env.encyclopedia.pages) == 3 and state() == before


def test_rows_have_evidence_and_split(tmp_path: Path):
    env = own(write_folder(tmp_path))
    (train,), (test,) = env.tasks("train"), env.tasks("test")
    assert train.data["proof"] == [[["guide", 2]]] and train.data["answers"] == ["42", "forty-two"]
    assert test.data["proof"] == [[["Rivers", 1]]]
    assert all_won(env) and all_won(env, "test")
    articles = own(tmp_path, task="article")
    assert articles.tasks("train")[0].data["question"] == "Collect the lines about apples."
    assert all_won(articles)


def test_question_of_the_test_split_is_not_trained_on(tmp_path: Path):
    rows = [
        {**WHY, "evidence": [["guide", 1]], "split": split} for split in ("train", "test", "val")
    ]
    env = own(write_folder(tmp_path, rows=rows))
    assert [len(env.tasks(split)) for split in ("train", "val", "test")] == [0, 0, 1]


def test_seed_draws_the_test_share(tmp_path: Path):
    rows = [{**WHY, "question": f"Number {i}?", "evidence": [["guide", 1]]} for i in range(60)]
    write_folder(tmp_path, rows=rows)
    splits = [own(tmp_path, test_share=0.3, world_seed=seed) for seed in (0, 0, 1)]
    tested = [{task.id for task in env.tasks("test")} for env in splits]
    assert tested[0] == tested[1] != tested[2] and 8 < len(tested[0]) < 30
    train = {task.id for task in splits[0].tasks("train")}
    assert tested[0] | train == {f"wiki-data-q{i}" for i in range(1, 61)}


def test_test_questions_may_be_another_file(tmp_path: Path):
    file = tmp_path / "more.jsonl"
    write_folder(tmp_path)
    write_json(file, json.dumps({**ROWS[0], "split": "train"}))
    env = own(tmp_path, test_data=str(file))
    tested = [task.data["question"] for task in env.tasks("test")]
    assert tested == ["What do rivers do?", "How many apples?"] and env.tasks("train") == []


@pytest.mark.parametrize(
    "rows, offender",
    [
        ([{"question": "Why?"}], "row 1"), ([ROWS[0], {**WHY, "answer": "  "}], "row 2"),
        ([{**WHY, "answer": True}], "answer"), ([{**WHY, "answer": 10**400}], "row 1"),
        ('{"question": "Why?", "answer": NaN}', "answer"),
        ([{**ROWS[0], "answer": "w" * 401}], "401"), ([{"answer": "x"}], "question"),
        ([["x"]], "row 1"), ("{", "row 1"), ("[" * 5000, "row 1"), ([WHY], "evidence"),
        ([{**WHY, "evidence": [["nowhere", 1]]}], "nowhere"),
        ([{**WHY, "evidence": [["guide", 9]]}], "9"),
        ([{**WHY, "evidence": [["guide", True]]}], "True"),
        ([{**WHY, "evidence": [["guide", "pears"]]}], "pears"),
        ([{**WHY, "evidence": [[1, 2]]}], "[1, 2]"), ([{**WHY, "evidence": "guide"}], "lines"),
        ([{**ROWS[0], "split": "dev"}], "dev"), ([{"topic": "apples"}], "lines"),
        ([{"topic": "apples", "lines": []}], "lines"),
    ],
)  # fmt: skip
def test_invalid_rows_are_refused_by_number(tmp_path: Path, rows: Any, offender: str):
    error = refused(write_folder(tmp_path, rows=rows))
    assert error.code == "invalid-row" and offender in str(error) and "row " in str(error)


def test_answer_reward_needs_no_evidence(tmp_path: Path):
    write_folder(tmp_path, rows=[{"question": "How many?", "answer": 42}])
    assert begun(own(tmp_path, reward="answer")).step("SUBMIT 42").reward == 1.0
    assert refused(tmp_path, task="article", reward="answer").code == "no-tasks"


@pytest.mark.parametrize(
    "pages, code, offender",
    [
        ({"one.txt": b"\xff\xfe\x00\x01"}, "not-text", "one.txt"),
        ({"two.md": b"text\0more"}, "not-text", "two.md"),
        ({"photo.png": b"\x89PNG"}, "no-pages", ".md"),
        ({"big.txt": b"word " * 2 * 2**20}, "too-large", "big.txt"),
    ],
)
def test_unusable_pages_are_refused(tmp_path: Path, pages: Any, code: str, offender: str):
    error = refused(write_folder(tmp_path, pages))
    assert error.code == code and offender in str(error)


@pytest.mark.parametrize("limit", ["MAX_PAGES", "MAX_FOLDER_BYTES"])
def test_too_large_folders_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str):
    monkeypatch.setattr(user_data, limit, 2)
    assert refused(write_folder(tmp_path)).code == "too-large"


def test_page_linked_from_outside_is_refused(tmp_path: Path):
    (tmp_path / "secret.md").write_text("A secret.")
    root = write_folder(tmp_path / "in")
    (root / "key.md").symlink_to(tmp_path / "secret.md")
    assert refused(root).code == "outside-link"


def test_missing_data_is_refused(tmp_path: Path):
    assert refused(tmp_path / "nowhere").code == "wrong-file"
    assert refused(tmp_path / "nowhere.json").code == "unreadable-file"
    (tmp_path / "page.md").write_text("text")
    assert refused(tmp_path).code == "unreadable-file"
    error = refused(write_folder(tmp_path), test_data=str(tmp_path))
    assert error.code == "wrong-file" and "env.test_data" in str(error)
    (tmp_path / "questions.jsonl").write_text("")
    assert refused(tmp_path).code == "no-questions"


def test_both_public_forms_are_played(tmp_path: Path):
    env = own(write_json(tmp_path / "dev.json", [HOTPOT, TWO_WIKI]))
    bridge, comparison = env.tasks("train")
    assert bridge.data["kind"] == "bridge" and comparison.data["kind"] == "bridge_comparison"
    assert bridge.data["proof"] == [[["Anna", 1]], [["Grey Castle", 2]]]
    assert comparison.data["proof"] == [[["Velm", 1]]] and all_won(env)
    assert {*env.encyclopedia.pages} == {"Anna", "Anna (2)", "Grey Castle", "Velm"}


def test_similar_or_long_paragraph_titles_are_unique(tmp_path: Path):
    long = "w" * 500
    context = [["The Who", ["A band."]], ["The who", ["A word."]], [long, ["Long."]]]
    facts = [[["The who", 0]], [["The Who", 0]], [[long, 0]]]
    rows = [{**HOTPOT, "context": context, "supporting_facts": fact} for fact in facts]
    env = own(write_json(tmp_path / "dev.json", rows))
    assert all_won(env) and max(map(len, env.encyclopedia.pages)) <= 100


def test_questions_without_a_valid_fact_are_skipped(tmp_path: Path):
    rows = [{**HOTPOT, "supporting_facts": [["Anna", 9]]}, TWO_WIKI]
    env = own(write_json(tmp_path / "dev.json", rows))
    assert [task.data["question"] for task in env.tasks("train")] == [TWO_WIKI["question"]]
    assert len(own(tmp_path / "dev.json", reward="answer").tasks("train")) == 2


def test_paragraphs_link_to_named_neighbours(tmp_path: Path):
    env = begun(own(write_json(tmp_path / "dev.json", [HOTPOT])))
    page = shown(env, "SEARCH tall", "OPEN Anna")
    assert page == "Anna.\n1 Anna lived in [Grey Castle].\n2 She was tall."
    page = shown(env, "OPEN grey castle")
    assert page == "Grey Castle.\n1 It is old.\n2 The [Velm] flows by it."


def test_jsonl_and_test_file_are_read(tmp_path: Path):
    lines = f"{json.dumps(HOTPOT)}\n\n{json.dumps(TWO_WIKI)}\n"
    train = write_json(tmp_path / "train.jsonl", lines)
    env = own(train, test_data=str(write_json(tmp_path / "dev.json", [TWO_WIKI])))
    assert [len(env.tasks(split)) for split in ("train", "test")] == [1, 1]


@pytest.mark.parametrize(
    "value, code, offender",
    [
        ("{", "invalid-json", ""), ("[" * 100000, "invalid-json", ""), ("{}", "no-questions", ""),
        ("[]", "no-questions", ""), ([3], "invalid-row", "row 1"),
        ([{**HOTPOT, "answer": ""}], "invalid-row", "answer"),
        ([HOTPOT, {**HOTPOT, "question": None}], "invalid-row", "row 2"),
        ([{**HOTPOT, "context": "x"}], "invalid-row", "context"),
        ([{**HOTPOT, "context": [["A", "x"]]}], "invalid-row", "'A'"),
        ([{**HOTPOT, "context": {"title": ["A"], "sentences": []}}], "invalid-row", "context"),
        ([{**HOTPOT, "supporting_facts": []}], "invalid-row", "supporting_facts"),
        ([{**HOTPOT, "supporting_facts": [["Anna", "x"]]}], "invalid-row", "['Anna', 'x']"),
        ([{**HOTPOT, "supporting_facts": [["Bob", 0]]}], "invalid-row", "Bob"),
        ([{**HOTPOT, "answer": None, "supporting_facts": None}], "invalid-row", "answer"),
        ([{**HOTPOT, "answer": "w " * 300}], "invalid-row", "599"),
        ([{**HOTPOT, "supporting_facts": [["Anna", 9]]}], "no-tasks", ""),
    ],
)  # fmt: skip
def test_invalid_question_files_are_refused(tmp_path: Path, value: Any, code: str, offender: str):
    error = refused(write_json(tmp_path / "dev.json", value))
    assert error.code == code and offender in str(error)


def test_hostile_text_is_cleaned(tmp_path: Path):
    question, context = "Which\x1b[31m river\ud800?\n", [*PARAGRAPHS, ["\x00", []]]
    row = {**HOTPOT, "question": question, "context": context}
    env = own(write_json(tmp_path / "dev.json", [row]))
    assert env.tasks("train")[0].data["question"] == "Which [31m river??"
    assert shown(begun(env), "SEARCH Untitled", "OPEN Untitled").endswith("This page is empty.")
