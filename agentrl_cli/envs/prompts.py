"""Prompts from a file or data set, answered in one turn and scored by a Python function.

The function has the signature of TRL's reward functions: it gets the prompts, the completions and
every other column of the data as lists, here of one element, and returns a list of numbers. The
rewards of several functions are added with their weights.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from numbers import Real
from statistics import fmean
from typing import Annotated, Any

from pydantic import Field

from agentrl_cli.core.errors import ContractError, UserError
from agentrl_cli.core.limits import check_limits
from agentrl_cli.core.types import Episode, Message, Step, Task
from agentrl_cli.envs.base import ROUNDING, Env, import_entry, is_json, require_split
from agentrl_cli.envs.math.rows import read_splits

ROLES = ("user", "assistant")
OWN_ARGUMENTS = ("prompts", "completions")  # of a reward function


@dataclass(kw_only=True)
class Prompts(Env):
    """A task is a row with the key `prompt`: text, or messages of the user and the assistant."""

    data: Annotated[str | None, Field(description="A .jsonl or .parquet file, a folder of such "
                    "files, or a Hugging Face data set.")]  # fmt: skip
    reward: Annotated[str | list[str] | None, Field(description="Reward function, such as "
                      "my_rewards:score, or a list of them.")]  # fmt: skip
    success_reward: Annotated[float, Field(description="Reward of a success.")]
    instruction: Annotated[str, Field(description="System message.")]
    test_data: Annotated[str | None, Field(description="Rows of the test split. null: the test "
                         "split of the data, or a share of its rows.")]  # fmt: skip
    test_share: Annotated[float, Field(ge=0, le=1, description="Share of the rows in the test "
                          "split, if data has none.")]  # fmt: skip
    val_share: Annotated[float, Field(ge=0, le=1, description="Share of the train rows in the val "
                         "split, if data has none.")]  # fmt: skip
    split_seed: Annotated[int, Field(description="Seed of the splits.")]
    reward_weights: Annotated[list[float] | None, Field(description="Weight of each reward "
                              "function. null: 1.")] = None  # fmt: skip
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
        for entry in self.entries or [None]:
            if not callable(import_entry("env.reward", entry)):
                line = f"env.reward '{entry}' is no function; name one"
                raise UserError(line, code="invalid-entry")
        if self.reward_weights is not None and len(self.reward_weights) != len(self.entries):
            line = f"env.reward_weights are {len(self.reward_weights)}; give {len(self.entries)}"
            raise UserError(f"{line}, one for each function of env.reward", code="invalid-value")
        shares = (self.test_data, self.test_share, self.split_seed, self.val_share)
        rows = read_splits(self.data, *shares, parse)[split]
        return [Task(f"prompt-{split}-{row['id']}", split, row["row"]) for row in rows]

    @property
    def entries(self) -> list[str]:
        """The names of the reward functions."""
        return [self.reward] if isinstance(self.reward, str) else list(self.reward or ())

    def reset(self, task: Task, seed: int) -> list[Message]:
        """Return the prompt; the seed has no effect."""
        self.task = task
        return messages(task.data["prompt"])

    def step(self, action: str) -> Step:
        """Score the completion. With several functions `info` has the reward of each. Raises
        RuntimeError before `reset` and after the end, and ContractError if a function does not
        return a list of one number."""
        if self.task is None:
            raise RuntimeError("no prompt is open: call reset on a fresh instance")
        row, self.task = self.task.data, None
        is_text = isinstance(row["prompt"], str)
        completion = action if is_text else [{"role": "assistant", "content": action}]
        columns = {name: [value] for name, value in row.items() if name != "prompt"}
        given = {"prompts": [row["prompt"]], "completions": [completion], **columns}
        rewards = [_score(entry, given) for entry in self.entries]
        weights = self.reward_weights or [1.0] * len(rewards)
        reward = sum(w * r for w, r in zip(weights, rewards, strict=True))
        info: dict[str, Any] = {"success": reward >= self.success_reward - ROUNDING}
        if len(rewards) > 1:
            info["rewards"] = dict(zip(self.entries, rewards, strict=True))
        return Step([], reward, True, False, info)

    def summarise(self, episodes: list[Episode]) -> dict[str, float]:
        """Return the mean of each reward, if there are several."""
        found = [episode.turns[-1].info.get("rewards", {}) for episode in episodes if episode.turns]
        values = {entry: [r[entry] for r in found if entry in r] for entry in self.entries}
        return {
            f"reward_{re.sub(r'[^A-Za-z0-9_]', '_', entry)}": fmean(rewards)
            for entry, rewards in values.items()
            if rewards
        }


def _score(entry: str, given: dict[str, Any]) -> float:
    """Return the reward of a function."""
    found = import_entry("env.reward", entry)(**given)
    if not isinstance(found, Sequence) or len(found) != 1 or not isinstance(found[0], Real):
        line = f"env.reward '{entry}' returned {found!r} for one completion"
        raise ContractError(f"{line}: return a list of one number for each")
    return float(found[0])


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
