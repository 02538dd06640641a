"""What a run will hold in memory, from its configuration and its model's shapes: nothing is loaded.
The rule of what a layer keeps was fitted to what torch allocates (bench/memory_plan.py). What
CUDA takes for itself, and memory that its allocator holds in pieces, are not counted."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from agentrl_cli.algos.base import Algorithm
from agentrl_cli.config.compose import as_dataclass
from agentrl_cli.config.settings import ModelConfig
from agentrl_cli.core.errors import UserError
from agentrl_cli.models.forward import LOGITS_AT_ONCE, max_positions, vocabulary_head
from agentrl_cli.models.load import adapter_sizes, dtype_of, load_shapes

if TYPE_CHECKING:
    from omegaconf import DictConfig

FULL = 4  # bytes of a float32 number
SAMPLED = 5  # float32 tensors [rows, vocabulary] of a step of decoding (generators/hf.py)
Bytes = dict[str, int]


@dataclass(frozen=True, kw_only=True)
class Shapes:
    """Sizes of a causal LM whose numbers have `size` bytes: how many `parameters` the base and one
    `adapter` (0 without LoRA) have, the widths of a layer, and `rank`, what LoRA adds to these."""

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

    @property
    def token_bytes(self) -> int:
        """Keys and values of one token in all layers."""
        return 2 * self.layers * self.keys * self.size


@dataclass(frozen=True, kw_only=True)
class MemoryPlan:
    """Bytes by name: what is `kept` throughout, and what each of the `phases` needs besides. The
    base has so many `parameters`, an `adapter` on it so many more (0 without LoRA)."""

    parameters: int
    adapter: int
    kept: Bytes
    phases: dict[str, Bytes]

    @property
    def largest_phase(self) -> str:
        """The phase that needs most."""
        return max(self.phases, key=lambda name: sum(self.phases[name].values()))

    @property
    def parts(self) -> Bytes:
        """What makes the peak."""
        return {k: n for k, n in (self.kept | self.phases[self.largest_phase]).items() if n}

    @property
    def peak(self) -> int:
        """The most bytes at once."""
        return sum(self.parts.values())


def device_type(cfg: DictConfig) -> str:
    """cpu or cuda, whether there is such a device or not."""
    return "cuda" if cfg.hardware.device.startswith("cuda") else "cpu"


def read_shapes(cfg: DictConfig) -> Shapes:
    """The sizes of the configured model, whose config.json alone is read. Raises UserError where it
    cannot be, or where adapters fit no layer of it."""
    config = as_dataclass(cfg.model, ModelConfig)
    dtype = dtype_of(config.dtype, torch.device(device_type(cfg)))
    if cfg.hardware.get("strategy") == "fsdp":  # the format of passes, whatever that of weights
        dtype = torch.bfloat16 if cfg.hardware.get("mixed_precision") == "bf16" else torch.float32
    model = load_shapes(config, dtype)
    text, names = model.config.get_text_config(), [name for name, _ in model.named_parameters()]
    parameters, positions = sum(w.numel() for w in model.parameters()), max_positions(model)
    vocabulary = vocabulary_head(model).get_parameter("weight").shape[0]
    heads, width = text.num_attention_heads, text.hidden_size
    halves = adapter_sizes(model, config.lora) if config.lora else []
    rank = config.lora.rank * len(halves) // 2 // text.num_hidden_layers if config.lora else 0
    head = getattr(text, "head_dim", None) or width // heads
    return Shapes(
        size=dtype.itemsize, parameters=parameters, adapter=sum(halves), rank=rank,
        layers=text.num_hidden_layers, hidden=width,
        mlp=getattr(text, "intermediate_size", None) or 4 * width, heads=heads,
        queries=heads * head, keys=(getattr(text, "num_key_value_heads", None) or heads) * head,
        vocabulary=vocabulary, positions=positions, eager=config.attention == "eager",
        norms_heads=any(name.endswith("q_norm.weight") for name in names),
    )  # fmt: skip


def layer_bytes(shapes: Shapes, context: int) -> int:
    """What a decoder layer keeps of one token for its backward pass: of each norm the input in
    float32, the normed input where the norm's weight is trained, and the output; queries, keys,
    values, what attention gives and a float32 a head; gate, activation, the other half and product
    of the gated MLP; what the first halves of LoRA give. Eager attention keeps the scores of every
    head for `context` tokens, in float32 and in the model's dtype, and keys for every query."""
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
    """What reading `tokens` through the vocabulary needs, a chunk of logits at a time: log-probs
    and two more of their size in float32; or, as gradients are made, two in the model's dtype and,
    where it is trained, two gradients of the vocabulary's weight. Besides, what the last norm and
    the states that are read keep of every token."""
    s, size = shapes, shapes.size
    logits = min(tokens * s.vocabulary, max(LOGITS_AT_ONCE, s.vocabulary))
    gradients = 0 if s.adapter else 2 * size * s.vocabulary * s.hidden
    states = tokens * s.hidden * (FULL + 3 * size)
    return states + max(3 * FULL * logits, 2 * size * logits + gradients)


def kept_bytes(shapes: Shapes, algo: Algorithm) -> Bytes:
    """What the models and optimizers of an algorithm hold. Without LoRA each model is a copy;
    weights in less than float32 have float32 masters, and averages of them are float32, too."""
    kinds, size = [spec.kind for spec in algo.models().values()], shapes.size
    own, full = shapes.adapter or shapes.parameters, FULL if size < FULL else 0
    return {
        "base weights": size * shapes.parameters * (1 if shapes.adapter else len(kinds)),
        "adapters": size * shapes.adapter * len(kinds),
        "float32 masters": full * own * kinds.count("trained"),
        "float32 averages": full * own * kinds.count("ema"),
        "optimizer moments": 2 * FULL * own * kinds.count("trained"),
    }


def training_phases(
    shapes: Shapes, tokens: int, context: int, *, checkpointed: bool, cuda: bool
) -> dict[str, Bytes]:
    """What an update needs besides, with `tokens` in a micro-batch and `context` in a sample. A
    checkpointed layer keeps its input alone and is computed again in the backward pass. On CUDA
    AdamW steps all weights together, by a root of each second moment."""
    s, layer = shapes, layer_bytes(shapes, context)
    own = s.adapter or s.parameters
    gradients = {"gradients": s.size * own}
    activations = s.layers * (s.size * s.hidden if checkpointed else layer)
    held = gradients | {"activations": tokens * activations}
    of_layer = s.size * (2 * s.mlp + s.hidden) + (layer if checkpointed else 0)
    of_step = {"gradients of masters": FULL * own if s.size < FULL else 0}
    of_step |= {"roots of moments": FULL * own if cuda else 0}
    return {
        "reading logits": held | {"logits and loss": logits_bytes(s, tokens)},
        "the backward pass": held | {"backward of a layer": tokens * of_layer},
        "an optimizer step": gradients | of_step,
    }


def decoding_bytes(shapes: Shapes, cfg: DictConfig, models: int) -> tuple[int, int, int]:
    """The keys and values that stay for so many models that generate, those of a batch in work with
    every row as long as an episode may be, each within its half of `cache_mib`, and the logits of
    that batch; zeros where another program decodes."""
    generator = cfg.hardware.generator
    if "cache_tokens" not in generator:
        return 0, 0, 0
    batch = generator.max_batch * cfg.rollout.max_context
    stays = models * max(batch, generator.cache_tokens)
    logits = SAMPLED * FULL * generator.max_batch * shapes.vocabulary
    mib = generator.get("cache_mib")
    half = sys.maxsize if mib is None else int(mib * 2**19)
    return min(half, stays * shapes.token_bytes), min(half, batch * shapes.token_bytes), logits


def refuse_unread_context(cfg: DictConfig, positions: int, role_ids: int = 0) -> None:
    """Raise UserError where episodes, with so many ids of an algorithm's roles behind them, may be
    longer than the `positions` that the model reads."""
    if cfg.rollout.max_context + role_ids > positions:
        asked = f"rollout.max_context is {cfg.rollout.max_context}"
        asked += f", behind which roles read and write up to {role_ids} ids" if role_ids else ""
        reads = f"but '{cfg.model.path}' reads at most {positions} ids"
        remedy = f"give rollout.max_context={positions - role_ids}"
        if role_ids >= positions:
            remedy = "give a smaller algo.advanced.role_tokens"
        raise UserError(f"{asked}, {reads}; {remedy}")


def process_count(cfg: DictConfig) -> int:
    """How many processes train one run: as `hardware.processes` says, or as a launcher has
    started."""
    if cfg.hardware.get("strategy") is None:
        return 1
    return cfg.hardware.get("processes") or int(os.environ.get("WORLD_SIZE", 1))


def sharded_plan(plan: MemoryPlan, shapes: Shapes, processes: int) -> MemoryPlan:
    """The plan of one process of hardware=fsdp, where passes compute in the plan's format. Of the
    weights and of all that belongs to them it holds a share, in float32; a pass gathers the
    vocabulary and two layers at a time, decoding all weights."""
    copies = plan.kept["base weights"] // shapes.size  # of each parameter of each model
    held = {"base weights": FULL * copies, "optimizer moments": plan.kept["optimizer moments"]}
    roots = plan.phases["an optimizer step"]["roots of moments"]
    of_step = {"gradients": FULL * shapes.parameters, "roots of moments": roots}
    held, of_step = (
        {name: number // processes for name, number in part.items()} for part in (held, of_step)
    )
    vocabulary = shapes.vocabulary * shapes.hidden
    two_layers = 2 * (shapes.parameters - vocabulary) // shapes.layers
    gathered = {"gathered layers": shapes.size * (vocabulary + two_layers)}
    gradients = {"gradients": of_step["gradients"]}
    phases = {name: {**parts, **gradients, **gathered} for name, parts in plan.phases.items()}
    whole = {"gathered weights": shapes.size * shapes.parameters}
    phases |= {"an optimizer step": of_step, "decoding": plan.phases["decoding"] | whole}
    values = {"keys and values": plan.kept["keys and values"]}
    return replace(plan, kept=held | values, phases=phases)


def plan_memory(cfg: DictConfig, algo: Algorithm) -> MemoryPlan:
    """The plan of a whole run, of each of its processes where there are several. Raises UserError
    where its model's config.json cannot be read, or where episodes may be longer than the model
    reads."""
    shapes, context = read_shapes(cfg), cfg.rollout.max_context
    refuse_unread_context(cfg, shapes.positions)
    generating = sum(spec.generates for spec in algo.models().values())
    stays, batch, logits = decoding_bytes(shapes, cfg, generating)
    phases = training_phases(
        shapes, max(cfg.hardware.tokens_per_batch, context), context,
        checkpointed=cfg.model.gradient_checkpointing, cuda=device_type(cfg) == "cuda",
    )  # fmt: skip
    decoding = {"a batch's keys and values": batch, "logits of a step": logits}
    kept = kept_bytes(shapes, algo) | {"keys and values": stays}
    plan = MemoryPlan(
        parameters=shapes.parameters, adapter=shapes.adapter, kept=kept,
        phases=phases | {"decoding": decoding},
    )  # fmt: skip
    is_sharded = cfg.hardware.get("strategy") == "fsdp" and not shapes.adapter
    return sharded_plan(plan, shapes, process_count(cfg)) if is_sharded else plan
