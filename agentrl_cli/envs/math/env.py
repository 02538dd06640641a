r"""Problems with one correct answer, in the last `\boxed{}` of a reply: the MATH benchmark, and
built-in arithmetic.

With `turn_mode=thoughts` a reply is cut at blank lines. A thought is a turn without an observation,
so the same reply continues. With `turn_mode=retry` the agent sees the verdict and tries again.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated, Literal

from pydantic import Field

from agentrl_cli.core.errors import UserError
from agentrl_cli.core.limits import check_limits
from agentrl_cli.core.statistics import interval_over_tasks, mean, pass_at_k
from agentrl_cli.core.types import Episode, Message, Step, Task
from agentrl_cli.envs.base import (
    Env,
    Instructions,
    episodes_by_task,
    full_instructions,
    require_split,
)
from agentrl_cli.envs.math.answers import (
    boxed,
    is_unevaluated,
    last_formula,
    normalise,
    plain_values,
)
from agentrl_cli.envs.math.grader import MAX_ANSWER_LENGTH, MAX_REPLY_LENGTH, Extract, Grade, grade
from agentrl_cli.envs.math.problems import LEVELS, built_in_rows
from agentrl_cli.envs.math.rows import read_splits, solution_steps

BLANK_LINE = "\n\n"
CORRECT = "Correct."
INSTRUCTION = r"Put the answer in \boxed{}."
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

    instruction: Annotated[str | None, Field(description="System message. null: by "
                           "`instructions`.")]  # fmt: skip
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
                             "No problem is in two splits.")]  # fmt: skip
    split_seed: Annotated[int, Field(description="Seed of the splits.")]
    extract: Annotated[Extract, Field(description="boxed: the answer is the last \\boxed{}; "
                       "last_math: as math-verify finds it (extra: math).")] = "boxed"  # fmt: skip
    tolerance: Annotated[float, Field(ge=0, le=1, description="Relative error of decimals: 0.001 "
                         "accepts 0.333 for 1/3.")] = 0.0  # fmt: skip
    val_share: Annotated[float, Field(ge=0, le=1, description="Share of the train rows in the val "
                         "split, if data has none.")] = 0.0  # fmt: skip
    val_problems: Annotated[int, Field(ge=0, description="Built-in val problems per level.")] = 0
    last_response: Annotated[
        Literal["verdict", "answer", "plain"],
        Field(description="After the last reply. verdict: if it is right, and the answer if it "
              "is wrong; answer: the answer alone, which a critic can learn to work out; plain: "
              "if it is right."),
    ] = "verdict"  # fmt: skip
    instructions: Instructions = "short"
    state: ProblemState | None = field(default=None, init=False, repr=False)

    __post_init__ = check_limits

    @property
    def turn_delimiter(self) -> str:
        return BLANK_LINE if self.turn_mode == "thoughts" else ""

    def system(self) -> str:
        if self.instruction is not None:
            return self.instruction
        return full_instructions()["math"]["system"] if self.instructions == "full" else INSTRUCTION

    def example(self) -> list[Message]:
        """Return a solved problem."""
        if self.instructions == "short":
            return []
        problem, solution = full_instructions()["math"]["example"]
        return [Message("user", problem), Message("assistant", solution)]

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
        box = boxed(text)
        if self.extract == "last_math":
            answer = last_formula(text[-MAX_REPLY_LENGTH:])
            result = grade(text, gold, self.extract, self.tolerance)
        else:
            answer = box
            unboxed = Grade(False, "unboxed")
            result = unboxed if box is None else grade(box, gold, tolerance=self.tolerance)
        if result.correct and self.data is None and not self._has_value(box, text, gold):
            result = Grade(False, "unevaluated")
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

    def _has_value(self, box: str | None, text: str, gold: str) -> bool:
        """Return whether a right answer is a value, or its reply without a box names the value."""
        if box is not None:
            return not is_unevaluated(box, gold)
        values = plain_values(text[-MAX_REPLY_LENGTH:], gold)
        return any(grade(value, gold, tolerance=self.tolerance) for value in values)

    def response(self, result: Grade, gold: str, attempts_left: int) -> str:
        """Return the observation after a graded reply; after the last one, see `last_response`."""
        if self.last_response == "answer" and (result.correct or not attempts_left):
            return f"It is {gold}."
        if result.correct:
            return CORRECT
        unboxed = result.reason == "unboxed"
        fault = "No box." if unboxed else "Wrong."  # the wording that the bundled model learned
        if self.data is not None:
            fault = r"The reply has no \boxed{} answer." if unboxed else "The answer is wrong."
        if attempts_left:
            return f"{fault} Try again."
        named = "It is" if self.data is None else "The correct answer is"
        return fault if self.last_response == "plain" else f"{fault} {named} {gold}."

    def expert(self, task: Task) -> Iterator[str]:
        """Yield the worked solution, step by step with `turn_mode=thoughts`."""
        steps = solution_steps(task.data)
        parts = [step + BLANK_LINE for step in steps[:-1]] + steps[-1:]
        yield from parts if self.turn_mode == "thoughts" else ["".join(parts)]

    def summarise(self, episodes: list[Episode]) -> dict[str, float]:
        """Return the accuracy by level and subject, pass@k, majority@n and reply metrics."""
        if not episodes:
            return {}
        tasks = episodes_by_task(episodes)
        return accuracy_by_part(tasks) | pass_and_majority(tasks) | reply_metrics(episodes)


def accuracy_by_part(tasks: list[list[Episode]]) -> dict[str, float]:
    """Return the accuracy of each level and subject, with its 95 % interval over tasks."""
    parts: dict[str, list[list[float]]] = defaultdict(list)
    for group in tasks:
        data, right = group[0].task.data, [float(episode.success) for episode in group]
        parts[f"level_{data['level']}"].append(right)
        subject = re.sub(r"[^a-z0-9]+", "_", str(data["subject"]).lower()).strip("_")
        parts[f"subject_{subject or 'none'}"].append(right)
    metrics: dict[str, float] = {}
    for name in sorted(parts):
        metrics |= interval_over_tasks(parts[name]).metrics(name)
    return metrics


def pass_and_majority(tasks: list[list[Episode]]) -> dict[str, float]:
    """Return pass@k for powers of two up to the episodes per task, and majority@n: whether the most
    frequent answer is correct (Wang et al. 2023, arXiv 2203.11171)."""
    n, k = min(map(len, tasks)), 2
    counts = [(sum(episode.success for episode in group), len(group)) for group in tasks]
    metrics: dict[str, float] = {}
    while k <= n:
        metrics[f"pass_at_{k}"] = mean(pass_at_k(*count, k) for count in counts)
        k *= 2
    if n > 1:
        metrics[f"majority_at_{n}"] = mean(majority_is_correct(group[:n]) for group in tasks)
    return metrics


def majority_is_correct(group: list[Episode]) -> bool:
    """Return whether the most frequent answer is correct; the first one decides a tie."""
    boxed = [e for e in group if e.turns and e.turns[-1].info.get("answer")]
    votes = [(str(e.turns[-1].info["answer"]), e) for e in boxed]
    if not votes:
        return False
    winner = Counter(answer for answer, _ in votes).most_common(1)[0][0]
    return next(episode.success for answer, episode in votes if answer == winner)


def reply_metrics(episodes: list[Episode]) -> dict[str, float]:
    """Return the mean length, and the shares of replies without a box, timed out and crashed in the
    grader."""
    reasons = [str(t.info["grade"]) for e in episodes for t in e.turns if "grade" in t.info]
    tokens = [float(sum(len(turn.action_ids) for turn in e.turns)) for e in episodes]
    names = {"unboxed": "unboxed", "timed_out": "timeout", "crashed": "crash"}
    shares = {n: mean(float(reason == kind) for reason in reasons) for n, kind in names.items()}
    return {"response_tokens": mean(tokens)} | {f"replies_{n}": v for n, v in shares.items()}
