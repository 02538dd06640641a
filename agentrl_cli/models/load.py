"""Load a base model (bundled, a folder or a Hugging Face name), its tokenizer, and adapters."""

from __future__ import annotations

import copy
import math
import re
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig as PeftLora
from peft import PeftModel, get_peft_model
from safetensors.torch import load_model
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel
from transformers import PreTrainedTokenizerBase as Tokenizer
from transformers import PreTrainedTokenizerFast as FastTokenizer
from transformers.utils import logging

from agentrl_cli.config.settings import LoraConfig, ModelConfig
from agentrl_cli.core import files
from agentrl_cli.core.errors import UserError
from agentrl_cli.core.hub import prepare_hub
from agentrl_cli.core.types import derive_seed
from agentrl_cli.models.fetch import explain_read_errors, find_model
from agentrl_cli.models.forward import Module, causal_lm, vocabulary_head
from agentrl_cli.models.template import give_template

TINY = Path(__file__).parent / "tiny"
RENAMED_WEIGHTS = {"math": "arithmetic"}  # old runs name them so, and env=math uses them, too
ATTENTIONS = ("sdpa", "eager")  # that every model has
NOT_PLAIN = (  # keys of PEFT's configuration of an adapter
    "use_dora", "use_qalora", "rank_pattern", "alpha_pattern", "modules_to_save", "bias",
    "lora_bias", "layers_to_transform", "target_parameters", "trainable_token_indices",
)  # fmt: skip
LAYER = re.compile(r"(\w+)\.lora_")
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def load_base(
    config: ModelConfig, device: torch.device, seed: int
) -> tuple[PreTrainedModel, Tokenizer]:
    """Return the model in eval mode, without dropout, on `device`, and its tokenizer. Raises
    UserError if it cannot be read or trained."""
    tokenizer = load_tokenizer(config)
    model = _read_model(config, dtype_of(config, device), seed)
    largest = max(set(tokenizer.get_vocab().values()) - set(tokenizer.all_special_ids))
    rows = model.config.get_text_config().vocab_size
    if largest >= rows:
        line = f"the tokenizer of '{config.path}' has ids up to {largest} but the model {rows} rows"
        raise UserError(f"{line}; use a tokenizer that fits the model", code="tokenizer-too-large")
    if config.gradient_checkpointing:
        model.activation_checkpointing_enable({"use_reentrant": False})
    model.eval().to(device)  # pyright: ignore[reportArgumentType]
    _check_logits(model, config.path)
    return model, tokenizer


@torch.no_grad()
def _check_logits(model: PreTrainedModel, path: str) -> None:
    """Raise UserError if the model's logits are not those of `forward.py`, which applies the output
    embedding alone."""
    ids = torch.tensor([[0, 1]], device=model.device)
    hidden = model.base_model(input_ids=ids, use_cache=False).last_hidden_state
    logits = model(input_ids=ids, use_cache=False).logits
    if not torch.equal(vocabulary_head(model)(hidden), logits):
        line = f"model '{path}' scales or caps its logits, which training does not support"
        raise UserError(f"{line}; choose another model", code="capped-logits")


def end_ids(model: PreTrainedModel) -> list[int]:
    """Return the end tokens of the model's generation config, of which some models have several."""
    ends = model.generation_config.eos_token_id if model.generation_config else None
    return [ends] if isinstance(ends, int) else list(ends or ())


def load_tokenizer(config: ModelConfig) -> Tokenizer:
    """Return the tokenizer with its chat template. Raises UserError if either cannot be read."""
    if config.path == "tiny":  # AutoTokenizer would choose another class by the model's type
        tokenizer: Tokenizer = FastTokenizer.from_pretrained(TINY)
    else:
        source = find_model(config.path)
        with explain_read_errors("a tokenizer", config.path):
            tokenizer = AutoTokenizer.from_pretrained(source, **_safely(source))
    give_template(tokenizer, config)
    return tokenizer


def find_base(config: ModelConfig, seed: int, folder: Path) -> str:
    """Return the path at which other programs find the base model. The bundled one is written to
    `folder` first."""
    if config.path != "tiny":
        return find_model(config.path)
    model, tokenizer = load_base(config, torch.device("cpu"), seed)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def load_shapes(config: ModelConfig, dtype: torch.dtype) -> PreTrainedModel:
    """Return the model without numbers, on torch's meta device; reads config.json alone."""
    source = TINY if config.path == "tiny" else find_model(config.path)
    architecture = _read_config(source)
    with torch.device("meta"), explain_read_errors("a model", source):
        return AutoModelForCausalLM.from_config(architecture, dtype=dtype)


def read_pretrained(source: str | Path, config: ModelConfig, dtype: torch.dtype) -> PreTrainedModel:
    """Return a causal LM from safetensors, without running any code of the source. Raises UserError
    if weights are missing, unreadable, or of another architecture than its config, or if its
    attention is not available."""
    architecture = _read_config(source)
    if config.attention not in ATTENTIONS:
        with torch.device("meta"):
            _without_weights(copy.deepcopy(architecture), config, dtype)
    with explain_read_errors("weights", source):
        model, report = AutoModelForCausalLM.from_pretrained(  # pyright: ignore[reportGeneralTypeIssues]
            source,
            config=architecture,
            dtype=dtype,
            attn_implementation=config.attention,
            use_safetensors=True,
            output_loading_info=True,
            **_safely(source),
        )
    kinds = ("missing_keys", "unexpected_keys", "mismatched_keys")
    wrong = sorted(str(key) for kind in kinds for key in report[kind])
    if wrong:
        line = f"the weights in '{source}' do not fit its architecture, first at {wrong[0]}"
        raise UserError(f"{line}; give a complete causal language model", code="other-architecture")
    return model


def _read_model(config: ModelConfig, dtype: torch.dtype, seed: int) -> PreTrainedModel:
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    if config.path != "tiny":
        return read_pretrained(find_model(config.path), config, dtype)
    architecture = _read_config(TINY)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive_seed(seed, "init"))
        model = _without_weights(architecture, config, dtype)
    if config.weights is not None:
        file = TINY / RENAMED_WEIGHTS.get(config.weights, config.weights) / "model.safetensors"
        if not files.is_file(file):
            known = ", ".join(sorted(p.parent.name for p in TINY.glob("*/model.safetensors")))
            line = f"bundled weights '{config.weights}' do not exist; choose null or one of: "
            line += f"{known}; with init=RUN, whose weights replace them, null is enough"
            raise UserError(line, code="unknown-option")
        with explain_read_errors("weights", file):
            load_model(model, file)
    return model


def _without_weights(architecture: Any, config: ModelConfig, dtype: torch.dtype) -> PreTrainedModel:
    """Return a random model. Raises UserError if `model.attention` cannot be used."""
    options: dict[str, Any] = {"dtype": dtype, "attn_implementation": config.attention}
    try:
        return AutoModelForCausalLM.from_config(architecture, **options)
    except (ValueError, ImportError) as error:
        reason = str(error).partition(". ")[0].strip()
        line = f"model.attention '{config.attention}' cannot be used here ({reason})"
        raise UserError(f"{line}; choose sdpa or eager", code="bad-attention") from error


def _read_config(source: str | Path) -> Any:
    """Return the architecture without dropout, under which probability ratios have no meaning."""
    with explain_read_errors("a model", source):
        found = AutoConfig.from_pretrained(source, **_safely(source))
    for key, value in found.to_dict().items():
        if "drop" in key and isinstance(value, float):
            setattr(found, key, 0.0)
    return found


def _safely(source: str | Path) -> dict[str, Any]:
    """Return options that run no code of the source, and download nothing if it is a folder."""
    is_local = Path(source).exists()
    if not is_local:
        prepare_hub()
    return {"trust_remote_code": False, "local_files_only": is_local}


def dtype_of(config: ModelConfig, device: torch.device) -> torch.dtype:
    """Return the dtype of `model.dtype` on `device`.

    `auto` is bfloat16 on devices that multiply matrices of bfloat16 in hardware. The bundled
    models keep float32 on every CPU, so that their results do not depend on it."""
    if config.dtype == "auto":
        is_fast = has_bfloat16(device) and (device.type == "cuda" or config.path != "tiny")
        return torch.bfloat16 if is_fast else torch.float32
    return DTYPES[config.dtype]


def has_bfloat16(device: torch.device) -> bool:
    """Return whether a device multiplies matrices of bfloat16 in hardware. A missing GPU counts as
    one that does."""
    if device.type == "cuda":
        available = torch.cuda.is_available()
        return not available or torch.cuda.is_bf16_supported(including_emulation=False)
    return cpu_has_bfloat16()


def cpu_has_bfloat16() -> bool:
    """Return whether this CPU has instructions for matrix products in bfloat16."""
    found = torch.cpu.get_capabilities()
    return bool(found.get("avx512_bf16") or found.get("amx_bf16"))


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
    options: dict[str, Any] = {"autocast_adapter_dtype": False}  # peft would compute in float32
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # between peft and transformers
        for name in names:
            torch.manual_seed(derive_seed(seed, "init", "lora", name))
            try:
                if model is None:
                    model = get_peft_model(causal_lm(base), config, name, **options)
                else:
                    model.add_adapter(name, copy.deepcopy(config), **options)
            except ValueError as error:
                line = f"model.lora.targets {lora.targets} match no layer of this model"
                remedy = "name linear layers of the model, or all-linear"
                raise UserError(f"{line}; {remedy}", code="no-lora-target") from error
    assert model is not None
    return model.eval()


def adapter_weights(module: nn.Module, name: str) -> dict[str, nn.Parameter]:
    """Return the adapter's parameters, without its name in their keys."""
    own = re.compile(rf"(.*\blora_\w+)\.{re.escape(name)}\b(.*)")
    matches = [(own.fullmatch(key), weight) for key, weight in module.named_parameters()]
    return {"".join(match.groups()): weight for match, weight in matches if match}


def check_same_kind(folder: Path, module: PeftModel, name: str) -> None:
    """Raise UserError if the adapter in a folder is no plain LoRA, has another rank than adapter
    `name`, or is scaled differently. A folder without adapter_config.json passes."""
    file = folder / "adapter_config.json"
    if not file.is_file():
        return
    try:
        stored = files.read_json(file)
        root = math.sqrt(stored["r"]) if stored.get("use_rslora") else stored["r"]
        theirs = stored["lora_alpha"] / root
        extras = [key for key in NOT_PLAIN if stored.get(key) not in (None, False, "none", {}, [])]
        extras += [kind] if (kind := stored.get("peft_type", "LORA")) != "LORA" else []
    except (ArithmeticError, LookupError, TypeError, ValueError):
        line = f"'{file}' does not describe a LoRA adapter; give the folder of one"
        raise UserError(line, code="unreadable-weights") from None
    if extras:
        line = f"the adapter in '{folder}' has {', '.join(extras)}, which model.lora has not"
        remedy = "merge it into its base model, and give that as model.path"
        raise UserError(f"{line}; {remedy}", code="not-plain-lora")
    config = module.peft_config[name]
    assert isinstance(config, PeftLora)
    ours = config.lora_alpha / config.r
    if stored["r"] != config.r:
        line = f"the adapter in '{folder}' has rank {stored['r']}, model.lora has {config.r}"
        raise UserError(f"{line}; give model.lora.rank={stored['r']}", code="other-rank")
    if theirs != ours:
        line = f"the adapter in '{folder}' has the scale {theirs:g}, model.lora has {ours:g}"
        remedy = "give model.lora the alpha and rank of its training"
        raise UserError(f"{line}; {remedy}", code="other-scale")


def check_same_layers(folder: Path, own: Iterable[str], found: Iterable[str]) -> None:
    """Raise UserError if the adapter in a folder, with the weights `found`, is on layers of other
    names than our weights are."""
    ours, theirs = (
        {LAYER.findall(key)[0] for key in keys if LAYER.search(key)} for keys in (own, found)
    )
    if theirs and theirs != ours:
        names = ",".join(sorted(theirs))
        line = (
            f"the adapter in '{folder}' is on {names}, and model.lora on {','.join(sorted(ours))}"
        )
        raise UserError(f"{line}; give model.lora.targets=[{names}]", code="other-targets")


def adapter_sizes(base: PreTrainedModel, lora: LoraConfig) -> list[int]:
    """Return the number of elements of each tensor of one adapter on `base`."""
    with torch.device("meta"):
        adapted = with_adapters(base, lora, ["policy"], 0)
    return [weight.numel() for weight in adapter_weights(adapted, "policy").values()]
