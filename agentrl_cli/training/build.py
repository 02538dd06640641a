"""Build the objects of a run from a checked configuration, and save and restore them."""

from __future__ import annotations

import copy
import ctypes
import hashlib
import json
import os
import platform
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError

from agentrl_cli.algos.base import Algorithm, Context, models_of
from agentrl_cli.config.compose import as_dataclass, build, load
from agentrl_cli.config.settings import DataConfig, EvalConfig, ModelConfig
from agentrl_cli.core.activity import Activity
from agentrl_cli.core.distributed import Ranks
from agentrl_cli.core.errors import UserError, require_at_least, require_at_most
from agentrl_cli.core.files import is_file, read_json, write_json
from agentrl_cli.core.types import Episode, Task
from agentrl_cli.envs.base import Env, train_tasks
from agentrl_cli.envs.check import preamble
from agentrl_cli.generators.base import Generator
from agentrl_cli.models.forward import Passes, max_positions
from agentrl_cli.models.load import cpu_has_bfloat16
from agentrl_cli.models.model_set import ModelSet
from agentrl_cli.rollout.chat_template import Chat
from agentrl_cli.rollout.demos import (
    EXPERT_PREFIX,
    DemoReader,
    expert_lines,
    read_demos,
    read_lines,
)
from agentrl_cli.rollout.play import indistinguishable_tasks
from agentrl_cli.rollout.replay_buffer import ReplayBuffer, read_episodes
from agentrl_cli.runs.checkpoints import VAL, played_checkpoint
from agentrl_cli.runs.find import find_run
from agentrl_cli.training.distributed import RankActors, RankGenerator, check_agreement
from agentrl_cli.training.learner import Learner
from agentrl_cli.training.memory_plan import device_type, validate_context

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from agentrl_cli.rollout.collector import Collector
    from agentrl_cli.runs.checkpoints import Checkpoint
    from agentrl_cli.runs.run import Run

BUFFER_FILE = "buffer.jsonl"
M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # glibc's malloc.h; mallopt(3)
MAX_THREADS = 1024
OPENMP = "OMP_NUM_THREADS"  # environment variable; the first number of a list counts
CPU_QUOTA = Path("/sys/fs/cgroup/cpu.max")  # of cgroup v2: "200000 100000" is two cores
PARAMETERS_FOR_TWO_THREADS = 300_000  # model size from which a second torch thread is faster


@dataclass(kw_only=True)
class Parts:
    """The objects of a run after `step` updates. `between_steps` is true after an update was
    interrupted."""

    collector: Collector
    models: ModelSet
    generator: Generator
    algo: Algorithm
    learner: Learner
    buffer: ReplayBuffer
    chat: Chat
    make_env: Callable[[], Env]
    eval: EvalConfig
    context: Context
    data: DataConfig
    activity: Activity = field(default_factory=Activity)
    ranks: Ranks = field(default_factory=Ranks)
    step: int = 0
    between_steps: bool = False
    is_warned: bool = False  # of an update that trained nothing

    @property
    def plays(self) -> bool:
        """Whether new episodes are played before each update."""
        return self.algo.plays and not self.data.offline

    def save(self, run: Run, *, planned: bool = True) -> None:
        """Write a checkpoint; an unplanned one is deleted when the next one is complete."""
        to_fill = run.checkpoint(self.step, planned=planned)
        with (
            self.ranks.together(passes=True),
            to_fill if self.ranks.is_main else nullcontext() as folder,
        ):
            try:
                self.models.save(folder and folder / "models")
                self.learner.save(folder and folder / "optimizer")
            except SafetensorError as error:  # also raised for a full disk
                raise OSError(str(error)) from error
            if folder is not None:
                state = {"algo": self.algo.state(), "buffer": self.buffer.state()}
                actors = self.collector.actors.state()
                write_json(folder / "state.json", state | ({"actors": actors} if actors else {}))

    def restore(self, checkpoint: Checkpoint) -> None:
        """Restore a checkpoint. Raises UserError if it does not fit these parts."""
        folder = checkpoint.folder
        self.restore_models(folder)
        self.learner.load(folder / "optimizer")
        if self.ranks.is_main:
            with _state_of(folder) as state:
                self.buffer.load(state["buffer"])
                self.collector.actors.load(state.get("actors", {}))
        self.step = checkpoint.step

    def restore_models(self, folder: Path) -> None:
        """Restore the models and the state of the algorithm, which is all that playing needs."""
        self.models.load(folder / "models")
        with _state_of(folder) as state:
            self.algo.load(state["algo"])

    def share_buffer(self) -> None:
        """Send the restored replay buffer of rank 0 to the other ranks."""
        if self.ranks.size > 1 and self.algo.replay_capacity:
            state = self.buffer.state(whole=True) if self.ranks.is_main else None
            (state, *_) = self.ranks.gather(state, "buffer")
            if not self.ranks.is_main:
                self.buffer.load(state)

    def close(self) -> None:
        """Close actors and the resources of the generator."""
        self.collector.actors.close()
        self.generator.close()


@contextmanager
def _state_of(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield `algo`, `buffer` and maybe `actors` of a checkpoint's state.json. Raises UserError if
    it cannot be restored."""
    file = folder / "state.json"
    state = read_json(file)
    if state.keys() - {"actors"} != {"algo", "buffer"}:
        line = f"'{folder}' is not a checkpoint of a run; name one that a run wrote"
        raise UserError(line, code="invalid-checkpoint")
    try:
        yield state
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        line = f"'{file}' is not of this algorithm ({error!r}); resume from another checkpoint"
        raise UserError(line, code="other-algorithm") from error


def build_parts(
    cfg: DictConfig, folder: Path | None, *, learns: bool = True, restored: bool = False,
    algorithm: Algorithm | None = None, ranks: Ranks | None = None,
) -> Parts:  # fmt: skip
    """Build all parts of a run.

    `folder` is the run's folder; with None nothing is written. With `learns` false, as for playing,
    no demonstrations are read. With `restored` true, `init` is not read, since a checkpoint follows
    and `init` may be gone. `algorithm` replaces the configured one. Every rank builds its own
    parts. Raises UserError for settings that do not fit together.
    """
    ranks = ranks or Ranks()
    with ranks.together():
        env: Env = build(cfg.env)
        algo: Algorithm = algorithm or build(cfg.algo)
        models = _load_models(cfg, algo, None if restored else cfg.init, ranks)
    if ranks.size > 1:
        sums = {f"the weights of {name}": text for name, text in models.checksums().items()}
        remedy = "give all of them the same model, init and versions of packages"
        check_agreement(ranks, sums, remedy)
    if ranks.sharded:
        models.shard(ranks.device, _compute_dtype(cfg))
    with ranks.together():
        parts = _connect(cfg, folder if ranks.is_main else None, env, algo, models)
        parts.context.demos = load_demonstrations(cfg, algo, env, parts.chat) if learns else []
        algo.bind(parts.context)
        if learns and not restored:
            parts.buffer.add(earlier_episodes(cfg, parts.data, parts.chat, algo, env))
        if learns and cfg.get("save_best"):
            parts.eval = _with_val(parts.eval, env)
        temperature = cfg.rollout.temperature
        if learns and algo.uses_ratio and temperature != 1:  # log-probs are of temperature 1
            line = f"rollout.temperature is {temperature:g}, and algo '{cfg.choices.algo}' corrects"
            message = f"{line} for the policy at temperature 1; set rollout.temperature=1"
            raise UserError(message, code="temperature")
        extra_tokens = algo.extra_prompt_tokens() if learns else 0
        require_at_least(1, microbatch_tokens=cfg.hardware.microbatch_tokens)
        if algo.plays:
            require_at_least(1, episodes_per_step=parts.collector.count(algo.group_size))
        validate_context(cfg, max_positions(models.module("policy")), extra_tokens)
        parts.generator.check_context(parts.collector.max_seq_len + extra_tokens)
        validate_splits(parts.eval, env)
    if ranks.size > 1:
        text = json.dumps([episode.to_json() for episode in parts.context.demos])
        read = {"demonstrations": hashlib.sha256(text.encode()).hexdigest()[:16]}
        check_agreement(ranks, read, "give all of them the same file")
    return parts


def _load_models(cfg: DictConfig, algo: Algorithm, init: str | None, ranks: Ranks) -> ModelSet:
    device = ranks.device or pick_device(cfg.hardware.device)
    config, place = as_dataclass(cfg.model, ModelConfig), device
    if ranks.sharded:  # shards are float32
        config, place = replace(config, dtype="float32"), "cpu"
    # without gradient no activations are stored, so a pass takes twice the tokens of a micro-batch
    tokens = min(Passes.ids, 2 * cfg.hardware.microbatch_tokens)
    passes = Passes(None if ranks.sharded else _compute_dtype(cfg), tokens)
    models = ModelSet(config, models_of(algo), place, cfg.seed, ranks, passes)
    if init is not None:  # a run, or a folder with weights
        weights = Path(init)
        if not any(is_file(weights / name) for name in ("config.json", "adapter_config.json")):
            part = "models/policy/"
            weights = played_checkpoint(find_run(init, Path(cfg.runs)), part).folder / part
        models.load_weights("policy", weights)
    set_threads(cfg.hardware.threads, models)
    if device.type == "cpu":
        keep_freed_memory()
    return models


def _compute_dtype(cfg: DictConfig) -> torch.dtype | None:
    return torch.bfloat16 if cfg.hardware.get("mixed_precision") == "bf16" else None


def _connect(
    cfg: DictConfig, folder: Path | None, env: Env, algo: Algorithm, models: ModelSet
) -> Parts:
    ranks, activity = models.ranks, Activity()
    chat = Chat(models.tokenizer, models.end_ids)
    chat.check(env.tools)
    generator: Generator = build(cfg.hardware.generator, models=models)
    learner = Learner(
        models, models_of(algo), microbatch_tokens=cfg.hardware.microbatch_tokens, seed=cfg.seed,
        publish=generator.mark_changed, activity=activity,
    )  # fmt: skip
    collector: Collector = build(cfg.rollout)
    collector.activity = generator.activity = activity
    make_env = partial(copy.copy, env)
    collector.bind(
        make_env=make_env, chat=chat, generator=generator, seed=cfg.seed,
        policy_version=partial(models.version, "policy"), actors=RankActors(models),
    )  # fmt: skip

    def indistinguishable(episode: Episode, turn: int) -> list[Task]:
        tasks = env.tasks(episode.task.split)
        found = indistinguishable_tasks(episode, turn, tasks, make_env)
        if ranks.size == 1:
            return found
        # an environment that calls a model may differ between ranks, so rank 0 decides
        names = ranks.gather([task.id for task in found], "tasks")[0]
        others = [task for task in tasks if task.id != episode.task.id]
        return [task for task in [episode.task, *others] if task.id in names]

    is_shared = ranks.size > 1 or ranks.sharded
    context = Context(
        chat=chat, models=models, generator=RankGenerator(generator, models) if is_shared
        else generator, sampling=collector.sampling, seed=cfg.seed,
        turn_delimiter=env.turn_delimiter, indistinguishable_tasks=indistinguishable,
        probe=lambda starts: collector.play(starts, collector.sampling),
    )  # fmt: skip
    data = as_dataclass(cfg.data, DataConfig)
    keeps = algo.replay_capacity or data.keep_episodes
    file = folder / BUFFER_FILE if folder and keeps else None
    return Parts(
        collector=collector, models=models, generator=generator, algo=algo, learner=learner,
        buffer=ReplayBuffer(file, max(1, algo.replay_capacity)), chat=chat, make_env=make_env,
        eval=as_dataclass(cfg.eval, EvalConfig), context=context, data=data, ranks=ranks,
        activity=activity,
    )  # fmt: skip


def validate_splits(settings: EvalConfig, env: Env) -> None:
    """Raise UserError if a split of the evaluation has no tasks."""
    for split in settings.splits:
        if not env.tasks(split):
            line = f"eval.splits names '{split}', which has no tasks; name another"
            raise UserError(line, code="empty-split")


def _with_val(settings: EvalConfig, env: Env) -> EvalConfig:
    """Return the settings with the split `val` added. Raises UserError if it has no tasks."""
    if settings.splits[0] == VAL:
        line = "eval.splits begins with 'val', which save_best=true selects by"
        message = f"{line}; put the split to report first, such as test"
        raise UserError(message, code="val-first")
    env.tasks("train")  # raises if the environment itself is not available
    try:
        tasks = env.tasks(VAL)
    except UserError:
        tasks = []
    if not tasks:
        line = "save_best=true needs tasks in the split 'val', and this environment has none"
        remedy = "give it some (a key of env that begins with val_), or save_best=false"
        raise UserError(f"{line}; {remedy}", code="no-val-tasks")
    return replace(settings, splits=[*dict.fromkeys([*settings.splits, VAL])])


def load_demonstrations(cfg: DictConfig, algo: Algorithm, env: Env, chat: Chat) -> list[Episode]:
    """Return the episodes of `data.demos`. Raises UserError if the algorithm needs demonstrations
    and there are none, or does not use them and there are some."""
    name, data = cfg.choices.algo, as_dataclass(cfg.data, DataConfig)
    if data.demos is None:
        if algo.demo_use == "must":
            remedy = "give data.demos=expert:128, or data.demos=FILE (agentrl demos writes one)"
            line = f"algo '{name}' learns from demonstrations; {remedy}"
            raise UserError(line, code="needs-demos")
        return []
    if algo.demo_use == "never":
        remedy = "leave data.demos out, or start from an SFT on them with init=RUN"
        raise UserError(f"algo '{name}' reads no demonstrations; {remedy}", code="unused-demos")
    reader, source = DemoReader(env, chat, cfg.rollout.max_seq_len), data.demos
    of_expert = source.startswith(EXPERT_PREFIX)
    lines = expert_lines(source, env) if of_expert else read_lines(Path(source))
    return read_demos(source, lines, reader, skip_invalid=data.skip_invalid)


def earlier_episodes(
    cfg: DictConfig, data: DataConfig, chat: Chat, algo: Algorithm, env: Env
) -> list[Episode]:
    """Return the newest episodes of the run `data.buffer`, with new ids, or none without one.

    Their number is the algorithm's replay capacity. Raises UserError if the algorithm cannot use
    them or if they come from another environment, task, system message, model or chat template.
    """
    if data.buffer is None:
        if data.offline:
            line = "data.offline=true needs episodes to learn from; name data.buffer=RUN"
            raise UserError(line, code="offline-without-buffer")
        return []
    if not algo.replay_capacity:
        line = f"algo '{cfg.choices.algo}' does not replay episodes, so it cannot use data.buffer"
        raise UserError(f"{line}; use one that does, as nlac or archer", code="no-replay")
    if data.offline and not algo.learns_offline:
        line = f"data.offline=true, but algo '{cfg.choices.algo}' trains its policy on new episodes"
        raise UserError(f"{line}; leave data.offline out, or use nlac", code="not-offline")
    run = find_run(data.buffer, Path(cfg.runs))
    model, template = load(run.config_file, []).model.path, run.meta.get("chat_template")
    if (model, template) != (cfg.model.path, chat.fingerprint):
        line = f"run '{run.name}' was played with {model}, this one is {cfg.model.path}"
        remedy = "or their templates differ; name a data.buffer of the same model"
        raise UserError(f"{line}, {remedy}", code="other-model")
    file = run.folder / BUFFER_FILE
    stored = read_episodes(file, algo.replay_capacity) if is_file(file) else []
    stored = [episode for episode in stored if episode.error is None and episode.turns]
    if not stored:
        line = f"run '{run.name}' has kept no complete episodes"
        raise UserError(f"{line}; train it with data.keep_episodes=true", code="no-episodes")
    tasks, begin = {task.id: task for task in train_tasks(env)}, preamble(env)
    remedy = "set env as that run did, or name another data.buffer"
    for episode in stored:
        if tasks.get(episode.task.id) != episode.task:
            line = f"task '{episode.task.id}' of run '{run.name}' is not a train task of this env"
            raise UserError(f"{line}; {remedy}", code="other-tasks")
        first = episode.turns[0].observation
        if first[: len(begin)] != begin or any(m.role == "system" for m in first[len(begin) :]):
            line = f"the episodes of run '{run.name}' begin with other instructions"
            raise UserError(f"{line} than this env; {remedy}", code="other-system")
    return [replace(e, id=f"buffer-{e.id}", group=f"buffer-{e.group}") for e in stored]


def pick_device(name: str) -> torch.device:
    """Return a torch device. Raises UserError if it is unknown or not present."""
    if name.startswith("cuda") and not torch.cuda.is_available():
        line = f"hardware.device '{name}' needs a CUDA device and none was found"
        raise UserError(f"{line}; give hardware=cpu, or hardware.device=cpu", code="no-cuda")
    if not re.fullmatch(r"cpu|cuda(:(0|[1-9][0-9]?))?", name):
        line = f"hardware.device '{name}' is unknown; use cpu or cuda"
        raise UserError(line, code="unknown-device")
    return torch.device(name)


def set_threads(threads: int | None, models: ModelSet) -> None:
    """Set the number of torch threads: `threads`, else OMP_NUM_THREADS, else 1 for a very small
    model, else this process's share of the cores, at most 8. Raises UserError if it is invalid."""
    name = "hardware.threads"
    if threads is None and (given := os.environ.get(OPENMP, "").partition(",")[0].strip()):
        name, threads = OPENMP, int(given) if given.isdecimal() else 0
    require_at_least(1, **{name: 1 if threads is None else threads})
    size = sum(weight.numel() for weight in models.module("policy").parameters())
    cores = available_cores() // int(os.environ.get("LOCAL_WORLD_SIZE", 1))
    chosen = threads or (1 if size < PARAMETERS_FOR_TWO_THREADS else max(1, min(8, cores)))
    require_at_most(MAX_THREADS, **{name: chosen})  # OpenMP aborts if it cannot create them
    torch.set_num_threads(chosen)


def available_cores(quota: Path = CPU_QUOTA) -> int:
    """Return the cores that this process may use, also under the CPU limit of a container."""
    cores = len(os.sched_getaffinity(0))
    try:
        microseconds, period = map(int, quota.read_text(encoding="utf-8").split())
    except (OSError, ValueError):  # no such file, or "max"
        return cores
    return max(1, min(cores, microseconds // period))


def busy_machine() -> str | None:
    """Return a hint if the threads of this process and other programs need more than all cores."""
    load, threads, cores = os.getloadavg()[0], torch.get_num_threads(), available_cores()
    if threads == 1 or load + threads <= cores + 1:  # this process has caused a load of up to 1
        return None
    line = f"this run uses {threads} threads, but other programs keep {load:.0f} of {cores} cores"
    return f"{line} busy; hardware.threads=1 may be much faster"


def slow_dtype(cfg: DictConfig) -> str | None:
    """Return a hint if `model.dtype` is bfloat16 on a CPU without instructions for it."""
    is_slow = device_type(cfg) == "cpu" and not cpu_has_bfloat16()
    if cfg.model.get("dtype") != "bfloat16" or not is_slow:
        return None
    line = "warning: this CPU has no instructions for bfloat16 and is many times slower with it"
    return f"{line}; give model.dtype=float32"


def unfiltered_imitation(cfg: DictConfig) -> str | None:
    """Return a hint if `algo=sft` has no demonstrations and so imitates failed episodes, too."""
    chosen = cfg.choices
    if chosen.get("algo") != "sft" or cfg.data.demos or chosen.get("ablation") == "own_play":
        return None
    line = "warning: without data.demos algo=sft imitates all episodes of the policy, failures too"
    return f"{line}; give data.demos=FILE or expert:N, or algo=rft for successes alone"


def keep_freed_memory() -> None:
    """Configure glibc to keep freed memory. Otherwise every large tensor on the CPU consists of new
    pages, which the system clears first: 7 % of the time of an update for a model with the layers
    of Qwen2.5-0.5B (docs/log/2026-11-22.md). Does nothing with another C library."""
    if platform.libc_ver()[0] != "glibc":
        return
    mallopt = ctypes.CDLL(None).mallopt
    mallopt(M_TRIM_THRESHOLD, -1)
    mallopt(M_MMAP_MAX, 0)
