"""LoRA adapters of one base model: create them, and read their weights by name."""

from __future__ import annotations

import copy
import math
import warnings
from pathlib import Path

import torch
from peft import LoraConfig as PeftLora
from peft import PeftModel, get_peft_model
from torch import nn
from transformers import PreTrainedModel

from agentrl_cli.config.settings import LoraConfig
from agentrl_cli.core.errors import UserError
from agentrl_cli.core.files import read_json
from agentrl_cli.core.types import derive_seed
from agentrl_cli.models.forward import Module, causal_lm


def with_adapters(base: Module, lora: LoraConfig, names: list[str], seed: int) -> PeftModel:
    """Return the base with one adapter per name, in the base's dtype and from its own random start.
    One factor starts at zero, so the base's outputs do not change."""
    width = causal_lm(base).config.get_text_config().hidden_size
    if lora.rank > width:
        line = f"model.lora.rank is {lora.rank}; give at most {width}, the model's width"
        raise UserError(line, code="too-large")
    targets = "all-linear" if lora.targets == ["all-linear"] else lora.targets
    config = PeftLora(
        r=lora.rank, lora_alpha=lora.alpha, target_modules=targets, task_type="CAUSAL_LM"
    )
    model: PeftModel | None = None
    upcast = False  # True: peft would compute adapters of a bfloat16 base in float32
    with torch.random.fork_rng(), warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # between peft and transformers
        for name in names:
            torch.manual_seed(derive_seed(seed, "init", "lora", name))
            try:
                if model is None:
                    base_model = causal_lm(base)
                    model = get_peft_model(base_model, config, name, autocast_adapter_dtype=upcast)
                else:
                    own = copy.deepcopy(config)
                    model.add_adapter(name, own, autocast_adapter_dtype=upcast)
            except ValueError as error:
                line = f"model.lora.targets {lora.targets} match no layer of this model"
                remedy = "name linear layers of the model, or all-linear"
                raise UserError(f"{line}; {remedy}", code="no-lora-target") from error
    assert model is not None
    return model.eval()


def adapter_weights(module: nn.Module, name: str) -> dict[str, nn.Parameter]:
    """Return the adapter's parameters, without its name in their keys."""
    found: dict[str, nn.Parameter] = {}
    for key, parameter in module.named_parameters():
        parts = key.split(".")
        for i, part in enumerate(parts[:-1]):
            if part.startswith("lora_") and parts[i + 1] == name:
                found[".".join(parts[: i + 1] + parts[i + 2 :])] = parameter
    return found


def check_same_scale(folder: Path, module: PeftModel, name: str) -> None:
    """Raise UserError if the adapter in a folder is scaled differently from adapter `name`. A
    folder without adapter_config.json passes; another rank shows in the shapes."""
    file = folder / "adapter_config.json"
    if not file.is_file():
        return
    try:
        stored = read_json(file)
        root = math.sqrt(stored["r"]) if stored.get("use_rslora") else stored["r"]
        theirs = stored["lora_alpha"] / root
    except (ArithmeticError, LookupError, TypeError, ValueError):
        line = f"'{file}' does not describe a LoRA adapter; give the folder of one"
        raise UserError(line, code="unreadable-weights") from None
    config = module.peft_config[name]
    assert isinstance(config, PeftLora)
    ours = config.lora_alpha / config.r
    if stored["r"] == config.r and theirs != ours:
        line = f"the adapter in '{folder}' has the scale {theirs:g}, model.lora has {ours:g}"
        remedy = "give model.lora the alpha and rank of its training"
        raise UserError(f"{line}; {remedy}", code="other-scale")


def adapter_sizes(base: PreTrainedModel, lora: LoraConfig) -> list[int]:
    """Return the number of elements of each tensor of one adapter on `base`, which may be on the
    meta device."""
    with torch.device("meta"):
        adapted = with_adapters(base, lora, ["policy"], 0)
    return [weight.numel() for weight in adapter_weights(adapted, "policy").values()]
