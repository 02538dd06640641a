"""Several processes that train one run, as a launcher has started them: how they find each other,
divide work and bring it together. Text and numbers travel as JSON over gloo, gradients over the
backend of their device. What they train is not known here."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from accelerate import PartialState
from torch import Tensor, nn
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous
from torch.distributed.tensor import DTensor

from agentrl_cli.core.errors import GeneratorError, LostRank, StoppedRun, UserError
from agentrl_cli.core.ranks import Item, Numbers, Ranks, Result
from agentrl_cli.core.types import Episode
from agentrl_cli.generators.base import Completion, Generator, Sampling
from agentrl_cli.rollout.actors import Actors, PlayRequest
from agentrl_cli.training.memory_limit import is_out_of_memory

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from agentrl_cli.algos.base import Algorithm
    from agentrl_cli.models.model_set import ModelSet

WAITING = timedelta(hours=12)  # longer than the slowest rank plays or the first one saves
BUCKET = 2**26  # numbers of gradients that travel at once: 256 MiB of float32
OTHER_ENGINES = ("ACCELERATE_USE_FSDP", "ACCELERATE_USE_DEEPSPEED", "ACCELERATE_USE_MEGATRON_LM")
GONE = "another process of this run is gone"
CAME_APART = "the processes of this run came apart"


class ProcessRanks(Ranks):
    """The ranks of a process group. `store` outlives them where a launcher holds it."""

    def __init__(self, strategy: str, device: str) -> None:
        """Find the others. Raises UserError where they cannot be reached, or the launcher brings
        another engine."""
        _refuse_other_engines()
        _refuse_missing_devices(strategy, device)
        try:
            store, rank, size = next(iter(rendezvous("env://", timeout=timedelta(minutes=10))))
            options: dict[str, Any] = {"rank": rank, "world_size": size, "timeout": WAITING}
            groups = PrefixStore("groups", store)
            state = PartialState(cpu=device == "cpu", store=groups, **options)
            self.control = dist.new_group(backend="gloo", timeout=WAITING)
        except (OSError, RuntimeError, ValueError) as error:  # a taken port, a host that is away
            reason = str(error).splitlines()[0]
            place = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
            line = f"the processes of this run do not find each other at {place} ({reason})"
            raise UserError(
                f"{line}; give the launcher a reachable address and a free port"
            ) from error
        self.store, self.rank, self.size = PrefixStore("agentrl", store), rank, size
        # Accelerate's CPU has a number, by which no file can be read
        self.device = torch.device("cpu") if device == "cpu" else state.device
        self.sharded = strategy == "fsdp"

    def gather(self, value: Any, at: str) -> list[Any]:
        """The JSON values of all ranks. Raises LostRank where one of them is somewhere else."""
        sent = json.dumps({"at": at, "value": value}).encode()
        own = torch.frombuffer(bytearray(sent), dtype=torch.uint8)
        lengths = [torch.zeros(1, dtype=torch.int64) for _ in range(self.size)]
        dist.all_gather(lengths, torch.tensor([len(sent)]), group=self.control)
        most = max(int(length) for length in lengths)
        rows = [torch.zeros(most, dtype=torch.uint8) for _ in range(self.size)]
        dist.all_gather(rows, nn.functional.pad(own, (0, most - len(sent))), group=self.control)
        pairs = zip(rows, lengths, strict=True)
        found = [json.loads(row[: int(length)].numpy().tobytes()) for row, length in pairs]
        for rank, row in enumerate(found):
            if row["at"] != at:
                line = f"rank {self.rank} is at '{at}' and rank {rank} at '{row['at']}'"
                raise LostRank(f"{CAME_APART} ({line})")
        return [row["value"] for row in found]

    def share(
        self,
        items: list[Item],
        work: Callable[[list[Item]], list[Result]],
        to_json: Callable[[Result], Any],
        from_json: Callable[[Any], Result],
    ) -> list[Result]:
        """As said in `Ranks`: slices side by side, so that what shares a beginning stays together.
        All ranks have read their results from JSON, their own, too."""
        if not items:
            return []
        own: list[Any] = []
        with self.together():
            bounds = [rank * len(items) // self.size for rank in (self.rank, self.rank + 1)]
            part = items[slice(*bounds)]
            own = [to_json(result) for result in work(part)] if part else []
        return [from_json(row) for rows in self.gather(own, "results") for row in rows]

    def sum(self, numbers: Numbers) -> Numbers:
        """In place."""
        assert isinstance(numbers, Tensor)
        dist.all_reduce(numbers, group=self.control if numbers.device.type == "cpu" else None)
        return numbers

    def sum_gradients(self, weights: list[nn.Parameter]) -> None:
        """In float32, as few messages as fit BUCKET. Those of sharded weights are summed already,
        where they were made."""
        whole = [weight for weight in weights if not isinstance(weight, DTensor)]
        if not whole:
            return
        has = self.sum(torch.tensor([float(weight.grad is not None) for weight in whole]))
        found = [weight for weight, count in zip(whole, has.tolist(), strict=True) if count]
        for bucket in _buckets(found):
            rows = [_gradient(weight).float().flatten() for weight in bucket]
            summed = self.sum(torch.cat(rows)).split([len(row) for row in rows])
            for weight, row in zip(bucket, summed, strict=True):
                weight.grad = row.view_as(weight).to(weight.dtype)

    @contextmanager
    def together(self, *, passes: bool = False) -> Iterator[None]:
        """As said in `Ranks`. One whose error is not an intended one ends by itself, and so do the
        others."""
        if passes and self.sharded:
            yield
            return
        failed: Exception | None = None
        try:
            yield
        except LostRank:
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
                raise error_of(rank, **reason)

    def takes_the_word(self) -> bool:
        """Whether this rank is the first to say why the run ends; where nobody can be asked, it
        says so itself."""
        try:
            return self.store.add("speakers", 1) == 1
        except (RuntimeError, ValueError):
            return True


@contextmanager
def joined(cfg: DictConfig) -> Iterator[Ranks]:
    """The ranks that this process trains with: alone where hardware.strategy is null. All but rank
    0 are silent inside; where all fail, one of them says why."""
    strategy = cfg.hardware.get("strategy")
    if strategy is None:
        yield Ranks()
        return
    ranks = ProcessRanks(strategy, cfg.hardware.device)
    try:
        with explained_loss("see what it said, and start all again"), _silent(not ranks.is_main):
            yield ranks
    except UserError as error:
        if ranks.takes_the_word():
            raise
        raise SystemExit(error.exit_code) from None
    dist.destroy_process_group()


@contextmanager
def explained_loss(remedy: str | None = None) -> Iterator[None]:
    """Raise LostRank, with the remedy where there is one, where a process of the group is gone."""
    try:
        yield
    except RuntimeError as error:
        if not is_lost(error):
            raise
        raise LostRank("; ".join(filter(None, (GONE, remedy)))) from error


def is_lost(error: BaseException) -> bool:
    """Whether an error says that another process did not answer."""
    signs = ("gloo", "Connection closed by peer", "Connection reset by peer", "Broken pipe")
    text = str(error)
    is_one = isinstance(error, RuntimeError) and any(sign in text for sign in signs)
    return is_one or isinstance(error, dist.DistError)


def refuse_disagreement(ranks: Ranks, facts: dict[str, Any], remedy: str) -> None:
    """Raise UserError for the first of the facts, JSON values by name, that is another one on
    another rank."""
    first, *others = ranks.gather(facts, "agreement")
    for rank, row in enumerate(others, start=1):
        for name in first.keys() | row.keys():
            one, other = first.get(name), row.get(name)
            if one != other:
                line = f"{name} is {one} on rank 0 and {other} on rank {rank}"
                raise UserError(f"the processes of this run disagree: {line}; {remedy}")


def refuse_strategy(cfg: DictConfig, algo: Algorithm, ranks: Ranks) -> None:
    """Raise UserError for what ranks cannot do together."""
    if ranks.size > 1 and cfg.eval.get("act") == "refined":
        line = "eval.act=refined plays in one process"
        raise UserError(
            f"{line}; train with eval.act=policy, then agentrl eval RUN eval.act=refined"
        )
    if not ranks.sharded:
        return
    if cfg.model.lora is not None:
        line = "hardware=fsdp shards the weights that are trained, and of adapters these are few"
        raise UserError(f"{line}; give hardware=ddp, or model.lora=null to train all weights")
    if cfg.model.dtype not in ("auto", "float32"):
        line = f"hardware=fsdp keeps its shards in float32, and model.dtype is {cfg.model.dtype}"
        raise UserError(
            f"{line}; give model.dtype=auto, and hardware.mixed_precision=bf16 to compute"
        )
    headed = [name for name, spec in algo.models().items() if spec.head is not None]
    if headed:
        line = f"hardware=fsdp trains no value head yet, and algo '{cfg.choices.algo}' has one"
        raise UserError(f"{line} on its {headed[0]}; give hardware=ddp")


class RankGenerator(Generator):
    """What algorithms sample from: every rank samples its slice of the prompts by its own `inner`
    generator and gets the texts of all."""

    def __init__(self, inner: Generator, models: ModelSet) -> None:
        self.inner, self.models, self.ranks = inner, models, models.ranks
        self.gives_hidden_states = inner.gives_hidden_states

    def generate(
        self, prompts: list[list[int]], seeds: list[int], sampling: Sampling, model: str = "policy"
    ) -> list[list[Completion]]:
        """As the generator inside does; the streams of the seeds make the division invisible."""

        def work(rows: list[tuple[list[int], int]]) -> list[list[Completion]]:
            own_prompts, own_seeds = [prompt for prompt, _ in rows], [seed for _, seed in rows]
            return self.inner.generate(own_prompts, own_seeds, sampling, model)

        rows = list(zip(prompts, seeds, strict=True))
        with self.models.whole(model):
            return self.ranks.share(rows, work, _to_rows, _from_rows)

    def hidden(self, prompts: list[list[int]], model: str = "policy") -> Tensor:
        """The last hidden states [prompts, width], read by slices as well."""

        def work(rows: list[list[int]]) -> list[Tensor]:
            return list(self.inner.hidden(rows, model).float())

        with self.models.whole(model):
            rows = self.ranks.share(prompts, work, Tensor.tolist, torch.tensor)
        return torch.stack(rows).to(self.models.device)

    def load(self, model: str, version: int, path: Path | None = None) -> None:
        """Hand on to the generator inside."""
        self.inner.load(model, version, path)

    def check_context(self, most: int, model: str = "policy") -> None:
        """Hand on to the generator inside."""
        self.inner.check_context(most, model)

    def clear(self) -> None:
        """Hand on to the generator inside."""
        self.inner.clear()


class RankActors(Actors):
    """Every rank plays its slice of the episodes by itself, with the policy's whole weights, and
    gets those of all."""

    def __init__(self, models: ModelSet) -> None:
        self.models = models

    def play(self, request: PlayRequest) -> list[Episode]:
        """As said in `Actors`; one rank alone plays all of them."""
        with self.models.whole("policy"):
            return self.models.ranks.share(
                request.starts, request.play_here, Episode.to_json, Episode.from_json
            )


def _to_rows(completions: list[Completion]) -> list[dict[str, Any]]:
    return [asdict(completion) for completion in completions]


def _from_rows(rows: list[dict[str, Any]]) -> list[Completion]:
    return [Completion(**row) for row in rows]


def reason_of(error: Exception) -> dict[str, str]:
    """What the others must know of an error: its kind and its text."""
    if isinstance(error, UserError):
        return {"kind": "stopped" if isinstance(error, StoppedRun) else "user", "text": str(error)}
    if isinstance(error, GeneratorError):
        return {"kind": "generator", "text": str(error)}
    kind = "memory" if is_out_of_memory(error) else "other"
    return {"kind": kind, "text": f"{type(error).__name__}: {error}"}


def error_of(rank: int, kind: str, text: str) -> Exception:
    """What is raised here for an error of another rank."""
    kinds = {"user": UserError, "stopped": StoppedRun, "memory": MemoryError}
    if kind in kinds:
        return kinds[kind](text)
    if kind == "generator":
        return GeneratorError(text, [])
    return LostRank(f"rank {rank} of this run failed ({text.splitlines()[0]})")


def _gradient(weight: nn.Parameter) -> Tensor:
    return torch.zeros_like(weight) if weight.grad is None else weight.grad


def _buckets(weights: list[nn.Parameter]) -> Iterator[list[nn.Parameter]]:
    """The weights in order, in parts of at most BUCKET numbers; a larger weight is a part."""
    part: list[nn.Parameter] = []
    for weight in weights:
        if part and sum(w.numel() for w in part) + weight.numel() > BUCKET:
            yield part
            part = []
        part.append(weight)
    if part:
        yield part


def _refuse_other_engines() -> None:
    for variable in OTHER_ENGINES:
        if os.environ.get(variable, "").lower() in ("true", "1"):
            line = f"accelerate launch brings an engine of its own ({variable})"
            raise UserError(f"{line}; start it without, hardware=ddp or hardware=fsdp says it all")


def _refuse_missing_devices(strategy: str, device: str) -> None:
    if device == "cpu":
        return
    if not torch.cuda.is_available():
        line = f"hardware '{strategy}' needs CUDA devices and none was found"
        raise UserError(f"{line}; give hardware.device=cpu")
    number, count = int(os.environ["LOCAL_RANK"]), torch.cuda.device_count()
    if number >= count:
        line = f"LOCAL_RANK is {number}, but this machine shows {count} GPUs"
        raise UserError(f"{line}; start one process for each")


@contextmanager
def _silent(is_silent: bool) -> Iterator[None]:
    """Nothing is printed inside."""
    if not is_silent:
        yield
        return
    with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere):
        yield
