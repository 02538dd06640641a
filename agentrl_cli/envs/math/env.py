r"""MATH: one problem, an answer in the last `\boxed{}`, graded at the end of a reply.

`thoughts` cuts a reply at blank lines: a thought is a turn that the world answers with nothing, so
the same reply goes on. `retry` says whether an answer was right and lets the agent try again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from agentrl_cli.core.errors import UserError, require_at_least, require_fraction
from agentrl_cli.core.types import Episode, Message, Step, Task
from agentrl_cli.envs.base import Env
from agentrl_cli.envs.math import problems, rows
from agentrl_cli.envs.math.answers import boxed, normalise
from agentrl_cli.envs.math.grader import LONGEST, Grade, grade
from agentrl_cli.envs.math.kinds import LEVELS
from agentrl_cli.envs.math.summary import summarise

BLANK = "\n\n"
RIGHT = "Correct."
SPLITS = ("train", "test")
MOST_THOUGHTS = 256  # of one reply


@dataclass
class Reply:
    """The problem in work: the task, the tries left after this one, the thoughts of this reply."""

    task: Task
    left: int
    thoughts: list[str] = field(default_factory=list)
    over: bool = False


@dataclass(kw_only=True)
class MathEnv(Env):
    """`data` null: the built-in problems, `problems` and `test_problems` of each level. Else a
    file, a folder or a data set's id, see rows.py; `attempts` counts for `retry` only."""

    instruction: str
    turns: Literal["single", "thoughts", "retry"]
    attempts: int
    data: str | None
    test_data: str | None
    test_share: float
    levels: list[int]
    subjects: list[str]
    problems: int
    test_problems: int
    split_seed: int
    reply: Reply | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        require_at_least(
            1, attempts=self.attempts, problems=self.problems, test_problems=self.test_problems
        )
        require_fraction(test_share=self.test_share)

    @property
    def turn_delimiter(self) -> str:
        """Thoughts end with a blank line."""
        return BLANK if self.turns == "thoughts" else ""

    def system(self) -> str:
        """The instruction."""
        return self.instruction

    def tasks(self, split: str) -> list[Task]:
        """One task a problem of these levels and subjects."""
        if split not in SPLITS:
            raise UserError(f"unknown split {split!r}: use 'train' or 'test'")
        found = self._built_in(split) if self.data is None else self._read(self.data, split)
        known = sorted({str(row["subject"]) for row in found})
        for subject in self.subjects:
            if subject not in known:
                raise UserError(f"no problem is of subject {subject!r}; there is {known}")
        wanted = [row for row in found if not self.subjects or row["subject"] in self.subjects]
        return [Task(f"math-{split}-{row['id']}", split, row) for row in wanted]

    def _built_in(self, split: str) -> Sequence[dict[str, Any]]:
        count = self.problems if split == "train" else self.test_problems
        return problems.rows(split, count, tuple(self.levels) or LEVELS, self.split_seed)

    def _read(self, data: str, split: str) -> list[dict[str, Any]]:
        split_rows = rows.read(data, self.test_data, self.test_share, self.split_seed)[split]
        return [row for row in split_rows if not self.levels or row["level"] in self.levels]

    def reset(self, task: Task, seed: int) -> list[Message]:
        """Pose the problem. Nothing is drawn, so the seed changes nothing."""
        self.reply = Reply(task, self.attempts - 1 if self.turns == "retry" else 0)
        return [Message("user", task.data["problem"])]

    def step(self, action: str) -> Step:
        """Let a thought go on, or grade the reply that ends here. Raises RuntimeError before
        `reset` and after the end."""
        reply = self._running()
        reply.thoughts.append(action)
        if self.turn_delimiter and action.endswith(self.turn_delimiter):
            reply.over = len(reply.thoughts) >= MOST_THOUGHTS
            return Step([], 0.0, False, reply.over, {})
        text, gold = "".join(reply.thoughts), reply.task.data["answer"]
        found = self.judge(text, gold)
        said = [Message("user", self.response(found, gold, reply.left))]
        info = _info(text, found, gold)
        if found.correct or not reply.left:
            reply.over, info["success"] = True, found.correct
        reply.left, reply.thoughts = reply.left - 1, []
        return Step(said, float(found.correct), reply.over, False, info)

    def judge(self, reply: str, gold: str) -> Grade:
        """The grade of a reply: without a box it is wrong."""
        answer = boxed(reply)
        return Grade(False, "unboxed") if answer is None else grade(answer, gold)

    def response(self, found: Grade, gold: str, left: int) -> str:
        """What a graded reply is answered: the right answer only when no try is left."""
        if found.correct:
            return RIGHT
        verdict = "No box." if found.reason == "unboxed" else "Wrong."
        return f"{verdict} Try again." if left else f"{verdict} It is {gold}."

    def expert(self, task: Task) -> Iterator[str]:
        """The worked solution: its steps in `thoughts`, else the whole."""
        steps = rows.steps(task.data)
        parts = [step + BLANK for step in steps[:-1]] + steps[-1:]
        yield from parts if self.turns == "thoughts" else ["".join(parts)]

    def summarise(self, episodes: list[Episode]) -> dict[str, float]:
        """Accuracy by level and subject, pass@k, majority@k, length, time-outs."""
        return summarise(episodes)

    def _running(self) -> Reply:
        if self.reply is None or self.reply.over:
            raise RuntimeError("no problem is open: call reset on a fresh instance")
        return self.reply


def _info(text: str, found: Grade, gold: str) -> dict[str, Any]:
    """What may be logged of a graded reply, and the right answer apart."""
    answer = boxed(text)
    return {
        "unboxed": answer is None,
        "grade": found.reason,
        "answer": normalise(answer[:LONGEST]) if answer else "",
        "privileged": {"answer": gold},
    }
