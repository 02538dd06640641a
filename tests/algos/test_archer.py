"""ArCHer: the critic's targets by hand, its slow target, replay of strangers, who moves when."""

from __future__ import annotations

import statistics
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch

from agentrl_cli.algos.archer import td_loss
from agentrl_cli.algos.critics import StepSpan, with_fresh_actions
from agentrl_cli.algos.samples import TurnRef
from agentrl_cli.config.compose import build, check, compose
from agentrl_cli.config.settings import LoraConfig
from agentrl_cli.core.errors import UserError
from agentrl_cli.core.types import Message, Sample
from agentrl_cli.models.forward import Batch, Outputs, collate, token_logprobs
from agentrl_cli.models.model_set import ModelSet
from agentrl_cli.models.specs import OptimizerSpec
from agentrl_cli.rollout.play import first_turn
from tests.builders.archer import ACTION, archer, archer_with_values, phases, run_update, targets
from tests.builders.critics import bound, head_values, learner, success_while_learning, with_rewards
from tests.builders.models import LORA
from tests.builders.nlac import CHAT, LOST, WON, episode, filled

Q, V, Q2, V2 = range(4)
DOUBLE: dict[str, Any] = {"num_critics": 2, "head_layers": 2}

# the critic's targets


def test_q_targets_by_hand(model_folder: Path):
    algo, models, _ = archer_with_values(model_folder)
    played = with_rewards(deepcopy(WON), 0.25, -0.5, 1.0)
    samples = algo.transitions([played], 0)
    after = [head_values(models, "target", played.state_ids(k))[V] for k in (1, 2)]
    expected = [0.25 + 0.9 * after[0], -0.5 + 0.9 * after[1], 1.0]
    assert targets(samples, "q") == pytest.approx(expected, abs=1e-5)
    live = [head_values(models, "critic", played.state_ids(k))[V] for k in (1, 2)]
    assert all(abs(a - b) > 0.01 for a, b in zip(after, live, strict=True))


@pytest.mark.parametrize("stop", ["truncated", "context"])
def test_truncated_episode_bootstraps_from_last_state(model_folder: Path, stop: str):
    algo, models, _ = archer_with_values(model_folder)
    played = deepcopy(episode("cut", ["Is it big?", "Is it red?"], success=False, stop=stop))
    played.final_observation = [Message("user", "Too late.")]
    samples = algo.transitions([with_rewards(played, 0.0, 0.5)], 0)
    state = played.state_ids(1) + played.turns[1].action_ids
    state += CHAT.extend(played.final_observation, state[-1])
    expected = 0.5 + 0.9 * head_values(models, "target", state)[V]
    assert targets(samples, "q")[1] == pytest.approx(expected, abs=1e-5) != 0.5


def test_bootstrap_value_gets_no_gradient(model_folder: Path):
    algo, _, _ = archer_with_values(model_folder)
    played = episode("cut", ["Is it big?", "Is it red?"], success=False, stop="truncated")
    batch = collate(algo.transitions([with_rewards(played, 0.0, 0.5)], 0))
    per_token = batch.per_token
    values = torch.full((*batch.ids.shape, 2), 0.25, requires_grad=True)
    loss, _ = td_loss(Outputs(torch.zeros_like(batch.mask), batch.mask, values), batch)
    loss.backward()
    assert values.grad is not None and not values.grad[0, -1].any()  # neither its Q nor its V
    for column, x in enumerate("qv"):
        expected = 2 * (0.25 - per_token[f"{x}_target"]) * per_token[f"{x}_at"]
        assert torch.allclose(values.grad[..., column], expected, atol=1e-6)


@pytest.mark.parametrize("action", ["fresh", "stored"])
def test_v_targets_of_fresh_and_stored_actions(model_folder: Path, action: str):
    algo, models, generator = archer_with_values(model_folder, action=action)
    samples = algo.transitions([WON], 0)
    tried = [
        CHAT.encode_action(ACTION) if action == "fresh" else turn.action_ids for turn in WON.turns
    ]
    expected = [
        head_values(models, "target", WON.state_ids(k) + ids)[Q] for k, ids in enumerate(tried)
    ]
    assert targets(samples, "v") == pytest.approx(expected, abs=1e-5)
    asked = [(call.model, call.prompts) for call in generator.calls]
    fresh = [("policy", [WON.state_ids(k) for k in range(3)])]
    assert asked == (fresh if action == "fresh" else [])


def test_fresh_reply_is_cut_at_the_delimiter(model_folder: Path):
    algo, models, generator = archer_with_values(model_folder)
    generator.lines["act"] = lambda text, draw: "Is it a fish?\nIs it a dog?"
    algo.context.turn_delimiter = "\n"
    samples = algo.transitions([WON], 0)
    first = first_turn(CHAT.encode_action("Is it a fish?\nIs it a dog?"), "\n", CHAT)
    assert CHAT.decode(first) == "Is it a fish?\n"
    expected = [head_values(models, "target", WON.state_ids(k) + first)[Q] for k in range(3)]
    assert targets(samples, "v") == pytest.approx(expected, abs=1e-5)


def test_q_and_v_are_read_at_ends(model_folder: Path):
    algo, _, _ = archer_with_values(model_folder)
    (sample,) = algo.transitions([WON], 0)
    assert sample.ids == WON.state_ids(2) + WON.turns[2].action_ids and not any(sample.mask)
    states = [len(WON.state_ids(k)) for k in range(3)]
    ends = [size + len(turn.action_ids) for size, turn in zip(states, WON.turns, strict=True)]
    read = {x: [i for i, at in enumerate(sample.per_token[f"{x}_at"]) if at] for x in ("v", "q")}
    assert read == {"v": [size - 1 for size in states], "q": [end - 1 for end in ends]}


def test_fresh_action_is_a_shadow_after_its_state():
    sample = Sample([1, 2, 3, 4, 5], [0] * 5)
    turn = WON.turns[0]
    spans = [
        StepSpan(turn, sample, 2, 3, 0.0),
        StepSpan(turn, sample, 3, 5, 0.0),
    ]  # no observation between
    fresh = with_fresh_actions(spans, [[7, 8], [9]])
    row = fresh[0].sample
    assert row.ids == [1, 2, 7, 8, 3, 9, 4, 5]
    assert row.per_token["branch"] == [0, 0, 1, 1, 0, 2, 0, 0]
    assert [(span.state_at, span.action_at) for span in fresh] == [(1, 3), (4, 5)]
    assert fresh[1].sample is row and row.mask == [0] * 8


def test_fresh_actions_need_a_packable_model(model_folder: Path):
    with pytest.raises(UserError, match="eager") as caught:
        bound(archer(), model_folder, attention="eager")
    assert caught.value.code == "not-packable"
    algo = archer(action="stored")
    bound(algo, model_folder, attention="eager")
    assert algo.transitions([WON], 0)


def test_critic_loss_by_hand():
    values = torch.tensor([[[9.0, 0.5], [2.0, 9.0]]], requires_grad=True)
    none = torch.zeros(1, 2)
    rows = {"q_at": [0, 1], "q_target": [0, 3], "v_at": [1, 0], "v_target": [2, 0]}
    per_token = {name: torch.tensor([row], dtype=torch.float32) for name, row in rows.items()}
    batch = Batch(torch.zeros(1, 2, dtype=torch.long), none, per_token, torch.tensor([2]))
    loss, sums = td_loss(Outputs(none, none, values), batch)
    loss.backward()
    assert loss.item() == 3.25 and values.grad is not None
    assert {name: float(each) for name, each in sums.items()} == {
        "q_loss": 1.0, "v_loss": 2.25, "q": 2.0, "v": 0.5,
    }  # fmt: skip
    assert values.grad.tolist() == [[[0.0, -3.0], [-2.0, 0.0]]]


def test_two_critics_have_their_own_targets(model_folder: Path):
    algo, models, _ = archer_with_values(model_folder, **DOUBLE)
    played = with_rewards(deepcopy(WON), 0.25, -0.5, 1.0)
    samples = algo.transitions([played], 0)
    states = [head_values(models, "target", played.state_ids(k)) for k in range(3)]
    acted = [
        head_values(models, "target", played.state_ids(k) + CHAT.encode_action(ACTION))
        for k in range(3)
    ]
    for name, q, v in (("", Q, V), ("2", Q2, V2)):
        expected = [0.25 + 0.9 * states[1][v], -0.5 + 0.9 * states[2][v], 1.0]
        found = [t for s in samples for t in s.per_token[f"q{name}_target"] if t]
        assert found == pytest.approx(expected, abs=1e-5)
        found = [t for s in samples for t in s.per_token[f"v{name}_target"] if t]
        assert found == pytest.approx([values[q] for values in acted], abs=1e-5)
    assert min(abs(row[V] - row[V2]) for row in states) > 0.01


def test_loss_of_two_critics_by_hand():
    values = torch.tensor([[[9.0, 0.5, 9.0, 1.0], [2.0, 9.0, 5.0, 9.0]]], requires_grad=True)
    none = torch.zeros(1, 2)
    rows = {
        "q_at": [0, 1], "q_target": [0, 3], "q2_target": [0, 3],
        "v_at": [1, 0], "v_target": [2, 0], "v2_target": [3, 0],
    }  # fmt: skip
    per_token = {name: torch.tensor([row], dtype=torch.float32) for name, row in rows.items()}
    batch = Batch(torch.zeros(1, 2, dtype=torch.long), none, per_token, torch.tensor([2]))
    loss, sums = td_loss(Outputs(none, none, values), batch)
    loss.backward()
    assert loss.item() == 1 + 4 + 2.25 + 4 and values.grad is not None
    assert {name: float(each) for name, each in sums.items()} == {
        "q_loss": 2.5, "v_loss": 3.125, "q": 3.5, "v": 0.75,
    }  # fmt: skip
    assert values.grad.tolist() == [[[0, -3, 0, -4], [-2, 0, 4, 0]]]


def test_equal_linear_critics_are_refused():
    with pytest.raises(UserError) as refused:
        archer(num_critics=2)
    assert refused.value.code == "conflicting-settings"


# the models


def test_heads_with_hidden_layers_by_hand(model_folder: Path):
    before = torch.random.get_rng_state()
    models = bound(archer(**DOUBLE), model_folder)
    assert torch.equal(torch.random.get_rng_state(), before)
    weights = {key: w.detach() for key, w in models.weights("critic").items() if "head." in key}
    width = len(weights["head.q.weight"])
    hidden = torch.randn(3, width)
    expected = []
    for name in ("q", "v", "q2", "v2"):
        x = hidden
        for layer in (0, 2):
            weight, bias = (weights[f"head.{name}.hidden.{layer}.{w}"] for w in ("weight", "bias"))
            x = (x @ weight.T + bias).clamp(min=0)
        expected.append(x @ weights[f"head.{name}.weight"] + weights[f"head.{name}.bias"])
        assert 0 < weights[f"head.{name}.weight"].abs().max() <= width**-0.5
    found = models.heads["critic"](hidden)
    assert torch.allclose(found, torch.stack(expected, -1), atol=1e-6)
    assert models.fingerprint("target") == models.fingerprint("critic")
    other = ModelSet(models.config, models.specs, "cpu", 1)
    assert not torch.equal(other.heads["critic"](hidden), found)


def test_target_starts_as_the_critic(model_folder: Path):
    algo = archer()
    models = bound(algo, model_folder, lora=LORA)
    prints = {name: models.fingerprint(name) for name in models.names}
    assert prints["target"] == prints["critic"] != prints["policy"]


def test_target_follows_critic_by_ema(model_folder: Path):
    algo = archer()
    models = bound(algo, model_folder)
    before = {key: w.detach().clone() for key, w in models.weights("target").items()}
    run_update(algo, models)
    critic = models.weights("critic")
    assert {"head.q.weight", "head.v.weight"} < set(before)
    for key, weight in models.weights("target").items():
        by_hand = 0.75 * before[key].double() + 0.25 * critic[key].detach().double()
        assert torch.allclose(weight.double(), by_hand, rtol=0, atol=1e-7)
    assert models.fingerprint("target") != models.fingerprint("critic")


@pytest.mark.parametrize("lora", [None, LORA])
def test_critic_warmup_leaves_the_policy_unchanged(model_folder: Path, lora: LoraConfig | None):
    algo, models, _ = archer_with_values(model_folder, lora, critic_warmup=1)
    policy, critic = models.fingerprint("policy"), models.fingerprint("critic")
    cold = run_update(algo, models, step=0)
    assert models.fingerprint("policy") == policy and "policy/loss" not in cold
    assert models.fingerprint("critic") != critic
    for phase in algo.update([deepcopy(WON)], filled(WON, LOST)):
        assert phase.name == "critic"
    algo.context.step = 1
    critic, trainer = models.fingerprint("critic"), learner(algo, models)
    trainer.run((p for p in phases(algo, [deepcopy(WON)], filled(WON)) if p.name == "policy"), 1)
    assert models.fingerprint("critic") == critic and models.fingerprint("policy") != policy


def test_replay_needs_no_logprobs(model_folder: Path):
    algo, models, _ = archer_with_values(model_folder)
    buffer = filled(WON, LOST)
    assert all(p != p for e in buffer.episodes() for t in e.turns for p in t.logprobs)  # NaN
    before = [repr(e.to_json()) for e in buffer.episodes()]
    found = learner(algo, models).run(algo.update([], buffer), 0)
    assert [repr(e.to_json()) for e in buffer.episodes()] == before
    assert found["critic/samples"] == 2 and found["policy/empty"] == 1
    assert all(bool(w.isfinite().all()) for w in models.weights("critic").values())


# the actor


def test_advantage_is_q_minus_v(model_folder: Path):
    algo, models, _ = archer_with_values(model_folder)
    played = deepcopy(WON)
    (sample,) = phases(algo, [played], filled(WON))[-1].samples
    expected = []
    for k, turn in enumerate(played.turns):
        state = played.state_ids(k)
        value = head_values(models, "critic", state)[V]
        advantage = head_values(models, "critic", state + turn.action_ids)[Q] - value
        assert turn.info["value"] == pytest.approx(value, abs=1e-5)
        assert turn.info["advantage"] == pytest.approx(advantage, abs=1e-5)
        expected += [0.0] * len(turn.observation_ids)
        expected += [turn.info["advantage"]] * len(turn.action_ids)
    assert sample.per_token["advantage"] == expected and all(sample.per_token["advantage"][-3:])


def test_first_actor_step_is_unclipped(model_folder: Path):
    algo, models, _ = archer_with_values(model_folder)
    broken = deepcopy(LOST)
    broken.error = "KeyError: 'x'"
    update = algo.update([deepcopy(WON), broken], filled(WON))
    found = learner(algo, models).run(update, 0)
    assert found["policy/samples"] == 1 and found["policy/advantage_std"] > 0
    assert found["policy/ratio"] == pytest.approx(1, abs=1e-5)
    assert found["policy/clip_fraction"] == 0 and "value" not in broken.turns[0].info


@pytest.mark.parametrize("action", ["fresh", "stored"])
def test_empty_action_is_skipped_and_counted(model_folder: Path, action: str):
    algo, models, _ = archer_with_values(model_folder, action=action)
    mute, silent = deepcopy(LOST), deepcopy(LOST)
    mute.id, silent.id = "mute", "silent"
    mute.turns[1].action_ids = []
    for turn in silent.turns:
        turn.action_ids = []
    fresh = [deepcopy(WON), mute, silent]
    critic, actor = phases(algo, fresh, filled(WON, mute, silent))
    assert len(critic.samples) == len(actor.samples) == 1
    assert critic.metrics == {"archer/skipped_broken": 0, "archer/skipped_empty": 2 / 3}
    assert phases(algo, [mute], filled(mute))[0].samples == []
    found = learner(algo, models).run(algo.update(fresh, filled(WON, mute, silent)), 0)
    assert found["archer/skipped_empty"] == 2 / 3
    algo.monitor(fresh)


def test_normalised_advantages_ignore_an_offset(model_folder: Path):
    rows = []
    for offset in (0.0, 5.0):
        algo, models, _ = archer_with_values(model_folder, normalise_advantages=True)
        with torch.no_grad():
            models.weights("critic")["head.q.bias"].add_(offset)
        played = [deepcopy(WON), deepcopy(LOST)]
        phase = phases(algo, played, filled(WON))[-1]
        raw = [turn.info["advantage"] for game in played for turn in game.turns]
        rows.append([raw, *(sample.per_token["advantage"] for sample in phase.samples)])
        mean, spread = statistics.fmean(raw), statistics.pstdev(raw)
        given = [next(filter(None, row)) for row in rows[-1][1:]]
        first = [game.turns[0].info["advantage"] for game in played]
        assert given == pytest.approx([(a - mean) / spread for a in first])
    assert [b - a for a, b in zip(rows[0][0], rows[1][0], strict=True)] == pytest.approx([5.0] * 5)
    for one, other in zip(rows[0][1:], rows[1][1:], strict=True):
        assert one == pytest.approx(other, abs=1e-3)


def test_value_and_advantage_of_the_minimum(model_folder: Path):
    algo, models, _ = archer_with_values(model_folder, **DOUBLE)
    played = deepcopy(WON)
    algo.annotate([played])
    refs = [TurnRef(played, k) for k in range(3)]
    found = algo.action_values(refs)
    smaller = set()
    for ref, turn, value in zip(refs, played.turns, found, strict=True):
        state = head_values(models, "critic", ref.state_ids)
        acted = head_values(models, "critic", ref.state_ids + ref.action_ids)
        q, v = min(acted[Q], acted[Q2]), min(state[V], state[V2])
        assert turn.info["value"] == pytest.approx(v, abs=1e-5)
        assert turn.info["advantage"] == pytest.approx(q - v, abs=1e-5)
        assert value == pytest.approx(q, abs=1e-5)
        smaller |= {("q", acted[Q] < acted[Q2]), ("v", state[V] < state[V2])}
    assert len(smaller) > 1


def test_actor_trains_on_fresh_actions_in_replayed_states(model_folder: Path):
    algo, models, generator = archer_with_values(
        model_folder, **DOUBLE, actor_states=4, actor_epochs=2, action="stored"
    )
    mute = deepcopy(LOST)
    mute.id, mute.turns[0].action_ids = "mute", []
    found = phases(algo, [deepcopy(LOST)], filled(WON, mute))[1:]
    assert [(phase.name, phase.epochs) for phase in found] == [("policy", 1)] * 2
    tried = CHAT.encode_action(ACTION)
    states = [WON.state_ids(k) for k in range(3)]
    for phase, call in zip(found, generator.calls, strict=True):
        assert [sample.ids for sample in phase.samples] == [s + tried for s in call.prompts]
        assert all(state in states for state in call.prompts) and call.model == "policy"
        for sample in phase.samples:
            size = len(sample.ids) - len(tried)
            before = head_values(models, "critic", sample.ids[:size])
            after = head_values(models, "critic", sample.ids)
            advantage = min(after[Q], after[Q2]) - min(before[V], before[V2])
            assert sample.mask == [0] * size + [1] * len(tried)
            weights = [0.0] * size + [advantage] * len(tried)
            assert sample.per_token["weight"] == pytest.approx(weights, abs=1e-5)


def test_actor_loss_is_the_mean_over_states(model_folder: Path):
    algo, models, _ = archer_with_values(model_folder, **DOUBLE, actor_states=3)
    phase = phases(algo, [deepcopy(LOST)], filled(WON))[-1]
    policy = models.forward("policy")
    expected = statistics.fmean(
        -max(sample.per_token["weight"], key=abs) * sum(row)
        for sample, row in zip(phase.samples, token_logprobs(policy, phase.samples), strict=True)
    )
    critic = models.fingerprint("critic")
    found = learner(algo, models).run(iter([phase]), 0)
    assert found["policy/loss"] == pytest.approx(expected, rel=1e-4)
    assert found["policy/steps"] == 1 and models.fingerprint("critic") == critic


REFERENCE = {  # scripts/config/archer_20q.yaml and default.yaml in github.com/YifeiZhou02/ArCHer
    "critic_updates": 50,  # epochs
    "critic_warmup": 20,  # warmup_iter
    "num_critics": 2,  # archer/models/critic.py: critic1, critic2, v_critic1, v_critic2
    "head_layers": 2,  # the same: Linear, ReLU, Linear, ReLU, Linear
    "gamma": 0.95,
    "ema_decay": 1 - 0.1,  # tau
    "normalise_advantages": False,  # archer/algorithms/archer/trainer.py: q - v
    "actor_states": 8 * 32,  # batch_size * grad_accum_steps
    "actor_epochs": 3,
    "minibatch_tokens": 0,  # trainer.py: one step per epoch
    # torch.optim.Adam; max_grad_norm 1.0 of a sum over 32 batches
    "optimizer": OptimizerSpec(lr=1e-6, max_grad_norm=1.0 / 32),  # lm_lr
    "critic_optimizer": OptimizerSpec(lr=2e-5, max_grad_norm=1.0 / 32),  # critic_lr
}


def test_default_has_the_numbers_of_the_authors():
    cfg = check(compose(["algo=archer", "env=twentyq"]))
    algo = build(cfg.algo)
    assert {name: getattr(algo, name) for name in REFERENCE} == REFERENCE
    assert cfg.rollout.episodes_per_step == 128 and cfg.rollout.temperature == 1.0
    turns = 10.5  # of an episode of env=twentyq, on average
    assert algo.episodes_per_update * turns == pytest.approx(8 * 32, rel=0.05)
    assert algo.buffer_size * turns == pytest.approx(100_000, rel=0.1)


@pytest.mark.slow
def test_two_critics_and_replayed_actor_learn_a_coin_game(model_folder: Path):
    adam = OptimizerSpec(lr=3e-3)
    algo = archer(**DOUBLE, episodes_per_update=32, critic_updates=4, critic_warmup=3, gamma=1.0,
                  ema_decay=0.5, actor_states=64, actor_epochs=3, optimizer=adam,
                  critic_optimizer=adam)  # fmt: skip
    won_share = success_while_learning(algo, model_folder, steps=10, tokens=1)
    assert max(won_share[:4]) < 0.4 and sum(won_share[-2:]) / 2 > 0.85


@pytest.mark.slow
def test_archer_learns_a_coin_game(model_folder: Path):
    adam = OptimizerSpec(lr=3e-3)
    algo = archer(episodes_per_update=32, critic_updates=2, critic_warmup=3, gamma=1.0,
                  ema_decay=0.5, optimizer=adam, critic_optimizer=adam)  # fmt: skip
    won_share = success_while_learning(algo, model_folder, steps=10, tokens=1)
    assert max(won_share[:4]) < 0.4 and sum(won_share[-2:]) / 2 > 0.85
