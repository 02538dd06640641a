"""Tasks of reasoning-gym: scores, contract, errors."""

from __future__ import annotations

import copy

import pytest

from agentrl_cli.config.compose import build, check, compose
from agentrl_cli.core.errors import UserError
from agentrl_cli.envs.check import check_env
from agentrl_cli.envs.reasoning_gym import ReasoningGym, score


def gym(*overrides: str) -> ReasoningGym:
    small = ["env.problems=20", "env.test_problems=20", *(f"env.{one}" for one in overrides)]
    return build(check(compose(["env=reasoning_gym", *small])).env)


class Scorer:
    def __init__(self, gives: float | Exception) -> None:
        self.gives = gives

    def score_answer(self, answer: str, entry: dict[str, str]) -> float:
        if isinstance(self.gives, Exception):
            raise self.gives
        return self.gives if entry["answer"] in ("", answer) else 0.0


@pytest.mark.parametrize(("gives", "reply", "correct", "reason"), [
    (0.99, r"\boxed{5}", False, "scored"), (1.0, r"\boxed{5}", True, "scored"),
    (ValueError("int"), r"\boxed{5}", False, "crash"), (1.0, "5", False, "unboxed"),
    (1.0, r"\boxed{" + "5" * 600 + "}", False, "long"),
])  # fmt: skip
def test_only_a_full_score_of_a_box_is_right(gives, reply: str, correct: bool, reason: str):
    found = score(Scorer(gives), {"answer": ""}, reply)
    assert (found.correct, found.reason) == (correct, reason)


@pytest.mark.parametrize("reply", [r"\text{Yes}", r"\textbf{Yes}", r"\mathrm{Yes}", "Yes"])
def test_words_may_stand_in_a_text_command(reply: str):
    assert score(Scorer(1.0), {"answer": "Yes"}, rf"\boxed{{{reply}}}")
    assert not score(Scorer(1.0), {"answer": "No"}, rf"\boxed{{{reply}}}")


def test_long_answers_of_a_task_are_scored():
    moves = "Move disk 1. " * 80
    assert score(Scorer(1.0), {"answer": moves.strip()}, rf"\boxed{{{moves}}}")


@pytest.mark.parametrize("answer", ["0x176b9e643680", "abe12345", "1e5"])
def test_text_like_a_power_is_scored(answer: str):
    assert score(Scorer(1.0), {"answer": answer}, rf"\boxed{{{answer}}}")


def test_huge_powers_are_not_scored():
    assert score(Scorer(1.0), {"answer": ""}, r"\boxed{1e30000000}").reason == "crash"


# with reasoning-gym


@pytest.fixture
def reasoning_gym() -> None:
    pytest.importorskip("reasoning_gym", reason="its tasks are reasoning-gym's")


@pytest.mark.extras
def test_the_world_keeps_the_contract(reasoning_gym: None):
    env = gym("name=chain_sum")
    assert check_env(lambda: copy.copy(env)) == []


@pytest.mark.extras
def test_options_reach_the_task(reasoning_gym: None):
    asked = [task.data["question"] for task in gym("options={min_terms: 6}").tasks("train")]
    assert all(question.count(" + ") + question.count(" - ") == 5 for question in asked)


@pytest.mark.extras
def test_task_without_an_answer_has_no_expert(reasoning_gym: None):
    env = gym("name=rubiks_cube")
    task = env.tasks("test")[0]
    env.reset(task, 0)
    assert env.expert(task) is None
    assert env.step(r"\boxed{F}").messages[0].content == "Wrong."


@pytest.mark.extras
def test_garbage_does_not_break_an_episode(reasoning_gym: None):
    env = gym("name=prime_factorization")
    env.reset(env.tasks("test")[0], 0)
    step = env.step(r"\boxed{garbage}")
    assert step.done and not step.info["success"] and step.info["grade"] == "crash"


@pytest.mark.extras
@pytest.mark.parametrize("name", ["countdown", "polynomial_multiplication", "n_queens"])
def test_scorers_that_run_the_answer_are_refused(reasoning_gym: None, name: str):
    with pytest.raises(UserError) as error:
        gym(f"name={name}").tasks("train")
    assert error.value.code == "runs-code"


@pytest.mark.extras
def test_an_unknown_task_or_option_is_the_users_mistake(reasoning_gym: None):
    for wrong in ("name=chain_sums", "options={colour: red}"):
        with pytest.raises(UserError) as error:
            gym(wrong).tasks("train")
        assert error.value.code == "unknown-task"


@pytest.mark.extras
def test_default_splits_have_their_questions(reasoning_gym: None):
    env = build(check(compose(["env=reasoning_gym", "env.name=chain_sum"])).env)
    splits = {split: {t.data["question"] for t in env.tasks(split)} for split in ("train", "test")}
    assert len(splits["test"]) > 190 and not splits["train"] & splits["test"]
