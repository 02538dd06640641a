"""The only wiring: from a checked configuration to the objects that the loop runs on, and these to
checkpoints and back. How a part works is not known here."""

from __future__ import annotations

import copy
import ctypes
import os
import platform
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError

from agentrl_cli.algos.base import Algorithm, Context
from agentrl_cli.config.compose import as_dataclass, build
from agentrl_cli.config.settings import DataConfig, EvalConfig, ModelConfig
from agentrl_cli.core.errors import UserError, require_at_least
from agentrl_cli.core.files import is_file, read_json, write_json
from agentrl_cli.core.types import Episode, Task
from agentrl_cli.envs.base import Env
from agentrl_cli.generators.base import Generator
from agentrl_cli.models.model_set import ModelSet
from agentrl_cli.models.policy import max_positions
from agentrl_cli.rollout.chat_template import Chat
from agentrl_cli.rollout.demos import DemoReader, read_demos, read_lines
from agentrl_cli.rollout.expert_demos import EXPERT_PREFIX, expert_lines
from agentrl_cli.rollout.play import indistinguishable_tasks
from agentrl_cli.rollout.replay_buffer import ReplayBuffer
from agentrl_cli.runs.find import find_run
from agentrl_cli.training.learner import Learner
from agentrl_cli.training.memory_plan import refuse_unread_context

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from agentrl_cli.rollout.collector import Collector
    from agentrl_cli.runs.checkpoints import Checkpoint
    from agentrl_cli.runs.run import Run

M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # glibc's malloc.h; mallopt(3)
MAX_THREADS = 1024
PARAMETERS_FOR_TWO_THREADS = 300_000  # parameters from which a second torch thread pays


@dataclass(kw_only=True)
class Parts:
    """What a run is made of; `step` updates are done. `play(starts, sampling)` plays episodes of
    this run's environment, with another generator where a third argument names it, and stops the
    run where a larger share of them fails than a fourth one says. `between_steps`: an update was
    broken off."""

    collector: Collector
    models: ModelSet
    generator: Generator
    algo: Algorithm
    learner: Learner
    buffer: ReplayBuffer
    chat: Chat
    make_env: Callable[[], Env]
    eval: EvalConfig
    play: Callable[..., list[Episode]]
    seed: int
    context: Context
    step: int = 0
    between_steps: bool = False

    def save(self, run: Run, *, planned: bool = True) -> None:
        """Write a complete checkpoint of now; one that is not planned lasts until the next."""
        with run.checkpoint(self.step, planned=planned) as folder:
            try:
                self.models.save(folder / "models")
                self.learner.save(folder / "optimizer")
            except SafetensorError as error:  # which also a full disk raises
                raise OSError(str(error)) from error
            state = {"algo": self.algo.state(), "buffer": self.buffer.state()}
            write_json(folder / "state.json", state)

    def restore(self, checkpoint: Checkpoint) -> None:
        """Inverse of `save`. Raises UserError where the checkpoint is not one of these parts."""
        folder = checkpoint.folder
        self.restore_models(folder)
        self.learner.load(folder / "optimizer")
        with _explain_foreign_state(folder):
            self.buffer.load(_read_state(folder)["buffer"])
        self.step = checkpoint.step

    def restore_models(self, folder: Path) -> None:
        """The models of a checkpoint and what the algorithm saved, which is all that playing
        needs; nothing is written."""
        self.models.load(folder / "models")
        with _explain_foreign_state(folder):
            self.algo.load(_read_state(folder)["algo"])


@contextmanager
def _explain_foreign_state(folder: Path) -> Iterator[None]:
    """Raise UserError where what a checkpoint holds is not what its reader wrote."""
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        line = f"'{folder / 'state.json'}' is not of this algorithm ({error!r})"
        raise UserError(f"{line}; resume from another checkpoint") from error


def _read_state(folder: Path) -> dict[str, Any]:
    """`algo` and `buffer` of a checkpoint's state.json."""
    state = read_json(folder / "state.json")
    if state.keys() != {"algo", "buffer"}:
        raise UserError(f"'{folder}' is not a checkpoint of a run; name one that a run wrote")
    return state


def assemble(
    cfg: DictConfig, folder: Path | None, *, learns: bool = True, restored: bool = False
) -> Parts:
    """Build every part; `folder` is the run's, None where nothing may be written. What only plays
    (`learns` false) reads no demonstrations; what is `restored` from a checkpoint afterwards reads
    no `init`, which may be gone by then."""
    env: Env = build(cfg.env)
    algo: Algorithm = build(cfg.algo)
    models = _load_models(cfg, algo, None if restored else cfg.init)
    chat = Chat(models.tokenizer)
    chat.check(env.tools)
    generator: Generator = build(cfg.hardware.generator, models=models)
    learner = Learner(
        models, algo.models(), tokens_per_batch=cfg.hardware.tokens_per_batch, seed=cfg.seed,
        publish=lambda name: generator.load(name, models.version(name)),
        mixed_precision=cfg.hardware.get("mixed_precision"),
    )  # fmt: skip
    collector: Collector = build(cfg.rollout)
    make_env = partial(copy.copy, env)
    collector.bind(
        make_env=make_env, chat=chat, generator=generator, seed=cfg.seed,
        policy_version=partial(models.version, "policy"),
    )  # fmt: skip
    context = _context(cfg, env, models, collector)
    context.demos = load_demonstrations(cfg, algo, env, chat) if learns else []
    algo.bind(context)
    file = folder / "buffer.jsonl" if folder and algo.replay_capacity else None
    parts = Parts(
        collector=collector, models=models, generator=generator, algo=algo, learner=learner,
        buffer=ReplayBuffer(file, max(1, algo.replay_capacity)), chat=chat, make_env=make_env,
        eval=as_dataclass(cfg.eval, EvalConfig), play=collector.play, seed=cfg.seed,
        context=context,
    )  # fmt: skip
    check_settings(cfg, parts)
    return parts


def _load_models(cfg: DictConfig, algo: Algorithm, init: str | None) -> ModelSet:
    """The algorithm's models with their initial weights, and the process set up to compute them."""
    device = pick_device(cfg.hardware.device)
    models = ModelSet(as_dataclass(cfg.model, ModelConfig), algo.models(), device, cfg.seed)
    load_initial_weights(models, init, Path(cfg.runs))
    set_threads(cfg.hardware.threads, models)
    if device.type == "cpu":
        keep_freed_memory()
    return models


def _context(cfg: DictConfig, env: Env, models: ModelSet, collector: Collector) -> Context:
    """What the algorithm is given, demonstrations apart."""

    def indistinguishable(episode: Episode, turn: int) -> list[Task]:
        tasks = env.tasks(episode.task.split)
        return indistinguishable_tasks(episode, turn, tasks, collector.make_env)

    return Context(
        chat=collector.chat, models=models, generator=collector.generator,
        sampling=collector.sampling, seed=cfg.seed, turn_delimiter=env.turn_delimiter,
        probe=lambda starts: collector.play(starts, collector.sampling),
        indistinguishable_tasks=indistinguishable,
    )  # fmt: skip


def check_settings(cfg: DictConfig, parts: Parts) -> None:
    """Raise UserError for sizes and splits with which nothing could be done."""
    max_context = parts.collector.max_context
    require_at_least(1, tokens_per_batch=cfg.hardware.tokens_per_batch)
    if parts.algo.plays:
        require_at_least(1, episodes_per_step=parts.collector.count(parts.algo.group_size))
    refuse_unread_context(cfg, max_positions(parts.models.module("policy")))
    parts.generator.check_context(max_context)
    for split in parts.eval.splits:
        if not parts.make_env().tasks(split):
            raise UserError(f"eval.splits names '{split}', which has no tasks; name another")


def load_demonstrations(cfg: DictConfig, algo: Algorithm, env: Env, chat: Chat) -> list[Episode]:
    """What `data.demos` names. Raises UserError where the algorithm needs demonstrations and there
    are none, or reads none and there are."""
    name, data = cfg.choices.algo, as_dataclass(cfg.data, DataConfig)
    if data.demos is None:
        if algo.demo_use == "must":
            remedy = "give data.demos=expert:128, or data.demos=FILE (agentrl demos writes one)"
            raise UserError(f"algo '{name}' learns from demonstrations; {remedy}")
        return []
    if algo.demo_use == "never":
        remedy = "leave data.demos out, or start from an SFT on them with init=RUN"
        raise UserError(f"algo '{name}' reads no demonstrations; {remedy}")
    reader, source = DemoReader(env, chat, cfg.rollout.max_context), data.demos
    of_expert = source.startswith(EXPERT_PREFIX)
    lines = expert_lines(source, env) if of_expert else read_lines(Path(source))
    return read_demos(source, lines, reader, skip_bad=data.skip_bad)


def pick_device(name: str) -> torch.device:
    """The device of that name. Raises UserError where this machine has none."""
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise UserError("hardware 'gpu' needs a CUDA device and none was found; use hardware=cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        device = None
    if device is None or device.type not in ("cpu", "cuda"):
        raise UserError(f"hardware.device '{name}' is unknown; use cpu or cuda")
    return device


def set_threads(threads: int | None, models: ModelSet) -> None:
    """Fix the number of torch threads: as given, else 1 for a very small model, else all cores,
    at most 8. UserError for a number that cannot be."""
    require_at_least(1, threads=1 if threads is None else threads)
    size = sum(weight.numel() for weight in models.module("policy").parameters())
    chosen = threads or (1 if size < PARAMETERS_FOR_TWO_THREADS else min(8, os.cpu_count() or 1))
    if chosen > MAX_THREADS:  # OpenMP ends a process that cannot have them
        raise UserError(f"hardware.threads is {chosen}; give at most {MAX_THREADS}")
    torch.set_num_threads(chosen)


def load_initial_weights(models: ModelSet, init: str | None, runs: Path) -> None:
    """Start the policy (and what follows it) from the checkpoint that `init` names, if any."""
    if init is None:
        return
    folder = Path(init)
    names = ("config.json", "adapter_config.json")
    if not any(is_file(folder / name) for name in names):
        part = "models/policy/"
        folder = find_run(init, runs).whole_checkpoint(part).folder / part
    models.load_weights("policy", folder)


def keep_freed_memory() -> None:
    """Never give freed memory back to the system and never map a buffer by itself; where the C
    library is not glibc, nothing. Otherwise every large tensor on the CPU is made of fresh pages,
    which the system clears first: 300,000 to 700,000 page faults, 7 % of an update's time, for a
    model of Qwen2.5-0.5B's layers (docs/log/2026-11-22.md). The process keeps its peak size."""
    if platform.libc_ver()[0] != "glibc":
        return
    mallopt = ctypes.CDLL(None).mallopt
    mallopt(M_TRIM_THRESHOLD, -1)
    mallopt(M_MMAP_MAX, 0)
