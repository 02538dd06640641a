"""The environment: turn modes, attempts, built-in problems, splits, the expert, metrics."""

from __future__ import annotations

import copy
import random
import re
from fractions import Fraction

import pytest

from agentrl_cli.config.compose import build, check, compose
from agentrl_cli.core.errors import UserError
from agentrl_cli.core.types import Episode, Task, Turn
from agentrl_cli.envs.check import check_env
from agentrl_cli.envs.math.answers import boxed, is_unevaluated, last_formula, number
from agentrl_cli.envs.math.env import MAX_THOUGHTS, MathEnv
from agentrl_cli.envs.math.problems import (
    LEVELS,
    PROBLEM_KINDS,
    Problem,
    built_in_rows,
    draw_problem,
    expert_steps,
)


def math_env(*overrides: str) -> MathEnv:
    cfg = compose(["env=arithmetic", *(f"env.{one}" for one in overrides)])
    return build(check(cfg).env)


def opened(*overrides: str, gold: str = "12") -> MathEnv:
    env = math_env(*overrides)
    row = {"problem": "What is 5+7?", "level": 1, "subject": "a", "solution": "", "answer": gold}
    env.reset(Task("t", "test", row), 0)
    return env


@pytest.mark.parametrize("turns", ["single", "thoughts", "retry"])
def test_the_world_keeps_the_contract(turns: str):
    env = math_env(f"turn_mode={turns}")
    assert check_env(lambda: copy.copy(env), tasks=2) == []


@pytest.mark.parametrize(("turns", "actions", "said", "success"), [
    ("single", [r"5+7=12, so \boxed{12}"], ["Correct."], True),
    ("single", ["The answer is 12."], ["No box. It is 12."], False),
    ("retry", [r"\boxed{1}", "12", r"\boxed{2}"],
     ["Wrong. Try again.", "No box. Try again.", "Wrong. It is 12."], False),
])  # fmt: skip
def test_only_the_last_verdict_names_the_answer(turns, actions, said, success):
    env = opened(f"turn_mode={turns}", "attempts=3")
    steps = [env.step(action) for action in actions]
    assert [step.messages[0].content for step in steps] == said
    assert [step.done for step in steps] == [False] * (len(said) - 1) + [True]
    assert steps[-1].info["success"] is success and steps[-1].reward == float(success)
    for step in steps[:-1]:
        assert "12" not in str({**step.info, "privileged": None})


def test_last_response_can_be_the_answer_or_the_verdict_alone():
    for last, said in ((r"\boxed{12}", "It is 12."), ("12", "No box. Try again.")):
        env = opened("turn_mode=retry", "attempts=2", "last_response=answer")
        assert env.step(last).messages[0].content == said
    assert env.step(r"\boxed{1}").messages[0].content == "It is 12."
    for last, said in ((r"\boxed{12}", "Correct."), (r"\boxed{1}", "Wrong."), ("12", "No box.")):
        assert opened("last_response=plain").step(last).messages[0].content == said


def test_thoughts_get_no_observation():
    env = opened("turn_mode=thoughts")
    for thought in ("5+5=10\n\n", "10+2=12\n\n", "\\boxed{11}\n\n"):
        step = env.step(thought)
        assert step.messages == [] and not step.done and step.reward == 0.0
    assert env.step(r"No, \boxed{12}").info["success"]


def test_number_of_thoughts_is_limited():
    env = opened("turn_mode=thoughts")
    steps = [env.step("Well.\n\n") for _ in range(MAX_THOUGHTS)]
    assert [step.done for step in steps] == [False] * (MAX_THOUGHTS - 1) + [True]
    last = steps[-1]
    assert not last.truncated and last.reward == 0.0 and last.info["success"] is False
    assert last.messages[0].content == "No box. It is 12."
    with pytest.raises(RuntimeError):
        env.step("more")


# the built-in problems


@pytest.mark.parametrize("kind", PROBLEM_KINDS, ids=lambda kind: kind.name)
def test_worked_solution_is_right_line_by_line(kind):
    rng = random.Random(0)
    for _ in range(50):
        problem = draw_problem([kind], rng, None, 0)
        *lines, box = expert_steps(problem)
        assert lines[0].startswith("Find ")
        for line in lines[1:]:
            left, _, right = line.partition("=")
            assert value_of(left) == value_of(right), line
        assert number(str(boxed(box))) == problem.answer


def value_of(text: str) -> Fraction:
    """A formula of one operation, by hand: the package's own reading is what is tested."""
    text = re.sub(r"\\frac\{(-?\d+)\}\{(\d+)\}", r"\1/\2", text)
    if r"\cdot" in text:
        left, _, right = text.partition(r"\cdot")
        return Fraction(left) * Fraction(right)
    found = re.fullmatch(r"(-?\d+)([+-])(\d+)", text)
    if found:
        return Fraction(found[1]) + (1 if found[2] == "+" else -1) * Fraction(found[3])
    return Fraction(text)


@pytest.mark.parametrize(
    ("name", "operands", "answer"),
    [
        ("difference", (20, 7), 13), ("group", (2, 3, 4), 20), ("sum_product", (2, 3, 4), 14),
        ("product_sum", (2, 3, 4), 10), ("part", (2, 3, 12), 8),
        ("like", (1, 2, 6), Fraction(1, 2)), ("unlike", (2, 3), Fraction(5, 6)),
        ("linear_plus", (3, 5, 20), 5),
        ("linear_minus", (3, 5, 10), 5), ("linear_group", (2, 3, 14), 4), ("sold", (3, 4, 5), 7),
        ("cost", (3, 4, 5), 17), ("share", (5, 7, 4), 3), ("spent", (3, 4, 5), 7),
    ],
)  # fmt: skip
def test_answers_agree_with_hand_computation(
    name: str, operands: tuple[int, ...], answer: Fraction
):
    (kind,) = [kind for kind in PROBLEM_KINDS if kind.name == name]
    assert Problem(kind, operands).answer == answer


def test_splits_share_no_operands():
    train, test = (built_in_rows(split, 150, LEVELS, 0) for split in ("train", "test"))
    kinds = {kind.name: kind for kind in PROBLEM_KINDS}
    keys = []
    for rows in (train, test):
        parts = [row["id"].split("-") for row in rows]
        problems = [Problem(kinds[name], tuple(map(int, numbers))) for name, *numbers in parts]
        keys.append({problem.key for problem in problems})
    assert not keys[0] & keys[1]
    assert min(len(keys[0]), len(keys[1])) > 300
    assert not {row["problem"] for row in train} & {row["problem"] for row in test}


def test_levels_alternate():
    assert [task.data["level"] for task in math_env().tasks("test")[:10]] == [*LEVELS, *LEVELS]


def test_levels_and_subjects_filter():
    tasks = math_env("levels=[4,5]", "subjects=[Algebra]").tasks("train")
    assert tasks and {task.data["level"] for task in tasks} == {4}
    with pytest.raises(UserError) as error:
        math_env("subjects=[Geometry]").tasks("train")
    assert error.value.code == "unknown-subject" and "Geometry" in str(error.value)


def test_the_expert_solves_every_kind():
    for turns in ("single", "thoughts", "retry"):
        env = math_env(f"turn_mode={turns}")
        for task in env.tasks("test")[:40]:
            env.reset(task, 0)
            actions = list(env.expert(task))
            assert (len(actions) > 1) == (turns == "thoughts")
            assert [env.step(action) for action in actions][-1].info["success"]


# what an evaluation says


def played(task: Task, answers: list[str], right: str) -> list[Episode]:
    episodes = []
    for i, answer in enumerate(answers):
        grade = "exact" if answer else "unboxed"
        info = {"success": answer == right, "answer": answer, "grade": grade}
        turn = Turn([], answer, [], [1] * (i + 1), [0.0] * (i + 1), done=True, info=info)
        episodes.append(Episode(f"{task.id}-{i}", task, "g", 0, [turn]))
    return episodes


def test_metrics_by_hand():
    one = Task("a", "test", {"level": 1, "subject": "Number Theory"})
    two = Task("b", "test", {"level": 5, "subject": "Algebra"})
    found = math_env().summarise(
        played(one, ["7", "8", "8", "7"], "7") + played(two, ["3", "4", "4", ""], "4")
    )
    assert found["level_1"] == found["subject_number_theory"] == 0.5
    assert found["level_5"] == found["subject_algebra"] == 0.5
    assert found["pass_at_2"] == pytest.approx(5 / 6)
    assert found["pass_at_4"] == 1.0
    assert found["majority_at_4"] == 1.0  # the first of two equally common answers was right
    assert found["replies_unboxed"] == 1 / 8 and found["response_tokens"] == 2.5
    assert found["level_1_low"] <= found["level_1"] <= found["level_1_high"]
    assert "pass_at_8" not in found


def test_a_majority_needs_a_box():
    task = Task("a", "test", {"level": 1, "subject": "x"})
    assert math_env().summarise(played(task, ["", "", "3"], "3"))["majority_at_3"] == 1.0
    assert math_env().summarise(played(task, ["", ""], "3"))["majority_at_2"] == 0.0


@pytest.mark.parametrize(
    ("gold", "answers", "calculations"),
    [
        ("64", ["64", "64.0", "+64", "8*8=64", "64 apples"], [
            r"8\cdot8", "8*8", "8^2", r"\frac{128}{2}", "128/2", "60+4", "70-6", "8(8)", "{8}{8}",
        ]),
        (r"\frac{3}{4}", [r"\frac{3}{4}", "3/4", "0.75", "(3)/(4)", r"\frac34"], [
            r"\frac{1}{2}+\frac{1}{4}", "1-1/4",
        ]),
    ],
)  # fmt: skip
def test_calculation_is_no_answer(gold: str, answers: list[str], calculations: list[str]):
    def right(answer: str) -> bool:
        return opened("turn_mode=single", gold=gold).step(rf"\boxed{{{answer}}}").info["success"]

    assert right(answers[0]) and not any(map(right, calculations))
    assert not any(is_unevaluated(answer, gold) for answer in answers)


def test_no_right_answer_counts_as_a_calculation():
    rows = [row for split in ("train", "test") for row in built_in_rows(split, 1500, LEVELS, 0)]
    assert not any(is_unevaluated(row["answer"], row["answer"]) for row in rows)


@pytest.mark.extras
@pytest.mark.parametrize(
    ("gold", "reply", "correct"),
    [
        ("38", "The books cost 5 x 7 = $35. The card costs $3. The total is $38.", True),
        ("48", "The card costs $12. The total is $48.", True),
        ("64", r"The answer is $8\cdot 8$, so it is 64.", True), ("64", "It is $64$.", True),
        ("64", "In step 3. 64", True), ("64", "8*8 = 64", True), ("-64", "It is -64.", True),
        ("64", "The answer is 8*8.", False), ("64", "The answer is 8 + 56", False),
        (r"\frac{7}{12}", "Answer: 1/3+1/4", False), (r"\frac{7}{12}", "Answer: 7/12", True),
        ("64", r"The answer is $8\cdot 8$.", False),
        ("64", "The answer is 64. I used steps 1-3.", True),
        ("64", "The answer is $64$, which is 8*8.", True), ("64", "Answer: 64 = 8*8", True),
        ("64", "The answer is 64*1.", False), ("64", "The answer is 1*64.", False),
        (r"\frac{7}{12}", r"The answer is $\frac{7}{12}$ (steps 1-3)", True),
    ],
)  # fmt: skip
def test_calculation_at_the_end_of_a_reply_is_no_answer(gold: str, reply: str, correct: bool):
    pytest.importorskip("math_verify", reason="extract=last_math is math-verify's")
    env = opened("turn_mode=single", "extract=last_math", gold=gold)
    assert env.step(reply).info["success"] is correct


@pytest.mark.parametrize(
    ("reply", "formula"),
    [
        (r"The angle is 90$^\circ$ and the answer is $45$.", "45"), ("It is 3$x$, $x=64$.", "x=64"),
        ("Books cost $35. A card costs $3. The total is $38.", "38"), ("It is 7.", "7"),
    ],
)  # fmt: skip
def test_last_formula_is_found(reply: str, formula: str):
    assert last_formula(reply) == formula
