"""`agentrl export`: write the policy of a run as a plain Hugging Face model, or its last evaluation
as a log for Inspect (inspect_ai).

Adapters are merged; heads, critics and everything else that only training needs are left out. A log
has version 2 of the format of Inspect's EvalLog and is written without its package. Each episode is
a sample with messages, reward, success and the texts of a critic.
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
from typing import TYPE_CHECKING, Any

from agentrl_cli import __version__
from agentrl_cli.config.compose import as_dataclass, check, compose, load
from agentrl_cli.config.settings import ModelConfig
from agentrl_cli.core import files
from agentrl_cli.core.errors import UserError
from agentrl_cli.core.statistics import mean
from agentrl_cli.core.types import Episode
from agentrl_cli.report.records import read_record
from agentrl_cli.runs import episode_files
from agentrl_cli.runs.checkpoints import played_checkpoint
from agentrl_cli.runs.find import find_run
from agentrl_cli.runs.run import Run, step_of

if TYPE_CHECKING:
    from peft import PeftModel
    from transformers import PreTrainedModel

UNUSED = ("algo", "env", "eval", "logger", "rollout")
TOLERANCE = 1e-3  # of a logit, merged against adapted, in float32
LOG_VERSION = 2
STOPS = {"done": "stop", "context": "model_length"}  # as Inspect names them
Json = dict[str, Any]


def export(ref: str, target: Path) -> tuple[Run, int]:
    """Write the policy to `target` with the dtype of its training. Returns the run and the step.

    Raises UserError for an unknown run, a `target` that is not empty or cannot be written, and an
    adapter that cannot be merged. `target` is unchanged then.
    """
    run = find_run(ref)
    checkpoint = played_checkpoint(run, "models/policy/")
    cfg = check(load(run.config_file, []), skip=UNUSED)
    config = as_dataclass(cfg.model, ModelConfig)

    import torch  # after everything that can be refused without it
    from peft import PeftModel
    from safetensors import SafetensorError

    from agentrl_cli.models.load import dtype_of
    from agentrl_cli.models.model_set import ModelSet
    from agentrl_cli.models.specs import ModelSpec

    with _new_folder(target.resolve()) as folder:
        specs = {"policy": ModelSpec(kind="trained", generates=True)}
        models = ModelSet(replace(config, dtype="float32"), specs, "cpu", cfg.seed)
        models.load_weights("policy", checkpoint.folder / "models" / "policy")
        module: Any = models.module("policy")
        plain = _merged(module) if isinstance(module, PeftModel) else module
        plain.to(dtype_of(config, torch.device(cfg.hardware.device)))  # pyright: ignore
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
