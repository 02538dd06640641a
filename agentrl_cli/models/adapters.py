"""LoRA's adapters of one base: made, read by name, counted."""

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
from agentrl_cli.models.policy import Module, causal_lm


def with_adapters(base: Module, lora: LoraConfig, names: list[str], seed: int) -> PeftModel:
    """One adapter per name in the number format of the base, each from its own random start; its
    zero half leaves the base unchanged."""
    width = causal_lm(base).config.get_text_config().hidden_size
    if lora.rank > width:
        raise UserError(f"model.lora.rank is {lora.rank}; give at most {width}, the model's width")
    targets = "all-linear" if lora.targets == ["all-linear"] else lora.targets
    config = PeftLora(
        r=lora.rank, lora_alpha=lora.alpha, target_modules=targets, task_type="CAUSAL_LM"
    )
    model: PeftModel | None = None
    own_format = False  # True: peft would compute adapters of a bfloat16 base in float32
    with torch.random.fork_rng(), warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # between peft and transformers, not ours
        for name in names:
            torch.manual_seed(derive_seed(seed, "init", "lora", name))
            try:
                if model is None:
                    model = get_peft_model(
                        causal_lm(base), config, name, autocast_adapter_dtype=own_format
                    )
                else:
                    model.add_adapter(
                        name, copy.deepcopy(config), autocast_adapter_dtype=own_format
                    )
            except ValueError as error:
                line = f"lora.targets {lora.targets} fit no layer of this model"
                raise UserError(f"{line}; name linear layers of it, or all-linear") from error
    assert model is not None
    return model.eval()


def adapter_weights(module: nn.Module, name: str) -> dict[str, nn.Parameter]:
    """The adapter's parameters, its name cut out of theirs."""
    found: dict[str, nn.Parameter] = {}
    for key, parameter in module.named_parameters():
        parts = key.split(".")
        for i, part in enumerate(parts[:-1]):
            if part.startswith("lora_") and parts[i + 1] == name:
                found[".".join(parts[: i + 1] + parts[i + 2 :])] = parameter
    return found


def refuse_other_adapter(folder: Path, module: PeftModel, name: str) -> None:
    """Raise UserError where the adapter of a folder is multiplied by another number than `name`'s:
    it would not be the same weights. A folder that does not say passes."""
    file = folder / "adapter_config.json"
    if not file.is_file():
        return
    try:
        said = read_json(file)
        theirs = _scale(said["lora_alpha"], said["r"], said.get("use_rslora"))
    except (ArithmeticError, LookupError, TypeError, ValueError):
        raise UserError(f"'{file}' is no adapter's of LoRA; give a folder that has one") from None
    config = module.peft_config[name]
    assert isinstance(config, PeftLora)
    ours = _scale(config.lora_alpha, config.r, config.use_rslora)
    if said["r"] == config.r and theirs != ours:  # of another rank, its shapes say it
        line = (
            f"the adapter in '{folder}' is multiplied by {theirs:g}, that of model.lora by {ours:g}"
        )
        raise UserError(f"{line}; give model.lora the alpha and rank that it was trained with")


def _scale(alpha: float, rank: float, by_root: bool | None) -> float:
    """What peft multiplies an adapter by."""
    return alpha / (math.sqrt(rank) if by_root else rank)


def adapter_sizes(base: PreTrainedModel, lora: LoraConfig) -> list[int]:
    """How many numbers each tensor of one adapter has on `base`, which may hold shapes alone, on
    the meta device. Raises UserError where adapters fit no layer of it."""
    with torch.device("meta"):
        adapted = with_adapters(base, lora, ["policy"], 0)
    return [weight.numel() for weight in adapter_weights(adapted, "policy").values()]
