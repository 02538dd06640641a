"""What NLAC's controls spoil or leave out, and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from agentrl_cli.algos.nlac.choice import Candidate
from agentrl_cli.models.model_set import ModelSet
from tests.builders.nlac import (
    CHAT,
    LOST,
    WON,
    Line,
    bound,
    filled,
    messages,
    nlac,
    places,
    troupe,
    updated,
    weights,
)


def drawn(models: ModelSet, control: str, improvement: str, **lines: Line) -> list[Candidate]:
    """Twenty draws, no two alike, of a chooser under a control."""
    names = iter(range(100))
    speakers = troupe(act=lambda text, draw: f"Is it a {next(names)}?", **lines)
    algo = nlac({"control": control}, improvement=improvement, candidates=4)
    groups = bound(algo, speakers, models).chooser.draw(places(WON, LOST))
    return [action for group in groups for action in group.drawn]


def named(text: str) -> str:
    """Of a role's prompt the action that is judged."""
    return messages(text)[-2].removesuffix("<|im_end|>").strip()


def test_shuffled_values_are_those_of_other_candidates(models: ModelSet):
    def forecast(text: str, draw: object) -> str:
        return f"Of {named(text)} Success."

    texts = {}
    for control in ("none", "shuffled_critiques"):
        actions = drawn(models, control, "choice", forecast=forecast)
        texts[control] = [(CHAT.decode(a.action_ids), a.forecasts[0]) for a in actions]
    assert all(action in text for action, text in texts["none"])
    spoiled = texts["shuffled_critiques"]
    assert sum(action in text for action, text in spoiled) < 10 < len(spoiled) == 20
    assert sorted(text for _, text in spoiled) == sorted(text for _, text in texts["none"])


def test_shuffled_critiques_are_those_of_other_candidates(models: ModelSet):
    def evaluate(text: str, draw: object) -> str:
        return f"Optimality: No. Of {named(text)}"

    own = {}
    for control in ("none", "shuffled_critiques"):
        actions = drawn(models, control, "critique", evaluate=evaluate)
        own[control] = [CHAT.decode(a.action_ids) in (a.critique or "") for a in actions]
    assert all(own["none"]) and sum(own["shuffled_critiques"]) < 10 < len(own["none"]) == 20


def test_a_majority_asks_nobody(models: ModelSet):
    lines = iter((["Is it a cat?"] * 3 + ["Is it a dog?"]) * 6)
    generator = troupe(act=lambda text, draw: next(lines))
    algo = nlac({"control": "majority"}, improvement="choice", candidates=4)
    lessons, _ = bound(algo, generator, models).improve(places(WON))
    assert {call.role for call in generator.calls} == {"act"}
    weights = [(CHAT.decode(x.action_ids), x.weight) for x in lessons]
    assert sorted(weights) == [("Is it a cat?", 0.25)] * 3 + [("Is it a dog?", -0.25)] * 3


def test_a_frozen_critic_never_learns(model_folder: Path):
    generator = troupe()
    algo = nlac({"control": "frozen_critic"}, critic="own")
    models = weights(algo, model_folder)
    bound(algo, generator, models)
    before = models.fingerprint("critic")
    assert list(updated(algo, filled(WON, LOST))) == ["policy"]
    assert models.fingerprint("critic") == before and not generator.of("backup")


def test_without_critiques_a_majority_is_learnt(models: ModelSet):
    def forecast(text: str, draw: Any) -> str:
        return draw.choice(["Yes. Success.", "No. Failure."])

    learnt = []
    for control in ("majority", "empty_critiques"):
        speakers = troupe(act=["Is it a cat?", "Is it a dog?", "Is it?"], forecast=forecast)
        algo = nlac({"control": control}, improvement="choice", candidates=5, compare=True)
        lessons, _ = bound(algo, speakers, models).improve(places(WON, LOST))
        learnt.append([(x.turn.turn, x.action_ids, x.weight) for x in lessons])
    assert learnt[0] == learnt[1] and len(learnt[0]) > 5
