"""Settings of the root and of the nodes without a `_target_`. Values live in conf/ only."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field

from agentrl_cli.core.errors import UserError
from agentrl_cli.core.types import MOST_EPISODES

RESUMABLE = (  # keys that change memory or speed, not the weights: a run may resume with others
    "hardware.microbatch_tokens", "hardware.generator.max_batch", "hardware.generator.cache_tokens",
    "hardware.generator.cache_mib", "hardware.memory_gib", "model.gradient_checkpointing",
    "hardware.strategy", "hardware.processes", "hardware.actors.count", "hardware.actors.cpus",
    "hardware.actors.gpus", "hardware.actors.address", "hardware.actors.start_timeout",
)  # fmt: skip
SERVER_KEYS = tuple(  # keys of the inference servers: a run may resume with others, too
    f"hardware.generator.{key}"
    for key in (
        "urls", "requests", "timeout", "retries", "max_logp_diff", "adapters", "server.program",
        "server.host", "server.port", "server.gpus", "server.start_timeout", "server.arguments",
    )
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class LoraConfig:
    """Low-rank adapters."""

    rank: Annotated[int, Field(ge=1, description="Rank of the adapters.")]
    alpha: Annotated[int, Field(description="Adapters are scaled by alpha / rank.")]
    targets: Annotated[
        list[str],
        Field(description="Linear layers with adapters; [all-linear]: all but the output."),
    ]


@dataclass(frozen=True, kw_only=True)
class RequestConfig:
    """Requests to an OpenAI-compatible endpoint."""

    key_variable: Annotated[
        str, Field(description="Environment variable with the API key; any *API_KEY.")
    ]
    timeout: Annotated[float, Field(description="Seconds that an attempt may be silent.")]
    retries: Annotated[int, Field(description="Further attempts, with growing pauses.")]
    workers: Annotated[int, Field(ge=1, description="Concurrent requests.")]
    cache: Annotated[
        str | None,
        Field(description="File that keeps answers, so that a stopped command can continue."),
    ]
    input_price: Annotated[
        float | None, Field(description="Price of a million prompt tokens; null: not counted.")
    ]
    output_price: Annotated[
        float | None, Field(description="Price of a million generated tokens; null: not counted.")
    ]


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """A causal language model."""

    path: Annotated[
        str,
        Field(description="A Hugging Face name or folder; a GGUF file; tiny or smollm2; or "
              "endpoint, evaluation only."),
    ]  # fmt: skip
    weights: Annotated[
        str | None, Field(description="Bundled weights of model=tiny; null: random weights.")
    ]
    dtype: Annotated[
        Literal["auto", "float32", "bfloat16"],
        Field(description="Data type of the weights; auto: bfloat16 on GPUs and CPUs with "
              "instructions for it, else float32, which bundled models have on every CPU."),
    ]  # fmt: skip
    attention: Annotated[str, Field(description="Attention implementation of Transformers.")]
    gradient_checkpointing: Annotated[
        bool,
        Field(description="Recompute activations: about a third slower, with far less memory."),
    ]
    lora: Annotated[LoraConfig | None, Field(description="null: full fine-tuning.")]
    chat_template: Annotated[
        str | None,
        Field(
            description="A file, the text, or a shipped one: qwen3 (keeps earlier thoughts). null: "
            "the tokenizer's own."
        ),
    ] = None
    system_role: Annotated[
        Literal["system", "user"],
        Field(
            description="user: the system text opens the first user message, for templates without "
            "a system role (Gemma)."
        ),
    ] = "system"
    url: Annotated[
        str | None, Field(description="Address of the server, such as http://127.0.0.1:8000/v1.")
    ] = None
    name: Annotated[str | None, Field(description="Name of the model on the server.")] = None
    request: Annotated[RequestConfig | None, Field(description="Requests to the server.")] = None

    @property
    def has_random_weights(self) -> bool:
        """Whether the base model is the bundled one without its weights."""
        return self.path == "tiny" and self.weights is None


@dataclass(frozen=True, kw_only=True)
class HardwareConfig:
    """Devices, processes and the engine that generates."""

    device: Annotated[str, Field(description="cpu or cuda.")]
    threads: Annotated[
        int | None,
        Field(description="PyTorch threads; null: OMP_NUM_THREADS, else by the model's size."),
    ]
    mixed_precision: Annotated[
        Literal["bf16"] | None,
        Field(description="bf16: compute training in bfloat16; weights keep their type."),
    ] = None
    memory_gib: Annotated[
        float | None,
        Field(gt=0, description="Memory of one process in GiB. A run that needs more is refused. "
              "null: as the device has."),
    ] = None  # fmt: skip
    strategy: Annotated[
        Literal["ddp", "fsdp"] | None,
        Field(description="Parallel training: ddp copies the weights, fsdp shards them."),
    ] = None
    processes: Annotated[
        int | None, Field(ge=1, description="Processes to expect; null: as many as were launched.")
    ] = None
    microbatch_tokens: Annotated[
        int, Field(description="Tokens of a micro-batch of one process, including padding.")
    ]
    actors: Annotated[object | None, Field(description="Processes that play episodes.")] = None
    generator: Annotated[object, Field(description="Engine that samples from the policy.")]


@dataclass(frozen=True, kw_only=True)
class EvalConfig:
    """Evaluation."""

    splits: Annotated[
        list[str],
        Field(min_length=1, description="Splits to play; episodes of the first are kept."),
    ]
    episodes_per_task: Annotated[
        int, Field(ge=1, le=MOST_EPISODES, description="Sampled episodes of each task.")
    ]
    temperature: Annotated[float, Field(ge=0, description="Sampling temperature.")]
    tasks: Annotated[int | None, Field(ge=1, description="Tasks of each split; null: all.")]
    greedy: Annotated[bool, Field(description="Also play one episode per task at temperature 0.")]
    baseline: Annotated[bool, Field(description="Also evaluate the initial weights.")]
    act: Annotated[
        Literal["policy", "refined"],
        Field(description="refined: play the action that NLAC would imitate."),
    ] = "policy"


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Demonstrations and stored episodes."""

    demos: Annotated[
        str | None,
        Field(description="File of demonstrations, one per line (agentrl demos writes one); or "
              "expert:N, N episodes of the environment's expert."),
    ]  # fmt: skip
    skip_invalid: Annotated[
        bool, Field(description="Skip invalid demonstrations instead of stopping.")
    ]
    buffer: Annotated[
        str | None, Field(description="Run with episodes (buffer.jsonl) to fill the replay buffer.")
    ] = None
    offline: Annotated[
        bool, Field(description="Train only on data.buffer, without new episodes.")
    ] = False
    keep_episodes: Annotated[
        bool, Field(description="Write episodes to buffer.jsonl, as algorithms with replay do.")
    ] = False


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The whole configuration. A field of type `object` is a node that names its `_target_`."""

    steps: Annotated[int, Field(ge=1, description="Updates.")]
    seed: Annotated[
        int, Field(description="Seed of all random numbers but those of demonstrations.")
    ]
    eval_every: Annotated[
        int, Field(ge=0, description="Steps between evaluations; 0: only at the end.")
    ]
    save_every: Annotated[
        int, Field(ge=0, description="Steps between checkpoints; 0: only at the end.")
    ]
    save_interval_minutes: Annotated[
        float,
        Field(ge=0, description="Minutes between further checkpoints; 0: none. Raise it for large "
              "models."),
    ]  # fmt: skip
    init: Annotated[str | None, Field(description="A run or folder with the initial weights.")]
    runs: Annotated[str, Field(description="Folder of all runs.")]
    name: Annotated[str | None, Field(description="Folder of this run; null: a generated name.")]
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
    save_best: Annotated[
        bool,
        Field(
            description="Also keep the checkpoint with the highest validation success, and play, "
            "evaluate, export and report it."
        ),
    ] = False


def check_together(values: dict[str, Any]) -> Iterator[UserError]:
    """Yield an error for root settings that contradict each other."""
    if values.get("save_best") and not 0 < values["eval_every"] < values["steps"]:
        line = f"save_best=true needs evaluations, and eval_every={values['eval_every']} plans none"
        yield UserError(f"{line} before the last step; lower it", code="conflicting-settings")
