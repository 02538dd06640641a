"""Before anything is learnt, a few states go through every role: what cannot be read stops the run
and says what to change."""

from __future__ import annotations

from dataclasses import replace

import pytest

from agentrl_cli.algos.nlac.role_check import role_reports
from agentrl_cli.algos.nlac.roles import RoleText
from agentrl_cli.core.errors import UserError
from agentrl_cli.models.model_set import ModelSet
from tests.builders.nlac import LOST, PROMPTS, WON, bound, filled, nlac, troupe, updated
from tests.builders.nlac import Troupe as Cast

CHATTY = {
    "forecast": ["Sure! The game is won soon.\n\n**Outcome: Success**"],
    "backup": ["I predict a long game. The outcome is failure."],
    "evaluate": "**Optimality: No.** It repeats what is known.",
}
MUTE = {"forecast": ["Who knows."], "backup": ["Who knows."], "evaluate": "It is fine."}


def check(models: ModelSet, cast: Cast, **changes):
    return bound(nlac(**changes), cast, models)


def test_every_role_is_asked_and_reported(models: ModelSet):
    algo = check(models, troupe(), min_readable=0.5)
    reports = {report.role: report for report in algo.check_roles([WON, LOST])}
    assert set(reports) == {"forecast", "backup", "evaluate", "refine"}
    assert all(report.share == 1 for report in reports.values())
    assert reports["evaluate"].count == 5 and reports["backup"].count == 3
    assert reports["evaluate"].line.endswith("read as Optimality: Yes: 'Optimality: Yes. It wins.'")


def test_the_first_step_stops_where_roles_cannot_be_read_and_says_what_to_change(models: ModelSet):
    algo = check(models, troupe(**MUTE), min_readable=0.5)
    with pytest.raises(UserError) as refused:
        updated(algo, filled(WON, LOST))
    lines = str(refused.value).splitlines()
    assert lines[0] == (
        "algo.min_readable: of the role 'forecast' only 0 of 8 readable; unreadable: 'Who knows.'; "
        "word algo.prompts.forecast so that answers end with the one word Success. or Failure."
    )
    assert len(lines) == 2  # without a forecast no backup is asked for
    assert lines[1].startswith("algo.min_readable: of the role 'evaluate' only 0 of 5 readable; ")
    assert lines[1].endswith("so that answers begin with Optimality: Yes. or Optimality: No.")


def test_later_steps_and_runs_that_do_not_ask_are_not_stopped(models: ModelSet):
    updated(check(models, troupe(**MUTE)), filled(WON, LOST))
    algo = check(models, troupe(**MUTE), min_readable=0.5)
    algo.context.step = 1
    updated(algo, filled(WON, LOST))


def test_the_prompts_say_how_answers_are_read(models: ModelSet):
    exact = check(models, troupe(**CHATTY), min_readable=0.5)
    with pytest.raises(UserError, match="of the role 'backup' only 0 of 3"):
        updated(exact, filled(WON, LOST))
    tolerant = replace(PROMPTS, reading="tolerant")
    algo = check(models, troupe(**CHATTY), prompts=tolerant, min_readable=0.5, candidates=2)
    phases = updated(algo, filled(WON, LOST))
    assert phases["successor"].metrics["nlac/unparsed_targets"] == 0
    assert phases["policy"].metrics["nlac/unparsed"] == 0
    assert phases["policy"].metrics["nlac/optimal_share"] == 0


def test_answers_that_are_cut_name_the_limit_to_raise():
    texts = [RoleText("forecast", "So", False)] * 3 + [RoleText("forecast", "Success.", True)]
    (report,) = role_reports(texts, PROMPTS.reader)
    assert (report.share, report.cut) == (0.25, 3)
    assert report.remedy == "3 were cut: raise algo.advanced.role_tokens"
    (report,) = role_reports([RoleText("refine", "Is it", False)], PROMPTS.reader)
    assert report.remedy == "1 were cut: raise rollout.max_tokens"


def test_a_share_that_falls_later_is_told_at_once(
    models: ModelSet, capsys: pytest.CaptureFixture[str]
):
    cast = troupe(forecast=["Yes. Success.", "Hm.", "Hm.", "Hm."])
    algo = check(models, cast, min_readable=0.9, forecasts=4)
    algo.context.step = 3
    updated(algo, filled(WON, LOST))
    updated(algo, filled(WON, LOST))
    told = [line for line in capsys.readouterr().err.splitlines() if "warning: only" in line]
    assert len(told) == 1 and "of the forecasts of 4 turns names 'Success.'" in told[0]
