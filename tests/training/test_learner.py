"""The learner: normalisation, splitting, schedules, exact resume, stopping before harm is done."""

from __future__ import annotations

import json
import math
import random
from dataclasses import replace

import pytest
import torch

from agentrl_cli.algos.base import Phase, per_sample
from agentrl_cli.algos.losses import bce, clipped_ratio, nll
from agentrl_cli.config.settings import LoraConfig
from agentrl_cli.core.errors import UserError
from agentrl_cli.core.types import Sample
from agentrl_cli.models.forward import token_logprobs
from agentrl_cli.models.model_set import ModelSet
from agentrl_cli.models.specs import ModelSpec, OptimizerSpec
from agentrl_cli.training.learner import Learner, NonFiniteError, split_steps
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


def test_learner_fits_a_text(folder):
    bench = Bench(folder)
    first = bench.run(Phase("sft", texts(), nll))
    bench.run(Phase("sft", texts(), nll, epochs=40))
    assert first["sft/loss"] > 3
    last = bench.run(Phase("sft", texts(), nll))
    assert last["sft/loss"] < 0.1


@pytest.mark.parametrize("lora", [None, LORA])
def test_micro_batches_change_only_rounding(folder, lora):
    whole, split = Bench(folder, lora, tokens=10_000), Bench(folder, lora, tokens=8)
    one_batch, many = (b.run(Phase("sft", texts(), nll)) for b in (whole, split))
    assert one_batch["sft/loss"] == pytest.approx(many["sft/loss"], rel=1e-5)
    assert one_batch["sft/grad_norm"] == pytest.approx(many["sft/grad_norm"], rel=1e-4)


def test_loss_is_mean_over_trained_tokens(folder):
    bench = Bench(folder, tokens=8)
    logprobs = token_logprobs(bench.models.reader("policy"), texts())
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
    samples = critic_samples()
    return Phase("critic", samples, bce, model="critic", units=per_sample, head_only=head_only)


def critic_samples():
    """Sequences whose label is their first token's parity."""
    return [
        Sample(
            [20 + i, 40, 41], [0, 0, 0], {"value_at": [0.0, 0.0, 1.0], "label": [float(i % 2)] * 3}
        )
        for i in range(8)
    ]


def test_head_learns_labels_without_the_policy(folder):
    bench = Bench(folder)
    before = bench.models.fingerprint("policy")
    phase = Phase("critic", critic_samples(), bce, model="critic", epochs=30, units=per_sample)
    bench.run(phase)
    assert bench.run(phase)["critic/accuracy"] == 1.0
    assert bench.models.fingerprint("policy") == before
    assert bench.published == []


def test_advantage_raises_good_tokens_and_lowers_bad_ones(folder):
    bench = Bench(folder, lr=1e-3)
    good, bad = [20, 31, 32], [20, 41, 42]
    plain = [Sample(ids, [0, 1, 1]) for ids in (good, bad)]
    before = token_logprobs(bench.models.reader("policy"), plain)
    samples = [
        Sample(s.ids, s.mask, {"old_logprob": old, "advantage": [a] * 3})
        for s, old, a in zip(plain, before, (1.0, -1.0), strict=True)
    ]
    found = bench.run(Phase("policy", samples, lambda o, b: clipped_ratio(o, b, 0.2)))
    after = token_logprobs(bench.models.reader("policy"), plain)
    assert sum(after[0]) > sum(before[0])
    assert sum(after[1]) < sum(before[1])
    assert found["policy/ratio"] == pytest.approx(1.0, abs=1e-5)
    assert found["policy/clip_fraction"] == 0


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


def test_phases_of_one_name_are_averaged(folder):
    bench = Bench(folder)
    short, long = texts(2), texts(12)
    found = bench.run(
        Phase("sft", short, nll, metrics={"critic/brier": 0.5}),
        Phase("sft", long, nll, metrics={"nlac/unparsed": 3.0}),
    )
    assert found["sft/samples"] == 14
    assert (found["critic/brier"], found["nlac/unparsed"]) == (0.5, 3.0)
    assert set(found) >= {"sft/lr", "sft/grad_norm", "sft/nll", "time/train", "time/algorithm"}


def test_empty_phase_is_counted(folder):
    bench = Bench(folder)
    found = bench.run(Phase("sft", [], nll), Phase("sft", [], nll))
    assert found["sft/empty"] == 2
    assert "sft/loss" not in found
    assert bench.published == []
    assert bench.models.version("policy") == 0


def test_step_without_units_is_an_error(folder):
    with pytest.raises(ValueError, match="nothing to train"):
        Bench(folder).run(Phase("sft", [Sample([1, 2], [0, 0])], nll))


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
