r"""Tasks of reasoning-gym (Stojanovski et al. 2025, arXiv 2505.24760) as one-reply episodes.

The answer is the last `\boxed{}` of the reply. A score below 1 or an exception of the scorer is
wrong. Tasks with a scorer that runs the answer as code are refused.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain
from typing import Annotated, Any

from pydantic import Field

from agentrl_cli.core.errors import UserError
from agentrl_cli.core.limits import check_limits
from agentrl_cli.core.types import Episode, Message, Step, Task, derive_seed
from agentrl_cli.envs.base import Env, episodes_by_task, import_extra, require_split
from agentrl_cli.envs.math.answers import boxed
from agentrl_cli.envs.math.env import pass_and_majority, reply_metrics
from agentrl_cli.envs.math.grader import MAX_ANSWER_LENGTH, Grade

# such as 1e99999, which a scorer may expand to all its digits
HUGE = re.compile(r"(?<![0-9A-Za-z.])[+-]?[\d.]+[eE][+-]?\d{5}")
STYLED = re.compile(r"\\(?:text|textbf|mathrm)\s*\{([^{}]*)\}")
RUNS_CODE = re.compile(r"(?<!\w)(?:eval|exec|parse_expr|sympify)\(")


@dataclass(kw_only=True)
class ReasoningGym(Env):
    """Splits are drawn with different seeds. Test questions that also occur in train are skipped,
    and val questions that occur in either."""

    name: Annotated[str, Field(description="Task whose scorer does not run the answer as code.")]
    options: Annotated[dict[str, Any], Field(description="Options of the task.")]
    instruction: Annotated[str, Field(description="System message.")]
    problems: Annotated[int, Field(ge=1, description="Number of train questions.")]
    test_problems: Annotated[int, Field(ge=1, description="Maximum number of test questions.")]
    split_seed: Annotated[int, Field(description="Seed of the questions.")]
    val_problems: Annotated[int, Field(ge=0, description="Maximum number of val questions.")] = 0
    task: Task | None = field(default=None, init=False, repr=False)

    __post_init__ = check_limits

    def system(self) -> str:
        return self.instruction

    def tasks(self, split: str) -> list[Task]:
        """Return one task per question."""
        require_split(split)
        others = {"train": (), "test": ("train",), "val": ("train", "test")}[split]
        known = set(chain.from_iterable(map(self._questions, others)))
        return [
            Task(f"{self.name}-{split}-{index}", split, {"question": question, "index": index})
            for question, index in self._questions(split).items()
            if question not in known
        ]

    def reset(self, task: Task, seed: int) -> list[Message]:
        """Ask the question; the seed has no effect."""
        self.task = task
        return [Message("user", task.data["question"])]

    def step(self, action: str) -> Step:
        """Score the reply. Raises RuntimeError before `reset` and after the end."""
        if self.task is None:
            raise RuntimeError("no question is open: call reset on a fresh instance")
        dataset, entry = self._entry(self.task)
        self.task, grade = None, score(dataset, entry, action)
        known = "" if entry["answer"] is None else f" It is {entry['answer']}."
        feedback = "Correct." if grade else f"Wrong.{known}"
        answer = boxed(action)
        info = {
            "success": grade.correct, "grade": grade.reason, "unboxed": answer is None,
            "answer": (answer or "")[:MAX_ANSWER_LENGTH],
            "privileged": {"answer": str(entry["answer"])},
        }  # fmt: skip
        return Step([Message("user", feedback)], float(grade.correct), True, False, info)

    def expert(self, task: Task) -> Iterator[str] | None:
        """Return the answer as a reply; None if the data set does not tell it."""
        answer = self._entry(task)[1]["answer"]
        return None if answer is None else iter([rf"\boxed{{{answer}}}"])

    def summarise(self, episodes: list[Episode]) -> dict[str, float]:
        """Return pass@k, majority@k, reply lengths and shares of unscored answers."""
        tasks = episodes_by_task(episodes)
        return pass_and_majority(tasks) | reply_metrics(episodes) if tasks else {}

    def _questions(self, split: str) -> dict[str, int]:
        dataset = self._dataset(split)
        sizes = {"train": self.problems, "val": self.val_problems, "test": self.test_problems}
        return {str(dataset[i]["question"]): i for i in reversed(range(sizes[split]))}

    def _entry(self, task: Task) -> tuple[Any, dict[str, Any]]:
        dataset = self._dataset(task.split)
        return dataset, dataset[task.data["index"]]

    def _dataset(self, split: str) -> Any:
        # far apart, because question i of a seed is question 0 of the seed plus i
        seed = derive_seed("reasoning_gym", split, self.split_seed) % 2**31
        size = max(self.problems, self.test_problems, self.val_problems)
        return open_dataset(self.name, json.dumps(self.options, sort_keys=True), seed, size)


def score(dataset: Any, entry: dict[str, Any], reply: str) -> Grade:
    r"""Grade the last box, also without `\text{}`; only a score of 1.0 is correct."""
    answer = boxed(reply)
    if answer is None:
        return Grade(False, "unboxed")
    if len(answer) > max(MAX_ANSWER_LENGTH, 2 * len(str(entry["answer"]))):
        return Grade(False, "long")
    if HUGE.search(answer) and not HUGE.search(str(entry["answer"])):
        return Grade(False, "crash")
    points = []
    for form in dict.fromkeys((answer, STYLED.sub(r"\1", answer).strip())):
        try:
            points.append(float(dataset.score_answer(answer=form, entry=entry)))
        except Exception:  # not every scorer handles every answer
            continue
    return Grade(max(points) >= 1.0, "scored") if points else Grade(False, "crash")


@lru_cache(maxsize=8)
def open_dataset(name: str, options: str, seed: int, size: int) -> Any:
    """Return a procedural data set. Raises UserError for an unknown name, wrong options, or a
    scorer that runs text."""
    package = import_extra("reasoning_gym", "reasoning-gym")
    try:
        dataset = package.create_dataset(name, seed=seed, size=size, **json.loads(options))
    except (ValueError, TypeError, AssertionError) as error:
        line = f"reasoning-gym cannot make '{name}' ({error}); see its gallery of tasks"
        raise UserError(line, code="unknown-task") from None
    scorer = inspect.getsource(type(dataset).score_answer)
    if name == "composite" or RUNS_CODE.search(scorer):  # composite: the scorers of its parts
        line = f"the scorer of '{name}' may run the answer as code; choose another task"
        raise UserError(line, code="runs-code")
    return dataset
