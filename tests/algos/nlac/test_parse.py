"""The parsers of forecasts and critiques, and the report about roles."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl_cli.algos.nlac.parse import (
    PARSERS,
    RoleText,
    lenient_outcome,
    lenient_verdict,
    role_reports,
    strict_outcome,
    strict_verdict,
)
from agentrl_cli.core.errors import UserError
from agentrl_cli.models.model_set import ModelSet
from tests.builders.nlac import (
    LOST,
    PROMPTS,
    STRICT,
    WON,
    Troupe,
    bound,
    filled,
    nlac,
    troupe,
    updated,
)

FILE = Path(__file__).with_name("role_answers.json")


ANSWERS = json.loads(FILE.read_text(encoding="utf-8"))


WORDS = {"success": True, "failure": False, "yes": True, "no": False, None: None}


def read(row: dict[str, str]) -> bool | None:
    reader = PARSERS["lenient"]
    return (reader.outcome if row["role"] == "forecast" else reader.verdict)(row["text"])


@pytest.mark.parametrize("row", ANSWERS, ids=lambda row: row["text"][:40])
def test_lenient_parser_agrees_with_people(row: dict[str, str]):
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
        ("The action is optimal, it cannot be improved.", True),
        ("", None),
    ],
)
def test_retracted_verdict_is_none(text: str, found: bool | None):
    assert lenient_verdict(text) is found


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("The answer is not right, so the game ends in failure.", None),
        ("The user did not confirm, resulting in failure.", None),
        ("The answer was not correct: failure", None),
        ("The customer does not object, and the conversation ends with success.", None),
        ("The agent does not learn anything and the game ends in failure.", None),
        ("The game ends in failure, which is not surprising.", None),
        ("The agent cannot guess the object before the game ends in failure.", None),
        ("The agent did not answer correctly (ending in failure).", None),
        ("It is unlikely that this ends in success.", False),
        ("The game will not count as a success.", False),
        ("The game cannot end in success.", False),
        ("The agent fails to finish in success.", False),
        ("It will not end in failure.", True),
        ("It is not a success.", False),
    ],
)
def test_negation_inverts_only_what_it_denies(text: str, found: bool | None):
    assert lenient_outcome(text) is found


def test_lenient_parser_accepts_strict_form():
    for text, found in (
        ("Yes. It is alive. Success.", True),
        ("No. It was a cat. Failure.", False),
    ):
        assert PARSERS["strict"].outcome(text) is lenient_outcome(text) is found
    for text, found in (("Optimality: Yes. It wins.", True), ("Optimality: No, it loses", False)):
        assert PARSERS["strict"].verdict(text) is lenient_verdict(text) is found


@given(st.text())
def test_any_text_can_be_parsed(text: str):
    assert lenient_outcome(text) in (True, False, None)
    assert lenient_verdict(text) in (True, False, None)


@pytest.mark.parametrize(
    "text", ["outcome ", "optimality ", "not ", "\n", "a, success ", "<think>"]
)
def test_long_text_is_parsed_quickly(text: str):
    began = time.process_time()
    lenient_outcome(text * 50_000)
    lenient_verdict(text * 50_000)
    assert time.process_time() - began < 3


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("Yes. It tells much. Success.", True),
        ("Failure", False),
        ("No. FAILURE. Failure!\n", False),
        ("Success or failure, in the end Success", True),
        ("It is a Success. Then it stops", None),
        ("Successful.", None),
        ("success.", None),
        ("NoFailure.", None),
        ("Success. {outcome}", None),
        ("", None),
    ],
)
def test_strict_outcome_is_last_word(text: str, read: bool | None):
    assert strict_outcome(text) is read


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("Optimality: Yes. It wins.", True),
        ("  \nOptimality: No, it loses", False),
        ("Optimality:Yes", True),
        ("Optimality: Yesterday it was", None),
        ("Optimality: Nothing", None),
        ("I say Optimality: Yes.", None),
        ("Critique: Optimality: No.", None),
        ("optimality: no", None),
        ("Optimality: Maybe. Optimality: Yes.", None),
        ("", None),
    ],
)
def test_strict_verdict_starts_the_critique(text: str, read: bool | None):
    assert strict_verdict(text) is read


CHATTY = {
    "forecast": ["Sure! The game is won soon.\n\n**Outcome: Success**"],
    "backup": ["I predict a long game. The outcome is failure."],
    "evaluate": "**Optimality: No.** It repeats what is known.",
}


MUTE = {"forecast": ["Who knows."], "backup": ["Who knows."], "evaluate": "It is fine."}


def check(models: ModelSet, cast: Troupe, **changes):
    return bound(nlac(**changes), cast, models)


def test_every_role_is_reported(models: ModelSet):
    algo = check(models, troupe(), min_parse_rate=0.5)
    reports = {report.role: report for report in algo.role_reports([WON, LOST])}
    assert set(reports) == {"forecast", "backup", "evaluate", "refine"}
    assert all(report.share == 1 for report in reports.values())
    assert (len(reports["evaluate"].texts), len(reports["backup"].texts)) == (5, 3)


def test_first_update_requires_parsable_roles(models: ModelSet):
    algo = check(models, troupe(**MUTE), min_parse_rate=0.5)
    with pytest.raises(UserError) as refused:
        updated(algo, filled(WON, LOST))
    assert refused.value.code == "unparsable-role"
    roles = [
        line.partition("role '")[2].partition("'")[0] for line in str(refused.value).splitlines()
    ]
    assert roles == ["forecast", "evaluate"]  # without a forecast no backup is written


def test_later_updates_are_not_checked(models: ModelSet):
    updated(check(models, troupe(**MUTE)), filled(WON, LOST))
    algo = check(models, troupe(**MUTE), min_parse_rate=0.5)
    algo.context.step = 1
    updated(algo, filled(WON, LOST))


def test_prompts_select_the_parser(models: ModelSet):
    exact = check(models, troupe(**CHATTY), min_parse_rate=0.5)
    with pytest.raises(UserError, match="role 'backup'"):
        updated(exact, filled(WON, LOST))
    tolerant = replace(PROMPTS, parser="lenient")
    algo = check(models, troupe(**CHATTY), prompts=tolerant, min_parse_rate=0.5, num_candidates=2)
    phases = updated(algo, filled(WON, LOST))
    assert phases["successor"].metrics["nlac/unparsed_targets"] == 0
    assert phases["policy"].metrics["nlac/unparsed"] == 0
    assert phases["policy"].metrics["nlac/optimal_share"] == 0


def test_cut_texts_are_counted():
    texts = [RoleText("forecast", "So", False)] * 3 + [RoleText("forecast", "Success.", True)]
    (report,) = role_reports(texts, STRICT)
    assert report.share == 0.25 and "raise algo.advanced.role_tokens" in report.line
    (report,) = role_reports([RoleText("refine", "Is it", False)], STRICT)
    assert report.share == 0 and "raise rollout.max_new_tokens" in report.line


@pytest.mark.parametrize(
    ("forecast", "min_parse_rate", "warnings"),
    [("It may end well.", 0.0, 1), ("Success.", 0.9, 0), (["Success.", "Hm.", "Hm."], 0.9, 1)],
)
def test_unparsable_forecasts_warn_once(
    models: ModelSet,
    capsys: pytest.CaptureFixture[str],
    forecast: str | list[str],
    min_parse_rate: float,
    warnings: int,
):
    algo = bound(
        nlac(num_forecasts=4, min_parse_rate=min_parse_rate), troupe(forecast=forecast), models
    )
    for step in (3, 4):
        algo.context.step = step
        updated(algo, filled(WON, LOST))
    assert capsys.readouterr().err.count("of the forecasts of 4 turns") == warnings


def test_ablation_without_critiques_expects_no_forecast(
    models: ModelSet, capsys: pytest.CaptureFixture[str]
):
    algo = nlac(num_forecasts=4, advanced={"ablation": "empty_critiques"})
    updated(bound(algo, troupe(forecast="Hm."), models), filled(WON, LOST))
    assert "of the forecasts" not in capsys.readouterr().err
