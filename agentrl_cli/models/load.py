"""Bring one base model and its tokenizer into memory: the embedded one, a folder, or a Hugging Face
name."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel
from transformers import PreTrainedTokenizerBase as Tokenizer
from transformers import PreTrainedTokenizerFast as FastTokenizer
from transformers.utils import logging

from agentrl_cli.config.settings import ModelConfig
from agentrl_cli.core import files
from agentrl_cli.core.errors import UserError
from agentrl_cli.core.types import derive_seed
from agentrl_cli.models.policy import vocabulary_head
from agentrl_cli.models.template import give_template

TINY = Path(__file__).parent / "tiny"
RENAMED_WEIGHTS = {"math": "arithmetic"}  # old runs name them so, and env=math uses them, too
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
UNREADABLE = (
    ArithmeticError, AttributeError, ImportError, LookupError, OSError, RuntimeError, TypeError,
    ValueError, SafetensorError, StrictDataclassError,
)  # fmt: skip


def load_base(
    config: ModelConfig, device: torch.device, seed: int
) -> tuple[PreTrainedModel, Tokenizer]:
    """The model in eval mode, dropout off, on `device`, and its tokenizer. Raises UserError where
    it cannot be read."""
    tokenizer = load_tokenizer(config)
    model = _read_model(config, dtype_of(config.dtype, device), seed)
    _check_vocabulary(tokenizer, model, config.path)
    if config.gradient_checkpointing:
        model.activation_checkpointing_enable({"use_reentrant": False})
    model.eval().to(device)  # pyright: ignore[reportArgumentType]
    _check_logits(model, config.path)
    return model, tokenizer


def load_tokenizer(config: ModelConfig) -> Tokenizer:
    """The tokenizer with its chat template, for what needs no weights. Raises UserError where it
    cannot be read or has no template."""
    tokenizer = _read_tokenizer(config)
    give_template(tokenizer, config)
    return tokenizer


def find_base(config: ModelConfig, seed: int, folder: Path) -> str:
    """Where another program finds the base model: at its own path, or, for the embedded one, in
    `folder`, to which it is written with its tokenizer."""
    if config.path != "tiny":
        return config.path
    model, tokenizer = load_base(config, torch.device("cpu"), seed)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def load_shapes(config: ModelConfig, dtype: torch.dtype) -> PreTrainedModel:
    """The model on torch's meta device, which holds shapes and no numbers: its config.json alone is
    read. Raises UserError where it cannot be."""
    source = TINY if config.path == "tiny" else config.path
    if config.path != "tiny":
        _refuse_missing_folder(config.path)
    architecture = _read_config(source)
    with torch.device("meta"), _explained("a model", source):
        return AutoModelForCausalLM.from_config(architecture, dtype=dtype)


def read_pretrained(
    source: str | Path, config: ModelConfig, dtype: torch.dtype, architecture: Any = None
) -> PreTrainedModel:
    """A causal LM from safetensors, nothing unpickled, no code run. Raises UserError where weights
    are missing, unreadable, or of another architecture than the source's config (or than
    `architecture`)."""
    settings = architecture if architecture is not None else _read_config(source)
    with _explained("weights", source):
        model, report = AutoModelForCausalLM.from_pretrained(  # pyright: ignore[reportGeneralTypeIssues]
            source,
            config=_without_dropout(settings),
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
        raise UserError(f"{line}; give a complete causal language model")
    return model


def _read_model(config: ModelConfig, dtype: torch.dtype, seed: int) -> PreTrainedModel:
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    if config.path != "tiny":
        _refuse_missing_folder(config.path)
        return read_pretrained(config.path, config, dtype)
    architecture = _without_dropout(_read_config(TINY))
    options: dict[str, Any] = {"dtype": dtype, "attn_implementation": config.attention}
    with torch.random.fork_rng():
        torch.manual_seed(derive_seed(seed, "init"))
        try:
            model = AutoModelForCausalLM.from_config(architecture, **options)
        except (ValueError, ImportError) as error:
            line = f"model.attention '{config.attention}' cannot be used here"
            raise UserError(f"{line}; choose sdpa or eager") from error
    if config.weights is not None:
        name = RENAMED_WEIGHTS.get(config.weights, config.weights)
        _refuse_unknown_weights(name)
        _read_embedded(model, TINY / name / "model.safetensors")
    return model


@torch.no_grad()
def _read_embedded(model: PreTrainedModel, file: Path) -> None:
    """Copy an embedded weight file into `model`. UserError where it is damaged or foreign."""
    own = dict(model.named_parameters())
    try:
        found = load_file(file)
    except (OSError, SafetensorError) as error:
        raise _refusal("weights", file, error) from error
    if {k: w.shape for k, w in own.items()} != {k: w.shape for k, w in found.items()}:
        raise UserError(f"'{file}' is of another model; build the embedded weights again")
    for key, weight in own.items():
        weight.copy_(found[key])


def _read_tokenizer(config: ModelConfig) -> Tokenizer:
    if config.path == "tiny":  # as written; by the model's type another class would be chosen
        return FastTokenizer.from_pretrained(TINY)
    _refuse_missing_folder(config.path)
    with _explained("a tokenizer", config.path):
        return AutoTokenizer.from_pretrained(config.path, **_safely(config.path))


def _read_config(source: str | Path) -> Any:
    with _explained("a model", source):
        return AutoConfig.from_pretrained(source, **_safely(source))


@contextmanager
def _explained(what: str, source: str | Path) -> Iterator[None]:
    """Raise UserError for whatever a library raises that reads a foreign folder inside."""
    try:
        yield
    except UNREADABLE as error:
        raise _refusal(what, source, error) from error
    except Exception as error:
        if type(error) is not Exception:  # the only class that tokenizers raises
            raise
        raise _refusal(what, source, error) from error


def _safely(source: str | Path) -> dict[str, Any]:
    """How to read a source: no code of it is run, and nothing is fetched where it is a folder."""
    return {"trust_remote_code": False, "local_files_only": Path(source).exists()}


def _without_dropout(settings: Any) -> Any:
    """Ratios of sampled and trained log-probs have no meaning under dropout, whichever key a model
    gives it."""
    for key, value in settings.to_dict().items():
        if "drop" in key and isinstance(value, float):
            setattr(settings, key, 0.0)
    return settings


def dtype_of(name: str, device: torch.device) -> torch.dtype:
    """What `model.dtype` means on `device`. Raises UserError for an unknown name."""
    if name == "auto":
        return torch.bfloat16 if device.type == "cuda" else torch.float32
    if name not in DTYPES:
        raise UserError(f"model.dtype '{name}' is unknown; choose auto, float32 or bfloat16")
    return DTYPES[name]


def _refuse_missing_folder(path: str) -> None:
    looks_local = path.startswith((".", "/", "~")) or path.count("/") > 1
    if looks_local and not files.is_folder(Path(path)):
        remedy = "give a folder, a Hugging Face name, or tiny"
        raise UserError(f"model folder '{path}' does not exist; {remedy}")


def _refuse_unknown_weights(name: str) -> None:
    if not files.is_file(TINY / name / "model.safetensors"):
        known = sorted(p.parent.name for p in TINY.glob("*/model.safetensors")) or ["none yet"]
        remedy = f"choose null or one of: {', '.join(known)}"
        raise UserError(f"embedded weights '{name}' do not exist; {remedy}")


def _check_vocabulary(tokenizer: Tokenizer, model: PreTrainedModel, path: str) -> None:
    """Ids that the embedding lacks would crash in the middle of a run; special tokens that no
    template writes may be without a row."""
    special = set(tokenizer.all_special_ids)
    largest = max(set(tokenizer.get_vocab().values()) - special)
    rows = model.config.get_text_config().vocab_size
    if largest >= rows:
        both = f"has ids up to {largest} but its model has only {rows} embeddings"
        remedy = "use a model and a tokenizer that belong together"
        raise UserError(f"the tokenizer of '{path}' {both}; {remedy}")


@torch.no_grad()
def _check_logits(model: PreTrainedModel, path: str) -> None:
    """`policy.forward` applies the output embedding by itself, which some models follow with a
    scale or a cap."""
    ids = torch.tensor([[0, 1]], device=model.device)
    hidden = model.base_model(input_ids=ids, use_cache=False).last_hidden_state
    logits = model(input_ids=ids, use_cache=False).logits
    if not torch.equal(vocabulary_head(model)(hidden), logits):
        line = f"model '{path}' scales or caps its logits, which training does not reproduce"
        raise UserError(f"{line}; choose another model")


def _refusal(what: str, source: str | Path, error: BaseException) -> UserError:
    text = str(error).strip() or type(error).__name__
    reason = text.splitlines()[0].split(". ")[0].rstrip(".")
    remedy = "give tiny, a folder with safetensors, or a model that can be downloaded"
    return UserError(f"cannot read {what} from '{source}' ({reason}); {remedy}")
