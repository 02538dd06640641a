"""Trains the phases of an algorithm: samples to packed batches to optimizer steps. It owns every
optimizer and knows no algorithm."""

from __future__ import annotations

import json
import math
import random
from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from time import perf_counter

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch.nn.utils import clip_grad_norm_

from agentrl_cli.algos.base import Phase
from agentrl_cli.core.activity import Activity
from agentrl_cli.core.errors import UserError
from agentrl_cli.core.files import read_json
from agentrl_cli.core.ranks import Ranks
from agentrl_cli.core.types import Sample, derive_seed
from agentrl_cli.models.model_set import ModelSet
from agentrl_cli.models.policy import collate
from agentrl_cli.models.reader import Pass, rank_passes
from agentrl_cli.models.sharding import whole
from agentrl_cli.models.specs import ModelSpec
from agentrl_cli.training.optimizer import Optimizer

Terms = tuple[list[int], dict[str, float]]  # a micro-batch's samples, its loss and sums by name


class NonFiniteError(RuntimeError):
    """A loss, metric or gradient was no finite number; `rows` is the batch as JSON values. No
    weight was changed by it."""

    def __init__(self, phase: str, term: str, samples: list[Sample]) -> None:
        stopped = "training stopped before the step was taken"
        super().__init__(f"phase '{phase}': {term} is not finite; {stopped}")
        self.phase, self.term = phase, term
        self.rows = [asdict(sample) for sample in samples]


@dataclass
class PhaseMeter:
    """Sums over all phases of one name within an update: `units` of the loss (Phase.units),
    trained `samples`, their `tokens` and those of them that are trained, optimizer `steps`, phases
    that were `empty`."""

    units: float = 0.0
    tokens: int = 0
    trained_tokens: int = 0
    samples: int = 0
    steps: int = 0
    empty: int = 0
    lr: float = 0.0
    grad_norm: float = 0.0
    sums: dict[str, float] = field(default_factory=dict)

    def metrics(self, name: str) -> dict[str, float]:
        """Means per unit of the loss, means per optimizer step of the gradient norm, and totals."""
        if not self.steps:
            return {f"{name}/empty": float(self.empty)}
        means = {key: total / self.units for key, total in self.sums.items()}
        counts = {
            "tokens": self.tokens, "trained_tokens": self.trained_tokens, "samples": self.samples,
            "empty": self.empty, "steps": self.steps,
        }  # fmt: skip
        per_step = {"grad_norm": self.grad_norm / self.steps, "lr": self.lr}
        return {f"{name}/{key}": float(n) for key, n in {**means, **counts, **per_step}.items()}


class Learner:
    """Trains each phase to completion before it asks for the next."""

    def __init__(
        self,
        models: ModelSet,
        specs: dict[str, ModelSpec],
        *,
        tokens_per_batch: int,
        seed: int,
        publish: Callable[[str], None],
        activity: Activity | None = None,
        ranks: Ranks | None = None,
    ) -> None:
        """Built after the models hold the weights to start from, where all `ranks` are to hold
        them. `tokens_per_batch` bounds the padded ids of one forward; `publish(name)` is called
        after a phase that changed a model which generates; `activity` is told how many samples of a
        phase are trained."""
        self.models, self.specs, self.publish = models, specs, publish
        self.tokens_per_batch, self.seed = tokens_per_batch, seed
        self.ranks = ranks or Ranks()
        self.activity = activity or Activity()
        self.optimizers = {
            name: Optimizer(models.trainable(name), spec.optimizer)
            for name, spec in specs.items()
            if spec.kind == "trained" and spec.optimizer is not None
        }

    def run(self, phases: Iterator[Phase], step: int) -> dict[str, float]:
        """Train the phases of update `step`; the metrics of each, and the seconds spent here and in
        the algorithm. Raises NonFiniteError before a weight would be spoiled, ValueError for a step
        with nothing to train."""
        meters: dict[str, PhaseMeter] = {}
        metrics: dict[str, float] = {}
        began, trained, between = perf_counter(), 0.0, self.activity.name
        for phase in phases:
            start = perf_counter()
            self.activity.begin(f"train {phase.name}", len(phase.samples) * phase.epochs)
            self._train_phase(phase, meters.setdefault(phase.name, PhaseMeter()), step)
            metrics |= phase.metrics
            trained += perf_counter() - start
            self.activity.begin(between)
        for name, meter in meters.items():
            metrics |= meter.metrics(name)
        return metrics | {"time/train": trained, "time/algorithm": perf_counter() - began - trained}

    def save(self, folder: Path | None) -> None:
        """Each optimizer's tensors as safetensors, all scalars in one JSON file; None where another
        rank writes."""
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
        for name, optimizer in self.optimizers.items():
            tensors = optimizer.tensors(kept=folder is not None)
            if folder is not None:
                save_file(tensors, folder / f"{name}.safetensors")
        if folder is None:
            return
        steps = {name: optimizer.steps for name, optimizer in self.optimizers.items()}
        (folder / "optimizers.json").write_text(json.dumps(steps))

    def load(self, folder: Path) -> None:
        """Inverse of `save`. Raises UserError where the folder does not hold these optimizers."""
        try:
            steps = read_json(folder / "optimizers.json")
            for name, optimizer in self.optimizers.items():
                optimizer.load(load_file(folder / f"{name}.safetensors"), steps[name])
        except (OSError, ValueError, KeyError, SafetensorError) as error:
            line = f"cannot read the optimizers in {folder} ({error})"
            raise UserError(f"{line}; resume from another checkpoint") from error

    def _train_phase(self, phase: Phase, meter: PhaseMeter, step: int) -> None:
        """All epochs of a phase; nothing but a count where it has no samples."""
        if phase.model not in self.optimizers:
            raise ValueError(f"phase '{phase.name}' trains '{phase.model}', which has no optimizer")
        if not phase.samples:
            meter.empty += 1
            return
        for epoch in range(phase.epochs):
            seed = derive_seed(self.seed, "learner", step, phase.name, epoch)
            for groups in split_steps(phase, seed):
                self._optimizer_step(phase, groups, meter)
                self.activity.done += sum(map(len, groups))
        self.models.mark_changed(phase.model)
        if self.specs[phase.model].generates:
            self.publish(phase.model)

    def _optimizer_step(self, phase: Phase, groups: list[list[int]], meter: PhaseMeter) -> None:
        """One optimizer step: the sum of losses over `groups`, over the sum of their units."""
        optimizer = self.optimizers[phase.model]
        samples = [phase.samples[i] for group in groups for i in group]
        units = sum(map(phase.units, samples))
        if units <= 0:
            step = f"a step of {len(samples)} samples with nothing to train"
            raise ValueError(f"phase '{phase.name}' has {step}")
        optimizer.clear()
        for found in self.ranks.gather(self._make_passes(phase, groups, units), "passes"):
            _count(phase, found, meter)
        self.ranks.sum_gradients(list(optimizer.weights.values()))
        norm = self._clip_gradients(optimizer)
        if not math.isfinite(norm):
            raise NonFiniteError(phase.name, "the gradient norm", samples)
        meter.lr = 0.0 if phase.head_only else optimizer.lr
        optimizer.step(head_only=phase.head_only)
        meter.grad_norm += norm
        meter.steps += 1
        meter.units += units
        meter.samples += len(samples)
        meter.tokens += sum(len(sample.ids) for sample in samples)
        meter.trained_tokens += sum(sum(sample.mask) for sample in samples)

    def _clip_gradients(self, optimizer: Optimizer) -> float:
        """Scale the gradients down to `clip_norm` (0: leave them); their norm before that."""
        limit = optimizer.spec.clip_norm or math.inf
        return float(whole(clip_grad_norm_(optimizer.weights.values(), limit)))

    def _make_passes(self, phase: Phase, groups: list[list[int]], units: float) -> list[Terms]:
        """Add the gradients of this rank's micro-batches; what the loss said of each."""
        device, found = self.models.device.type, list[Terms]()
        with self.ranks.together(passes=True):
            for part in rank_passes(
                groups, phase.samples, self.tokens_per_batch, device, self.ranks
            ):
                terms = self._add_gradients(phase, part, units)
                if part.counts:
                    found.append((part.rows, terms))
        return found

    def _add_gradients(self, phase: Phase, part: Pass, units: float) -> dict[str, float]:
        """Add the gradients of one micro-batch's share of the step's loss, which is per unit; the
        loss and the sums of its metrics."""
        batch = collate([phase.samples[i] for i in part.rows]).to(self.models.device)
        outputs = self.models.reader(phase.model).read(
            batch, entropy_gradient=phase.entropy_gradient, head_only=phase.head_only
        )
        loss, sums = phase.loss(outputs, batch)
        (loss / units if part.counts else 0.0 * loss).backward()
        return {term: float(n) for term, n in {"loss": loss.detach(), **sums}.items()}


def _count(phase: Phase, found: list[Terms], meter: PhaseMeter) -> None:
    """Add what the losses of a rank's micro-batches said to the meter. Raises NonFiniteError."""
    for rows, terms in found:
        for term, number in terms.items():
            if not math.isfinite(number):
                samples = [phase.samples[i] for i in rows]
                raise NonFiniteError(phase.name, f"'{term}'", samples)
            meter.sums[term] = meter.sums.get(term, 0.0) + number


def split_steps(phase: Phase, seed: int) -> list[list[list[int]]]:
    """Sample numbers of each optimizer step, in groups that stay together, in an order drawn
    from `seed`. At most `tokens_per_step` trained tokens a step, or units of samples that train
    none (a larger group makes a step of its own), in as few and as even steps as that allows.
    Raises ValueError where the samples do not divide into whole groups."""
    groups = _shuffled_groups(phase, seed)
    if phase.tokens_per_step <= 0:
        return [groups]
    sizes = [sum(_size(phase, phase.samples[i]) for i in group) for group in groups]
    numbers = _step_numbers(sizes, _smallest_sufficient_limit(sizes, phase.tokens_per_step))
    steps: list[list[list[int]]] = [[] for _ in range(numbers[-1] + 1)]
    for group, number in zip(groups, numbers, strict=True):
        steps[number].append(group)
    return steps


def _shuffled_groups(phase: Phase, seed: int) -> list[list[int]]:
    """Sample numbers in groups of `keep_together`, the groups in an order drawn from `seed`."""
    size, count = phase.keep_together, len(phase.samples)
    if count % size:
        raise ValueError(f"phase '{phase.name}' keeps {size} samples together but has {count}")
    groups = [list(range(i, i + size)) for i in range(0, count, size)]
    random.Random(seed).shuffle(groups)
    return groups


def _size(phase: Phase, sample: Sample) -> float:
    """What a sample adds to an optimizer step: the tokens that it trains, or its units."""
    return sum(sample.mask) or phase.units(sample)


def _smallest_sufficient_limit(sizes: list[float], limit: int) -> int:
    """The smallest limit that needs no more steps than `limit` does, which makes them most even. A
    smaller limit never needs fewer steps, so it is found by halving."""
    last = _step_numbers(sizes, limit)[-1]
    return bisect_left(range(limit), True, key=lambda n: _step_numbers(sizes, n)[-1] == last)


def _step_numbers(sizes: list[float], limit: int) -> list[int]:
    """The step of each group when steps are filled in order up to `limit`."""
    numbers, number, filled = [], 0, 0.0
    for size in sizes:
        if filled and filled + size > limit:
            number, filled = number + 1, 0
        filled += size
        numbers.append(number)
    return numbers
