"""The root settings and the nodes without a `_target_`: each dataclass is the schema of its node.
Numbers live in conf/ only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from agentrl_cli.core.errors import UserError, require_above, require_at_least


@dataclass(frozen=True, kw_only=True)
class LoraConfig:
    """Low-rank adapters on the linear layers that `targets` name (["all-linear"]: on all)."""

    rank: int
    alpha: int
    targets: list[str]

    def __post_init__(self) -> None:
        require_at_least(1, rank=self.rank)


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Which causal LM: `path` is `tiny`, a Hugging Face name or a folder. `weights` picks an
    embedded file for `tiny`; null starts from random weights. `chat_template` is a file, the name
    of a shipped one, or its text (null: the tokenizer's own); with `system_role` user the system
    text opens the first user turn."""

    path: str
    weights: str | None
    dtype: str
    attention: str
    gradient_checkpointing: bool
    lora: LoraConfig | None
    chat_template: str | None = None
    system_role: Literal["system", "user"] = "system"


@dataclass(frozen=True, kw_only=True)
class HardwareConfig:
    """Where it computes; `threads` null means by the model's size. `mixed_precision` bf16 computes
    training's products in bfloat16, the weights as they are. `memory_gib` is how much memory there
    is; null asks the device."""

    device: str
    threads: int | None
    mixed_precision: Literal["bf16"] | None = None
    memory_gib: float | None = None
    tokens_per_batch: int
    generator: object

    def __post_init__(self) -> None:
        require_above(0, memory_gib=1 if self.memory_gib is None else self.memory_gib)


@dataclass(frozen=True, kw_only=True)
class EvalConfig:
    """How splits are played; `tasks` null means all, `baseline` also plays the starting weights,
    `greedy` also one episode a task at temperature 0, `act` refined lets an algorithm that refines
    actions play these (runs of earlier versions have no such key)."""

    splits: list[str]
    episodes_per_task: int
    temperature: float
    tasks: int | None
    greedy: bool
    baseline: bool
    act: Literal["policy", "refined"] = "policy"

    def __post_init__(self) -> None:
        if not self.splits:
            raise UserError("eval.splits is empty; name at least one")
        require_at_least(1, episodes_per_task=self.episodes_per_task)
        require_at_least(1, tasks=1 if self.tasks is None else self.tasks)


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Which demonstrations there are; `skip_bad` leaves out the lines that would be refused."""

    demos: str | None
    skip_bad: bool


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The whole configuration. A field of type `object` is a node that names its `_target_`."""

    steps: int
    seed: int
    eval_every: int
    save_every: int
    save_minutes: float
    init: str | None
    runs: str
    name: str | None
    choices: dict[str, str | None]
    algo: object
    env: object
    logger: object
    rollout: object
    search: object | None
    model: ModelConfig
    hardware: HardwareConfig
    eval: EvalConfig
    data: DataConfig


LEAST = {"steps": 1, "eval_every": 0, "save_every": 0, "save_minutes": 0}


def wrong_limits(values: dict[str, Any]) -> list[str]:
    """A line for each root setting that is too small."""
    given = {key: values[key] for key in LEAST if key in values}
    wrong = {key: value for key, value in given.items() if not value >= LEAST[key]}
    return [f"{key} is {value}; give at least {LEAST[key]}" for key, value in wrong.items()]
