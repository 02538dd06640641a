"""Prediction of a run's peak memory from its configuration and its model's shapes.

Nothing is loaded. The rule for the activations of a layer was fitted to the allocations of torch
(bench/memory_plan.py). On a CPU the plan counts Python and its libraries. Memory of CUDA itself and
fragmentation are not counted.
"""

from __future__ import annotations

import copy
import os
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from omegaconf import OmegaConf

from agentrl_cli.algos.base import Algorithm, models_of
from agentrl_cli.config.compose import as_dataclass
from agentrl_cli.config.settings import RESUMABLE, ModelConfig
from agentrl_cli.core.errors import UserError
from agentrl_cli.generators.hf import FREE_SHARE, check_layers
from agentrl_cli.models.forward import LOGITS_AT_ONCE, max_positions, vocabulary_head
from agentrl_cli.models.load import adapter_sizes, dtype_of, has_bfloat16, load_shapes

if TYPE_CHECKING:
    from omegaconf import DictConfig

FULL = 4  # bytes of a float32 number
SAMPLED = 5  # float32 tensors [rows, vocabulary] of a decoding step (generators/hf.py)
GIB = 2**30
PROCESS = 450 * 2**20  # bytes of Python with torch and transformers (VmHWM, torch 2.13 on Linux)
NAMED = 3  # keys to lower that a message names
LORA = {"rank": 16, "alpha": 32, "targets": ["all-linear"]}
CGROUP_FILES = {"": ("", "memory.max"), "memory": ("memory", "memory.limit_in_bytes")}
CGROUPS, OWN_CGROUP = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
CACHED, BATCH_CACHE = "keys and values", "a batch's keys and values"
Bytes = dict[str, int]


@dataclass(frozen=True, kw_only=True)
class Shapes:
    """Sizes of a causal LM with `size` bytes per number. `parameters` belong to the base, `adapter`
    to one adapter (0 without LoRA), and `rank` is the sum of LoRA ranks in a layer."""

    size: int
    parameters: int
    adapter: int
    rank: int
    layers: int
    hidden: int
    mlp: int
    heads: int
    queries: int
    keys: int
    vocabulary: int
    positions: int
    norms_heads: bool
    eager: bool


@dataclass(frozen=True, kw_only=True)
class MemoryPlan:
    """Bytes by name: `kept` throughout the run, and in addition during each of the `phases`."""

    parameters: int
    adapter: int
    kept: Bytes
    phases: dict[str, Bytes]

    @property
    def largest_phase(self) -> str:
        return max(self.phases, key=lambda name: sum(self.phases[name].values()))

    @property
    def parts(self) -> Bytes:
        return {k: n for k, n in (self.kept | self.phases[self.largest_phase]).items() if n}

    @property
    def peak(self) -> int:
        return sum(self.parts.values())


def device_type(cfg: DictConfig) -> str:
    """Return cpu or cuda, as configured; the device may be missing."""
    return "cuda" if cfg.hardware.device.startswith("cuda") else "cpu"


def read_shapes(cfg: DictConfig) -> Shapes:
    """Return the sizes of the configured model, read from its config.json. Raises UserError if it
    cannot be read, if its layers differ, or if adapters match none of them."""
    config = as_dataclass(cfg.model, ModelConfig)
    dtype = dtype_of(config, torch.device(device_type(cfg)))
    if cfg.hardware.get("strategy") == "fsdp":  # the dtype of forward passes, not of weights
        dtype = torch.bfloat16 if cfg.hardware.get("mixed_precision") == "bf16" else torch.float32
    model = load_shapes(config, dtype)
    check_layers(model)
    text, weights = model.config.get_text_config(), dict(model.named_parameters())
    heads, width = text.num_attention_heads, text.hidden_size
    halves = adapter_sizes(model, config.lora) if config.lora else []
    rank = config.lora.rank * len(halves) // 2 // text.num_hidden_layers if config.lora else 0
    head = getattr(text, "head_dim", None) or width // heads
    return Shapes(
        size=dtype.itemsize, parameters=sum(w.numel() for w in weights.values()),
        adapter=sum(halves), rank=rank,
        layers=text.num_hidden_layers, hidden=width,
        mlp=getattr(text, "intermediate_size", None) or 4 * width, heads=heads,
        queries=heads * head, keys=(getattr(text, "num_key_value_heads", None) or heads) * head,
        vocabulary=vocabulary_head(model).get_parameter("weight").shape[0],
        positions=max_positions(model), eager=config.attention == "eager",
        norms_heads=any(name.endswith("q_norm.weight") for name in weights),
    )  # fmt: skip


def layer_bytes(shapes: Shapes, context: int) -> int:
    """Return the bytes that a decoder layer keeps of one token for its backward pass.

    These are, of each norm, the input in float32, the normed input if its weight is trained, and
    the output; queries, keys, values, attention output and a float32 per head; gate, activation, up
    projection and product of the MLP; outputs of the LoRA A matrices. Eager attention keeps the
    scores of every head for `context` tokens, in float32 and the model's dtype, and repeated keys.
    """
    s, size = shapes, shapes.size
    norm = FULL + (0 if s.adapter else size)
    kept = 2 * (norm + size) * s.hidden + size * (2 * (s.queries + s.keys) + 4 * s.mlp + s.rank)
    if s.norms_heads:
        kept += norm * (s.queries + s.keys)
    if s.eager:
        scores = FULL + (size if size < FULL else 0)
        return kept + scores * s.heads * context + 2 * size * (s.queries - s.keys)
    return kept + FULL * s.heads


def logits_bytes(shapes: Shapes, tokens: int) -> int:
    """Return the bytes to compute log-probs of `tokens`, a chunk of logits at a time. A chunk needs
    three float32 copies, or, in the backward pass, two in the model's dtype and, if trained, two
    gradients of the vocabulary weight. The last norm and the states need more."""
    s, size = shapes, shapes.size
    logits = min(tokens * s.vocabulary, max(LOGITS_AT_ONCE, s.vocabulary))
    gradients = 0 if s.adapter else 2 * size * s.vocabulary * s.hidden
    states = tokens * s.hidden * (FULL + 3 * size)
    return states + max(3 * FULL * logits, 2 * size * logits + gradients)


def plan_memory(cfg: DictConfig, algo: Algorithm) -> MemoryPlan:
    """Return the plan of a run, per process if there are several. Raises UserError if the model's
    config.json cannot be read, or if episodes may be longer than the model's context.

    Without LoRA each model is a copy. Weights below float32 have float32 masters and averages. A
    checkpointed layer keeps its input only and is recomputed in the backward pass. On CUDA AdamW
    steps all weights together and allocates a root of each second moment. Rows of a batch may be as
    long as an episode; a server decodes without memory of this process. If `cache_mib` is null, the
    generator takes at most a share of what is free on a CUDA device.
    """
    s, context = read_shapes(cfg), cfg.rollout.max_seq_len
    validate_context(cfg, s.positions)
    size, own = s.size, s.adapter or s.parameters
    master = FULL if size < FULL else 0  # bytes of the float32 copy of a smaller weight
    specs = models_of(algo).values()
    kinds = [spec.kind for spec in specs]
    trained = kinds.count("trained")
    checkpointed = cfg.model.gradient_checkpointing
    tokens = max(cfg.hardware.microbatch_tokens, context)
    layer = layer_bytes(s, context)
    gradients = {"gradients": size * own}
    activations = tokens * s.layers * (size * s.hidden if checkpointed else layer)
    held = gradients | {"activations": activations}
    of_layer = size * (2 * s.mlp + s.hidden) + (layer if checkpointed else 0)
    cached, batch, logits, merged = 0, 0, 0, 0
    generator = cfg.hardware.generator
    if "cache_tokens" in generator:
        mib = generator.get("cache_mib")
        half = sys.maxsize if mib is None else int(mib * 2**19)
        token = 2 * s.layers * s.keys * size  # keys and values in all layers
        rows = generator.max_batch * context
        generating = sum(spec.generates for spec in specs)
        cached = min(half, generating * max(rows, generator.cache_tokens) * token)
        batch = min(half, rows * token)
        logits = SAMPLED * FULL * generator.max_batch * s.vocabulary
        if s.adapter and device_type(cfg) == "cpu":
            merged = size * (s.parameters - s.vocabulary * s.hidden)
    kept = {
        "base weights": size * s.parameters * (1 if s.adapter else len(kinds)),
        "adapters": size * s.adapter * len(kinds),
        "float32 masters": master * own * trained,
        "float32 averages": master * own * kinds.count("ema"),
        "optimizer moments": 2 * FULL * own * trained,
        CACHED: cached,
        "merged weights": merged,
        "Python and libraries": PROCESS if device_type(cfg) == "cpu" else 0,
    }
    roots = FULL * own if device_type(cfg) == "cuda" else 0
    step = gradients | {"gradients of masters": master * own, "roots of moments": roots}
    phases = {
        "reading logits": held | {"logits and loss": logits_bytes(s, tokens)},
        "the backward pass": held | {"backward of a layer": tokens * of_layer},
        "an optimizer step": step,
        "decoding": {BATCH_CACHE: batch, "logits of a step": logits},
    }
    plan = MemoryPlan(parameters=s.parameters, adapter=s.adapter, kept=kept, phases=phases)
    if cfg.hardware.get("strategy") == "fsdp" and not s.adapter:
        processes = cfg.hardware.get("processes") or int(os.environ.get("WORLD_SIZE", 1))
        plan = sharded_plan(plan, s, processes, len(kinds))
    limit = available_bytes(cfg) if device_type(cfg) == "cuda" else None
    if limit is None or generator.get("cache_mib") is not None:
        return plan
    loaded = sum(n for k, n in plan.kept.items() if k not in (CACHED, "optimizer moments"))
    return with_cache_limit(plan, int(FREE_SHARE * max(0, limit - loaded)) // 2)


def with_cache_limit(plan: MemoryPlan, half: int) -> MemoryPlan:
    """Return the plan with at most `half` bytes each for kept keys and values and for a batch's."""
    decoding = plan.phases["decoding"]
    decoding = decoding | {BATCH_CACHE: min(half, decoding[BATCH_CACHE])}
    kept = plan.kept | {CACHED: min(half, plan.kept[CACHED])}
    return replace(plan, kept=kept, phases=plan.phases | {"decoding": decoding})


def sharded_plan(plan: MemoryPlan, shapes: Shapes, processes: int, models: int) -> MemoryPlan:
    """Return the plan of one process of hardware=fsdp. It holds a share, in float32, of the weights
    and of their gradients and moments. A forward pass gathers the vocabulary and two layers at a
    time, decoding gathers all weights."""
    parameters, size = shapes.parameters, shapes.size
    roots = plan.phases["an optimizer step"]["roots of moments"]
    gradients = {"gradients": FULL * parameters // processes}
    vocabulary = shapes.vocabulary * shapes.hidden
    two_layers = 2 * (parameters - vocabulary) // shapes.layers
    gathered = {"gathered layers": size * (vocabulary + two_layers)}
    phases = {name: {**parts, **gradients, **gathered} for name, parts in plan.phases.items()}
    phases["an optimizer step"] = gradients | {"roots of moments": roots // processes}
    phases["decoding"] = plan.phases["decoding"] | {"gathered weights": size * parameters}
    kept = {
        "base weights": FULL * models * parameters // processes,
        "optimizer moments": plan.kept["optimizer moments"] // processes,
        CACHED: plan.kept[CACHED],
        "Python and libraries": plan.kept["Python and libraries"],
    }
    return replace(plan, kept=kept, phases=phases)


def validate_context(cfg: DictConfig, positions: int, extra_tokens: int = 0) -> None:
    """Raise UserError if an episode, plus the `extra_tokens` of the algorithm's own prompts, can
    exceed the `positions` of the model."""
    if cfg.rollout.max_seq_len + extra_tokens > positions:
        line = f"rollout.max_seq_len is {cfg.rollout.max_seq_len}"
        line += f" and prompts of the algorithm add {extra_tokens} tokens" if extra_tokens else ""
        remedy = f"set rollout.max_seq_len={positions - extra_tokens}"
        if extra_tokens >= positions:
            remedy = "shorten the texts of the algorithm, or use a model with a longer context"
        reads = f"but '{cfg.model.path}' reads at most {positions} tokens"
        raise UserError(f"{line}, {reads}; {remedy}", code="context-too-long")


# --- the available memory, and which keys to lower ------------------------------------------------


@dataclass(frozen=True)
class Saver:
    """A key with a lower value, and the bytes that it saves at the predicted peak."""

    key: str
    value: Any
    saves: int

    def __str__(self) -> str:
        value = self.value
        if isinstance(value, dict):
            value = "{" + ",".join(f"{k}:{v}" for k, v in value.items()).replace("'", "") + "}"
        return f"{self.key}={value}".lower().replace(" ", "")


def memory_savers(cfg: DictConfig, algo: Algorithm) -> list[Saver]:
    """Return keys with lower values, those that save most first."""
    halved = ["hardware.microbatch_tokens", "rollout.max_seq_len"]
    halved += [f"hardware.generator.{key}" for key in ("max_batch", "cache_tokens", "cache_mib")]
    found = {key: OmegaConf.select(cfg, key) for key in halved}
    values: dict[str, Any] = {key: value // 2 for key, value in found.items() if (value or 0) >= 2}
    if not cfg.model.gradient_checkpointing:
        values["model.gradient_checkpointing"] = True
    if cfg.hardware.get("strategy") != "fsdp":  # which supports neither
        if cfg.model.lora is None:
            values["model.lora"] = LORA
        config, device = as_dataclass(cfg.model, ModelConfig), torch.device(device_type(cfg))
        if has_bfloat16(device) and dtype_of(config, device) == torch.float32:
            values["model.dtype"] = "bfloat16"
    peak, savers = plan_memory(cfg, algo).peak, []
    for key, value in values.items():
        changed = copy.deepcopy(cfg)
        OmegaConf.update(changed, key, value, merge=False)
        savers.append(Saver(key, value, peak - plan_memory(changed, algo).peak))
    return sorted(savers, key=lambda saver: -saver.saves)


def available_bytes(cfg: DictConfig) -> int | None:
    """Return the memory of this process: configured, free on the GPU, or a share of the machine's.
    None if there is no such device."""
    given = cfg.hardware.get("memory_gib")
    if given is not None:
        return int(given * GIB)
    if device_type(cfg) == "cuda":
        number, count = cfg.hardware.device.partition(":")[2], torch.cuda.device_count()
        chosen = int(number) if number.isdecimal() and int(number) < count else None
        return torch.cuda.mem_get_info(chosen)[0] if torch.cuda.is_available() else None
    processes = int(os.environ.get("LOCAL_WORLD_SIZE", 1)) if cfg.hardware.get("strategy") else 1
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min([machine, *group_limits()]) // processes


def group_limits(root: Path = CGROUPS, own: Path = OWN_CGROUP) -> list[int]:
    """Return the memory limits in bytes of this process's control groups (cgroup v1 and v2)."""
    rows = own.read_text(encoding="utf-8").splitlines() if own.is_file() else []
    files: list[Path] = []
    for _, controllers, place in (row.split(":", 2) for row in rows):
        if controllers in CGROUP_FILES:
            folder, name = CGROUP_FILES[controllers]
            group = Path(folder, place.strip("/"))
            files += [root / above / name for above in (group, *group.parents)]
    texts = [file.read_text(encoding="utf-8").strip() for file in files if file.is_file()]
    return [int(text) for text in texts if text.isdecimal()]


def validate_memory(cfg: DictConfig, algo: Algorithm, plan: MemoryPlan) -> None:
    """Raise UserError if the plan exceeds the available memory, with the keys to lower."""
    limit = available_bytes(cfg)
    if limit is None or plan.peak <= limit:
        return
    parts = sorted(plan.parts.items(), key=lambda part: -part[1])
    needs = ", ".join(f"{name} {in_gib(n)}" for name, n in parts if n >= 0.01 * plan.peak)
    savers = [saver for saver in memory_savers(cfg, algo)[:NAMED] if saver.saves > 0]
    lower = ", ".join(f"{saver} (saves {in_gib(saver.saves)})" for saver in savers)
    raise UserError(
        f"this run needs {in_gib(plan.peak)} of memory in {plan.largest_phase} ({needs}) but has "
        f"{in_gib(limit)}; lower first: {lower}; or set the memory with hardware.memory_gib=N",
        code="too-little-memory",
    )


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether the memory of the device or of the machine is exhausted."""
    kinds = (torch.OutOfMemoryError, MemoryError)
    return isinstance(error, kinds) or "DefaultCPUAllocator" in str(error)


def out_of_memory(cfg: DictConfig, algo: Algorithm, step: int) -> str:
    """Return the message of a run that ran out of memory: which keys to lower on resume."""
    savers = [saver for saver in memory_savers(cfg, algo) if saver.key in RESUMABLE]
    lower = " or ".join(map(str, savers[:NAMED]))
    return f"memory ran out after {step} steps; resume with less, for example with {lower}"


def in_gib(number: int) -> str:
    """Return a readable number of bytes."""
    return f"{number / GIB:.1f} GiB" if number >= GIB else f"{number / 2**20:.0f} MiB"
