"""Several processes, started by a launcher, that train one run.

They find each other, divide work and exchange results: Python objects over gloo, gradients over the
backend of their device.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from datetime import timedelta
from itertools import compress
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from accelerate import PartialState
from torch import Tensor, nn
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous
from torch.distributed.tensor import DTensor

from agentrl_cli.core.distributed import Item, Numbers, Ranks, Result
from agentrl_cli.core.errors import DistributedError, GeneratorError, RunAborted, UserError
from agentrl_cli.core.types import Episode
from agentrl_cli.generators.base import Completion, Generator, Sampling
from agentrl_cli.rollout.collector import Actors, PlayRequest
from agentrl_cli.training.memory_plan import is_out_of_memory

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from agentrl_cli.algos.base import Algorithm
    from agentrl_cli.models.model_set import ModelSet

TIMEOUT = timedelta(hours=12)  # longer than the slowest rank plays or the main rank saves
BUCKET = 2**26  # gradient numbers of one message: 256 MiB of float32
OTHER_ENGINES = ("ACCELERATE_USE_FSDP", "ACCELERATE_USE_DEEPSPEED", "ACCELERATE_USE_MEGATRON_LM")
CONNECTION_ERRORS = (
    "gloo", "Connection closed by peer", "Connection reset by peer", "Broken pipe",
)  # fmt: skip


class ProcessRanks(Ranks):
    """The ranks of a process group. `store` outlives them if a launcher holds it."""

    def __init__(self, strategy: str, device: str) -> None:
        """Connect. Raises UserError if ranks or devices are missing or another engine is set."""
        for variable in OTHER_ENGINES:
            if os.environ.get(variable, "").lower() in ("true", "1"):
                line = f"accelerate launch sets another engine ({variable}); start it without"
                raise UserError(
                    f"{line}, hardware=ddp or hardware=fsdp is enough", code="other-engine"
                )
        if device != "cpu":
            if not torch.cuda.is_available():
                line = f"hardware '{strategy}' needs CUDA devices and none was found"
                raise UserError(f"{line}; give hardware.device=cpu", code="no-cuda")
            number, count = int(os.environ["LOCAL_RANK"]), torch.cuda.device_count()
            if number >= count:
                line = f"LOCAL_RANK is {number}, but this machine has {count} GPUs"
                raise UserError(f"{line}; start one process per GPU", code="too-few-gpus")
        try:
            store, rank, size = next(iter(rendezvous("env://", timeout=timedelta(minutes=10))))
            options: dict[str, Any] = {"rank": rank, "world_size": size, "timeout": TIMEOUT}
            groups = PrefixStore("groups", store)
            state = PartialState(cpu=device == "cpu", store=groups, **options)
            self.control = dist.new_group(backend="gloo", timeout=TIMEOUT)
        except (OSError, RuntimeError, ValueError) as error:  # a used port, a missing host
            reason = str(error).splitlines()[0]
            place = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
            line = f"the processes of this run cannot connect at {place} ({reason})"
            remedy = "give the launcher a reachable address and a free port"
            raise UserError(f"{line}; {remedy}", code="no-rendezvous") from error
        self.store, self.rank, self.size = PrefixStore("agentrl", store), rank, size
        # Accelerate's CPU device has an index, which safetensors does not accept
        self.device = torch.device("cpu") if device == "cpu" else state.device
        self.sharded = strategy == "fsdp"

    def gather(self, value: Any, at: str) -> list[Any]:
        """Return the values of all ranks. Raises DistributedError if a rank is at another call."""
        rows: list[Any] = [None] * self.size
        dist.all_gather_object(rows, (at, value), group=self.control)
        for rank, (other, _) in enumerate(rows):
            if other != at:
                line = f"rank {self.rank} is at '{at}' and rank {rank} at '{other}'"
                raise DistributedError(f"the processes of this run are out of step ({line})")
        return [found for _, found in rows]

    def share(self, items: list[Item], work: Callable[[list[Item]], list[Result]]) -> list[Result]:
        """Return `work(items)`; slices are contiguous, so that common beginnings stay together."""
        if not items:
            return []
        own: list[Result] = []
        with self.together():
            first, end = (rank * len(items) // self.size for rank in (self.rank, self.rank + 1))
            own = work(items[first:end]) if first < end else []
        return [result for results in self.gather(own, "results") for result in results]

    def sum(self, numbers: Numbers) -> Numbers:
        assert isinstance(numbers, Tensor)
        dist.all_reduce(numbers, group=self.control if numbers.device.type == "cpu" else None)
        return numbers

    def sum_gradients(self, weights: list[nn.Parameter]) -> None:
        """Sum gradients in float32; those of sharded weights are summed in the backward pass."""
        whole = [weight for weight in weights if not isinstance(weight, DTensor)]
        if not whole:
            return
        with self.ends_without_memory():
            has = self.sum(torch.tensor([float(weight.grad is not None) for weight in whole]))
            buckets: list[list[nn.Parameter]] = []
            for weight in compress(whole, has.tolist()):
                if not buckets or sum(w.numel() for w in [*buckets[-1], weight]) > BUCKET:
                    buckets.append([])
                buckets[-1].append(weight)
            for bucket in buckets:
                gradients = [torch.zeros_like(w) if w.grad is None else w.grad for w in bucket]
                rows = [gradient.float().flatten() for gradient in gradients]
                summed = self.sum(torch.cat(rows)).split([len(row) for row in rows])
                for weight, row in zip(bucket, summed, strict=True):
                    weight.grad = row.view_as(weight).to(weight.dtype)

    @contextmanager
    def together(self, *, passes: bool = False) -> Iterator[None]:
        if passes and self.sharded:
            with self.ends_without_memory():
                yield
            return
        failed: Exception | None = None
        try:
            yield
        except DistributedError:
            raise
        except Exception as error:
            if is_lost(error):
                raise
            failed = error
        reasons = self.gather(failed and reason_of(failed), "together")
        if failed is not None:
            raise failed
        for rank, reason in enumerate(reasons):
            if reason is not None:
                raise error_of(rank, *reason)

    @contextmanager
    def ends_without_memory(self) -> Iterator[None]:
        """Raise DistributedError if memory runs out inside an exchange between ranks. The other
        ranks wait in it until this process ends."""
        try:
            yield
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            line = f"memory ran out on rank {self.rank}; lower hardware.microbatch_tokens"
        else:
            return
        raise DistributedError(line)  # outside `except`, so that tensors are freed

    def reports_first(self) -> bool:
        """Return whether this rank is the first to report why the run ends."""
        try:
            return self.store.add("speakers", 1) == 1
        except (RuntimeError, ValueError):  # the store is gone
            return True


def reason_of(error: Exception) -> tuple[str, str]:
    """Return the kind and the text of an error, for other ranks."""
    if isinstance(error, UserError):
        return "stopped" if isinstance(error, RunAborted) else "user", str(error)
    if isinstance(error, GeneratorError):
        return "generator", str(error)
    kind = "memory" if is_out_of_memory(error) else "other"
    return kind, f"{type(error).__name__}: {error}"


def error_of(rank: int, kind: str, text: str) -> Exception:
    """Return the error to raise here for the error of another rank."""
    if kind == "generator":
        return GeneratorError(text, [])
    if kind == "other":
        return DistributedError(f"rank {rank} of this run failed ({text.splitlines()[0]})")
    return {"user": UserError, "stopped": RunAborted, "memory": MemoryError}[kind](text)


@contextmanager
def joined(cfg: DictConfig) -> Iterator[Ranks]:
    """Yield the ranks of this run: a single one if hardware.strategy is null.

    All ranks but rank 0 print nothing inside. If all fail, one of them reports the error.
    """
    strategy = cfg.hardware.get("strategy")
    if strategy is None:
        yield Ranks()
        return
    ranks = ProcessRanks(strategy, cfg.hardware.device)
    try:
        with explained_loss("see its output, and start all again"):
            if ranks.is_main:
                yield ranks
            else:
                with open(os.devnull, "w") as null, redirect_stdout(null), redirect_stderr(null):
                    yield ranks
    except UserError as error:
        if ranks.reports_first():
            raise
        raise SystemExit(error.exit_code) from None
    dist.destroy_process_group()


@contextmanager
def explained_loss(remedy: str | None = None) -> Iterator[None]:
    """Raise DistributedError if another process of the group is gone."""
    try:
        yield
    except RuntimeError as error:
        if not is_lost(error):
            raise
        line = "another process of this run is gone"
        raise DistributedError(f"{line}; {remedy}" if remedy else line) from error


def is_lost(error: BaseException) -> bool:
    """Return whether an error means that another process did not answer."""
    signs = isinstance(error, RuntimeError) and any(e in str(error) for e in CONNECTION_ERRORS)
    return signs or isinstance(error, dist.DistError)


def check_agreement(ranks: Ranks, facts: dict[str, Any], remedy: str) -> None:
    """Raise UserError for the first of the named facts that differs between ranks."""
    first, *others = ranks.gather(facts, "agreement")
    for rank, row in enumerate(others, start=1):
        for name in first.keys() | row.keys():
            one, other = first.get(name), row.get(name)
            if one != other:
                line = f"{name} is {one} on rank 0 and {other} on rank {rank}"
                line = f"the processes of this run disagree: {line}; {remedy}"
                raise UserError(line, code="ranks-disagree")


def validate_strategy(cfg: DictConfig, algo: Algorithm, ranks: Ranks) -> None:
    """Raise UserError for a configuration that the ranks cannot train."""
    if ranks.size > 1 and cfg.eval.get("act") == "refined":
        line = "eval.act=refined plays in one process; train with eval.act=policy, then agentrl"
        raise UserError(f"{line} eval RUN eval.act=refined", code="single-process")
    if not ranks.sharded:
        return
    if cfg.model.lora is not None:
        line = "hardware=fsdp shards trained weights, and adapters are small; give hardware=ddp, or"
        raise UserError(f"{line} model.lora=null to train all weights", code="fsdp-lora")
    if cfg.model.dtype not in ("auto", "float32"):
        line = f"hardware=fsdp keeps its shards in float32, and model.dtype is {cfg.model.dtype}"
        line += "; give model.dtype=auto, and hardware.mixed_precision=bf16 to compute"
        raise UserError(line, code="fsdp-dtype")
    headed = [name for name, spec in algo.models().items() if spec.head is not None]
    if headed:
        line = f"hardware=fsdp trains no value head yet, and algo '{cfg.choices.algo}' has one"
        raise UserError(f"{line} on its {headed[0]}; give hardware=ddp", code="fsdp-head")


class RankGenerator(Generator):
    """Lets every rank sample a slice of the prompts with its `inner` generator, and shares all."""

    def __init__(self, inner: Generator, models: ModelSet) -> None:
        self.inner, self.models, self.ranks = inner, models, models.ranks

    def generate(
        self, prompts: list[list[int]], seeds: list[int], sampling: Sampling, model: str = "policy"
    ) -> list[list[Completion]]:

        def work(rows: list[tuple[list[int], int]]) -> list[list[Completion]]:
            own_prompts, own_seeds = [prompt for prompt, _ in rows], [seed for _, seed in rows]
            return self.inner.generate(own_prompts, own_seeds, sampling, model)

        with self.models.whole(model):
            return self.ranks.share(list(zip(prompts, seeds, strict=True)), work)

    def mark_changed(self, model: str) -> None:
        self.inner.mark_changed(model)

    def clear(self) -> None:
        self.inner.clear()


class RankActors(Actors):
    """Lets every rank play a slice of the episodes with the whole policy, and shares all."""

    def __init__(self, models: ModelSet) -> None:
        self.models = models

    def play(self, request: PlayRequest) -> list[Episode]:
        with self.models.whole("policy"):
            return self.models.ranks.share(request.starts, request.play_here)
