"""`agentrl export`: write the policy of a run as a plain Hugging Face model.

Adapters are merged. Heads, critics and everything else that only training needs are left out.
"""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import torch
from peft import PeftModel
from safetensors import SafetensorError
from transformers import PreTrainedModel

from agentrl_cli.config.compose import as_dataclass, check, compose, load
from agentrl_cli.config.settings import ModelConfig
from agentrl_cli.core import files
from agentrl_cli.core.errors import UserError
from agentrl_cli.models.load import dtype_of
from agentrl_cli.models.model_set import ModelSet
from agentrl_cli.models.specs import ModelSpec
from agentrl_cli.runs.checkpoints import played_checkpoint
from agentrl_cli.runs.find import find_run
from agentrl_cli.runs.run import Run

UNUSED = ("algo", "env", "eval", "logger", "rollout")
TOLERANCE = 1e-3  # of a logit, merged against adapted, in float32


def export(ref: str, target: Path) -> tuple[Run, int]:
    """Write the policy to `target` with the dtype of its training. Returns the run and the step.

    Raises UserError for an unknown run, a `target` that is not empty or cannot be written, and an
    adapter that cannot be merged. `target` is unchanged then.
    """
    run = find_run(ref)
    checkpoint = played_checkpoint(run, "models/policy/")
    cfg = check(load(run.config_file, []), skip=UNUSED)
    config = as_dataclass(cfg.model, ModelConfig)
    with _new_folder(target.resolve()) as folder:
        specs = {"policy": ModelSpec(kind="trained", generates=True)}
        models = ModelSet(replace(config, dtype="float32"), specs, "cpu", cfg.seed)
        models.load_weights("policy", checkpoint.folder / "models" / "policy")
        module = models.module("policy")
        plain = _merged(module) if isinstance(module, PeftModel) else module
        plain.to(dtype_of(config.dtype, torch.device(cfg.hardware.device)))  # pyright: ignore[reportArgumentType]
        try:
            plain.save_pretrained(folder)
        except SafetensorError as error:  # of a full disk
            raise OSError(str(error)) from error
        models.tokenizer.save_pretrained(folder)
    return run, checkpoint.step


def evaluable_context(folder: Path) -> int | None:
    """Return the maximum sequence length of an exported model if that of `model=hf` is longer."""
    positions = files.read_json(folder / "config.json").get("max_position_embeddings")
    usual = compose(["model=hf"]).rollout.max_seq_len
    return positions if isinstance(positions, int) and positions < usual else None


@contextmanager
def _new_folder(target: Path) -> Iterator[Path]:
    """Yield a temporary folder, which is moved to `target` if no error is raised."""
    partial = target.with_name(f".{target.name}.partial")
    with files.explain_write_errors(target, "give another folder"):
        if target.exists() and not (target.is_dir() and not any(target.iterdir())):
            line = f"'{target}' exists and is not an empty folder; give a new one"
            raise UserError(line, code="exists")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        try:
            yield partial
            partial.rename(target)
        finally:
            shutil.rmtree(partial, ignore_errors=True)


@torch.no_grad()
def _merged(module: PeftModel) -> PreTrainedModel:
    """Return the base with its adapter merged into the weights.

    Raises UserError if logits change: in a layer with shared weights both layers would change.
    """
    ids = torch.tensor([[0, 1]])
    adapted = module(input_ids=ids).logits
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        merged = module.merge_and_unload()
    gap = float((merged(input_ids=ids).logits - adapted).abs().max())
    if not gap <= TOLERANCE:
        raise UserError(
            f"the adapter cannot be merged: logits differ by {gap:.2g}; train again without layers"
            " with shared weights, such as lm_head, in model.lora.targets",
            code="not-mergeable",
        )
    return merged
