"""Exact values and the scores of critics, against hand computation."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from omegaconf import OmegaConf

from agentrl_cli.cli.diagnose import HEALTHY, diagnose, lines
from agentrl_cli.cli.new import write_package
from agentrl_cli.config.compose import check, compose_checked, load
from agentrl_cli.core.errors import UserError
from agentrl_cli.core.types import Episode
from agentrl_cli.exact_values import (
    Arm,
    Tree,
    action_scores,
    arms,
    auc_by_distance,
    mean_by_turn,
    open_means,
    r_squared,
    run_arm,
    sign_accuracy,
    state_metrics,
)
from agentrl_cli.training.build import Parts, build_parts
from tests.builders.errors import user_error
from tests.paths import ROOT

UNIFORM = [1 / 3] * 3
SMALL = ["recipe=courier", "rollout.episodes_per_step=16"]


def parts_of(*overrides: str) -> Parts:
    return build_parts(compose_checked([*SMALL, "algo=self_ac", *overrides]), None)


@pytest.fixture(scope="module")
def tree() -> Tree:
    return Tree(parts_of())


def test_uniform_policy_has_the_values_of_hand(tree: Tree):
    exact = tree.values([UNIFORM] * len(tree.nodes))
    assert len(tree.nodes) == 3 * (1 + 3 + 9 + 27)
    assert exact.success == pytest.approx((2 / 3) ** 4)
    for i, node in enumerate(tree.nodes):
        left, alive = node.state.turns_left, node.state.safe
        assert exact.v[i] == pytest.approx(alive * (2 / 3) ** left)
        for a, action in enumerate(tree.env.actions):
            is_open = action != f"{node.state.closed[0]}."
            assert exact.q[i, a] == pytest.approx(alive * is_open * (2 / 3) ** (left - 1))
    assert exact.reach.sum() == pytest.approx(4)  # one state per turn


def test_stochastic_losses_and_weather_are_averaged():
    tree = Tree(parts_of("env.loss=0.5", "env.weather=true", "env.max_turns=2"))
    exact = tree.values([UNIFORM] * len(tree.nodes))
    assert exact.success == pytest.approx((2 / 3 + 1 / 3 * 0.5) ** 2)
    assert len(tree.nodes) == 6 + 6 * 3 * 2


def test_exact_values_agree_with_sampled_episodes(tree: Tree):
    policy = tree.careful_policy(0.1)
    drawn = tree.sample(policy, 2000, seed=1)
    won = sum(episode.success for _, episode in drawn) / 2000
    assert won == pytest.approx(tree.values(policy).success, abs=0.03) and won > 0.6


@pytest.mark.slow
def test_policy_values_agree_with_play(tree: Tree):
    parts = tree.parts
    episodes = [e for step in range(12) for e in parts.collector.collect(step, 1)]
    won = sum(episode.success for episode in episodes) / len(episodes)
    assert tree.policy_values().success == pytest.approx(won, abs=0.12)


def test_scores_of_perfect_and_reversed_critics(tree: Tree):
    exact = tree.values([UNIFORM] * len(tree.nodes))
    perfect = {i: exact.q[i : i + 1] for i in range(len(tree.nodes))}
    assert auc_by_distance(tree, exact, perfect) == {1: 1, 2: 1, 3: 1, 4: 1}
    wrong = {i: -row for i, row in perfect.items()}
    assert auc_by_distance(tree, exact, wrong) == {1: 0, 2: 0, 3: 0, 4: 0}
    blind = {i: 0 * row for i, row in perfect.items()}
    assert auc_by_distance(tree, exact, blind) == {1: 0.5, 2: 0.5, 3: 0.5, 4: 0.5}
    assert open_means(tree, [exact.q]) == pytest.approx([(1 + 2 / 3 + 4 / 9 + 8 / 27) / 4])
    assert r_squared(exact.v, exact.v, exact.reach) == 1
    by_turn = r_squared(exact.v, mean_by_turn(tree, exact), exact.reach)
    assert by_turn == pytest.approx(0, abs=1e-9)  # on policy the mean of V never changes


def test_sign_accuracy_at_the_deciding_turn(tree: Tree):
    exact = tree.values([UNIFORM] * len(tree.nodes))
    routes = [route for route, _ in tree.sample([UNIFORM] * len(tree.nodes), 300, seed=2)]
    truths = [[exact.q[i, a] - exact.v[i] for i, a in route] for route in routes]
    assert sign_accuracy(exact, routes, truths) == 1
    assert sign_accuracy(exact, routes, [[-x for x in row] for row in truths]) == 0
    # the sign of the outcome decides without chance: a letter arrives if no turn was wrong
    lost = sum(min(row) < -1e-9 for row in truths)
    assert sign_accuracy(exact, routes, [[1.0] * 4] * 300) == pytest.approx(1 - lost / 300)


@pytest.mark.slow
@pytest.mark.parametrize(("loss", "low", "high"), [(1.0, 1.0, 1.0), (0.5, 0.5, 0.9)])
def test_sign_of_grpo_is_right_without_chance(loss: float, low: float, high: float):
    parts = parts_of(f"env.loss={loss}")
    tree = Tree(parts)
    assert low <= state_metrics(parts, tree, tree.policy_values())["sign_grpo"] <= high


@pytest.mark.parametrize(
    ("overrides", "code"),
    [
        (["env=twentyq"], "not-enumerable"),
        (["model.weights=null"], "not-enumerable"),
        (["algo=grpo"], "no-critic"),
        (["env.weather=true"], "too-large"),
    ],
)
def test_what_cannot_be_diagnosed_is_refused(
    overrides: list[str], code: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("agentrl_cli.exact_values.MAX_NODES", 120)  # as many as without weather
    arm = Arm("any", [*SMALL, "algo=self_ac", *overrides], 1, 0, 1)
    with pytest.raises(UserError) as refused:
        run_arm(arm)
    assert refused.value.code == code


@pytest.mark.parametrize(
    "found", [[0.5] * 3, "yes", None, [math.nan] * 432, ["0.5"] * 432, [[0.5]] * 432]
)
def test_critic_without_finite_numbers_is_refused(
    found: Any, tree: Tree, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(tree.parts.algo, "action_values", lambda turns: found, raising=False)
    with user_error("not-a-number", "action_values"):
        action_scores(tree.parts, tree)


def test_critic_that_misses_turns_is_refused(tree: Tree, monkeypatch: pytest.MonkeyPatch):
    def annotate(episodes: list[Episode]) -> None:
        for episode in episodes:
            episode.turns[0].info["value"] = 0.5

    for episode in (e for _, _, e in tree.whole_episodes()):
        for turn in episode.turns:
            turn.info.pop("value", None)  # of other tests
    monkeypatch.setattr(tree.parts.algo, "annotate", annotate)
    with user_error("not-a-number", "annotate (value)"):
        state_metrics(tree.parts, tree, tree.values([UNIFORM] * len(tree.nodes)))


def test_controls_are_those_of_the_configured_algorithm():
    overrides = ["recipe=courier", "algo=nlac", "ablation=paper"]
    cfg = compose_checked(overrides)
    base, *controls = arms(cfg, Arm("nlac", overrides, 1, 1, 1))
    assert base.overrides == overrides
    changed = {arm.name: compose_checked(arm.overrides) for arm in controls}
    assert changed["monte carlo"].algo.advanced.td_lambda == 1
    for name in ("shuffled outcomes", "shuffled next states", "frozen critic"):
        assert changed[name].algo.advanced.ablation == name.replace(" ", "_")
    assert changed["frozen critic"].algo.separate_critic
    for control in changed.values():
        control.algo.separate_critic = cfg.algo.separate_critic  # a shared one cannot be frozen
        control.algo.advanced = cfg.algo.advanced
        assert control.algo == cfg.algo


def test_controls_that_the_algorithm_refuses_are_left_out():
    overrides = ["recipe=courier", "algo=nlac", "ablation=nlrl"]
    found = arms(compose_checked(overrides), Arm("nlac", overrides, 1, 1, 1))
    names = [arm.name for arm in found]
    assert "shuffled next states" not in names and len(names) > 1


def test_policy_without_a_warm_up_trains_in_all_updates(monkeypatch: pytest.MonkeyPatch):
    planned: list[Arm] = []
    monkeypatch.setattr("agentrl_cli.cli.diagnose.run_all", planned.extend)
    record = diagnose(["algo=stepagent_implicit", "data.demos=expert:4"], None, 12, 8, 4)
    assert record["critic_updates"] == 0
    assert [(arm.critic_updates, arm.policy_updates) for arm in planned] == [(0, 20)]


@pytest.mark.slow
@pytest.mark.parametrize("algo", ["stepagent_implicit", "stepagent_inverse"])
def test_rewards_of_demonstrations_are_scored_without_controls(algo: str):
    overrides = ["recipe=courier", f"algo={algo}", "data.demos=expert:4"]
    (arm,) = arms(compose_checked(overrides), Arm(algo, overrides, 1, 1, 1))
    rows = run_arm(arm)
    assert len(rows) == 3
    for row in rows:
        assert all(0 <= row[f"auc_{left}"] <= 1 for left in (1, 2, 3, 4))
    equal = [rows[0][f"auc_{left}"] for left in (1, 2, 3, 4)]
    assert equal == [0.5] * 4  # policy and reference, or both classes, are alike at first


@pytest.mark.slow
def test_nlac_critic_learns_and_its_controls_do_not():
    overrides = [*SMALL, "algo=nlac"]
    trained, *controls = arms(compose_checked(overrides), Arm("nlac", overrides, 12, 0, 12))
    named = {arm.name: arm for arm in controls}
    frozen = replace(named["frozen critic"], critic_updates=1)  # more change nothing
    learned, *rest = (run_arm(arm)[-1] for arm in (trained, named["shuffled outcomes"], frozen))
    aucs = [[row[f"auc_{d}"] for d in (1, 2, 3, 4)] for row in (learned, *rest)]
    assert min(aucs[0][:2]) > 0.9 and min(aucs[0]) > 0.75
    assert max(map(np.mean, aucs[1:])) < 0.65
    to_policy, to_behaviour = (
        abs(learned["estimate"] - learned[key]) for key in ("policy_value", "behaviour_value")
    )
    assert to_policy < to_behaviour


@pytest.mark.slow
def test_archer_critic_learns_and_the_policy_follows():
    _, learned, last = run_arm(Arm("archer", [*SMALL, "algo=archer"], 8, 4, 8))
    assert np.mean([learned[f"auc_{d}"] for d in (1, 2, 3, 4)]) > 0.9
    assert learned["success"] < 0.35 and last["success"] > 0.5


@pytest.mark.slow
def test_algorithm_of_the_page_is_diagnosed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    folder, _ = write_package("algo", "my_method", tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(folder))  # of the arms' processes
    monkeypatch.syspath_prepend(folder)
    code = folder / "my_method" / "algo.py"
    page = (ROOT / "docs" / "extending.md").read_text()
    method = next(block for block in page.split("```python\n") if "def action_values" in block)
    imports = (
        "import math\nfrom agentrl_cli.algos.samples import TurnRef, completion_sample\n"
        "from agentrl_cli.models.forward import token_logprobs\n"
    )
    head, future, body = code.read_text().partition("from __future__ import annotations\n")
    code.write_text(head + future + imports + body + "\n" + method.split("```")[0])
    record = diagnose(["algo=my_method"], [folder / "conf"], 1, 1, 1)
    assert list(record["arms"]) == ["my_method", "shuffled rewards"]
    text = "\n".join(lines(record))
    assert "AUC, 1 left" in text and "policy's Q" in text and HEALTHY in text
    assert re.search(r"my_method( +[01]\.\d\d){7} +\d+ -> \d+ %", text)


def test_stored_configuration_of_a_courier_run_loads(tmp_path: Path):
    cfg = compose_checked([*SMALL, "algo=nlac"])
    (tmp_path / "config.yaml").write_text(OmegaConf.to_yaml(cfg))
    assert check(load(tmp_path / "config.yaml", [])) == cfg
