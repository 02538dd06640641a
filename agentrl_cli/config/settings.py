"""The root settings and the nodes without a `_target_`: each dataclass is the schema of its node.
Numbers live in conf/ only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from agentrl_cli.core.errors import UserError, require_above, require_at_least, require_at_most
from agentrl_cli.core.types import MOST_EPISODES

RESUMABLE = (  # keys on which memory or speed hangs and no weight: a run may go on with others
    "hardware.microbatch_tokens", "hardware.generator.max_batch", "hardware.generator.cache_tokens",
    "hardware.generator.cache_mib", "hardware.memory_gib", "model.gradient_checkpointing",
    "hardware.strategy", "hardware.processes", "hardware.actors.count", "hardware.actors.cpus",
    "hardware.actors.gpus", "hardware.actors.address", "hardware.actors.start_timeout",
)  # fmt: skip
SERVER_KEYS = tuple(  # where and how servers generate: a run may go on with others, too
    f"hardware.generator.{key}"
    for key in (
        "urls", "requests", "timeout", "retries", "max_logp_diff", "adapters", "server.program",
        "server.host", "server.port", "server.gpus", "server.start_timeout", "server.arguments",
    )
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class LoraConfig:
    """Low-rank adapters on the linear layers that `targets` name (["all-linear"]: on all)."""

    rank: int
    alpha: int
    targets: list[str]

    def __post_init__(self) -> None:
        require_at_least(1, rank=self.rank)


@dataclass(frozen=True, kw_only=True)
class RequestConfig:
    """How an endpoint is asked: the environment variable that holds the key, seconds of an attempt,
    attempts beside the first, requests in the air, a file that keeps answers, and the prices of a
    million tokens read and written (null: costs are not counted)."""

    key_variable: str
    timeout: float
    retries: int
    workers: int
    cache: str | None
    input_price: float | None
    output_price: float | None

    def __post_init__(self) -> None:
        require_at_least(1, workers=self.workers)


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Which causal LM: `path` is `tiny`, a Hugging Face name or a folder. `weights` picks an
    embedded file for `tiny`; null starts from random weights. `chat_template` is a file, the name
    of a shipped one, or its text (null: the tokenizer's own); with `system_role` user the system
    text opens the first user turn. With `path` endpoint the model is `name` of the server at `url`,
    asked as `request` says, and can be evaluated only."""

    path: str
    weights: str | None
    dtype: str
    attention: str
    gradient_checkpointing: bool
    lora: LoraConfig | None
    chat_template: str | None = None
    system_role: Literal["system", "user"] = "system"
    url: str | None = None
    name: str | None = None
    request: RequestConfig | None = None


@dataclass(frozen=True, kw_only=True)
class HardwareConfig:
    """Where it computes; `threads` null means by the model's size. `mixed_precision` bf16 computes
    training's products in bfloat16, the weights as they are. `memory_gib` is how much memory there
    is; null asks the device. `strategy` says how the processes of a launcher train one run: each
    with all weights (ddp) or with a shard of them (fsdp); null is one process. `processes` is how
    many there are to be; null: as many as the launcher has started."""

    device: str
    threads: int | None
    mixed_precision: Literal["bf16"] | None = None
    memory_gib: float | None = None
    strategy: Literal["ddp", "fsdp"] | None = None
    processes: int | None = None
    microbatch_tokens: int
    actors: object | None = None
    generator: object

    def __post_init__(self) -> None:
        require_above(0, memory_gib=1 if self.memory_gib is None else self.memory_gib)
        require_at_least(1, processes=1 if self.processes is None else self.processes)


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
        require_at_most(MOST_EPISODES, episodes_per_task=self.episodes_per_task)
        require_at_least(1, tasks=1 if self.tasks is None else self.tasks)


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Which demonstrations there are; `skip_invalid` leaves out the lines that would be refused.
    `buffer` names a run whose episodes an algorithm that replays begins with; with `offline` it
    learns from these alone. `keep_episodes` writes every fresh one to buffer.jsonl."""

    demos: str | None
    skip_invalid: bool
    buffer: str | None = None
    offline: bool = False
    keep_episodes: bool = False


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The whole configuration. A field of type `object` is a node that names its `_target_`."""

    steps: int
    seed: int
    eval_every: int
    save_every: int
    save_interval_minutes: float
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
    save_best: bool = False


LEAST = {"steps": 1, "eval_every": 0, "save_every": 0, "save_interval_minutes": 0}


def wrong_limits(values: dict[str, Any]) -> list[str]:
    """A line for each root setting that is too small, or leaves nothing to choose from."""
    given = {key: values[key] for key in LEAST if key in values}
    wrong = {key: value for key, value in given.items() if not value >= LEAST[key]}
    lines = [f"{key} is {value}; give at least {LEAST[key]}" for key, value in wrong.items()]
    if values.get("save_best") and not 0 < values["eval_every"] < values["steps"]:
        plan = f"eval_every={values['eval_every']} plans one for {values['steps']} steps"
        lines.append(f"save_best=true chooses among evaluations, and {plan}; evaluate more often")
    return lines
