"""Self-AC: what a packed sample holds, its loss by hand, what is refused and what is shown."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest
import torch

from agentrl_cli.algos.samples import LEFT_OUT_REASONS
from agentrl_cli.algos.self_ac import trained_turns
from agentrl_cli.config.settings import LoraConfig
from agentrl_cli.core.errors import UserError
from agentrl_cli.core.types import Episode
from agentrl_cli.models.forward import causal_lm
from agentrl_cli.models.model_set import ModelSet
from agentrl_cli.models.packed_attention import CriticGrad
from agentrl_cli.rollout.replay_buffer import ReplayBuffer
from agentrl_cli.training.learner import Learner
from tests.builders.critics import learner, randomise_heads
from tests.builders.models import disturb
from tests.builders.nlac import CHAT
from tests.builders.self_ac import (
    ADVANCED,
    forward_pass,
    outputs_with_values,
    phase_of,
    played,
    self_ac,
)


def test_critic_prompt_follows_every_state(model_folder: Path):
    algo, _ = self_ac(model_folder)
    game = played("a", [0.0, 0.0, 1.0])
    phase = phase_of(algo, game)
    (sample,) = phase.samples
    marks = sample.per_token["branch"]
    visible = [(i, m) for i, m, s in zip(sample.ids, sample.mask, marks, strict=True) if not s]
    flat = [
        (i, m)
        for t in game.turns
        for ids, m in ((t.observation_ids, 0), (t.action_ids, 1))
        for i in ids
    ]
    assert visible == flat
    prompts = [[i for i, s in zip(sample.ids, marks, strict=True) if s == k] for k in (1, 2, 3, 4)]
    assert prompts == [algo.critic_prompt_ids] * 4 and algo.critic_prompt_ids[0] == CHAT.end_of_turn
    ends = [i for i, at in enumerate(sample.per_token["value_at"]) if at]
    assert ends == [max(i for i, s in enumerate(marks) if s == k) for k in (1, 2, 3, 4)]
    assert phase.units(sample) == trained_turns(sample) == 3
    assert {t for t, m in zip(sample.per_token["turn"], sample.mask, strict=True) if m} == {0, 1, 2}


def test_loss_by_hand(model_folder: Path):
    algo, _ = self_ac(model_folder, alpha=0.25)
    phase = phase_of(algo, played("a", [0.0, 1.0]))
    outputs, batch = outputs_with_values(phase, [[0.1, 0.2, 0.4]])
    loss, metrics = algo.loss(outputs, batch)
    # targets of V_0: V_1, V_2, then 1 thrice; of V_1: V_2, then 1 four times; of V_2: 1
    first = (0.1 - 0.2) ** 2 + (0.1 - 0.4) ** 2 + 3 * (0.1 - 1) ** 2
    second = (0.2 - 0.4) ** 2 + 4 * (0.2 - 1) ** 2
    critic = 2 * ((first + second) / 5 + (0.4 - 1) ** 2) / 3  # two turns' worth of a state's mean
    actor = -((1 - 0.1) + (1 - 0.2))
    assert metrics["critic_loss"].item() == pytest.approx(critic, abs=1e-6)
    assert metrics["actor_loss"].item() == pytest.approx(actor, abs=1e-6)
    assert loss.item() == pytest.approx(0.25 * critic + 0.75 * actor, abs=1e-6)
    assert metrics["value"].item() == pytest.approx(0.3) and metrics["ratio"] == 2


@pytest.mark.parametrize("values", ["recomputed", "frozen"])
def test_frozen_and_recomputed_values_by_hand(
    model_folder: Path, values: Literal["recomputed", "frozen"]
):
    algo, models = self_ac(model_folder, advanced=replace(ADVANCED, values=values))
    models.weights("policy")["head.bias"].data.fill_(0.25)
    _, won = algo.loss(
        *outputs_with_values(phase_of(algo, played("a", [0.0, 1.0])), [[0.1, 0.2, 0.4]])
    )
    v0, v1, v2 = (0.25, 0.25, 0.25) if values == "frozen" else (0.1, 0.2, 0.4)
    first = (0.1 - v1) ** 2 + (0.1 - v2) ** 2 + 3 * (0.1 - 1) ** 2
    second = (0.2 - v2) ** 2 + 4 * (0.2 - 1) ** 2
    critic = 2 * ((first + second) / 5 + (0.4 - 1) ** 2) / 3
    assert won["critic_loss"].item() == pytest.approx(critic, abs=1e-5)
    assert won["advantage"].item() == pytest.approx(2 - v0 - v1, abs=1e-5)
    phase = phase_of(algo, played("b", [0.5], stop="truncated"))
    _, cut = algo.loss(*outputs_with_values(phase, [[0.3, 2.0]]))
    begin, end = (0.25, 0.25) if values == "frozen" else (0.3, 2.0)
    assert cut["critic_loss"].item() == pytest.approx((0.3 - 0.5 - end) ** 2, abs=1e-5)
    assert cut["advantage"].item() == pytest.approx(0.5 + end - begin, abs=1e-5)


def test_advantages_are_normalised_over_the_update(model_folder: Path):
    algo, models = self_ac(
        model_folder, alpha=0.0, advanced=replace(ADVANCED, normalise_advantages=True)
    )
    models.weights("policy")["head.bias"].data.fill_(0.25)
    phase = phase_of(algo, played("a", [0.0, 1.0]), played("b", [0.0]))
    # raw: 3/4, 3/4 and -1/4; mean 5/12, deviation sqrt(2)/3
    assert algo.scale == pytest.approx((5 / 12, 2**0.5 / 3))
    first = replace(phase, samples=phase.samples[:1])  # a micro-batch takes the update's numbers
    loss, metrics = algo.loss(*outputs_with_values(first, [[0.25, 0.25, 1.0]]))
    assert loss.item() == pytest.approx(-2 * (0.75 - 5 / 12) / (2**0.5 / 3), abs=1e-5)
    assert metrics["advantage"].item() == pytest.approx(1.5, abs=1e-5)  # shown as it is
    phase_of(algo, played("c", [0.0]))
    assert algo.scale == (-0.25, 1.0)


@pytest.mark.parametrize("alpha", [0.0, 0.25, 1.0])
def test_critic_mean_over_states_actor_over_turns(model_folder: Path, alpha: float):
    algo, models = self_ac(model_folder, alpha=alpha, td_steps=1)
    learner = Learner(models, algo.models(), microbatch_tokens=1, seed=0, publish=print)
    games = [played("a", [0.0, 0.0, 1.0]), played("b", [0.0])]  # every first value is 0
    metrics = learner.run(algo.update(games, ReplayBuffer(None, 1)), 0)
    critic, actor = 1 / 6, -3 / 4  # one of six states is off by 1; three of four turns have A = 1
    assert metrics["actor_critic/critic_loss"] == pytest.approx(critic, abs=1e-5)
    assert metrics["actor_critic/actor_loss"] == pytest.approx(actor, abs=1e-5)
    both = alpha * critic + (1 - alpha) * actor
    assert metrics["actor_critic/loss"] == pytest.approx(both, abs=1e-5)


def test_skipped_episodes_are_counted_by_reason(model_folder: Path):
    algo, models = self_ac(model_folder)
    good, empty, cut = played("good", [0.0, 1.0]), played("empty", [0.0, 1.0]), played("cut", [1.0])
    empty.turns[1].action_ids = []
    broken = played("broken", [0.0], stop="error")
    broken.error = "KeyError: 'x'"
    long = played("long", [0.0, 1.0])
    causal_lm(models.module("policy")).config.max_position_embeddings = good.tokens + len(
        algo.critic_prompt_ids
    )
    long.turns[1].observation_ids = [*long.turns[1].observation_ids, 7]
    never = Episode("never", cut.task, "g", 0, [], stop="context")
    phase = phase_of(algo, good, empty, cut, broken, long, never)
    assert len(phase.samples) == 2
    left = {
        reason: phase.metrics[f"self_ac/skipped_{reason}"] for reason in (*LEFT_OUT_REASONS, "long")
    }
    assert left == {"broken": 2 / 6, "empty": 1 / 6, "long": 1 / 6}
    assert "value" not in long.turns[0].info and phase_of(algo, empty).samples == []


@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        ({"critic_prompt": ""}, "empty-prompt"),
        ({"critic_prompt": "{state}?"}, "unknown-slot"),
        ({"critic_prompt": "Judge {message}"}, "unknown-slot"),
        ({"attention": "eager"}, "not-packable"),
    ],
)
def test_invalid_settings_are_refused(model_folder: Path, wrong: dict, code: str):
    with pytest.raises(UserError) as caught:
        self_ac(model_folder, **wrong)
    assert caught.value.code == code


def test_annotate_writes_value_advantage_td_error(model_folder: Path):
    algo, models = self_ac(model_folder)
    head = models.weights("policy")["head.bias"]
    with torch.no_grad():
        head.fill_(0.25)
    game = played("a", [0.0, 1.0])
    algo.annotate([game])
    notes = [tuple(t.info[k] for k in ("value", "advantage", "td_error")) for t in game.turns]
    assert notes == [(0.25, 0.75, 0.0), (0.25, 0.75, 0.75)]
    cut = played("b", [0.0], stop="truncated")
    algo.annotate([cut])
    assert cut.turns[0].info["advantage"] == 0.0  # 1/4 is still hoped for, as before


@pytest.mark.parametrize("lora", [None, LoraConfig(rank=2, alpha=4, targets=["all-linear"])])
def test_critic_warmup_trains_only_the_head(model_folder: Path, lora: LoraConfig | None):
    algo, models = self_ac(model_folder, lora, critic_warmup=2, alpha=0.25, epochs=3)
    games = [played("a", [0.0, 0.0, 1.0]), played("b", [0.0])]
    trainer = learner(algo, models)
    start = {key: weight.detach().clone() for key, weight in models.weights("policy").items()}
    moved = []
    for step in range(3):
        algo.context.step = step
        found = trainer.run(algo.update(games, ReplayBuffer(None, 1)), step)
        now = models.weights("policy")
        moved.append({key for key in start if not torch.equal(now[key], start[key])})
        both = 0.25 * found["actor_critic/critic_loss"] + 0.75 * found["actor_critic/actor_loss"]
        expected = both if step == 2 else found["actor_critic/critic_loss"]
        assert found["actor_critic/loss"] == pytest.approx(expected)
    assert moved[0] == moved[1] == {"head.weight", "head.bias"} < moved[2]


LORA = LoraConfig(rank=2, alpha=4, targets=["all-linear"])


def backward(loss: torch.Tensor, models: ModelSet) -> dict[str, torch.Tensor | None]:
    for weight in models.weights("policy").values():
        weight.grad = None
    loss.backward()
    return {name: weight.grad for name, weight in models.weights("policy").items()}


def test_actor_loss_skips_head_and_prompts(model_folder: Path):
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
        found = outputs.values.grad[batch.per_token["value_at"].bool()].tolist()
        # 2 (V - mean target), the targets detached, times three turns over five states
        means = [(0.2 + 0.4 + 3) / 5, (0.4 + 4) / 5, 1.0, -0.6 / 5, 0.0]
        flat = [v for row in values for v in row]
        expected = [2 * alpha * (v - m) * 3 / 5 for v, m in zip(flat, means, strict=True)]
        assert found == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("trains", ["head", "model"])
def test_warmup_trains_the_critic_alone(model_folder: Path, trains: str):
    advanced = replace(ADVANCED, warmup_trains=trains)
    algo, models = self_ac(model_folder, critic_warmup=1, advanced=advanced)
    randomise_heads(models, "policy")  # one of zeros gives the body no gradient
    body = {key: w.detach().clone() for key, w in models.weights("policy").items()}
    phases = algo.update([played("a", [0.0, 1.0])], ReplayBuffer(None, 1))
    found = learner(algo, models).run(phases, 0)
    changed = {k for k, w in models.weights("policy").items() if not torch.equal(w, body[k])}
    assert any("head" in key for key in changed)
    assert any("head" not in key for key in changed) == (trains == "model")
    if trains == "model":
        assert found["actor_critic/loss"] == pytest.approx(found["actor_critic/critic_loss"])
