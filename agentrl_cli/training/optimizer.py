"""AdamW over one model's weights, its schedule, and a state that a checkpoint holds exactly."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR
from transformers import get_scheduler

from agentrl_cli.models.model_set import is_head
from agentrl_cli.models.sharding import copy_whole, whole
from agentrl_cli.models.specs import OptimizerSpec


class Optimizer:
    """AdamW over one model's trained weights; those in less than float32 are stepped as float32
    masters. A head may have a rate of its own."""

    def __init__(self, weights: list[tuple[str, nn.Parameter]], spec: OptimizerSpec) -> None:
        self.spec, self.steps, self.weights = spec, 0, dict(weights)
        full = torch.float32
        self.masters = {k: p if p.dtype == full else p.detach().float() for k, p in weights}
        groups = _rate_groups(self.masters, spec)
        self.full_rates = [float(group["lr"]) for group in groups]
        self.adam = torch.optim.AdamW(groups, lr=spec.lr, weight_decay=spec.weight_decay)
        self.decay = _cosine(self.adam, spec.warmup_steps, spec.decay_steps)
        self.restart = _cosine(self.adam, 0, spec.restart_steps)

    @property
    def lr(self) -> float:
        """The learning rate of the body's next step."""
        return self._scheduled(self.spec.lr)

    def _scheduled(self, full: float) -> float:
        """The rate of the next step where the full one is given. Each cosine is transformers'. Its
        warm-up begins at zero and rounds otherwise than what stored runs were trained with, and its
        cosine_with_restarts goes back to the full rate: these two are written out."""
        spec, done = self.spec, self.steps
        if done < spec.warmup_steps:
            return full * (done + 1) / spec.warmup_steps
        if spec.decay_steps <= 0:
            return full
        if spec.restart_steps and done >= spec.decay_steps:
            cycle, place = divmod(done - spec.decay_steps, spec.restart_steps)
            return full / 2 ** (cycle + 1) * self.restart(place)
        end = max(spec.decay_steps, spec.warmup_steps + 1)
        return full * self.decay(min(done, end))  # after its end the cosine would rise again

    def step(self, *, head_only: bool = False) -> None:
        """Apply the weights' gradients and clear them. A step of the `head_only`, whose body has no
        gradients, is taken at the full rate and does not count in the schedule."""
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
        """Drop the gradients."""
        for weight in (*self.weights.values(), *self.masters.values()):
            weight.grad = None

    def tensors(self, *, kept: bool = True) -> dict[str, Tensor]:
        """Moments, step counts and masters, by weight, all of them whole. Sharded ones are put
        together one by one, on all ranks, and stay only where they are `kept`."""
        states = {
            f"{key}|{part}": value
            for key, m in self.masters.items()
            for part, value in self._moments(m).items()
        }
        own = {key: m for key, m in self.masters.items() if m is not self.weights[key]}
        states |= {f"{key}|master": m for key, m in own.items()}
        found = ((label, whole(tensor)) for label, tensor in states.items())
        return {label: tensor for label, tensor in found if kept}

    def load(self, tensors: dict[str, Tensor], steps: int) -> None:
        """Inverse of `tensors`. Raises KeyError where a tensor belongs to no weight, ValueError
        where one has another shape, a master is missing or the number of steps is none."""
        if type(steps) is not int or steps < 0:
            raise ValueError(f"{steps!r} is no number of steps")
        own = (f"{key}|master" for key, m in self.masters.items() if m is not self.weights[key])
        for label in own:
            if label not in tensors:
                raise ValueError(f"{label} is missing")
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
                self.adam.state[master][part] = moment = torch.empty_like(
                    master, dtype=tensor.dtype
                )
                copy_whole(moment, tensor)

    def _moments(self, master: Tensor) -> dict[str, Tensor]:
        return self.adam.state[master] if master in self.adam.state else {}


def _rate_groups(masters: dict[str, Tensor], spec: OptimizerSpec) -> list[dict[str, Any]]:
    """The weights of each learning rate, and that rate: all of them, or the body's and the head's
    where the head has its own."""
    if spec.head_lr is None:
        return [{"params": list(masters.values()), "lr": spec.lr}]
    body = [master for key, master in masters.items() if not is_head(key)]
    head = [master for key, master in masters.items() if is_head(key)]
    return [{"params": body, "lr": spec.lr}, {"params": head, "lr": spec.head_lr}]


def _cosine(
    adam: torch.optim.Optimizer, warmup_steps: int, decay_steps: int
) -> Callable[[int], float]:
    """From a step to its factor of the full rate: 1 after the warm-up, 0 at `decay_steps`."""
    scheduler = get_scheduler("cosine", adam, warmup_steps, decay_steps)
    assert isinstance(scheduler, LambdaLR)
    return scheduler.lr_lambdas[0]  # of the step alone, so that a checkpoint holds no schedule
