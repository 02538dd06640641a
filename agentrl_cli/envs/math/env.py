r"""MATH: one problem, an answer in the last `\boxed{}` (or, with `extract`, wherever math-verify
finds one), graded at the end of a reply.

`thoughts` cuts a reply at blank lines: a thought is a turn that the world answers with nothing, so
the same reply goes on. `retry` says whether an answer was right and lets the agent try again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from agentrl_cli.core.errors import UserError, require_at_least, require_fraction
from agentrl_cli.core.types import Episode, Message, Step, Task
from agentrl_cli.envs.base import Env, require_split
from agentrl_cli.envs.math.answers import boxed, last_formula, normalise
from agentrl_cli.envs.math.grader import MAX_ANSWER_LENGTH, MAX_REPLY_LENGTH, Extract, Grade, grade
from agentrl_cli.envs.math.kinds import LEVELS
from agentrl_cli.envs.math.problems import built_in_rows
from agentrl_cli.envs.math.rows import read_splits, solution_steps
from agentrl_cli.envs.math.summary import summarise

BLANK_LINE = "\n\n"
CORRECT = "Correct."
MAX_THOUGHTS = 256  # of one reply


@dataclass
class ProblemState:
    """The problem in work: its task, how many attempts are left after this one, and the thoughts of
    this reply."""

    task: Task
    attempts_left: int
    thoughts: list[str] = field(default_factory=list)
    over: bool = False


@dataclass(kw_only=True)
class MathEnv(Env):
    """`data` null: the built-in problems, `problems` and `test_problems` of each level. Else a
    file, a folder or a data set's id, see rows.py; `attempts` counts for `retry` only. `extract`
    and `tolerance` are those of `grade`."""

    instruction: str
    turn_mode: Literal["single", "thoughts", "retry"]
    attempts: int
    data: str | None
    test_data: str | None
    test_share: float
    levels: list[int]
    subjects: list[str]
    problems: int
    test_problems: int
    split_seed: int
    extract: Extract = "boxed"
    tolerance: float = 0.0
    val_share: float = 0.0
    val_problems: int = 0
    state: ProblemState | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        require_at_least(
            1, attempts=self.attempts, problems=self.problems, test_problems=self.test_problems
        )
        require_at_least(0, val_problems=self.val_problems)
        require_fraction(test_share=self.test_share, val_share=self.val_share)
        require_fraction(tolerance=self.tolerance)

    @property
    def turn_delimiter(self) -> str:
        """Thoughts end with a blank line."""
        return BLANK_LINE if self.turn_mode == "thoughts" else ""

    def system(self) -> str:
        """The instruction."""
        return self.instruction

    def tasks(self, split: str) -> list[Task]:
        """One task a problem of these levels and subjects."""
        require_split(split)
        problems = self._built_in(split) if self.data is None else self._read(self.data, split)
        known = sorted({str(row["subject"]) for row in problems})
        for subject in self.subjects:
            if subject not in known:
                raise UserError(f"no problem is of subject {subject!r}; there is {known}")
        chosen = [row for row in problems if not self.subjects or row["subject"] in self.subjects]
        return [Task(f"math-{split}-{row['id']}", split, row) for row in chosen]

    def _built_in(self, split: str) -> Sequence[dict[str, Any]]:
        counts = {
            "train": self.problems, "val": self.val_problems, "test": self.test_problems,
        }  # fmt: skip
        levels = tuple(self.levels) or LEVELS
        return built_in_rows(split, counts[split], levels, self.split_seed, self.problems)

    def _read(self, data: str, split: str) -> list[dict[str, Any]]:
        given = (self.test_data, self.test_share, self.split_seed, self.val_share)
        splits = read_splits(data, *given)
        return [row for row in splits[split] if not self.levels or row["level"] in self.levels]

    def reset(self, task: Task, seed: int) -> list[Message]:
        """Pose the problem. Nothing is drawn, so the seed changes nothing."""
        self.state = ProblemState(task, self.attempts - 1 if self.turn_mode == "retry" else 0)
        return [Message("user", task.data["problem"])]

    def step(self, action: str) -> Step:
        """Let a thought go on, or grade the reply that ends here, at MAX_THOUGHTS as it stands.
        Raises RuntimeError before `reset` and after the end."""
        state = self._running()
        state.thoughts.append(action)
        goes_on = self.turn_delimiter and action.endswith(self.turn_delimiter)
        if goes_on and len(state.thoughts) < MAX_THOUGHTS:
            return Step([], 0.0, False, False, {})
        text, gold = "".join(state.thoughts), state.task.data["answer"]
        result = self.grade_reply(text, gold)
        feedback = [Message("user", self.response(result, gold, state.attempts_left))]
        info = self._info(text, result, gold)
        if result.correct or not state.attempts_left:
            state.over, info["success"] = True, result.correct
        state.attempts_left, state.thoughts = state.attempts_left - 1, []
        return Step(feedback, float(result.correct), state.over, False, info)

    def grade_reply(self, reply: str, gold: str) -> Grade:
        """The grade of a reply: without a box it is wrong, unless `extract` looks elsewhere."""
        if self.extract == "last_math":
            return grade(reply, gold, self.extract, self.tolerance)
        answer = boxed(reply)
        if answer is None:
            return Grade(False, "unboxed")
        return grade(answer, gold, tolerance=self.tolerance)

    def response(self, result: Grade, gold: str, attempts_left: int) -> str:
        """What a graded reply is answered: the right answer only when no attempt is left."""
        if result.correct:
            return CORRECT
        fault = "No box." if result.reason == "unboxed" else "Wrong."
        return f"{fault} Try again." if attempts_left else f"{fault} It is {gold}."

    def expert(self, task: Task) -> Iterator[str]:
        """The worked solution: its steps in `thoughts`, else the whole."""
        steps = solution_steps(task.data)
        parts = [step + BLANK_LINE for step in steps[:-1]] + steps[-1:]
        yield from parts if self.turn_mode == "thoughts" else ["".join(parts)]

    def summarise(self, episodes: list[Episode]) -> dict[str, float]:
        """Accuracy by level and subject, pass@k, majority@k, length, time-outs."""
        return summarise(episodes)

    def _info(self, text: str, result: Grade, gold: str) -> dict[str, Any]:
        """What may be logged of a graded reply, and the right answer apart."""
        box = boxed(text)
        anywhere = self.extract == "last_math"
        answer = last_formula(text[-MAX_REPLY_LENGTH:]) if anywhere else box
        return {
            "unboxed": box is None,
            "grade": result.reason,
            "answer": normalise(answer[:MAX_ANSWER_LENGTH]) if answer else "",
            "privileged": {"answer": gold},
        }

    def _running(self) -> ProblemState:
        if self.state is None or self.state.over:
            raise RuntimeError("no problem is open: call reset on a fresh instance")
        return self.state
