"""How roles' answers are read: 60 in the manner of real models, and texts made to mislead."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl_cli.algos.nlac.reading import READINGS, tolerant_outcome, tolerant_verdict
from agentrl_cli.report.episode import expected_success
from tests.builders.nlac import turn_with_critic
from tests.paths import ROOT

FILE = Path(__file__).with_name("role_answers.json")
ANSWERS = json.loads(FILE.read_text(encoding="utf-8"))
WORDS = {"success": True, "failure": False, "yes": True, "no": False, None: None}


def read(row: dict[str, str]) -> bool | None:
    reader = READINGS["tolerant"]
    return (reader.outcome if row["role"] == "forecast" else reader.verdict)(row["text"])


def test_the_table_has_sixty_answers_half_of_them_by_one_who_had_not_seen_the_parser():
    authors = [row["author"] for row in ANSWERS]
    assert (len(ANSWERS), authors.count("blind")) == (60, 30)
    assert len({row["text"] for row in ANSWERS}) == 60
    assert {row["read"] for row in ANSWERS} == set(WORDS)


@pytest.mark.parametrize("row", ANSWERS, ids=lambda row: row["text"][:40])
def test_an_answer_is_read_as_a_person_reads_it(row: dict[str, str]):
    assert read(row) is WORDS[row["read"]]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("No, I would not change it; it was the best.", None),
        ("Yes, but it could be improved.", None),
        ("Optimality: Yes or no, who knows.", None),
        ("Optimality: Yes would be too much.", None),
        ("It is not the best way, yet nobody knows.", None),
        ("Yes.", True),
        ("It was not really the best.", False),
        ("", None),
    ],
)
def test_a_verdict_that_is_taken_back_is_none(text: str, found: bool | None):
    assert tolerant_verdict(text) is found


def test_what_is_read_to_the_letter_is_read_tolerantly_alike():
    for text, found in (
        ("Yes. It is alive. Success.", True),
        ("No. It was a cat. Failure.", False),
    ):
        assert READINGS["exact"].outcome(text) is tolerant_outcome(text) is found
    for text, found in (("Optimality: Yes. It wins.", True), ("Optimality: No, it loses", False)):
        assert READINGS["exact"].verdict(text) is tolerant_verdict(text) is found


@given(st.text())
def test_any_text_can_be_read(text: str):
    assert tolerant_outcome(text) in (True, False, None)
    assert tolerant_verdict(text) in (True, False, None)


@pytest.mark.parametrize(
    "text", ["outcome ", "optimality ", "not ", "\n", "a, success ", "<think>"]
)
def test_long_text_is_read_in_no_time(text: str):
    began = time.process_time()
    tolerant_outcome(text * 50_000)
    tolerant_verdict(text * 50_000)
    assert time.process_time() - began < 3


def test_the_report_reads_forecasts_of_either_manner():
    assert (
        expected_success(turn_with_critic(["The outcome is success.", "It ends. Failure."])) == 0.5
    )


def test_the_page_tells_the_stored_figures_and_these_are_todays():
    stored = json.loads((ROOT / "docs" / "results" / "real_models.json").read_text())
    right = sum(read(row) is WORDS[row["read"]] for row in ANSWERS)
    assert (stored["answers"], stored["answers_read_right"]) == (len(ANSWERS), right)
    page = " ".join((ROOT / "docs" / "real_models.md").read_text(encoding="utf-8").split())
    assert f"Of {stored['answers']} answers in the manner of real models" in page
    assert f"{stored['answers_read_right']} are read as a person reads them" in page
    assert f"Of {stored['questions']} questions from published transcripts" in page
    assert f"{stored['questions_read']} are read as what they ask: " in page
    assert f"{stored['questions_answered']} of them the table can answer" in page
    assert stored["questions_false_no"] == 0 and "None gets an answer" in page
