"""AdamW over one model's weights, its schedule, and a state that a checkpoint holds exactly."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR
from transformers import get_scheduler

from agentrl_cli.models.specs import OptimizerSpec


class Optimizer:
    """AdamW over one model's trained weights; those in less than float32 are stepped as float32
    masters."""

    def __init__(self, weights: list[tuple[str, nn.Parameter]], spec: OptimizerSpec) -> None:
        self.spec, self.steps, self.weights = spec, 0, dict(weights)
        full = torch.float32
        self.masters = {k: p if p.dtype == full else p.detach().float() for k, p in weights}
        masters = self.masters.values()
        self.adam = torch.optim.AdamW(masters, lr=spec.lr, weight_decay=spec.weight_decay)
        self.decay = _cosine(self.adam, spec.warmup_steps, spec.decay_steps)
        self.restart = _cosine(self.adam, 0, spec.restart_steps)

    @property
    def lr(self) -> float:
        """The learning rate of the next step. Each cosine is transformers'. Its warm-up begins at
        zero and rounds otherwise than what stored runs were trained with, and its
        cosine_with_restarts goes back to the full rate: these two are written out."""
        spec, done = self.spec, self.steps
        if done < spec.warmup_steps:
            return spec.lr * (done + 1) / spec.warmup_steps
        if spec.decay_steps <= 0:
            return spec.lr
        if spec.restart_steps and done >= spec.decay_steps:
            cycle, place = divmod(done - spec.decay_steps, spec.restart_steps)
            return spec.lr / 2 ** (cycle + 1) * self.restart(place)
        end = max(spec.decay_steps, spec.warmup_steps + 1)
        return spec.lr * self.decay(min(done, end))  # after its end the cosine would rise again

    def step(self) -> None:
        """Apply the weights' gradients and clear them."""
        for group in self.adam.param_groups:
            group["lr"] = self.lr
        for key, weight in self.weights.items():
            if self.masters[key] is not weight:
                self.masters[key].grad = None if weight.grad is None else weight.grad.float()
        self.adam.step()
        with torch.no_grad():
            for key, weight in self.weights.items():
                if self.masters[key] is not weight:
                    weight.copy_(self.masters[key])
        self.clear()
        self.steps += 1

    def clear(self) -> None:
        """Drop the gradients."""
        for weight in self.weights.values():
            weight.grad = None

    def tensors(self) -> dict[str, Tensor]:
        """Moments, step counts and masters, by weight."""
        states = {
            f"{key}|{part}": value
            for key, m in self.masters.items()
            for part, value in self._moments(m).items()
        }
        own = {key: m for key, m in self.masters.items() if m is not self.weights[key]}
        return states | {f"{key}|master": m for key, m in own.items()}

    def load(self, tensors: dict[str, Tensor], steps: int) -> None:
        """Inverse of `tensors`. Raises KeyError where a tensor belongs to no weight."""
        self.steps = steps
        self.adam.state.clear()
        for label, tensor in tensors.items():
            key, part = label.rsplit("|", 1)
            master = self.masters[key]
            if part == "master":
                master.copy_(tensor)
            else:  # AdamW keeps its step counts on the CPU
                device = tensor.device if part == "step" else master.device
                self.adam.state[master][part] = tensor.to(device, copy=True)

    def _moments(self, master: Tensor) -> dict[str, Tensor]:
        return self.adam.state[master] if master in self.adam.state else {}


def _cosine(
    adam: torch.optim.Optimizer, warmup_steps: int, decay_steps: int
) -> Callable[[int], float]:
    """From a step to its factor of the full rate: 1 after the warm-up, 0 at `decay_steps`."""
    scheduler = get_scheduler("cosine", adam, warmup_steps, decay_steps)
    assert isinstance(scheduler, LambdaLR)
    return scheduler.lr_lambdas[0]  # of the step alone, so that a checkpoint holds no schedule
