"""What the bundled model writes as a language critic, held to the method's properties."""

from __future__ import annotations

import re

import pytest

from agentrl_cli.algos.nlac import algorithm
from agentrl_cli.algos.nlac.algorithm import NLAC
from agentrl_cli.algos.nlac.parse import strict_outcome
from agentrl_cli.algos.samples import TurnRef
from agentrl_cli.config.compose import check, compose
from agentrl_cli.training.build import build_parts

OBSERVED = re.compile(r"\b(response|forecast|was|were|saw|seen|answered|left)\b", re.IGNORECASE)


@pytest.fixture(scope="module")
def targets() -> list[tuple[str, str]]:
    """The response to a turn that did not end its game, and the target of that turn."""
    settings = ["algo=nlac", "env=twentyq", "hardware.threads=1", "rollout.episodes_per_step=16"]
    parts = build_parts(check(compose(settings)), None)
    algo = parts.algo
    assert isinstance(algo, NLAC)
    episodes = parts.collector.collect(0, 1)
    places = [TurnRef(e, t) for e in episodes for t in range(len(e.turns) - 1)]
    algo.roles.begin_stream("test")
    written = algo.successor_targets(places, episodes)
    rows = zip(places, written, strict=True)
    return [(place.response, algo.roles.decode(ids)) for place, ids in rows if ids]


def test_no_target_quotes_the_next_state(targets: list[tuple[str, str]]):
    assert len(targets) > 80
    for response, text in targets:
        told = text.partition(". ")[2]  # behind the object that it names
        assert response not in told and not OBSERVED.search(told)


def test_targets_state_response_and_outcome(targets: list[tuple[str, str]]):
    kept = [f". {response.split('.')[0]}. It tells " in text for response, text in targets]
    assert sum(kept) / len(kept) > 0.9
    assert all(strict_outcome(text) is not None for _, text in targets)


WORLDS = ("arithmetic", "courier", "tau_mini", "twentyq", "wiki")
OTHER_TEXTS = ("", "paper", "nlql", "m2", "nlrl", "self_distillation")
SIMILAR_TEXTS = ("k1", "k8", "monte_carlo", "on_policy", "shared_critic", "guarded")
PRESETS = [(env, ablation) for env in WORLDS for ablation in OTHER_TEXTS]
PRESETS += [("twentyq", ablation) for ablation in SIMILAR_TEXTS]
PRESETS.remove(("courier", "nlrl"))  # its model does not know how to summarise rollouts


@pytest.mark.slow
@pytest.mark.parametrize(("env", "ablation"), PRESETS)
def test_roles_of_every_preset_can_be_parsed(
    env: str, ablation: str, monkeypatch: pytest.MonkeyPatch
):
    """At most 20 % of the texts of a role are lost before the first update."""
    monkeypatch.setattr(algorithm, "CHECKED_TURNS", 16)
    overrides = [f"recipe={env}", "algo=nlac", *([f"ablation={ablation}"] if ablation else [])]
    parts = build_parts(check(compose([*overrides, "rollout.episodes_per_step=16"])), None)
    assert isinstance(parts.algo, NLAC) and parts.algo.min_parse_rate == 0.5
    reports = parts.algo.role_reports(parts.collector.collect(0, 1))
    assert sum(len(report.texts) for report in reports) >= 16
    assert all(report.share >= 0.8 for report in reports)


@pytest.mark.parametrize("env", ["math", "tau_mini", "twentyq", "wiki"])
def test_paper_preset_is_the_plain_rule(env: str):
    algo = check(compose([f"experiment={env}_nlac_paper"])).algo
    said = {
        "num_forecasts": 1,
        "num_refinements": 1,
        "num_candidates": 1,
        "policy_target": "refined",
        "show_alternatives": False,
        "require_optimal": False,
        "separate_critic": True,  # a repair; the paper has one model
        "critic_warmup": 0,
        "kl_coef": 0.0,
    }
    assert {key: algo[key] for key in said} == said
    repairs = {
        "refine_temperature": 0.3,
        "role_model": "reference",
        "backup_model": "reference",
        "keep_optimal": True,
        "drop_unchanged": True,
        "terminal_targets": "backup",
        "ablation": "none",
        "td_lambda": 0,
    }
    assert {key: algo.advanced[key] for key in repairs} == repairs
