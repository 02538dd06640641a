"""Train the phases of an algorithm: samples to micro-batches to optimizer steps."""

from __future__ import annotations

import json
import math
import random
import reprlib
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace
from numbers import Real
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_

from agentrl_cli.algos.base import CONTRACT, Phase
from agentrl_cli.core.activity import Activity
from agentrl_cli.core.errors import UserError
from agentrl_cli.core.files import is_count, read_json
from agentrl_cli.core.terminal import echo_err
from agentrl_cli.core.types import Sample, derive_seed
from agentrl_cli.models.forward import Batch, Outputs, collate, rank_passes
from agentrl_cli.models.model_set import ModelSet, copy_whole, is_head, whole
from agentrl_cli.models.specs import ModelSpec, OptimizerSpec

COUNTS = ("tokens", "trained_tokens", "samples", "empty", "steps")
Terms = tuple[list[int], dict[str, float]]  # a micro-batch's samples, its loss and sums by name


class NonFiniteError(UserError):
    """A loss, metric or gradient is NaN or infinite; no weight was changed. `rows` is the batch as
    JSON values."""

    exit_code = 1
    default_code = "not-finite"

    def __init__(self, phase: str, term: str, samples: list[Sample]) -> None:
        line = f"phase '{phase}': {term} is not finite"
        super().__init__(f"{line}; training stopped before the step was taken")
        self.phase, self.term = phase, term
        self.rows = [asdict(sample) for sample in samples]


@dataclass
class PhaseMeter:
    """Sums over all phases of one name within an update. `empty` counts phases without samples."""

    units: float = 0.0
    counts: Counter[str] = field(default_factory=Counter[str])
    lr: float = 0.0
    grad_norm: float = 0.0
    sums: dict[str, float] = field(default_factory=dict)

    def metrics(self, name: str) -> dict[str, float]:
        """Return means per unit of the loss, the mean gradient norm per step, and totals."""
        counts = self.counts
        if not counts["steps"]:
            return {f"{name}/empty": float(counts["empty"])}
        found = {key: total / self.units for key, total in self.sums.items()}
        found |= {key: counts[key] for key in COUNTS}
        found |= {"grad_norm": self.grad_norm / counts["steps"], "lr": self.lr}
        return {f"{name}/{key}": float(number) for key, number in found.items()}


class ReadFields(dict[str, Tensor]):
    """The per-token fields of a batch; `asked` collects the names that a loss asks for."""

    def __init__(self, fields: dict[str, Tensor], phase: str, asked: set[str]) -> None:
        super().__init__(fields)
        self.phase, self.asked = phase, asked

    def __getitem__(self, name: str) -> Tensor:
        if name not in self:
            line = f"the loss of phase '{self.phase}' reads the field '{name}'"
            known = ", ".join(f"'{key}'" for key in self) or "no fields"
            raise UserError(f"{line}, but its samples have {known}", code=CONTRACT)
        return super().__getitem__(name)

    def __contains__(self, name: object) -> bool:
        self.asked.add(str(name))
        return super().__contains__(name)

    def get(self, name: str, default: Any = None) -> Any:
        return self[name] if name in self else default


class Learner:
    """Trains the phases of an update, one after the other."""

    def __init__(
        self, models: ModelSet, specs: dict[str, ModelSpec], *, microbatch_tokens: int, seed: int,
        publish: Callable[[str], None], activity: Activity | None = None,
    ) -> None:  # fmt: skip
        """Create the optimizers of models that hold their first weights. `microbatch_tokens` is the
        maximum of padded tokens of a forward pass. `publish(name)` is called after a generating
        model was trained."""
        self.models, self.specs, self.seed, self.publish = models, specs, seed, publish
        self.microbatch_tokens, self.activity = microbatch_tokens, activity or Activity()
        self.ranks = models.ranks
        self.asked: dict[str, set[str]] = {}  # fields that the loss of each phase asked for
        self.warned: set[str] = set()  # phases whose fields were compared with these
        self.optimizers = {
            name: Optimizer(models.trainable(name), spec.optimizer)
            for name, spec in specs.items()
            if spec.optimizer is not None
        }

    def run(self, phases: Iterator[Phase], step: int) -> dict[str, float]:
        """Train every phase and return metrics. Raises NonFiniteError before a step with NaN or
        infinite numbers, and UserError for phases that break the contract of an algorithm."""
        if not isinstance(phases, Iterable):
            raise UserError(
                f"update() returned {reprlib.repr(phases)}; yield phases", code=CONTRACT
            )
        meters: dict[str, PhaseMeter] = {}
        metrics: dict[str, float] = {}
        began, trained, between = perf_counter(), 0.0, self.activity.name
        for phase in phases:
            start = perf_counter()
            self._check(phase)
            self.activity.begin(f"train {phase.name}", len(phase.samples) * phase.epochs)
            self._train_phase(phase, meters.setdefault(phase.name, PhaseMeter()), step)
            metrics |= phase.metrics
            trained += perf_counter() - start
            self.activity.begin(between)
        for name, meter in meters.items():
            metrics |= meter.metrics(name)
        return metrics | {"time/train": trained, "time/algorithm": perf_counter() - began - trained}

    def _check(self, phase: Phase) -> None:
        """Raise UserError if a phase breaks the contract. It must not train a model without
        optimizer, or the policy under the name of another model, because `model` was forgotten."""
        if not isinstance(phase, Phase):
            line = f"update() yielded {reprlib.repr(phase)}; yield a Phase"
            raise UserError(line, code=CONTRACT)
        line = f"phase '{phase.name}'"
        for sample in phase.samples:
            if not isinstance(sample, Sample):
                remedy = "make samples with episode_samples"
                line = f"{line} has {reprlib.repr(sample)} as a sample; {remedy}"
                raise UserError(line, code=CONTRACT)
        for name, number in phase.metrics.items():
            if not isinstance(number, Real):
                line = f"{line} has {reprlib.repr(number)} as metric '{name}'; give a number"
                raise UserError(line, code=CONTRACT)
        line = f"{line} trains '{phase.model}'"
        if phase.model not in self.optimizers:
            known = ", ".join(self.optimizers)
            line = f"{line}, which has no optimizer; choose one of {known}"
            raise UserError(line, code=CONTRACT)
        if phase.model == "policy" != phase.name and phase.name in self.optimizers:
            line = f"{line}; give model='{phase.name}', or another name"
            raise UserError(line, code=CONTRACT)

    def _train_phase(self, phase: Phase, meter: PhaseMeter, step: int) -> None:
        if not phase.samples:
            meter.counts["empty"] += 1
            return
        for epoch in range(phase.epochs):
            seed = derive_seed(self.seed, "learner", step, phase.name, epoch)
            for groups in split_steps(phase, seed):
                self._optimizer_step(phase, groups, meter)
                if phase.after_step:
                    phase.after_step()
                self.activity.done += sum(map(len, groups))
        self.models.mark_changed(phase.model)
        if self.specs[phase.model].generates:
            self.publish(phase.model)

    def _optimizer_step(self, phase: Phase, groups: list[list[int]], meter: PhaseMeter) -> None:
        """Take one step on the sum of losses over `groups` divided by the sum of their units."""
        optimizer = self.optimizers[phase.model]
        samples = [phase.samples[i] for group in groups for i in group]
        units = sum(map(phase.units, samples))
        if units <= 0:
            line = (
                f"phase '{phase.name}' has a step of {len(samples)} samples with nothing to train"
            )
            raise UserError(f"{line}; give samples with a trained token", code=CONTRACT)
        optimizer.clear()
        of_ranks = self.ranks.gather(self._add_gradients(phase, groups, units), "passes")
        if phase.name not in self.warned:
            self._warn_of_unread_fields(phase)
        for rows, terms in (part for found in of_ranks for part in found):
            for term, number in terms.items():
                if not math.isfinite(number):
                    batch = [phase.samples[i] for i in rows]
                    raise NonFiniteError(phase.name, f"'{term}'", batch)
                meter.sums[term] = meter.sums.get(term, 0.0) + number
        self.ranks.sum_gradients(list(optimizer.weights.values()))
        limit = optimizer.spec.max_grad_norm or math.inf
        norm = float(whole(clip_grad_norm_(optimizer.weights.values(), limit)))
        if not math.isfinite(norm):
            raise NonFiniteError(phase.name, "the gradient norm", samples)
        meter.lr = 0.0 if phase.head_only else optimizer.lr
        optimizer.step(head_only=phase.head_only)
        meter.grad_norm += norm
        meter.units += units
        meter.counts["steps"] += 1
        meter.counts["samples"] += len(samples)
        meter.counts["tokens"] += sum(len(sample.ids) for sample in samples)
        meter.counts["trained_tokens"] += sum(sum(sample.mask) for sample in samples)

    def _add_gradients(self, phase: Phase, groups: list[list[int]], units: float) -> list[Terms]:
        """Add the gradients of this rank's micro-batches; return the loss and metrics of each."""
        device, found = self.models.device, list[Terms]()
        with self.ranks.together(passes=True):
            for part in rank_passes(
                groups, phase.samples, self.microbatch_tokens, device.type, self.ranks
            ):
                batch = self._collate(phase, part.rows)
                outputs = self.models.forward(phase.model).compute(
                    batch, entropy_gradient=phase.entropy_gradient, head_only=phase.head_only
                )
                loss, sums = checked_loss(phase, outputs, batch)
                (loss / units if part.counts else 0.0 * loss).backward()
                if part.counts:
                    terms = {"loss": loss.detach(), **sums}
                    found.append((part.rows, {name: float(n) for name, n in terms.items()}))
        return found

    def _collate(self, phase: Phase, rows: list[int]) -> Batch:
        """Return a batch on the device that notes which fields the loss asks for."""
        try:
            batch = collate([phase.samples[i] for i in rows]).to(self.models.device)
        except (IndexError, KeyError, TypeError, ValueError) as error:
            reason = f"{type(error).__name__}: {error}"
            line = f"phase '{phase.name}' has a sample that cannot be trained ({reason})"
            raise UserError(f"{line}; correct it", code=CONTRACT) from error
        asked = self.asked.setdefault(phase.name, {"branch"})  # which the model reads
        return replace(batch, per_token=ReadFields(batch.per_token, phase.name, asked))

    def _warn_of_unread_fields(self, phase: Phase) -> None:
        """Print a warning, once for a phase, if a field may be misspelt: the loss did not ask for
        it, but for one that no sample has."""
        self.warned.add(phase.name)
        given = {name for sample in phase.samples for name in sample.per_token}
        asked = self.asked.get(phase.name, given)
        missing, unread = sorted(asked - given - {"branch"}), sorted(given - asked)
        if missing and unread and self.ranks.is_main:
            line = f"warning: the loss of phase '{phase.name}' asks for '{', '.join(missing)}'"
            echo_err(f"{line}, but its samples have '{', '.join(unread)}', which it does not read")

    def save(self, folder: Path | None) -> None:
        """Write each optimizer's tensors as safetensors and all step counts in one JSON file. Ranks
        that do not write give None."""
        if folder is None:
            for optimizer in self.optimizers.values():
                optimizer.tensors(kept=False)
            return
        folder.mkdir(parents=True, exist_ok=True)
        for name, optimizer in self.optimizers.items():
            save_file(optimizer.tensors(), folder / f"{name}.safetensors")
        steps = {name: optimizer.steps for name, optimizer in self.optimizers.items()}
        (folder / "optimizers.json").write_text(json.dumps(steps))

    def load(self, folder: Path) -> None:
        """Restore what `save` wrote. Raises UserError if the folder has other optimizers."""
        try:
            steps = read_json(folder / "optimizers.json")
            for name, optimizer in self.optimizers.items():
                optimizer.load(load_file(folder / f"{name}.safetensors"), steps[name])
        except (OSError, ValueError, KeyError, SafetensorError) as error:
            line = f"cannot read the optimizers in {folder} ({error})"
            remedy = "resume from another checkpoint"
            raise UserError(f"{line}; {remedy}", code="unreadable-weights") from error


def checked_loss(phase: Phase, outputs: Outputs, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the loss and the sums of metrics of a batch. Raises UserError if they have other types
    or the loss has no gradient."""
    found: Any = phase.loss(outputs, batch)
    line = f"the loss of phase '{phase.name}' returned"
    if not (isinstance(found, tuple) and len(found) == 2 and isinstance(found[1], dict)):
        remedy = "return the loss and a dictionary of metrics"
        raise UserError(f"{line} {reprlib.repr(found)}; {remedy}", code=CONTRACT)
    loss, sums = found
    if not (is_scalar(loss) and isinstance(loss, Tensor) and loss.requires_grad):
        remedy = "return one number that depends on the outputs of the model"
        raise UserError(f"{line} {reprlib.repr(loss)} as loss; {remedy}", code=CONTRACT)
    for name, number in sums.items():
        if not is_scalar(number):
            line = f"{line} {reprlib.repr(number)} as metric '{name}'; return one number"
            raise UserError(line, code=CONTRACT)
    return loss, sums


def is_scalar(value: object) -> bool:
    return value.numel() == 1 if isinstance(value, Tensor) else isinstance(value, Real)


def split_steps(phase: Phase, seed: int) -> list[list[list[int]]]:
    """Return the sample numbers of each optimizer step, in groups that stay together, in an order
    drawn from `seed`.

    A step has at most `minibatch_tokens` trained tokens (units, if no token is trained) or a single
    larger group. There are as few steps as that allows, of sizes as even as possible. Raises
    UserError if the samples do not divide into whole groups.
    """
    size, count = phase.keep_together, len(phase.samples)
    if count % size:
        line = f"phase '{phase.name}' keeps {size} samples together but has {count}"
        raise UserError(f"{line}; give whole groups", code=CONTRACT)
    groups = [list(range(i, i + size)) for i in range(0, count, size)]
    random.Random(seed).shuffle(groups)
    if phase.minibatch_tokens <= 0:
        return [groups]
    weights = [sum(sample.mask) or phase.units(sample) for sample in phase.samples]
    sizes = [sum(weights[i] for i in group) for group in groups]
    # the smallest limit that needs no more steps makes them most even
    limit, last = phase.minibatch_tokens, _step_numbers(sizes, phase.minibatch_tokens)[-1]
    even = bisect_left(range(limit), True, key=lambda n: _step_numbers(sizes, n)[-1] == last)
    numbers = _step_numbers(sizes, even)
    steps: list[list[list[int]]] = [[] for _ in range(numbers[-1] + 1)]
    for group, number in zip(groups, numbers, strict=True):
        steps[number].append(group)
    return steps


def _step_numbers(sizes: list[float], limit: int) -> list[int]:
    """Return the step of each group if steps are filled in order up to `limit`."""
    numbers, number, filled = [], 0, 0.0
    for size in sizes:
        if filled and filled + size > limit:
            number, filled = number + 1, 0
        filled += size
        numbers.append(number)
    return numbers


class Optimizer:
    """AdamW over one model's weights. Weights in less than float32 are stepped through float32
    masters. The head may have its own learning rate."""

    def __init__(self, weights: list[tuple[str, nn.Parameter]], spec: OptimizerSpec) -> None:
        self.spec, self.steps, self.weights = spec, 0, dict(weights)
        self.masters = {
            key: weight if weight.dtype == torch.float32 else weight.detach().float()
            for key, weight in weights
        }
        groups = [{"params": list(self.masters.values()), "lr": spec.lr}]
        if spec.head_lr is not None:
            groups = [
                {"params": [m for k, m in self.masters.items() if is_head(k) == in_head], "lr": lr}
                for in_head, lr in ((False, spec.lr), (True, spec.head_lr))
            ]
        self.full_rates = [float(group["lr"]) for group in groups]
        self.adam = torch.optim.AdamW(groups, lr=spec.lr, weight_decay=spec.weight_decay)

    @property
    def lr(self) -> float:
        """The learning rate of the body's next step."""
        return self._scheduled(self.spec.lr)

    def _scheduled(self, full: float) -> float:
        """Return the rate of the next step for the full rate `full`: a linear warm-up that does not
        start at zero, then a cosine."""
        spec, done = self.spec, self.steps
        if done < spec.warmup_steps:
            return full * (done + 1) / spec.warmup_steps
        if spec.decay_steps <= 0:
            return full
        length = max(1, spec.decay_steps - spec.warmup_steps)
        progress = min(1.0, (done - spec.warmup_steps) / length)
        return full * (0.5 * (1 + math.cos(math.pi * progress)))

    def step(self, *, head_only: bool = False) -> None:
        """Apply the gradients and clear them. A `head_only` step uses the full rate and does not
        count in the schedule."""
        for group, full in zip(self.adam.param_groups, self.full_rates, strict=True):
            group["lr"] = full if head_only else self._scheduled(full)
        for key, weight in self.weights.items():
            if self.masters[key] is not weight and weight.grad is not None:
                self.masters[key].grad, weight.grad = weight.grad.float(), None
        self.adam.step()
        with torch.no_grad():
            for key, weight in self.weights.items():
                if self.masters[key] is not weight:
                    weight.copy_(self.masters[key])
        self.clear()
        self.steps += not head_only

    def clear(self) -> None:
        for weight in (*self.weights.values(), *self.masters.values()):
            weight.grad = None

    def tensors(self, *, kept: bool = True) -> dict[str, Tensor]:
        """Return moments, step counts and masters by weight. Sharded ones are gathered one by one
        on all ranks, and returned only if `kept`."""
        states = {
            f"{key}|{part}": value
            for key, master in self.masters.items()
            if master in self.adam.state
            for part, value in self.adam.state[master].items()
        }
        own = {key: m for key, m in self.masters.items() if m is not self.weights[key]}
        states |= {f"{key}|master": m for key, m in own.items()}
        found = ((label, whole(tensor)) for label, tensor in states.items())
        return {label: tensor for label, tensor in found if kept}

    def load(self, tensors: dict[str, Tensor], steps: int) -> None:
        """Restore `tensors`. Raises KeyError for a tensor of no weight, ValueError for another
        shape, a missing master or an invalid number of steps."""
        if not is_count(steps):
            raise ValueError(f"{steps!r} is not a number of steps")
        for key, master in self.masters.items():
            if master is not self.weights[key] and f"{key}|master" not in tensors:
                raise ValueError(f"{key}|master is missing")
        self.steps = steps
        self.adam.state.clear()
        for label, tensor in tensors.items():
            key, part = label.rsplit("|", 1)
            master = self.masters[key]
            if part != "step" and tensor.shape != master.shape:
                raise ValueError(f"{label} has the shape {list(tensor.shape)}")
            if part == "master":
                copy_whole(master, tensor)
            elif part == "step":  # AdamW keeps its step counts on the CPU
                self.adam.state[master][part] = tensor.clone()
            else:
                moment = torch.empty_like(master, dtype=tensor.dtype)
                self.adam.state[master][part] = moment
                copy_whole(moment, tensor)
