"""SFT of the roles: what each learns to write, and from what."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import pytest

from agentrl_cli.algos import NLACRoleSFT
from agentrl_cli.algos.nlac.parse import PARSERS
from agentrl_cli.algos.nlac.role_sft import count_verdict
from agentrl_cli.core.types import Episode, Sample
from agentrl_cli.models.model_set import ModelSet
from agentrl_cli.models.specs import OptimizerSpec
from agentrl_cli.rollout.replay_buffer import ReplayBuffer
from tests.builders.nlac import (
    CHAT,
    ENDS,
    LOST,
    PROMPTS,
    STRICT,
    WON,
    asked,
    bound,
    episode,
    prompt,
    troupe,
    written,
)  # fmt: skip

TURNS = len(WON.turns) + len(LOST.turns)


def role_samples(
    models: ModelSet,
    seed: int = 0,
    played: Sequence[Episode] = (WON, LOST),
    cut_role: str = "",
    **changes: int,
) -> dict[str, list[Sample]]:
    """Samples of one update by role; those of demonstrations are under `act`."""
    settings = {"turns_per_update": 8, "forecasts_per_update": 0}
    settings |= {"demos_per_update": 0, "num_forecasts": 3}
    algo = NLACRoleSFT(
        **(settings | {"role_tokens": 40} | changes), role_temperature=1.0, epochs=1,
        minibatch_tokens=0, optimizer=OptimizerSpec(lr=1e-2), prompts=PROMPTS,
    )  # fmt: skip
    speakers = troupe(act="Is it an elk?")
    speakers.cut = cut_role
    bound(algo, speakers, models)  # pyright: ignore[reportArgumentType]
    algo.roles.context.seed = seed
    algo.context.demos = [WON]
    cut = episode("cut", ["Is it a fox?"], success=False, stop="truncated")
    (phase,) = algo.update([*played, cut], ReplayBuffer(None, 1))
    found: dict[str, list[Sample]] = {}
    for sample in phase.samples:
        last = asked(CHAT.text_of(sample.ids[: sample.mask.index(1)]))
        role = next((ENDS[end] for end in ENDS if last.endswith(end)), "act")
        found.setdefault(role, []).append(sample)
    return found


def test_forecasts_tell_the_response_and_the_true_outcome(models: ModelSet):
    texts = [written(sample) for sample in role_samples(models)["forecast"]]
    assert sorted(texts) == [
        "Here is lost at 1. Failure.", "Here is won at 1. Success.", "Here is won at 2. Success.",
        "The end of lost. Failure.", "The end of won. Success.",
    ]  # fmt: skip


def test_further_turns_give_a_forecast_alone(models: ModelSet):
    found = role_samples(models, turns_per_update=1, forecasts_per_update=3)
    assert [len(found[role]) for role in ("forecast", "backup", "evaluate")] == [4, 1, 1]
    assert len({written(sample) for sample in found["forecast"]}) == 4


def test_forecasts_without_a_response_tell_the_next_one(models: ModelSet):
    silent = copy.deepcopy(WON)
    silent.turns[1].observation = []
    found = role_samples(models, played=[silent])
    assert {written(s) for s in found["forecast"]} == {
        "Here is won at 2. Success.",
        "The end of won. Success.",
    }
    shown = {asked(CHAT.text_of(prompt(s))): written(s) for s in found["backup"]}
    (text,) = [text for read, text in shown.items() if read.split("\n")[0].strip() == "Seen:"]
    assert text.startswith("Here is won at 2.")


def test_backups_copy_the_outcome_that_they_read(models: ModelSet):
    seen = set()
    for seed in range(6):
        for sample in role_samples(models, seed)["backup"]:
            response, read = asked(CHAT.text_of(prompt(sample))).split("\n")[:2]
            outcome = read.split()[-1]
            response = response.removeprefix("Seen: ")
            assert written(sample) == f"{response} {outcome}"
            seen.add((response, outcome, read))
    ends = {(r, o) for r, o, _ in seen}
    assert {("The end of won.", "Success."), ("The end of won.", "Failure.")} <= ends
    assert ("Here is won at 1.", "Success.", "Then: Here is won at 2. Success.") in seen


def test_verdict_follows_from_the_shown_forecasts_and_decides_the_refinement(models: ModelSet):
    found = role_samples(models)
    for sample in found["evaluate"]:
        shown = asked(CHAT.text_of(prompt(sample)))
        mine, _, others = shown.removesuffix("Evaluate it.").partition("Others:")
        wins, rivals = mine.count("Success."), others.count("Success.")
        is_good = wins >= (rivals if others else 1.5)
        assert STRICT.verdict(written(sample)) is is_good
    assert len(found["evaluate"]) == TURNS
    for sample in found["refine"]:
        text = CHAT.text_of(prompt(sample))
        kept = STRICT.verdict(asked(text).removeprefix("Critique: "))
        assert (written(sample) == "Is it an elk?") is not kept


def test_actions_that_were_cut_off_are_no_refinements(models: ModelSet):
    found = [role_samples(models, seed, cut_role="act").get("refine", []) for seed in range(4)]
    texts = [written(sample) for samples in found for sample in samples]
    assert texts and not any("elk" in text for text in texts)


def test_demonstrations_keep_the_policy(models: ModelSet):
    assert "act" not in role_samples(models)
    (sample,) = role_samples(models, demos_per_update=4)["act"]
    assert sum(sample.mask) == sum(len(turn.action_ids) for turn in WON.turns)


def test_long_responses_leave_room_for_the_outcome(models: ModelSet):
    for sample in role_samples(models, role_tokens=20)["forecast"]:
        assert sum(sample.mask) <= 20
        assert STRICT.outcome(written(sample)) is not None


@pytest.mark.parametrize("parser", PARSERS.values())
def test_verdicts_can_be_parsed(parser):
    for mine, others in [(["Success."], []), (["Failure."], ["Success."]), (["Failure."], [])]:
        text, is_good = count_verdict(mine, others)
        assert parser.verdict(text) is is_good
