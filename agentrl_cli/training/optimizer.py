"""AdamW over one model's weights, its schedule, and a state that a checkpoint holds exactly."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from agentrl_cli.models.specs import OptimizerSpec


class Optimizer:
    """AdamW over one model's trained weights; those in less than float32 are stepped as float32
    masters."""

    def __init__(self, weights: list[tuple[str, nn.Parameter]], spec: OptimizerSpec) -> None:
        self.spec, self.steps, self.weights = spec, 0, dict(weights)
        self.masters = {
            key: p if p.dtype == torch.float32 else p.detach().float() for key, p in weights
        }
        self.adam = torch.optim.AdamW(
            self.masters.values(), lr=spec.lr, weight_decay=spec.weight_decay
        )

    @property
    def lr(self) -> float:
        """The learning rate of the next step."""
        spec, done = self.spec, self.steps
        if done < spec.warmup_steps:
            return spec.lr * (done + 1) / spec.warmup_steps
        if spec.decay_steps <= 0:
            return spec.lr
        if spec.restart_steps and done >= spec.decay_steps:
            cycle, place = divmod(done - spec.decay_steps, spec.restart_steps)
            return spec.lr / 2 ** (cycle + 1) * _cosine(place / spec.restart_steps)
        share = (done - spec.warmup_steps) / max(1, spec.decay_steps - spec.warmup_steps)
        return spec.lr * _cosine(min(1.0, share))

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
        masters = {
            f"{key}|master": m for key, m in self.masters.items() if m is not self.weights[key]
        }
        return states | masters

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


def _cosine(share: float) -> float:
    """From 1 to 0 as `share` goes from 0 to 1."""
    return 0.5 * (1 + math.cos(math.pi * share))
