"""`agentrl export`: write the policy of a run as a plain Hugging Face model, or its last evaluation
as a log for Inspect (inspect_ai).

Adapters are merged unless `--adapter` is given; heads, critics and everything else that only
training needs are left out. `--push` uploads the folder to the Hugging Face Hub.

A log has version 2 of the format of Inspect's EvalLog and is written without its package. Each
episode is a sample with messages, reward, success and the texts of a critic.
"""

from __future__ import annotations

import re
import shutil
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig

from agentrl_cli import __version__
from agentrl_cli.config.compose import as_dataclass, check, compose, load
from agentrl_cli.config.settings import ModelConfig
from agentrl_cli.core import files
from agentrl_cli.core.errors import UserError
from agentrl_cli.core.hub import hub_answers
from agentrl_cli.core.statistics import mean
from agentrl_cli.core.types import Episode
from agentrl_cli.models.fetch import PACKAGES, find_model
from agentrl_cli.report.records import read_record
from agentrl_cli.report.summary import result_table
from agentrl_cli.runs import episode_files
from agentrl_cli.runs.checkpoints import played_checkpoint
from agentrl_cli.runs.find import find_run
from agentrl_cli.runs.run import Run, step_of

if TYPE_CHECKING:
    import torch
    from peft import PeftModel
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from agentrl_cli.models.model_set import ModelSet
    from agentrl_cli.runs.checkpoints import Checkpoint

UNUSED = ("algo", "env", "eval", "logger", "rollout")
TOLERANCE = 1e-3  # of a logit, merged against adapted, in float32
LOG_VERSION = 2
STOPS = {"done": "stop", "context": "model_length"}  # as Inspect names them
Json = dict[str, Any]


def export(ref: str, target: Path, *, adapter: bool = False) -> tuple[Run, int]:
    """Write the policy to `target` with the dtype of `model.dtype`, and a model card. With
    `adapter` write its LoRA adapter alone, for PEFT. Returns the run and the step.

    Raises UserError for an unknown run, a `target` that is not empty or cannot be written, a run
    without an adapter, and an adapter that cannot be merged. `target` is unchanged then.
    """
    run = find_run(ref)
    checkpoint, cfg = _stored_policy(run)
    if adapter and cfg.model.lora is None:
        line = f"run '{run.name}' trained all weights and has no adapter"
        raise UserError(f"{line}; leave --adapter out", code="no-adapter")

    from safetensors import SafetensorError  # after everything that can be refused without it

    with _new_folder(target.resolve()) as folder:
        models = _load_models(checkpoint, cfg)
        try:
            if adapter:
                module: Any = models.module("policy")
                _save_adapter(module, find_model(cfg.model.path), folder)
            else:
                _plain_policy(models, cfg).save_pretrained(folder)
        except SafetensorError as error:  # of a full disk
            raise OSError(str(error)) from error
        models.tokenizer.save_pretrained(folder)
        (folder / "README.md").write_text(model_card(run, cfg, checkpoint.step, adapter=adapter))
    return run, checkpoint.step


def push(folder: Path, repo: str, *, private: bool = False) -> str:
    """Upload an exported model to the Hugging Face Hub and return its address. `repo` is created if
    it does not exist; with `private` it must not be a public one.

    Raises UserError for a name other than owner/name, without a token, if the hub gives no answer,
    and if it refuses. `folder` is unchanged.
    """
    from huggingface_hub import HfApi, constants, get_token
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    def error(reason: str, name: str, code: str) -> UserError:
        command = f"hf upload {quote(name)} {quote(str(folder))}{' --private' * private}"
        return UserError(f"{reason}; the model is in '{folder}', upload it: {command}", code=code)

    try:
        validate_repo_id(repo)
        if "/" not in repo:
            raise HFValidationError
    except HFValidationError:
        reason = f"'{repo}' is not the name of a repository, owner/name"
        raise error(reason, "OWNER/NAME", "bad-repository") from None
    if get_token() is None:
        reason = "there is no token for the Hugging Face Hub: type hf auth login, or set HF_TOKEN"
        raise error(reason, repo, "no-token")
    if not hub_answers():
        reason = f"no answer from {constants.ENDPOINT}"
        reason = "HF_HUB_OFFLINE is set" if constants.HF_HUB_OFFLINE else reason
        raise error(reason, repo, "no-hub")
    hub = HfApi()
    try:
        address = str(hub.create_repo(repo, private=private or None, exist_ok=True))
        is_public = private and not hub.model_info(repo).private
        if not is_public:
            hub.upload_folder(repo_id=repo, folder_path=folder, commit_message="Upload model")
    except Exception as refusal:  # the hub, the network and Xet have no common error type
        text = getattr(refusal, "server_message", None) or str(refusal) or type(refusal).__name__
        reason = text.splitlines()[0][:200].rstrip(".")
        raise error(f"cannot upload to '{repo}' ({reason})", repo, "not-uploaded") from refusal
    if is_public:
        raise error(f"'{repo}' exists and is public", "OWNER/NAME", "public-repository")
    return address


def load_policy(ref: str) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Return the policy that `export` writes, as a model of Transformers on the CPU, and its
    tokenizer.

    Raises UserError for an unknown run and an adapter that cannot be merged.
    """
    checkpoint, cfg = _stored_policy(find_run(ref))
    models = _load_models(checkpoint, cfg)
    return _plain_policy(models, cfg).eval(), models.tokenizer


def _stored_policy(run: Run) -> tuple[Checkpoint, DictConfig]:
    """Return the checkpoint that represents the run, and what the policy needs of its
    configuration."""
    checkpoint = played_checkpoint(run, "models/policy/")
    return checkpoint, check(load(run.config_file, []), skip=UNUSED)


def _load_models(checkpoint: Checkpoint, cfg: DictConfig) -> ModelSet:
    """Return the policy of a checkpoint alone, in float32 on the CPU."""
    from agentrl_cli.models.model_set import ModelSet
    from agentrl_cli.models.specs import ModelSpec

    config = replace(as_dataclass(cfg.model, ModelConfig), dtype="float32")
    specs = {"policy": ModelSpec(kind="trained", generates=True)}
    models = ModelSet(config, specs, "cpu", cfg.seed)
    models.load_weights("policy", checkpoint.folder / "models" / "policy")
    return models


def _plain_policy(models: ModelSet, cfg: DictConfig) -> PreTrainedModel:
    """Return the policy with the dtype of `model.dtype` on this machine, adapters merged."""
    import torch
    from peft import PeftModel

    from agentrl_cli.models.load import dtype_of

    module: Any = models.module("policy")
    plain = _merged(module) if isinstance(module, PeftModel) else module
    config = as_dataclass(cfg.model, ModelConfig)
    to_dtype(plain, dtype_of(config, torch.device(cfg.hardware.device)))
    return plain


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


def _merged(module: PeftModel) -> PreTrainedModel:
    """Return the base with its adapter merged into the weights.

    Raises UserError if logits change: in a layer with shared weights both layers would change.
    """
    import torch

    ids = torch.tensor([[0, 1]])
    with torch.no_grad(), warnings.catch_warnings():
        adapted = module(input_ids=ids).logits
        warnings.simplefilter("ignore", UserWarning)
        merged = module.merge_and_unload()
        gap = float((merged(input_ids=ids).logits - adapted).abs().max())
    if not gap <= TOLERANCE:
        line = f"the adapter cannot be merged: logits differ by {gap:.2g}; train again without"
        line += " layers with shared weights, such as lm_head, in model.lora.targets"
        raise UserError(line, code="not-mergeable")
    return merged


def to_dtype(model: torch.nn.Module, dtype: torch.dtype) -> None:
    """Round the weights to `dtype`; in bfloat16 at random, which keeps small changes."""
    import torch

    from agentrl_cli.generators.hf import round_at_random, rounding_noise

    random = torch.Generator().manual_seed(0)
    if dtype == torch.bfloat16:
        for weight in model.parameters():
            weight.data = round_at_random(weight.data, rounding_noise(weight.shape, random))
    model.to(dtype)  # pyright: ignore


def _save_adapter(module: PeftModel, base: str, folder: Path) -> None:
    """Write the policy's adapter as PEFT reads it."""
    from peft import get_peft_model_state_dict
    from safetensors.torch import save_file

    settings = module.peft_config["policy"]
    settings.base_model_name_or_path = base
    settings.inference_mode = True
    settings.save_pretrained(str(folder))
    weights = get_peft_model_state_dict(module, adapter_name="policy")
    found = {key: weight.contiguous() for key, weight in weights.items()}
    save_file(found, folder / "adapter_model.safetensors", metadata={"format": "pt"})


def model_card(run: Run, cfg: DictConfig, step: int, *, adapter: bool) -> str:
    """Return the model card: what was trained from what, by which command, on which data, and the
    results of the run."""
    base, known = cfg.model.path, PACKAGES.get(cfg.model.path)
    what = "A LoRA adapter of" if adapter else "A model trained from"
    title, license_ = (known.title, known.license) if known else (base, None)
    algo, env = (run.meta["choices"][group] for group in ("algo", "env"))
    front = ["library_name: " + ("peft" if adapter else "transformers"), "tags: [agentrl]"]
    front += [f"license: {license_.lower()}"] if license_ else []
    terms = f"the licence of {title}, {license_}" if license_ else f"the licence of {title}"
    start = "".join(f" It started from {line}." for line in _lineage(cfg.init, cfg.runs))
    demos = f" It learned from the demonstrations `{cfg.data.demos}`." if cfg.data.demos else ""
    temperature = load(run.config_file, []).eval.temperature
    results = "\n".join(result_table(run)) or "The run has no evaluation."
    return f"""---
{chr(10).join(front)}
---
# {run.name}

{what} {title}, after {step} updates of `{algo}` on the train tasks of `{env}`.{start}{demos}
It is under {terms}.

```console
{run.meta.get("command", "")}
```

Success on tasks of the named splits, sampled at temperature {temperature:g} unless greedy, with
95 % intervals:

```text
{results}
```

Trained with agentrl {__version__}.
"""


def _lineage(init: str | None, runs: str) -> Iterator[str]:
    """Yield the run or folder from which a run started, and from which that one started, and so on,
    each with its algorithm and data."""
    while init:
        try:
            run = find_run(init, Path(runs))
            cfg = load(run.config_file, [])
        except UserError:  # a folder with weights, or a run that is gone
            yield f"`{init}`"
            return
        learned = f", which learned from `{demos}`" if (demos := cfg.data.demos) else ""
        yield f"`{run.name}`, a run of `{run.meta['choices']['algo']}`{learned}"
        init, runs = cfg.init, cfg.runs


def export_inspect(ref: str, folder: Path) -> tuple[Path, int]:
    """Write the last evaluation of a run as a log. Returns its file and the number of samples.

    Raises UserError for an unknown run, a run without an evaluation, and a file that exists or
    cannot be written.
    """
    run = find_run(ref)
    found = run.episode_files("eval")
    if not found:
        line = f"run '{run.name}' has no evaluation yet; wait for its first one"
        raise UserError(line, code="no-evaluation")
    record = read_record(run)
    kept = record.final_step if record.config.get("save_best") else None
    source = next((file for file in found if step_of(file) == kept), found[-1])
    episodes, step = episode_files.read_all(source), step_of(source)
    parts = (run.meta["created"][:19], run.meta.get("choices", {}).get("env"), run.name)
    name = "_".join(re.sub(r"[^A-Za-z0-9]+", "-", str(part)) for part in parts)
    file = folder / f"{name}-{step}.json"
    if files.is_file(file):
        raise UserError(f"'{file}' exists; give another folder", code="exists")
    with files.explain_write_errors(folder, "give another folder"):
        folder.mkdir(parents=True, exist_ok=True)
        files.write_json(file, _eval_log(run, step, episodes))
    return file, len(episodes)


def _eval_log(run: Run, step: int, episodes: list[Episode]) -> Json:
    choices, model, count = run.meta.get("choices", {}), f"agentrl/{run.name}", len(episodes)
    history, created = run.meta["history"], run.meta["created"]
    means = {name: mean(getattr(e, name) for e in episodes) for name in ("success", "reward")}
    seen: Counter[str] = Counter()
    return {
        "version": LOG_VERSION,
        "status": "success",
        "eval": {
            "run_id": run.name, "created": created, "task": str(choices.get("env")),
            "model": model, "task_id": f"{run.name}-step-{step}",
            "dataset": {"name": str(choices.get("env"))},
            "config": {"epochs": max(Counter(e.task.id for e in episodes).values(), default=1)},
            "packages": {"agentrl-cli": __version__},
            "metadata": {"step": step, "command": run.meta.get("command"), "choices": choices},
        },
        "plan": {},
        "results": {
            "total_samples": count, "completed_samples": count,
            "scores": [
                {"name": name, "scorer": name, "metrics": {"mean": {"name": "mean", "value": x}}}
                for name, x in means.items()
            ],
        },
        "stats": {
            "started_at": created,
            "completed_at": history[-1].get("time", created) if history else created,
        },
        "samples": [_sample(episode, model, seen) for episode in episodes],
    }  # fmt: skip


def _sample(episode: Episode, model: str, seen: Counter[str]) -> Json:
    """Return an episode as a sample; episodes of one task are its epochs, counted in `seen`."""
    seen[episode.task.id] += 1
    messages: list[Json] = []
    for turn in episode.turns:
        messages += [{"role": m.role, "content": m.content} for m in turn.observation]
        messages.append({"role": "assistant", "content": turn.action, "source": "generate"})
    last, begin = messages[-1:], 0  # of the task, after an example
    for i, message in enumerate(messages):
        if message["role"] == "assistant" and "source" not in message:
            begin = i + 1
    messages += [{"role": m.role, "content": m.content} for m in episode.final_observation]
    stop = STOPS.get(episode.stop, "unknown")
    error = {"message": episode.error, "traceback": "", "traceback_ansi": ""}
    return {
        "id": episode.task.id, "epoch": seen[episode.task.id],
        "input": next((m["content"] for m in messages[begin:] if m["role"] == "user"), ""),
        "target": "", "messages": messages,
        "output": {"model": model, "choices": [{"message": m, "stop_reason": stop} for m in last]},
        "scores": {
            "success": {"value": "C" if episode.success else "I"},
            "reward": {"value": float(episode.reward)},
        },
        "metadata": {
            "episode": episode.id, "seed": episode.seed, "stop": episode.stop,
            "turns": [{"reward": turn.reward, **turn.info} for turn in episode.turns],
        },
        "total_time": episode.seconds,
        **({"error": error} if episode.error else {}),
    }  # fmt: skip
