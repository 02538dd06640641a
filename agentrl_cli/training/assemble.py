"""The only wiring: from a checked configuration to the objects that the loop runs on, and these to
checkpoints and back. How a part works is not known here."""

from __future__ import annotations

import copy
import ctypes
import hashlib
import json
import os
import platform
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError

from agentrl_cli.algos.base import Algorithm, Context
from agentrl_cli.config.compose import as_dataclass, build
from agentrl_cli.config.settings import DataConfig, EvalConfig, ModelConfig
from agentrl_cli.core.activity import Activity
from agentrl_cli.core.errors import UserError, require_at_least
from agentrl_cli.core.files import is_file, read_json, write_json
from agentrl_cli.core.ranks import Ranks
from agentrl_cli.core.types import Episode, Task
from agentrl_cli.envs.base import Env
from agentrl_cli.generators.base import Generator
from agentrl_cli.models.model_set import ModelSet
from agentrl_cli.models.policy import max_positions
from agentrl_cli.models.reader import Passes
from agentrl_cli.rollout.chat_template import Chat
from agentrl_cli.rollout.demos import DemoReader, read_demos, read_lines
from agentrl_cli.rollout.expert_demos import EXPERT_PREFIX, expert_lines
from agentrl_cli.rollout.play import indistinguishable_tasks
from agentrl_cli.rollout.replay_buffer import ReplayBuffer
from agentrl_cli.runs.best import VAL, played_checkpoint
from agentrl_cli.runs.find import find_run
from agentrl_cli.training.learner import Learner
from agentrl_cli.training.memory_plan import refuse_unread_context
from agentrl_cli.training.ranks import RankActors, RankGenerator, refuse_disagreement
from agentrl_cli.training.warm_start import FILE, earlier_episodes

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from agentrl_cli.rollout.collector import Collector
    from agentrl_cli.runs.checkpoint_digest import Checkpoint
    from agentrl_cli.runs.run import Run

M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # glibc's malloc.h; mallopt(3)
MAX_THREADS = 1024
OPENMP = "OMP_NUM_THREADS"  # the environment variable; of a list the outermost number counts
PARAMETERS_FOR_TWO_THREADS = 300_000  # parameters from which a second torch thread pays


@dataclass(kw_only=True)
class Parts:
    """What a run is made of; `step` updates are done. `play(starts, sampling)` plays episodes of
    this run's environment, with another generator where a third argument names it, and stops the
    run where a larger share of them fails than a fourth one says. `between_steps`: an update was
    broken off. `activity` is what they are doing."""

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
    data: DataConfig
    activity: Activity = field(default_factory=Activity)
    ranks: Ranks = field(default_factory=Ranks)
    step: int = 0
    between_steps: bool = False

    @property
    def plays(self) -> bool:
        """Whether fresh episodes are played before each update."""
        return self.algo.plays and not self.data.offline

    def save(self, run: Run, *, planned: bool = True) -> None:
        """Write a complete checkpoint of now; one that is not planned lasts until the next."""
        to_fill = run.checkpoint(self.step, planned=planned)
        with (
            self.ranks.together(passes=True),
            to_fill if self.ranks.is_main else nullcontext() as folder,
        ):
            try:
                self.models.save(folder and folder / "models")
                self.learner.save(folder and folder / "optimizer")
            except SafetensorError as error:  # which also a full disk raises
                raise OSError(str(error)) from error
            if folder is not None:
                state = {"algo": self.algo.state(), "buffer": self.buffer.state()}
                actors = self.collector.actors.state()
                write_json(folder / "state.json", state | ({"actors": actors} if actors else {}))

    def restore(self, checkpoint: Checkpoint) -> None:
        """Inverse of `save`. Raises UserError where the checkpoint is not one of these parts."""
        folder = checkpoint.folder
        self.restore_models(folder)
        self.learner.load(folder / "optimizer")
        if self.ranks.is_main:
            with _explain_foreign_state(folder):
                state = _read_state(folder)
                self.buffer.load(state["buffer"])
                self.collector.actors.load(state.get("actors", {}))
        self.step = checkpoint.step

    def share_buffer(self) -> None:
        """Give what rank 0 has restored of replay to the others, which have no file of it."""
        if self.ranks.size > 1 and self.algo.replay_capacity:
            state = self.buffer.contents() if self.ranks.is_main else None
            (state, *_) = self.ranks.gather(state, "buffer")
            if not self.ranks.is_main:
                self.buffer.load(state)

    def close(self) -> None:
        """Give back what is not this process's: actors, and what the generator holds elsewhere."""
        self.collector.actors.close()
        self.generator.close()

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
    """`algo` and `buffer` of a checkpoint's state.json, and `actors` where these play ahead."""
    state = read_json(folder / "state.json")
    if state.keys() - {"actors"} != {"algo", "buffer"}:
        raise UserError(f"'{folder}' is not a checkpoint of a run; name one that a run wrote")
    return state


def assemble(
    cfg: DictConfig,
    folder: Path | None,
    *,
    learns: bool = True,
    restored: bool = False,
    algorithm: Algorithm | None = None,
    ranks: Ranks | None = None,
) -> Parts:
    """Build every part; `folder` is the run's, None where nothing may be written. What only plays
    (`learns` false) reads no demonstrations; what is `restored` from a checkpoint afterwards reads
    no `init`, which may be gone by then. `algorithm` stands in for the configured one. All `ranks`
    build their own."""
    ranks = ranks or Ranks()
    with ranks.together():
        env: Env = build(cfg.env)
        algo: Algorithm = algorithm or build(cfg.algo)
        models = _load_models(cfg, algo, None if restored else cfg.init, ranks)
    spread_models(cfg, models, ranks)
    with ranks.together():
        parts = _connect(cfg, folder if ranks.is_main else None, env, algo, models)
        parts.context.demos = load_demonstrations(cfg, algo, env, parts.chat) if learns else []
        algo.bind(parts.context)
        if learns and not restored:
            parts.buffer.add(earlier_episodes(cfg, parts.data, parts.chat, algo, env))
        if learns and cfg.get("keep") == "best":
            parts.eval = with_val(parts.eval, env)
        if learns:
            refuse_temperature(cfg, algo)
        check_settings(cfg, parts, algo.role_ids() if learns else 0)
    if ranks.size > 1:
        text = json.dumps([episode.to_json() for episode in parts.context.demos])
        read = {"demonstrations": hashlib.sha256(text.encode()).hexdigest()[:16]}
        refuse_disagreement(ranks, read, "give all of them the same file")
    return parts


def _connect(
    cfg: DictConfig, folder: Path | None, env: Env, algo: Algorithm, models: ModelSet
) -> Parts:
    """The parts around the models, bound to each other."""
    ranks, chat = models.ranks, Chat(models.tokenizer)
    chat.check(env.tools)
    generator: Generator = build(cfg.hardware.generator, models=models)
    learner = Learner(
        models, algo.models(), tokens_per_batch=cfg.hardware.tokens_per_batch, seed=cfg.seed,
        publish=lambda name: generator.load(name, models.version(name)), ranks=ranks,
        activity=(activity := Activity()),
    )  # fmt: skip
    collector: Collector = build(cfg.rollout)
    collector.activity = activity
    make_env = partial(copy.copy, env)
    collector.bind(
        make_env=make_env, chat=chat, generator=generator, seed=cfg.seed,
        policy_version=partial(models.version, "policy"), actors=RankActors(models),
    )  # fmt: skip
    data = as_dataclass(cfg.data, DataConfig)
    keeps = algo.replay_capacity or data.keep_episodes
    file = folder / FILE if folder and keeps else None
    return Parts(
        collector=collector, models=models, generator=generator, algo=algo, learner=learner,
        buffer=ReplayBuffer(file, max(1, algo.replay_capacity)), chat=chat, make_env=make_env,
        eval=as_dataclass(cfg.eval, EvalConfig), play=collector.play, seed=cfg.seed,
        context=_context(cfg, env, models, collector), data=data, ranks=ranks, activity=activity,
    )  # fmt: skip


def _load_models(cfg: DictConfig, algo: Algorithm, init: str | None, ranks: Ranks) -> ModelSet:
    """The algorithm's models with their initial weights, and the process set up to compute them."""
    device = ranks.device or pick_device(cfg.hardware.device)
    config, place = as_dataclass(cfg.model, ModelConfig), "cpu" if ranks.sharded else device
    models = ModelSet(config, algo.models(), place, cfg.seed, ranks, _passes(cfg, ranks))
    load_initial_weights(models, init, Path(cfg.runs))
    set_threads(cfg.hardware.threads, models)
    if device.type == "cpu":
        keep_freed_memory()
    return models


def _passes(cfg: DictConfig, ranks: Ranks) -> Passes:
    """A pass without gradient keeps no activations, and so reads twice the ids of a micro-batch.
    Sharded models have a format of passes of their own."""
    half = cfg.hardware.get("mixed_precision") == "bf16" and not ranks.sharded
    most = min(Passes.ids, 2 * cfg.hardware.tokens_per_batch)
    return Passes(torch.bfloat16 if half else None, most)


def spread_models(cfg: DictConfig, models: ModelSet, ranks: Ranks) -> None:
    """Compare the models with those of other ranks, and shard them where that is the strategy.
    Raises UserError where they differ."""
    if ranks.size > 1:
        sums = {f"the weights of {name}": text for name, text in models.checksums().items()}
        remedy = "give all of them the same model, init and versions of packages"
        refuse_disagreement(ranks, sums, remedy)
    if ranks.sharded:
        half = cfg.hardware.get("mixed_precision") == "bf16"
        models.shard(ranks.device, torch.bfloat16 if half else None)


def _context(cfg: DictConfig, env: Env, models: ModelSet, collector: Collector) -> Context:
    """What the algorithm is given, demonstrations apart."""

    ranks, generator = models.ranks, collector.generator
    if ranks.size > 1 or ranks.sharded:
        generator = RankGenerator(generator, models)

    def indistinguishable(episode: Episode, turn: int) -> list[Task]:
        tasks = env.tasks(episode.task.split)
        found = indistinguishable_tasks(episode, turn, tasks, collector.make_env)
        if ranks.size == 1:
            return found
        # a world that asks a model may have answered each rank otherwise: rank 0's answers count
        names = ranks.gather([task.id for task in found], "tasks")[0]
        others = [task for task in tasks if task.id != episode.task.id]
        return [task for task in [episode.task, *others] if task.id in names]

    return Context(
        chat=collector.chat, models=models,
        generator=generator,
        sampling=collector.sampling, seed=cfg.seed, turn_delimiter=env.turn_delimiter,
        probe=lambda starts: collector.play(starts, collector.sampling),
        indistinguishable_tasks=indistinguishable,
    )  # fmt: skip


def check_settings(cfg: DictConfig, parts: Parts, role_ids: int) -> None:
    """Raise UserError for sizes and splits with which nothing could be done; the algorithm's roles
    read and write `role_ids` ids behind an episode."""
    max_context = parts.collector.max_context
    require_at_least(1, tokens_per_batch=cfg.hardware.tokens_per_batch)
    if parts.algo.plays:
        require_at_least(1, episodes_per_step=parts.collector.count(parts.algo.group_size))
    refuse_unread_context(cfg, max_positions(parts.models.module("policy")), role_ids)
    parts.generator.check_context(max_context + role_ids)
    for split in parts.eval.splits:
        if not parts.make_env().tasks(split):
            raise UserError(f"eval.splits names '{split}', which has no tasks; name another")


def refuse_temperature(cfg: DictConfig, algo: Algorithm) -> None:
    """Raise UserError where a loss would take the ratio to another policy than the one that
    sampled: log-probs are those at temperature 1."""
    temperature = cfg.rollout.temperature
    if algo.uses_ratio and temperature != 1:
        line = f"rollout.temperature is {temperature:g}, and algo '{cfg.choices.algo}' corrects for"
        raise UserError(f"{line} the policy at temperature 1; set rollout.temperature=1")


def with_val(settings: EvalConfig, env: Env) -> EvalConfig:
    """The settings of an evaluation that also plays the split `val`. Raises UserError where the
    world has no such tasks."""
    if settings.splits[0] == VAL:
        line = "eval.splits begins with 'val', by which keep=best chooses"
        raise UserError(f"{line}; begin with the split that shall be reported, as test")
    env.tasks("train")  # where the world itself cannot be had, that is the reason
    try:
        tasks = env.tasks(VAL)
    except UserError:
        tasks = []
    if not tasks:
        line = "keep=best chooses by the split 'val', of which this environment has no tasks"
        raise UserError(f"{line}; give it some (a key of env that begins with val_), or keep=last")
    return replace(settings, splits=[*dict.fromkeys([*settings.splits, VAL])])


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
        line = f"hardware.device '{name}' needs a CUDA device and none was found"
        raise UserError(f"{line}; give hardware=cpu, or hardware.device=cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        device = None
    if device is None or device.type not in ("cpu", "cuda"):
        raise UserError(f"hardware.device '{name}' is unknown; use cpu or cuda")
    return device


def set_threads(threads: int | None, models: ModelSet) -> None:
    """Fix the number of torch threads: as given, else as OMP_NUM_THREADS says, else 1 for a very
    small model, else all cores that are this process's share, at most 8. UserError for a number
    that cannot be."""
    name = "hardware.threads"
    if threads is None and (said := os.environ.get(OPENMP, "").partition(",")[0].strip()):
        name, threads = OPENMP, int(said) if said.isdecimal() else 0
    require_at_least(1, **{name: 1 if threads is None else threads})
    size = sum(weight.numel() for weight in models.module("policy").parameters())
    cores = len(os.sched_getaffinity(0)) // int(os.environ.get("LOCAL_WORLD_SIZE", 1))
    chosen = threads or (1 if size < PARAMETERS_FOR_TWO_THREADS else max(1, min(8, cores)))
    if chosen > MAX_THREADS:  # OpenMP ends a process that cannot have them
        raise UserError(f"{name} is {chosen}; give at most {MAX_THREADS}")
    torch.set_num_threads(chosen)


def load_initial_weights(models: ModelSet, init: str | None, runs: Path) -> None:
    """Start the policy (and what follows it) from the checkpoint that `init` names, if any."""
    if init is None:
        return
    folder = Path(init)
    names = ("config.json", "adapter_config.json")
    if not any(is_file(folder / name) for name in names):
        part = "models/policy/"
        folder = played_checkpoint(find_run(init, runs), part).folder / part
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
