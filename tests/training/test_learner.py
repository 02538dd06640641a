"""The learner: normalisation, splitting, schedules, exact resume, stopping before harm is done."""

from __future__ import annotations

import json
import math
import random
from dataclasses import replace
from typing import Any

import pytest
import torch

from agentrl_cli.algos.base import Phase
from agentrl_cli.algos.losses import bce, nll
from agentrl_cli.config.settings import LoraConfig
from agentrl_cli.core.errors import UserError
from agentrl_cli.core.types import Sample
from agentrl_cli.models.forward import token_logprobs
from agentrl_cli.models.model_set import ModelSet
from agentrl_cli.models.specs import ModelSpec, OptimizerSpec
from agentrl_cli.training.learner import Learner, NonFiniteError, Optimizer, split_steps
from tests.builders.models import model_config, texts, write_model

LORA = LoraConfig(rank=4, alpha=8, targets=["all-linear"])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("model"))


class Bench:
    """A model set and its learner, and the names that the learner published."""

    def __init__(self, folder, lora=None, tokens=64, seed=0, dtype="float32", head_lr=None, **adam):
        config = model_config(folder, dtype=dtype, lora=lora)
        optimizer = OptimizerSpec(**{"lr": 1e-2, **adam})
        specs = {
            "policy": ModelSpec(kind="trained", generates=True, optimizer=optimizer),
            "target": ModelSpec(kind="ema", generates=True),
            "critic": ModelSpec(
                kind="trained", generates=False, head="value",
                optimizer=replace(optimizer, head_lr=head_lr),
            ),
        }  # fmt: skip
        self.models = ModelSet(config, specs, "cpu", 0)
        self.published = []
        self.learner = Learner(
            self.models, specs, microbatch_tokens=tokens, seed=seed, publish=self.published.append
        )

    def run(self, *phases, step=0):
        return self.learner.run(iter(phases), step)

    def weights(self, name="policy"):
        return {key: w.detach().clone() for key, w in self.models.weights(name).items()}


@pytest.mark.parametrize("lora", [None, LORA])
def test_micro_batches_change_only_rounding(folder, lora):
    whole, split = Bench(folder, lora, tokens=10_000), Bench(folder, lora, tokens=8)
    one_batch, many = (b.run(Phase("sft", texts(), nll)) for b in (whole, split))
    assert one_batch["sft/loss"] == pytest.approx(many["sft/loss"], rel=1e-5)
    assert one_batch["sft/grad_norm"] == pytest.approx(many["sft/grad_norm"], rel=1e-4)


def test_loss_is_mean_over_trained_tokens(folder):
    bench = Bench(folder, tokens=8)
    logprobs = token_logprobs(bench.models.forward("policy"), texts())
    expected = -sum(map(sum, logprobs)) / sum(sum(s.mask) for s in texts())
    found = bench.run(Phase("sft", texts(), nll))
    assert found["sft/loss"] == pytest.approx(expected, rel=1e-5)
    assert found["sft/samples"] == 12
    assert found["sft/tokens"] == sum(len(s.ids) for s in texts())


def test_seed_determines_weights_bitwise(folder):
    phase = Phase("sft", texts(), nll, epochs=2, minibatch_tokens=16)
    benches = [Bench(folder, seed=seed) for seed in (1, 1, 2)]
    for bench in benches:
        bench.run(phase)
    prints = [bench.models.fingerprint("policy") for bench in benches]
    assert prints[0] == prints[1] != prints[2]


@pytest.mark.parametrize("lora", [None, LORA])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_resume_equals_uninterrupted_run(folder, tmp_path, lora, dtype):
    settings = {
        "lora": lora,
        "dtype": dtype,
        "warmup_steps": 3,
        "decay_steps": 9,
        "weight_decay": 0.01,
        "head_lr": 0.2,
    }

    def train(bench, steps):
        for step in steps:
            bench.run(
                Phase("policy", texts(), nll, minibatch_tokens=20),
                critic_phase(head_only=step % 2 == 0),
                step=step,
            )
            bench.models.ema_update("target", "policy", 0.9)

    whole, half, fresh = (Bench(folder, **settings) for _ in range(3))
    train(whole, range(4))
    train(half, range(2))
    half.models.save(tmp_path / "models")
    half.learner.save(tmp_path / "optimizer")
    fresh.models.load(tmp_path / "models")
    fresh.learner.load(tmp_path / "optimizer")
    train(fresh, range(2, 4))
    for name in whole.models.names:
        assert fresh.models.fingerprint(name) == whole.models.fingerprint(name)
        assert fresh.models.version(name) == whole.models.version(name)


@pytest.mark.parametrize("lora", [None, LORA])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("head_lr", [None, 0.5])
def test_head_only_phase_keeps_the_body(folder, lora, dtype, head_lr):
    adam = {"lr": 0.2, "weight_decay": 0.1, "warmup_steps": 50, "head_lr": head_lr}
    bench = Bench(folder, lora, dtype=dtype, **adam)
    bench.run(critic_phase())  # so that AdamW has moments by which a body could still move
    before, steps = bench.weights("critic"), bench.learner.optimizers["critic"].steps
    for step in range(3):
        found = bench.run(critic_phase(head_only=True), step=step)
    after = bench.weights("critic")
    moved = {key for key in after if not torch.equal(after[key], before[key])}
    assert moved == {"head.weight", "head.bias"}
    assert bench.learner.optimizers["critic"].steps == steps and found["critic/lr"] == 0
    # the body's schedule waits and the head's full rate is taken
    assert abs(after["head.bias"] - before["head.bias"]) > 0.9 * (head_lr or 0.2)
    bench.run(critic_phase())
    assert bench.learner.optimizers["critic"].steps == steps + 1


def critic_phase(*, head_only=False):
    units, samples = lambda sample: 1.0, critic_samples()
    return Phase("critic", samples, bce, model="critic", units=units, head_only=head_only)


def critic_samples():
    """Sequences whose label is their first token's parity."""
    return [
        Sample(
            [20 + i, 40, 41], [0, 0, 0], {"value_at": [0.0, 0.0, 1.0], "label": [float(i % 2)] * 3}
        )
        for i in range(8)
    ]


def steps_by_trying_every_limit(lengths: list[int], most: int) -> list[list[int]]:
    """Lengths filled in order into steps, with the first limit of all that needs no more steps than
    `most` does."""

    def fill(limit: int) -> list[list[int]]:
        steps: list[list[int]] = [[]]
        for length in lengths:
            if steps[-1] and sum(steps[-1]) + length > limit:
                steps.append([])
            steps[-1].append(length)
        return steps

    return next(fill(limit) for limit in range(most + 1) if len(fill(limit)) == len(fill(most)))


@pytest.mark.parametrize("seed", range(60))
def test_steps_are_as_even_as_possible(seed):
    rng = random.Random(seed)
    size, count, most = rng.randint(1, 3), rng.randint(1, 12), rng.randint(1, 60)
    ids = [[1] * rng.randint(2, 13) for _ in range(size * count)]
    samples = [Sample(row, [0] + [1] * (len(row) - 1)) for row in ids]
    phase = Phase("x", samples, nll, minibatch_tokens=most, keep_together=size)
    found = [
        [sum(sum(samples[i].mask) for i in group) for group in step]
        for step in split_steps(phase, seed)
    ]
    lengths = [length for step in found for length in step]
    assert found == steps_by_trying_every_limit(lengths, most)


def test_order_depends_on_step_and_epoch(folder):
    orders = []

    def loss(outputs, batch):
        orders.append(batch.ids[:, 0].tolist())
        return nll(outputs, batch)

    samples = [Sample([i, 5], [0, 1]) for i in range(20, 32)]
    bench = Bench(folder, tokens=1000)
    bench.run(Phase("x", samples, loss, epochs=2))
    bench.run(Phase("x", samples, loss), step=1)
    assert len({tuple(order) for order in orders}) == 3
    assert {tuple(sorted(order)) for order in orders} == {tuple(range(20, 32))}


def test_code_between_phases_sees_trained_model(folder):
    bench = Bench(folder)
    prints = [bench.models.fingerprint("policy")]

    def phases():
        for i in range(3):
            yield Phase(f"p{i}", texts(), nll)
            prints.append(bench.models.fingerprint("policy"))
            assert bench.models.version("policy") == i + 1
            assert bench.published == ["policy"] * (i + 1)

    bench.learner.run(phases(), 0)
    assert len(set(prints)) == 4


@pytest.mark.parametrize(
    ("name", "model", "said"),
    [
        ("critic", "policy", "give model='critic'"), ("sft", "polcy", "one of policy, critic"),
        ("target", "target", "which has no optimizer"),
    ],
)  # fmt: skip
def test_phase_of_the_wrong_model_is_refused(folder, name, model, said):
    bench = Bench(folder)
    with pytest.raises(UserError, match=said):
        bench.run(Phase(name, texts(), nll, model=model))
    assert bench.models.version("policy") == 0 and not bench.published


def any_of(value: Any) -> Any:
    return value


def of_loss(found: Any) -> Phase:
    return Phase("mine", texts(), lambda outputs, batch: found(nll(outputs, batch)))


@pytest.mark.parametrize(("phase", "said"), [
    ({"loss": 1.0}, r"update\(\) yielded .* yield a Phase"),
    (Phase("mine", any_of(["text"]), nll), "phase 'mine' has 'text' as a sample; make"),
    (Phase("mine", texts(), nll, metrics=any_of({"x": "abc"})), "has 'abc' as metric 'x'; give"),
    (Phase("mine", [Sample([5, 6], [0, 1], any_of({"a": ["1", "1"]}))], nll), "cannot be trained"),
    (Phase("mine", [Sample([5, 6], [0, 1], {"a": [1.0]})], nll), "cannot be trained .* 2 ids"),
    (Phase("mine", [Sample([5, 6], [0, 0])], nll), "1 samples with nothing to train"),
    (Phase("mine", texts()[:3], nll, keep_together=2), "keeps 2 samples together but has 3"),
    (of_loss(lambda found: found[0]), "return the loss and a dictionary of metrics"),
    (of_loss(lambda found: (1.5, {})), "1.5 as loss; return one number that depends"),
    (of_loss(lambda found: (found[0].detach(), {})), "as loss; return one number that depends"),
    (of_loss(lambda found: (found[0], {"x": "hello"})), "'hello' as metric 'x'; return one number"),
    (of_loss(lambda found: (found[0], {"x": torch.ones(2)})), "metric 'x'; return one number"),
])  # fmt: skip
def test_phase_that_breaks_the_contract_is_refused(folder, phase: Any, said: str):
    bench = Bench(folder)
    with pytest.raises(UserError, match=said) as caught:
        bench.run(phase)
    assert caught.value.code == "algorithm-contract" and "\n" not in str(caught.value)
    assert bench.models.version("policy") == 0 and not bench.published


def test_loss_that_reads_a_missing_field_is_refused(folder):
    samples = [replace(s, per_token={"wieght": [1.0] * len(s.ids)}) for s in texts()]

    def loss(outputs, batch):
        assert batch.per_token.get("other", 2) == 2 and list(batch.per_token | {"a": 1}) == [
            "wieght", "a",
        ]  # fmt: skip
        return (outputs.logprobs * batch.per_token["weight"]).sum(), {}

    with pytest.raises(UserError, match="reads the field 'weight', but its samples have 'wieght'"):
        Bench(folder).run(Phase("mine", samples, loss))
    for broken in ([Sample([], [1])], [*samples, *texts()]):
        with pytest.raises(UserError, match="cannot be trained"):
            Bench(folder).run(Phase("mine", broken, nll))


def test_update_without_phases_is_refused(folder):
    with pytest.raises(UserError, match=r"update\(\) returned None; yield phases"):
        Bench(folder).learner.run(any_of(None), 0)


def test_field_that_no_loss_reads_gets_one_warning(folder, capsys):
    samples = [replace(s, per_token={"wieght": [1.0] * len(s.ids)}) for s in texts()]
    bench = Bench(folder)
    bench.run(Phase("mine", samples, nll, epochs=2))
    (line,) = capsys.readouterr().err.splitlines()
    assert line == (
        "warning: the loss of phase 'mine' asks for 'weight', but its samples have 'wieght', "
        "which it does not read"
    )
    bench.run(Phase("mine", samples, nll))
    right = [replace(s, per_token={"weight": s.per_token["wieght"]}) for s in samples]
    bench.run(Phase("right", right, nll))
    assert not capsys.readouterr().err


def test_phases_of_one_name_are_averaged(folder):
    bench = Bench(folder)
    short, long = texts(2), texts(12)
    found = bench.run(
        Phase("sft", short, nll, metrics={"critic/brier": 0.5}),
        Phase("sft", long, nll, metrics={"nlac/unparsed": 3.0}),
    )
    assert found["sft/samples"] == 14
    together = Bench(folder, lr=0.0)
    whole = together.run(Phase("sft", texts(), nll))
    parts = [Phase("sft", texts()[:3], nll), Phase("sft", texts()[3:], nll, minibatch_tokens=6)]
    divided = together.run(*parts)
    assert divided["sft/steps"] > 3
    assert divided["sft/loss"] == pytest.approx(whole["sft/loss"], rel=1e-5)
    assert (found["critic/brier"], found["nlac/unparsed"]) == (0.5, 3.0)
    assert set(found) >= {"sft/lr", "sft/grad_norm", "sft/nll", "time/train", "time/algorithm"}


def test_entropy_gets_a_gradient_if_the_phase_wants_it(folder):
    def entropy(outputs, batch):
        return 0 * outputs.logprobs.sum() - (outputs.entropy * batch.mask).sum(), {}

    without, with_it = (
        Bench(folder).run(Phase("sft", texts(), entropy, entropy_gradient=wanted))
        for wanted in (False, True)
    )
    assert without["sft/grad_norm"] == 0 < with_it["sft/grad_norm"]


def test_empty_phase_is_counted(folder):
    bench = Bench(folder)
    found = bench.run(Phase("sft", [], nll), Phase("sft", [], nll))
    assert found["sft/empty"] == 2
    assert "sft/loss" not in found
    assert bench.published == []
    assert bench.models.version("policy") == 0


def nan_loss(outputs, batch):
    loss, metrics = nll(outputs, batch)
    return (loss * math.nan, metrics) if (batch.ids == 33).any() else (loss, metrics)


def nan_metric(outputs, batch):
    loss, _ = nll(outputs, batch)
    return loss, {"ratio": torch.tensor(math.inf)}


def nan_gradient(outputs, batch):
    loss, metrics = nll(outputs, batch)
    zero = (outputs.logprobs - outputs.logprobs.detach()).clamp(min=0).sum()
    return loss + zero.sqrt(), metrics


@pytest.mark.parametrize(
    ("loss", "term"),
    [(nan_loss, "'loss'"), (nan_metric, "'ratio'"), (nan_gradient, "the gradient norm")],
)
def test_non_finite_value_stops_before_step(folder, loss, term):
    bench = Bench(folder, tokens=8)
    before = bench.models.fingerprint("policy")
    with pytest.raises(NonFiniteError, match=term) as caught:
        bench.run(Phase("bad", texts(), loss))
    assert bench.models.fingerprint("policy") == before
    assert bench.published == []
    rows = json.loads(json.dumps(caught.value.rows))
    assert rows and all(row["ids"] and row["mask"] for row in rows)


def test_gradient_norm_is_clipped(folder):
    norms = []
    for limit in (0.0, 1e-3):
        bench, seen = Bench(folder, max_grad_norm=limit), []
        optimizer = bench.learner.optimizers["policy"]

        def look(*_, weights=optimizer.weights, seen=seen):
            grads = [w.grad.flatten() for w in weights.values() if w.grad is not None]
            seen.append(torch.linalg.vector_norm(torch.cat(grads)).item())

        optimizer.adam.register_step_pre_hook(look)
        norms.append((bench.run(Phase("x", texts(), nll))["x/grad_norm"], seen[0]))
    assert norms[0][0] == pytest.approx(norms[0][1], rel=1e-4)
    assert norms[1][0] == pytest.approx(norms[0][0], rel=1e-5)
    assert norms[1][1] == pytest.approx(1e-3, rel=1e-2)


def test_unreadable_optimizers_are_refused(folder, tmp_path):
    bench = Bench(folder)
    with pytest.raises(UserError):
        bench.learner.load(tmp_path)
    bench.learner.save(tmp_path)
    (tmp_path / "policy.safetensors").write_bytes(b"no tensors")
    with pytest.raises(UserError, match="optimizers"):
        bench.learner.load(tmp_path)


@pytest.mark.parametrize("prompt", [1, 40])
def test_step_size_counts_trained_tokens(prompt):
    samples = [Sample([7] * prompt + [8] * 3, [0] * prompt + [1] * 3) for _ in range(8)]
    steps = split_steps(Phase("x", samples, nll, minibatch_tokens=6), 0)
    assert [sum(map(len, step)) for step in steps] == [2, 2, 2, 2]


def test_step_size_counts_units_without_tokens():
    samples = [Sample([7] * 9, [0] * 9) for _ in range(8)]
    phase = Phase("critic", samples, nll, minibatch_tokens=5, units=lambda sample: 1.5)
    assert [sum(map(len, step)) for step in split_steps(phase, 0)] == [3, 3, 2]


@pytest.mark.parametrize("lr", [1e-3, 3e-5])
@pytest.mark.parametrize(("warmup", "decay"), [(0, 0), (7, 0), (7, 40), (0, 40), (20, 12)])
def test_learning_rates_equal_stored_runs_bitwise(lr, warmup, decay):
    def expected(step: int) -> float:
        if step < warmup:
            return lr * (step + 1) / warmup
        if decay == 0:
            return lr
        share = min(1.0, (step - warmup) / max(1, decay - warmup))
        return lr * (0.5 * (1 + math.cos(math.pi * share)))

    spec = OptimizerSpec(lr=lr, warmup_steps=warmup, decay_steps=decay)
    optimizer = Optimizer([("w", torch.nn.Parameter(torch.ones(1)))], spec)
    for step in range(80):
        assert optimizer.lr == expected(step), step
        optimizer.step()
        assert optimizer.adam.param_groups[0]["lr"] == expected(step)


def test_first_adamw_step_by_hand():
    weight = torch.nn.Parameter(torch.tensor([2.0]))
    optimizer = Optimizer([("w", weight)], OptimizerSpec(lr=0.1, weight_decay=0.5))
    weight.grad = torch.tensor([3.0])
    optimizer.step()
    assert weight.item() == pytest.approx(2.0 * (1 - 0.1 * 0.5) - 0.1, abs=1e-6)
    assert weight.grad is None


def test_small_steps_on_bfloat16_weights_add_up():
    weight = torch.nn.Parameter(torch.ones(1, dtype=torch.bfloat16))
    optimizer = Optimizer([("w", weight)], OptimizerSpec(lr=1e-4))
    for _ in range(200):
        weight.grad = torch.ones(1, dtype=torch.bfloat16)
        optimizer.step()
    assert weight.item() == pytest.approx(0.98, abs=0.004)


def body_and_head(
    lr: float, head_lr: float | None = None, warmup: int = 0
) -> tuple[Optimizer, torch.nn.Parameter, torch.nn.Parameter]:
    body, head = (torch.nn.Parameter(torch.zeros(1)) for _ in range(2))
    spec = OptimizerSpec(lr=lr, head_lr=head_lr, warmup_steps=warmup)
    return Optimizer([("w", body), ("head.weight", head)], spec), body, head


def test_head_has_its_own_learning_rate():
    optimizer, body, head = body_and_head(0.1, 2.0, warmup=2)
    moved = []
    for _ in range(3):
        before = body.item(), head.item()
        body.grad, head.grad = torch.ones(1), torch.ones(1)
        optimizer.step()
        moved.append((before[0] - body.item(), before[1] - head.item()))
    # with equal gradients Adam's step is its rate: half of it in the first of two warm-up steps
    assert moved == [pytest.approx(pair, rel=1e-5) for pair in [(0.05, 1), (0.1, 2), (0.1, 2)]]


def in_bfloat16() -> tuple[Optimizer, list[torch.nn.Parameter]]:
    """An optimizer of two bfloat16 weights that have gradients."""
    weights = [torch.nn.Parameter(torch.ones(3, dtype=torch.bfloat16)) for _ in range(2)]
    optimizer = Optimizer([("a", weights[0]), ("b", weights[1])], OptimizerSpec(lr=1e-4))
    for weight in weights:
        weight.grad = torch.ones_like(weight)
    return optimizer, weights


def test_gradients_exist_once_during_a_step():
    optimizer, weights = in_bfloat16()
    masters, alive = list(optimizer.masters.values()), []

    def look(*_: object) -> None:
        alive.extend(tensor.grad is not None for tensor in [*weights, *masters])

    optimizer.adam.register_step_pre_hook(look)
    optimizer.step()
    assert alive == [False, False, True, True]
    assert all(tensor.grad is None for tensor in [*weights, *masters])


def test_state_without_masters_is_refused():
    optimizer, _ = in_bfloat16()
    optimizer.step()
    found = {key: t for key, t in optimizer.tensors().items() if not key.endswith("|master")}
    with pytest.raises(ValueError, match=r"a\|master is missing"):
        optimizer.load(found, 1)
