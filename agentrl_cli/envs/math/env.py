r"""Problems with one correct answer, in the last `\boxed{}` of a reply: the MATH benchmark, and
built-in arithmetic.

With `turn_mode=thoughts` a reply is cut at blank lines. A thought is a turn without an observation,
so the same reply continues. With `turn_mode=retry` the agent sees the verdict and tries again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated, Literal

from pydantic import Field

from agentrl_cli.core.errors import UserError
from agentrl_cli.core.limits import check_limits
from agentrl_cli.core.types import Episode, Message, Step, Task
from agentrl_cli.envs.base import Env, require_split
from agentrl_cli.envs.math.answers import boxed, last_formula, normalise
from agentrl_cli.envs.math.grader import MAX_ANSWER_LENGTH, MAX_REPLY_LENGTH, Extract, Grade, grade
from agentrl_cli.envs.math.problems import LEVELS, built_in_rows
from agentrl_cli.envs.math.rows import read_splits, solution_steps
from agentrl_cli.envs.math.summary import summarise

BLANK_LINE = "\n\n"
CORRECT = "Correct."
MAX_THOUGHTS = 256  # per reply


@dataclass
class ProblemState:
    """The task, the attempts left after this one, and the thoughts of this reply."""

    task: Task
    attempts_left: int
    thoughts: list[str] = field(default_factory=list)
    over: bool = False


@dataclass(kw_only=True)
class MathEnv(Env):
    """The built-in problems, or those in `data`."""

    instruction: Annotated[str, Field(description="System message.")]
    turn_mode: Annotated[Literal["single", "thoughts", "retry"], Field(description="single: the "
                         "whole reply is one turn; thoughts: a turn ends at a blank line; retry: "
                         "the agent sees the verdict and tries again.")]  # fmt: skip
    attempts: Annotated[int, Field(ge=1, description="Replies to a problem, for turn_mode=retry.")]
    data: Annotated[str | None, Field(description="A .jsonl or .parquet file, a folder of such "
                    "files, or a Hugging Face data set. null: the built-in problems.")]  # fmt: skip
    test_data: Annotated[str | None, Field(description="Rows of the test split. null: the test "
                         "split of the data, or a share of its rows.")]  # fmt: skip
    test_share: Annotated[float, Field(ge=0, le=1, description="Share of the rows in the test "
                          "split, if data has none.")]  # fmt: skip
    levels: Annotated[list[int], Field(description="Levels, 1 to 5. []: all.")]
    subjects: Annotated[list[str], Field(description="Names of subjects. []: all.")]
    problems: Annotated[int, Field(ge=1, description="Built-in train problems per level.")]
    test_problems: Annotated[int, Field(ge=1, description="Built-in test problems per level. "
                             "Splits share no operands.")]  # fmt: skip
    split_seed: Annotated[int, Field(description="Seed of the splits.")]
    extract: Annotated[Extract, Field(description="boxed: the answer is the last \\boxed{}; "
                       "last_math: as math-verify finds it (extra: math).")] = "boxed"  # fmt: skip
    tolerance: Annotated[float, Field(ge=0, le=1, description="Relative error of decimals: 0.001 "
                         "accepts 0.333 for 1/3.")] = 0.0  # fmt: skip
    val_share: Annotated[float, Field(ge=0, le=1, description="Share of the train rows in the val "
                         "split, if data has none.")] = 0.0  # fmt: skip
    val_problems: Annotated[int, Field(ge=0, description="Built-in val problems per level.")] = 0
    state: ProblemState | None = field(default=None, init=False, repr=False)

    __post_init__ = check_limits

    @property
    def turn_delimiter(self) -> str:
        return BLANK_LINE if self.turn_mode == "thoughts" else ""

    def system(self) -> str:
        return self.instruction

    def tasks(self, split: str) -> list[Task]:
        """Return one task per problem of these levels and subjects."""
        require_split(split)
        if self.data is None:
            count = {"train": self.problems, "val": self.val_problems, "test": self.test_problems}
            levels = tuple(self.levels) or LEVELS
            rows = built_in_rows(split, count[split], levels, self.split_seed, self.problems)
        else:
            given = (self.test_data, self.test_share, self.split_seed, self.val_share)
            rows = read_splits(self.data, *given)[split]
            rows = [row for row in rows if not self.levels or row["level"] in self.levels]
        known = sorted({str(row["subject"]) for row in rows})
        if unknown := [subject for subject in self.subjects if subject not in known]:
            line = f"no problem has the subject {unknown[0]!r}; choose from {known}"
            raise UserError(line, code="unknown-subject")
        chosen = [row for row in rows if not self.subjects or row["subject"] in self.subjects]
        return [Task(f"math-{split}-{row['id']}", split, row) for row in chosen]

    def reset(self, task: Task, seed: int) -> list[Message]:
        """Pose the problem. The seed has no effect."""
        self.state = ProblemState(task, self.attempts - 1 if self.turn_mode == "retry" else 0)
        return [Message("user", task.data["problem"])]

    def step(self, action: str) -> Step:
        """Continue after a thought, or grade a reply that ends here or has MAX_THOUGHTS. Raises
        RuntimeError before `reset` and after the end."""
        state = self.state
        if state is None or state.over:
            raise RuntimeError("no problem is open: call reset on a fresh instance")
        state.thoughts.append(action)
        goes_on = self.turn_delimiter and action.endswith(self.turn_delimiter)
        if goes_on and len(state.thoughts) < MAX_THOUGHTS:
            return Step([], 0.0, False, False, {})
        text, gold = "".join(state.thoughts), state.task.data["answer"]
        result, box = self.grade_reply(text, gold), boxed(text)
        is_last_math = self.extract == "last_math"
        answer = last_formula(text[-MAX_REPLY_LENGTH:]) if is_last_math else box
        info = {
            "unboxed": box is None,
            "grade": result.reason,
            "answer": normalise(answer[:MAX_ANSWER_LENGTH]) if answer else "",
            "privileged": {"answer": gold},
        }
        feedback = [Message("user", self.response(result, gold, state.attempts_left))]
        if result.correct or not state.attempts_left:
            state.over, info["success"] = True, result.correct
        state.attempts_left, state.thoughts = state.attempts_left - 1, []
        return Step(feedback, float(result.correct), state.over, False, info)

    def grade_reply(self, reply: str, gold: str) -> Grade:
        """Grade a reply. With `extract=boxed` a reply without a box is wrong."""
        if self.extract == "last_math":
            return grade(reply, gold, self.extract, self.tolerance)
        answer = boxed(reply)
        if answer is None:
            return Grade(False, "unboxed")
        return grade(answer, gold, tolerance=self.tolerance)

    def response(self, result: Grade, gold: str, attempts_left: int) -> str:
        """Return the observation after a graded reply. It names the answer on the last attempt."""
        if result.correct:
            return CORRECT
        unboxed = result.reason == "unboxed"
        if self.data is not None:
            fault = r"The reply has no \boxed{} answer." if unboxed else "The answer is wrong."
            return f"{fault} {'Try again.' if attempts_left else f'The correct answer is {gold}.'}"
        fault = "No box." if unboxed else "Wrong."  # the wording that the embedded model learned
        return f"{fault} Try again." if attempts_left else f"{fault} It is {gold}."

    def expert(self, task: Task) -> Iterator[str]:
        """Yield the worked solution, step by step with `turn_mode=thoughts`."""
        steps = solution_steps(task.data)
        parts = [step + BLANK_LINE for step in steps[:-1]] + steps[-1:]
        yield from parts if self.turn_mode == "thoughts" else ["".join(parts)]

    def summarise(self, episodes: list[Episode]) -> dict[str, float]:
        return summarise(episodes)
