"""All weights of a run: named models on one base, as LoRA adapters or as copies, each with an
optional head (see `ModelSpec`)."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from transformers.modeling_layers import GradientCheckpointingLayer

from agentrl_cli.config.settings import ModelConfig
from agentrl_cli.core.distributed import Ranks
from agentrl_cli.core.errors import UserError
from agentrl_cli.core.files import is_count, read_json
from agentrl_cli.core.types import Sample, derive_seed
from agentrl_cli.models.forward import (
    ModelForward,
    Module,
    Passes,
    causal_lm,
    collate,
    vocabulary_head,
)
from agentrl_cli.models.load import (
    adapter_weights,
    check_same_kind,
    check_same_layers,
    end_ids,
    find_base,
    load_base,
    read_pretrained,
    with_adapters,
)
from agentrl_cli.models.specs import ModelSpec


class ValueHead(nn.Module):
    """A value in float32, under autocast too. Without hidden layers it is a linear layer that
    starts at zero. With them it is an MLP with ReLU that starts as `nn.Linear` does."""

    def __init__(self, width: int, layers: int = 0) -> None:
        super().__init__()
        hidden = [part for _ in range(layers) for part in (nn.Linear(width, width), nn.ReLU())]
        self.hidden = nn.Sequential(*hidden)
        bound = width**-0.5 if layers else 0.0
        self.weight = nn.Parameter(torch.empty(width).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(()).uniform_(-bound, bound))

    def forward(self, hidden: Tensor) -> Tensor:
        """Map hidden states [..., width] to values [...]."""
        with torch.autocast(hidden.device.type, enabled=False):
            return self.hidden(hidden.float()) @ self.weight + self.bias


class ActionValueHead(nn.Module):
    """Two value heads, for Q and V."""

    names = ("q", "v")

    def __init__(self, width: int, layers: int = 0) -> None:
        super().__init__()
        for name in self.names:
            self.add_module(name, ValueHead(width, layers))

    def forward(self, hidden: Tensor) -> Tensor:
        """Map hidden states [..., width] to the values [..., heads], in the order of `names`."""
        return torch.stack([head(hidden) for head in self.children()], -1)


class DoubleActionValueHead(ActionValueHead):
    """Four value heads, for Q and V of two critics."""

    names = ("q", "v", "q2", "v2")


HEADS = {
    "value": ValueHead, "action_value": ActionValueHead,
    "double_action_value": DoubleActionValueHead,
}  # fmt: skip


class ModelSet:
    """The models that an algorithm declares: with LoRA adapters on one base, without full copies.
    Moving averages are kept in float32, because small steps would round to nothing in bfloat16."""

    def __init__(
        self,
        config: ModelConfig,
        specs: dict[str, ModelSpec],
        device: torch.device | str,
        seed: int,
        ranks: Ranks | None = None,
        passes: Passes | None = None,
    ) -> None:
        """Load the base and build the models. Raises UserError if the base cannot be loaded."""
        self.config, self.specs, self.device = config, specs, torch.device(device)
        self.seed = seed
        base, self.tokenizer = load_base(config, self.device, seed)
        self.end_ids = end_ids(base)
        width = vocabulary_head(base).get_parameter("weight").shape[1]
        self.heads = dict[str, nn.Module]()
        with torch.random.fork_rng(devices=[]):
            for name, spec in specs.items():
                if spec.head is not None:
                    torch.manual_seed(derive_seed(seed, "init", "head", name))
                    self.heads[name] = HEADS[spec.head](width, spec.head_layers).to(self.device)
        self._modules: dict[str, Module]
        if config.lora is None:
            self._modules = {n: base if n == "policy" else copy.deepcopy(base) for n in specs}
        else:
            adapted = with_adapters(base, config.lora, list(specs), seed)
            self._modules = dict.fromkeys(specs, adapted)
        self.ranks = ranks or Ranks()
        self._forwards = {
            n: ModelForward(m, self.head(n), self.ranks, passes) for n, m in self._modules.items()
        }
        self._versions = dict.fromkeys(specs, 0)
        self._averages: dict[str, dict[str, Tensor]] = {}
        self._active = ""
        for name, spec in specs.items():
            for weight in self.weights(name).values():
                weight.requires_grad_(spec.kind == "trained")
        for name, spec in specs.items():
            if spec.origin is None:
                self._update_followers(name)

    @property
    def names(self) -> list[str]:
        """The names of the models, in order."""
        return list(self.specs)

    @property
    def generating(self) -> list[str]:
        """The names of the models that generate text."""
        return [name for name, spec in self.specs.items() if spec.generates]

    def module(self, name: str) -> Module:
        """Return the module of `name` with its adapter active, until another name is used."""
        module = self._modules[name]
        if isinstance(module, PeftModel) and self._active != name:
            module.set_adapter(name, inference_mode=self.specs[name].kind != "trained")
            self._active = name
        return module

    def forward(self, name: str) -> ModelForward:
        """Return the module and head of `name` for forward passes, with its adapter active."""
        self.module(name)
        return self._forwards[name]

    @contextmanager
    def whole(self, name: str) -> Iterator[None]:
        """Gather the weights of `name` if they are sharded, so that this rank can call its module
        alone. All ranks must enter."""
        parts = _sharded_parts(self._forwards[name])
        for part in parts:
            part.set_reshard_after_forward(False, recurse=False)
            part.unshard()
        try:
            yield
        finally:
            for part in parts:
                part.reshard()
                part.set_reshard_after_forward(True, recurse=False)
            if parts:
                parts[0].reset_iter_state()  # no backward pass resets it

    def shard(self, device: torch.device, compute: torch.dtype | None) -> None:
        """Shard every model over all ranks, layer by layer; `device` is this rank's. Passes compute
        in `compute` (None: the weights' dtype). Gradients are summed over ranks in float32."""
        self.device = device
        mesh = init_device_mesh(device.type, (torch.distributed.get_world_size(),))
        policy = MixedPrecisionPolicy(param_dtype=compute, reduce_dtype=torch.float32)
        for model_forward in self._forwards.values():
            parts = model_forward.modules()
            layers = [part for part in parts if isinstance(part, GradientCheckpointingLayer)]
            for part in (*layers, model_forward):  # the root too
                fully_shard(part, mesh=mesh, mp_policy=policy, reshard_after_forward=True)
            for part in _sharded_parts(model_forward):  # a sum: the learner divides
                part.set_gradient_divide_factor(1.0)
                part.set_force_sum_reduction_for_comms(True)
            with torch.no_grad():  # the first pass makes it the root
                model_forward.compute(collate([Sample([0, 0], [0, 1])]).to(device))

    def head(self, name: str) -> nn.Module | None:
        """Return the head of `name`, or None."""
        return self.heads[name] if self.specs[name].head is not None else None

    def weights(self, name: str) -> dict[str, nn.Parameter]:
        """Return the parameters of `name` (adapter or copy, and head), by keys that all models
        share."""
        module = self._modules[name]
        lora = isinstance(module, PeftModel)
        own = adapter_weights(module, name) if lora else dict(module.named_parameters())
        head = self.head(name)
        return own if head is None else own | dict(head.named_parameters("head"))

    def trainable(self, name: str) -> list[tuple[str, nn.Parameter]]:
        """Return the parameters that are trained; empty for ema and frozen models."""
        return list(self.weights(name).items()) if self.specs[name].kind == "trained" else []

    @torch.no_grad()
    def ema_update(self, target: str, source: str, rate: float) -> None:
        """Set target = rate * target + (1 - rate) * source."""
        source_weights = self.weights(source)
        for key, weight in self.weights(target).items():
            average: Tensor = weight
            if weight.dtype != torch.float32:
                averages = self._averages.setdefault(target, {})
                average = averages.setdefault(key, weight.detach().float())
            average.mul_(rate).add_(source_weights[key].to(average.dtype), alpha=1 - rate)
            if average is not weight:
                weight.copy_(average)
        self.mark_changed(target)

    @torch.no_grad()
    def copy_weights(self, target: str, source: str) -> None:
        """Set target = source."""
        source_weights = self.weights(source)
        for key, weight in self.weights(target).items():
            weight.copy_(source_weights[key])
        self._averages.pop(target, None)
        self.mark_changed(target)

    def version(self, name: str) -> int:
        """Return how often the weights of `name` have changed."""
        return self._versions[name]

    def mark_changed(self, name: str) -> None:
        """Count a change of the weights of `name`."""
        self._versions[name] += 1

    def fingerprint(self, name: str) -> str:
        """Return a hash of the weights of `name`, 16 hex digits."""
        digest = hashlib.blake2b(digest_size=8)
        for key, weight in sorted(self.weights(name).items()):
            digest.update(key.encode() + str(weight.dtype).encode())
            values = weight.detach().cpu().contiguous().flatten()
            digest.update(values.view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()

    def checksums(self) -> dict[str, str]:
        """Return by name a checksum that ranks compare before they train together. It covers the
        base of adapters and is cheaper than a fingerprint."""
        found, seen = {}, set[int]()
        for name, model_forward in self._forwards.items():
            digest = hashlib.blake2b(digest_size=8)
            for key, weight in model_forward.named_parameters():
                if id(weight) not in seen:
                    seen.add(id(weight))
                    bits = weight.detach().contiguous().flatten().view(torch.int16)
                    digest.update(f"{key} {weight.dtype} {weight.shape} {bits.sum()} ".encode())
            found[name] = digest.hexdigest()
        return found

    def save(self, folder: Path | None) -> None:
        """Write one folder per model; without LoRA each is a plain Hugging Face model. Other ranks
        than the first give None, because all take part in gathering sharded weights."""
        for name in self.names:
            self._save_model(name, folder and folder / name)
        if folder is not None:
            (folder / "versions.json").write_text(json.dumps(self._versions))

    def load(self, folder: Path) -> None:
        """Restore what `save` wrote. Raises UserError if a file is missing, unreadable or that of
        another model."""
        for name in self.names:
            self._load_model(name, folder / name, needs_head=True)
            average = folder / name / "average.safetensors"
            self._averages.pop(name, None)
            if average.exists():
                self._averages[name] = _read_weights(average, self.device)
        versions = read_json(folder / "versions.json")
        if versions.keys() != self._versions.keys() or not all(map(is_count, versions.values())):
            line = f"'{folder / 'versions.json'}' has no versions of {', '.join(self.names)}"
            raise UserError(f"{line}; give a checkpoint of a run", code="unreadable-weights")
        self._versions = versions

    def load_weights(self, name: str, folder: Path) -> None:
        """Load `name` from the folder of one model, and update all models that start from it. A
        missing head keeps its start. Raises UserError like `load`."""
        self._load_model(name, folder)
        self.mark_changed(name)
        self._update_followers(name)

    def save_adapter(self, name: str, folder: Path) -> None:
        """Write the adapter of `name` in the format of peft; only with LoRA."""
        module = self._modules[name]
        assert isinstance(module, PeftModel), "a model without LoRA has no adapter"
        folder.mkdir(parents=True, exist_ok=True)
        module.peft_config[name].save_pretrained(str(folder))
        adapter = {key: w.detach() for key, w in adapter_weights(module, name).items()}
        save_file(adapter, folder / "adapter_model.safetensors", {"format": "pt"})

    def find_base(self, folder: Path) -> str:
        """Return the path of the base for other programs; `folder` gets the bundled one."""
        return find_base(self.config, self.seed, folder)

    def _save_model(self, name: str, folder: Path | None) -> None:
        module = self.module(name)
        weights = _whole_weights(module) if self.ranks.sharded else None
        if folder is None:
            return
        folder.mkdir(parents=True, exist_ok=True)
        if isinstance(module, PeftModel):
            self.save_adapter(name, folder)
        else:
            module.save_pretrained(folder, state_dict=weights)
        if name == "policy":
            self.tokenizer.save_pretrained(folder)
        head = self.head(name)
        if head is not None:
            save_file(head.state_dict(), folder / "head.safetensors")
        if name in self._averages:
            save_file(self._averages[name], folder / "average.safetensors")

    def _load_model(self, name: str, folder: Path, *, needs_head: bool = False) -> None:
        """Load the body or adapter, and the head if the folder has one or `needs_head`."""
        if not folder.is_dir():
            line = f"'{folder}' does not exist; give a checkpoint that has a '{name}'"
            raise UserError(line, code="missing-file")
        module = self.module(name)
        if isinstance(module, PeftModel):
            check_same_kind(folder, module, name)
            own = adapter_weights(module, name)
            found = _read_weights(folder / "adapter_model.safetensors", self.device)
            check_same_layers(folder, own, found)
            _copy_weights(own, found, folder)
        else:
            loaded = read_pretrained(folder, self.config, causal_lm(module).dtype)
            _copy_weights(dict(module.named_parameters()), dict(loaded.named_parameters()), folder)
        head = self.head(name)
        if head is not None and (needs_head or (folder / "head.safetensors").exists()):
            found = _read_weights(folder / "head.safetensors", self.device)
            _copy_weights(dict(head.named_parameters()), found, folder)

    def _update_followers(self, followed: str) -> None:
        """Copy the weights of `followed` to the ema and frozen models that follow it, and its body
        to trained models that begin as it; then update their followers."""
        source = self.weights(followed)
        for name, spec in self.specs.items():
            if spec.origin != followed:
                continue
            target = self.weights(name)
            with torch.no_grad():
                for key in target.keys() & source.keys():
                    if not (spec.kind == "trained" and is_head(key)):
                        target[key].copy_(source[key])
            self._averages.pop(name, None)
            self._versions[name] = self._versions[followed]
            self._update_followers(name)


def is_head(key: str) -> bool:
    """Return whether a weight belongs to a head."""
    return key.startswith("head.")


def _read_weights(path: Path, device: torch.device) -> dict[str, Tensor]:
    try:
        return load_file(path, device=str(device))
    except (OSError, SafetensorError) as error:
        line = f"cannot read weights from {path} ({error}); give a checkpoint of a run"
        raise UserError(line, code="unreadable-weights") from error


@torch.no_grad()
def _copy_weights(own: dict[str, nn.Parameter], found: Mapping[str, Tensor], folder: Path) -> None:
    """Copy by key into `own`. Raises UserError unless keys and shapes agree."""
    wrong = sorted(own.keys() ^ found.keys()) or [k for k in own if own[k].shape != found[k].shape]
    if wrong:
        line = f"the weights in {folder} are of another model, first at {wrong[0]}"
        raise UserError(f"{line}; give matching ones", code="other-model")
    for key, weight in own.items():
        copy_whole(weight, found[key])


# sharded weights: each rank holds a part of every tensor


def whole(tensor: Tensor) -> Tensor:
    """Return the tensor; a sharded one is gathered from all ranks, on the CPU."""
    return tensor.full_tensor().cpu() if isinstance(tensor, DTensor) else tensor


@torch.no_grad()
def copy_whole(tensor: Tensor, found: Tensor) -> None:
    """Copy a whole tensor into `tensor`, of which this rank may hold a shard."""
    if isinstance(tensor, DTensor):
        mesh, placements = tensor.device_mesh, tensor.placements
        moved = found.to(tensor.device, tensor.dtype)
        found = distribute_tensor(moved, mesh, placements, src_data_rank=None)
    tensor.copy_(found)


def _whole_weights(module: nn.Module) -> dict[str, Tensor]:
    """Return the module's whole parameters on rank 0, on the CPU; empty on other ranks."""
    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    names = dict(module.named_parameters()).keys()
    found: Any = get_model_state_dict(module, options=options)
    return {name: weight for name, weight in found.items() if name in names}


def _sharded_parts(model_forward: ModelForward) -> list[FSDPModule]:
    """Return the root, then the layers."""
    return [part for part in model_forward.modules() if isinstance(part, FSDPModule)]
