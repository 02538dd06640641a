"""All weights of a run: named models on one base, as LoRA adapters or as copies, each with an
optional head. `trained` models learn; `ema` ones begin as the model that they follow and are
averaged towards it; `frozen` ones stay where it began."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch
from peft import PeftModel
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from agentrl_cli.config.settings import ModelConfig
from agentrl_cli.core.errors import UserError
from agentrl_cli.core.files import is_count, read_json
from agentrl_cli.core.ranks import Ranks
from agentrl_cli.models.adapters import adapter_weights, refuse_other_adapter, with_adapters
from agentrl_cli.models.load import find_base, load_base, read_pretrained
from agentrl_cli.models.policy import Module, causal_lm, vocabulary_head
from agentrl_cli.models.reader import Passes, Reader
from agentrl_cli.models.sharding import copy_whole, gathered, shard, whole_weights
from agentrl_cli.models.specs import ModelSpec


class ValueHead(nn.Module):
    """A linear read-out in float32, under autocast too, that starts at zero, so that every first
    value is 0."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(width))
        self.bias = nn.Parameter(torch.zeros(()))

    def forward(self, hidden: Tensor) -> Tensor:
        """Hidden states [..., width] to values [...]."""
        with torch.autocast(hidden.device.type, enabled=False):
            return hidden.float() @ self.weight + self.bias


class ActionValueHead(nn.Module):
    """Two value heads: what an action is worth that ends here, and what a state."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.q, self.v = ValueHead(width), ValueHead(width)

    def forward(self, hidden: Tensor) -> Tensor:
        """Hidden states [..., width] to pairs (Q, V) [..., 2]."""
        return torch.stack([self.q(hidden), self.v(hidden)], -1)


HEADS = {"value": ValueHead, "action_value": ActionValueHead}


class ModelSet:
    """Build, name, average, save and load every model that an algorithm declares. With LoRA each
    name is an adapter on one base in memory; without, each name is a full copy. Averages of weights
    in less than float32 are kept in float32, too, because small steps would round to nothing."""

    def __init__(
        self,
        config: ModelConfig,
        specs: dict[str, ModelSpec],
        device: torch.device | str,
        seed: int,
        ranks: Ranks | None = None,
        passes: Passes | None = None,
    ) -> None:
        """Raises UserError where the base cannot be loaded or models begin as each other, KeyError
        where one begins as a model that is not declared. `ranks` read samples together, by
        `passes` like these."""
        refuse_cycles(specs)
        self.config, self.specs, self.device = config, specs, torch.device(device)
        self.seed = seed
        base, self.tokenizer = load_base(config, self.device, seed)
        width = vocabulary_head(base).get_parameter("weight").shape[1]
        self.heads = {
            name: HEADS[spec.head](width).to(self.device)
            for name, spec in specs.items()
            if spec.head is not None
        }
        self._modules: dict[str, Module]
        if config.lora is None:
            self._modules = {n: base if n == "policy" else copy.deepcopy(base) for n in specs}
        else:
            adapted = with_adapters(base, config.lora, list(specs), seed)
            self._modules = dict.fromkeys(specs, adapted)
        self.ranks = ranks or Ranks()
        self._readers = {
            n: Reader(m, self.head(n), self.ranks, passes) for n, m in self._modules.items()
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
        """The models' names in the order declared."""
        return list(self.specs)

    @property
    def generating(self) -> list[str]:
        """The names of the models that generate."""
        return [name for name, spec in self.specs.items() if spec.generates]

    def module(self, name: str) -> Module:
        """The module to call, with `name`'s adapter switched on; it stays on until another name is
        asked for."""
        module = self._modules[name]
        if isinstance(module, PeftModel) and self._active != name:
            module.set_adapter(name, inference_mode=self.specs[name].kind != "trained")
            self._active = name
        return module

    def reader(self, name: str) -> Reader:
        """How training reads `name`: its module, switched on as by `module`, and its head."""
        self.module(name)
        return self._readers[name]

    @contextmanager
    def whole(self, name: str) -> Iterator[None]:
        """Inside, this rank may call `module(name)` without the others; where weights are sharded,
        all ranks enter."""
        if not self.ranks.sharded:
            yield
            return
        with gathered(self._readers[name]):
            yield

    def shard(self, device: torch.device, compute: torch.dtype | None) -> None:
        """Spread every model, built on the CPU, over the devices of all ranks, of which `device` is
        this one's. Passes compute in `compute` (None: in the weights' own dtype)."""
        self.device = device
        for reader in self._readers.values():
            shard(reader, device, compute)

    def head(self, name: str) -> nn.Module | None:
        """The head of `name`, or None where its spec has none."""
        return self.heads[name] if self.specs[name].head is not None else None

    def weights(self, name: str) -> dict[str, nn.Parameter]:
        """The live tensors that are `name`'s own (adapter or copy, and head), under names shared by
        all models."""
        module = self._modules[name]
        lora = isinstance(module, PeftModel)
        own = adapter_weights(module, name) if lora else dict(module.named_parameters())
        head = self.head(name)
        return own if head is None else own | dict(head.named_parameters("head"))

    def trainable(self, name: str) -> list[tuple[str, nn.Parameter]]:
        """What `name`'s optimizer steps; empty for ema and frozen models."""
        return list(self.weights(name).items()) if self.specs[name].kind == "trained" else []

    @torch.no_grad()
    def ema_update(self, target: str, source: str, rate: float) -> None:
        """target = rate * target + (1 - rate) * source, weight by weight; counts as a new version
        of target."""
        source_weights = self.weights(source)
        for key, weight in self.weights(target).items():
            average = self._float32_average(target, key, weight)
            average.mul_(rate).add_(source_weights[key].to(average.dtype), alpha=1 - rate)
            if average is not weight:
                weight.copy_(average)
        self.mark_changed(target)

    @torch.no_grad()
    def copy_weights(self, target: str, source: str) -> None:
        """target = source, weight by weight; counts as a new version of target."""
        source_weights = self.weights(source)
        for key, weight in self.weights(target).items():
            weight.copy_(source_weights[key])
        self._averages.pop(target, None)
        self.mark_changed(target)

    def version(self, name: str) -> int:
        """How often `name`'s weights have changed."""
        return self._versions[name]

    def mark_changed(self, name: str) -> None:
        """Count a new version of `name`, whose weights were changed from outside."""
        self._versions[name] += 1

    def fingerprint(self, name: str) -> str:
        """16 hex digits that differ where any bit of `name`'s own weights differs."""
        digest = hashlib.blake2b(digest_size=8)
        for key, weight in sorted(self.weights(name).items()):
            digest.update(key.encode() + str(weight.dtype).encode())
            values = weight.detach().cpu().contiguous().flatten()
            digest.update(values.view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()

    def checksums(self) -> dict[str, str]:
        """By name, what two processes compare before they train the models together: of all weights
        that are read, the base of adapters among the first's. Cheaper than fingerprints."""
        found, seen = {}, set[int]()
        for name, reader in self._readers.items():
            digest = hashlib.blake2b(digest_size=8)
            for key, weight in reader.named_parameters():
                if id(weight) not in seen:
                    seen.add(id(weight))
                    bits = weight.detach().contiguous().flatten().view(torch.int16)
                    digest.update(f"{key} {weight.dtype} {weight.shape} {bits.sum()} ".encode())
            found[name] = digest.hexdigest()
        return found

    def save(self, folder: Path | None) -> None:
        """One folder of safetensors per name; without LoRA each is a plain Hugging Face model. None
        where another rank writes: sharded weights are put together by all."""
        for name in self.names:
            self._save_model(name, folder and folder / name)
        if folder is not None:
            (folder / "versions.json").write_text(json.dumps(self._versions))

    def load(self, folder: Path) -> None:
        """Inverse of `save`. Raises UserError where a file is missing, unreadable or of another
        model."""
        for name in self.names:
            self._load_model(name, folder / name, needs_head=True)
            average = folder / name / "average.safetensors"
            self._averages.pop(name, None)
            if average.exists():
                self._averages[name] = _read_weights(average, self.device)
        versions = read_json(folder / "versions.json")
        if versions.keys() != self._versions.keys() or not all(map(is_count, versions.values())):
            names = ", ".join(self.names)
            line = f"'{folder / 'versions.json'}' does not say the versions of {names}"
            raise UserError(f"{line}; give a folder that a run saved")
        self._versions = versions

    def load_weights(self, name: str, folder: Path) -> None:
        """Start `name` from a folder that `save` wrote for one model, and with it all models that
        begin as it, or as one of those. A head that the folder lacks keeps its start. Raises
        UserError as `load` does."""
        self._load_model(name, folder)
        self.mark_changed(name)
        self._update_followers(name)

    def save_adapter(self, name: str, folder: Path) -> None:
        """The adapter of `name` alone, as peft and servers of models read one; only with LoRA."""
        module = self._modules[name]
        assert isinstance(module, PeftModel), "a model without LoRA has no adapter"
        folder.mkdir(parents=True, exist_ok=True)
        module.peft_config[name].save_pretrained(str(folder))
        adapter = {key: w.detach() for key, w in adapter_weights(module, name).items()}
        save_file(adapter, folder / "adapter_model.safetensors", {"format": "pt"})

    def find_base(self, folder: Path) -> str:
        """Where another program finds the base: at its own path, or, where it is embedded, in
        `folder`, to which it is written."""
        return find_base(self.config, self.seed, folder)

    def _save_model(self, name: str, folder: Path | None) -> None:
        module = self.module(name)
        weights = whole_weights(module) if self.ranks.sharded else None
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
        """Body or adapter, and the head where the folder has one or must have."""
        if not folder.is_dir():
            raise UserError(f"'{folder}' does not exist; give a checkpoint that has a '{name}'")
        module = self.module(name)
        if isinstance(module, PeftModel):
            refuse_other_adapter(folder, module, name)
            found = _read_weights(folder / "adapter_model.safetensors", self.device)
            _copy_weights(adapter_weights(module, name), found, folder)
        else:
            loaded = read_pretrained(folder, self.config, causal_lm(module).dtype)
            _copy_weights(dict(module.named_parameters()), dict(loaded.named_parameters()), folder)
        head = self.head(name)
        if head is not None and (needs_head or (folder / "head.safetensors").exists()):
            found = _read_weights(folder / "head.safetensors", self.device)
            _copy_weights(dict(head.named_parameters()), found, folder)

    def _update_followers(self, followed: str) -> None:
        """Set every ema and frozen model that follows `followed` to its weights of now, and the
        body of every trained one that begins as it; then what follows those."""
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

    def _float32_average(self, name: str, key: str, weight: Tensor) -> Tensor:
        """The weight itself where it is float32, else its average that is kept in float32."""
        if weight.dtype == torch.float32:
            return weight
        return self._averages.setdefault(name, {}).setdefault(key, weight.detach().float())


def refuse_cycles(specs: dict[str, ModelSpec]) -> None:
    """Raises UserError where models begin as each other, KeyError where one begins as none of
    them."""
    for name in specs:
        chain = [name]
        while (origin := specs[chain[-1]].origin) is not None:
            if origin in chain:
                line = " -> ".join([*chain, origin])
                raise UserError(f"the models {line} begin as each other; let one begin as the base")
            chain.append(origin)


def is_head(key: str) -> bool:
    """Whether a weight's name is that of a head."""
    return key.startswith("head.")


def _read_weights(path: Path, device: torch.device) -> dict[str, Tensor]:
    try:
        return load_file(path, device=str(device))
    except (OSError, SafetensorError) as error:
        remedy = "give a folder that a run saved"
        raise UserError(f"cannot read weights from {path} ({error}); {remedy}") from error


@torch.no_grad()
def _copy_weights(own: dict[str, nn.Parameter], found: Mapping[str, Tensor], folder: Path) -> None:
    """Copy by name into `own`. Raises UserError unless names and shapes agree."""
    wrong = sorted(own.keys() ^ found.keys()) or [k for k in own if own[k].shape != found[k].shape]
    if wrong:
        line = f"the weights in {folder} are of another model, first at {wrong[0]}"
        raise UserError(f"{line}; give matching ones")
    for key, weight in own.items():
        copy_whole(weight, found[key])
