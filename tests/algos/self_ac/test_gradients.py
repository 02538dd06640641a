"""Self-AC: which weights each part of the loss reaches, and which it must not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from agentrl_cli.config.settings import LoraConfig
from agentrl_cli.models.forward import causal_lm
from agentrl_cli.models.model_set import ModelSet
from agentrl_cli.models.packed_attention import CriticGrad
from tests.builders.models import disturb
from tests.builders.self_ac import (
    ADVANCED,
    forward_pass,
    outputs_with_values,
    phase_of,
    played,
    self_ac,
)

LORA = LoraConfig(rank=2, alpha=4, targets=["all-linear"])


def backward(loss: torch.Tensor, models: ModelSet) -> dict[str, torch.Tensor | None]:
    for weight in models.weights("policy").values():
        weight.grad = None
    loss.backward()
    return {name: weight.grad for name, weight in models.weights("policy").items()}


def test_actor_loss_skips_head_and_prompts(
    model_folder: Path,
):
    algo, models = self_ac(model_folder, alpha=0.0)
    disturb(models, "policy")
    phase = phase_of(algo, played("a", [0.0, 1.0]), played("b", [0.0]))
    seen: list[torch.Tensor] = []
    embedding = causal_lm(models.module("policy")).get_input_embeddings()
    hook = embedding.register_forward_hook(lambda m, i, o: (o.retain_grad(), seen.append(o))[0])
    outputs, batch = forward_pass(models, phase.samples)
    hook.remove()
    grads = backward(algo.loss(outputs, batch)[0], models)
    for name in ("head.weight", "head.bias"):
        assert grads[name] is None or not grads[name].any()  # pyright: ignore[reportOptionalMemberAccess]
    (embedded,) = seen  # visible tokens first, then the prompts
    assert embedded.grad is not None
    prompts = 3 * len(algo.critic_prompt_ids)
    assert embedded.grad[:, :-prompts].any() and not embedded.grad[:, -prompts:].any()


@pytest.mark.parametrize("critic_grad", ["full", "detach_prefix"])
def test_critic_loss_reaches_every_adapter(model_folder: Path, critic_grad: CriticGrad):
    advanced = replace(ADVANCED, critic_grad=critic_grad)
    algo, models = self_ac(model_folder, LORA, alpha=1.0, advanced=advanced)
    disturb(models, "policy")
    phase = phase_of(algo, played("a", [0.0, 1.0]))
    projected: list[int] = []
    outputs, batch = forward_pass(models, phase.samples)
    outputs.logprobs.register_hook(lambda grad: projected.append(int(grad.count_nonzero())))
    grads = backward(algo.loss(outputs, batch)[0], models)
    assert len(grads) == 2 * 2 * 7 + 2
    assert all(grad is not None and grad.any() for grad in grads.values())
    assert projected == [0]  # not one log-prob, so neither the projection behind them


def test_targets_and_advantages_are_detached(model_folder: Path):
    values = [[0.1, 0.2, 0.4], [0.3, -0.6]]
    for alpha in (0.0, 1.0):
        algo, _ = self_ac(model_folder, alpha=alpha)
        phase = phase_of(algo, played("a", [0.0, 1.0]), played("b", [0.0]))
        outputs, batch = outputs_with_values(phase, values)
        algo.loss(outputs, batch)[0].backward()
        assert outputs.values is not None and outputs.values.grad is not None
        found = outputs.values.grad[batch.streams["value_at"].bool()].tolist()
        # 2 (V - mean target), the targets detached, times three turns over five states
        means = [(0.2 + 0.4 + 3) / 5, (0.4 + 4) / 5, 1.0, -0.6 / 5, 0.0]
        flat = [v for row in values for v in row]
        expected = [2 * alpha * (v - m) * 3 / 5 for v, m in zip(flat, means, strict=True)]
        assert found == pytest.approx(expected, abs=1e-6)


def test_bootstrap_value_gets_no_gradient(model_folder: Path):
    for alpha in (0.0, 1.0):
        algo, _ = self_ac(model_folder, alpha=alpha)
        games = played("a", [0.0, 1.0], stop="truncated"), played("b", [0.0], stop="context")
        outputs, batch = outputs_with_values(phase_of(algo, *games), [[0.1, 0.2, 0.4], [0.3, -0.6]])
        algo.loss(outputs, batch)[0].backward()
        assert outputs.values is not None and outputs.values.grad is not None
        found = outputs.values.grad[batch.streams["value_at"].bool()].tolist()
        # V_0's targets: V_1, then 1 + V_2 four times; 2 (V - mean target), 0 for the last V
        errors = [0.1 - (0.2 + 4 * 1.4) / 5, 0.2 - 1.4, 0.0, 0.3 + 0.6, 0.0]
        assert found == pytest.approx([2 * alpha * error for error in errors], abs=1e-6)
