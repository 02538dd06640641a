"""Prompts from a file or data set, answered in one turn and scored by a Python function.

The function has the signature of TRL's reward functions: it gets the prompts, the completions and
every other column of the data as lists, here of one element, and returns a list of numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from numbers import Real
from typing import Annotated, Any

from pydantic import Field

from agentrl_cli.core.errors import ContractError, UserError
from agentrl_cli.core.limits import check_limits
from agentrl_cli.core.types import Message, Step, Task
from agentrl_cli.envs.base import ROUNDING, Env, import_entry, is_json, require_split
from agentrl_cli.envs.math.rows import read_splits

ROLES = ("user", "assistant")
OWN_ARGUMENTS = ("prompts", "completions")  # of a reward function


@dataclass(kw_only=True)
class Prompts(Env):
    """A task is a row with the key `prompt`: text, or messages of the user and the assistant."""

    data: Annotated[str | None, Field(description="A .jsonl or .parquet file, a folder of such "
                    "files, or a Hugging Face data set.")]  # fmt: skip
    reward: Annotated[str | None, Field(description="Reward function, such as my_rewards:score.")]
    success_reward: Annotated[float, Field(description="Reward of a success.")]
    instruction: Annotated[str, Field(description="System message.")]
    test_data: Annotated[str | None, Field(description="Rows of the test split. null: the test "
                         "split of the data, or a share of its rows.")]  # fmt: skip
    test_share: Annotated[float, Field(ge=0, le=1, description="Share of the rows in the test "
                          "split, if data has none.")]  # fmt: skip
    val_share: Annotated[float, Field(ge=0, le=1, description="Share of the train rows in the val "
                         "split, if data has none.")]  # fmt: skip
    split_seed: Annotated[int, Field(description="Seed of the splits.")]
    task: Task | None = field(default=None, init=False, repr=False)

    __post_init__ = check_limits

    def system(self) -> str:
        return self.instruction

    def tasks(self, split: str) -> list[Task]:
        """Return one task per row. Raises UserError without data, for a row that is no prompt, and
        if the reward function cannot be imported."""
        require_split(split)
        if self.data is None:
            line = "env=prompts needs rows with the key 'prompt'; give env.data=FILE"
            raise UserError(line, code="no-data")
        if not callable(import_entry("env.reward", self.reward)):
            line = f"env.reward '{self.reward}' is no function; name one"
            raise UserError(line, code="invalid-entry")
        shares = (self.test_data, self.test_share, self.split_seed, self.val_share)
        rows = read_splits(self.data, *shares, parse)[split]
        return [Task(f"prompt-{split}-{row['id']}", split, row["row"]) for row in rows]

    def reset(self, task: Task, seed: int) -> list[Message]:
        """Return the prompt; the seed has no effect."""
        self.task = task
        return messages(task.data["prompt"])

    def step(self, action: str) -> Step:
        """Score the completion. Raises RuntimeError before `reset` and after the end, and
        ContractError if the function does not return a list of one number."""
        if self.task is None:
            raise RuntimeError("no prompt is open: call reset on a fresh instance")
        row, self.task = self.task.data, None
        is_text = isinstance(row["prompt"], str)
        completion = action if is_text else [{"role": "assistant", "content": action}]
        columns = {name: [value] for name, value in row.items() if name != "prompt"}
        score = import_entry("env.reward", self.reward)
        found = score(prompts=[row["prompt"]], completions=[completion], **columns)
        if not isinstance(found, Sequence) or len(found) != 1 or not isinstance(found[0], Real):
            line = f"env.reward '{self.reward}' returned {found!r} for one completion"
            raise ContractError(f"{line}: return a list of one number for each")
        reward = float(found[0])
        return Step([], reward, True, False, {"success": reward >= self.success_reward - ROUNDING})


def messages(prompt: str | list[dict[str, Any]]) -> list[Message]:
    """Return a prompt as messages."""
    if isinstance(prompt, str):
        return [Message("user", prompt)]
    return [Message(message["role"], message["content"]) for message in prompt]


def parse(number: int, row: Any) -> dict[str, Any]:
    """Return a row with its id. Raises ValueError if it is no prompt."""
    if not isinstance(row, dict) or not (prompt := row.get("prompt")):
        raise ValueError("no 'prompt'")
    for name, value in row.items():
        if name in OWN_ARGUMENTS:
            raise ValueError(f"the reward function has an argument '{name}'; rename that column")
        if not is_json(value):
            raise ValueError(f"the value of '{name}' is no JSON value")
    if not isinstance(prompt, str):
        if not isinstance(prompt, list) or not all(isinstance(m, dict) for m in prompt):
            raise ValueError("'prompt' is neither text nor a list of messages")
        for message in prompt:
            if message.get("role") not in ROLES or not isinstance(message.get("content"), str):
                reason = "a message needs a role, user or assistant, and text as content"
                raise ValueError(f"{reason}; a system message is env.instruction")
        if prompt[-1]["role"] != "user":
            raise ValueError("the last message of 'prompt' must be the user's")
    given = row.get("id")
    return {"id": str(number if given is None else given), "problem": str(prompt), "row": row}
