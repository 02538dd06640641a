"""The model set: named weights, averages, versions, and folders that load bit for bit."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer, OPTConfig, OPTForCausalLM

from agentrl_cli.config.settings import LoraConfig
from agentrl_cli.core.errors import UserError
from agentrl_cli.models.forward import logprobs_and_values, token_logprobs
from agentrl_cli.models.model_set import ModelSet, ValueHead
from agentrl_cli.models.specs import ModelSpec
from agentrl_cli.training.learner import Optimizer
from tests.builders.errors import user_error
from tests.builders.models import (
    ADAM,
    LORA,
    SAMPLES,
    SPECS,
    build,
    disturb,
    model_config,
)


@pytest.fixture(params=[None, LORA], ids=["full", "lora"])
def lora(request):
    return request.param


def test_every_model_starts_as_the_base(model_folder, lora):
    models = build(model_folder, lora)
    base = AutoModelForCausalLM.from_pretrained(model_folder)
    ids = torch.tensor([[5, 6, 7]])
    with torch.no_grad():
        for name in models.names:
            assert torch.equal(models.module(name)(ids).logits, base(ids).logits), name


def test_head_has_the_width_of_hidden_states(model_folder, tmp_path):
    config = OPTConfig(
        vocab_size=400, hidden_size=32, ffn_dim=48, num_hidden_layers=1, num_attention_heads=4,
        word_embed_proj_dim=16,
    )  # fmt: skip
    OPTForCausalLM(config).save_pretrained(tmp_path)
    AutoTokenizer.from_pretrained(model_folder).save_pretrained(tmp_path)
    models = build(tmp_path)
    read = logprobs_and_values(models.forward("critic"), SAMPLES)
    assert [values.tolist() for _, values in read] == [[0.0] * len(s.ids) for s in SAMPLES]


CHAIN = {  # declared against the order in which they begin
    "target": ModelSpec(kind="ema", generates=False, head="value", follows="critic"),
    "critic": ModelSpec(
        kind="trained", generates=False, optimizer=ADAM, head="value", begins_as="policy"
    ),
    "policy": ModelSpec(kind="trained", generates=True, optimizer=ADAM),
}


def test_followers_start_as_their_model(model_folder, lora, tmp_path):
    models = ModelSet(model_config(model_folder, lora=lora), CHAIN, "cpu", 0)
    other = build(model_folder, lora)
    disturb(other, "policy")
    other.save(tmp_path)
    for load in (lambda: None, lambda: models.load_weights("policy", tmp_path / "policy")):
        load()
        begin = models.weights("policy")
        for name in ("critic", "target"):
            own = models.weights(name)
            assert all(torch.equal(own[key], weight) for key, weight in begin.items()), name
    assert [models.version(name) for name in CHAIN] == [1, 1, 1]
    loaded = other.weights("policy")
    assert all(torch.equal(w, loaded[key]) for key, w in models.weights("policy").items())


def test_names_are_separate_weights(model_folder, lora):
    models = build(model_folder, lora)
    before = {name: token_logprobs(models.forward(name), SAMPLES) for name in models.names}
    disturb(models, "policy")
    after = {name: token_logprobs(models.forward(name), SAMPLES) for name in models.names}
    assert [name for name in models.names if before[name] != after[name]] == ["policy"]


def test_only_trained_models_have_trainable_weights(model_folder, lora):
    models = build(model_folder, lora)
    assert {n: bool(models.trainable(n)) for n in models.names} == {
        "policy": True,
        "target": False,
        "reference": False,
        "critic": True,
    }
    for name in (*models.names, "policy"):
        models.module(name)
    assert all(weight.requires_grad for _, weight in models.trainable("policy"))
    for name in ("target", "reference"):
        assert not any(weight.requires_grad for weight in models.weights(name).values())


def test_ema_update_by_hand(model_folder, lora):
    models = build(model_folder, lora)
    disturb(models, "policy")
    before = {key: w.detach().clone() for key, w in models.weights("target").items()}
    policy_weights = models.weights("policy")
    models.ema_update("target", "policy", 0.75)
    for key, weight in models.weights("target").items():
        expected = 0.75 * before[key] + 0.25 * policy_weights[key].detach()
        assert torch.allclose(weight, expected, rtol=1e-6, atol=1e-8)
        assert not torch.equal(weight, before[key])
    assert models.version("target") == 1


def test_bfloat16_copy_resets_the_average(model_folder):
    specs = {
        "policy": ModelSpec(kind="trained", generates=True, optimizer=ADAM),
        "target": ModelSpec(kind="ema", generates=False, follows="policy"),
    }
    models = ModelSet(model_config(model_folder, dtype="bfloat16"), specs, "cpu", 0)
    models.ema_update("target", "policy", 0.5)
    disturb(models, "policy")
    models.copy_weights("target", "policy")
    models.ema_update("target", "policy", 0.99)
    ours, theirs = models.weights("target"), models.weights("policy")
    assert all(torch.equal(ours[key], theirs[key]) for key in ours)


def test_values_are_float32_under_autocast(model_folder):
    models = build(model_folder)
    head = models.head("critic")
    assert isinstance(head, ValueHead)
    with torch.no_grad():
        head.weight.normal_(0, 0.01)
        head.bias.fill_(0.7)
    hidden = torch.randn(40, len(head.weight))
    with torch.autocast("cpu", torch.bfloat16):
        values = head(hidden)
    assert values.dtype == torch.float32 and torch.equal(values, head(hidden))


def test_adapter_of_other_rank_or_scale_is_refused(model_folder, tmp_path):
    models = build(model_folder, LORA)
    disturb(models, "policy")
    models.save_adapter("policy", tmp_path)
    same = build(model_folder, LORA)
    same.load_weights("policy", tmp_path)
    assert same.fingerprint("policy") == models.fingerprint("policy")
    other = build(model_folder, replace(LORA, alpha=3 * LORA.alpha))
    with pytest.raises(UserError) as caught:
        other.load_weights("policy", tmp_path)
    assert caught.value.code == "other-scale"
    for rank in (2, 8):
        other = build(model_folder, replace(LORA, rank=rank))
        with user_error("other-rank", LORA.rank, rank):
            other.load_weights("policy", tmp_path)
    (tmp_path / "adapter_config.json").write_text('{"r": 0}')
    with pytest.raises(UserError) as caught:
        same.load_weights("policy", tmp_path)
    assert caught.value.code == "unreadable-weights"


def test_bfloat16_average_moves_and_survives_save(model_folder, tmp_path):
    models = build(model_folder, dtype="bfloat16")
    with torch.no_grad():
        models.weights("policy")["model.norm.weight"].fill_(2.0)
    for _ in range(100):
        models.ema_update("target", "policy", 0.999)
    weight = models.weights("target")["model.norm.weight"]
    assert weight.float().mean().item() == pytest.approx(2 - 0.999**100, abs=0.004)
    models.save(tmp_path)
    fresh = build(model_folder, dtype="bfloat16")
    fresh.load(tmp_path)
    for _ in range(5):
        models.ema_update("target", "policy", 0.99)
        fresh.ema_update("target", "policy", 0.99)
    assert fresh.fingerprint("target") == models.fingerprint("target")


def test_saved_set_loads_bit_for_bit(model_folder, tmp_path, lora):
    models = build(model_folder, lora)
    for seed, name in enumerate(models.names):
        disturb(models, name, seed)
    models.mark_changed("policy")
    models.save(tmp_path)
    fresh = build(model_folder, lora, seed=9)
    fresh.load(tmp_path)
    for name in models.names:
        assert fresh.fingerprint(name) == models.fingerprint(name)
        assert fresh.version(name) == models.version(name)
        ours, theirs = (token_logprobs(m.forward(name), SAMPLES) for m in (models, fresh))
        assert ours == theirs


def test_no_saved_file_is_pickled(model_folder, tmp_path):
    for lora in (None, LORA):
        build(model_folder, lora).save(tmp_path / str(lora is None))
    endings = {path.suffix for path in tmp_path.rglob("*") if path.is_file()}
    assert endings == {".safetensors", ".json", ".jinja"}


def test_policy_folder_loads_in_transformers_or_peft(model_folder, tmp_path, lora):
    models = build(model_folder, lora)
    disturb(models, "policy")
    models.save(tmp_path)
    if lora is None:
        plain = AutoModelForCausalLM.from_pretrained(tmp_path / "policy")
    else:
        base = AutoModelForCausalLM.from_pretrained(model_folder)
        plain = PeftModel.from_pretrained(base, str(tmp_path / "policy")).eval()
    ids = torch.tensor([[5, 6, 7]])
    with torch.no_grad():
        assert torch.equal(plain(ids).logits, models.module("policy")(ids).logits)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "policy")
    assert tokenizer.chat_template == models.tokenizer.chat_template


def test_fingerprint_sees_one_changed_bit(model_folder, lora):
    models, again = build(model_folder, lora), build(model_folder, lora)
    assert models.fingerprint("policy") == again.fingerprint("policy")
    weight = next(iter(models.weights("policy").values()))
    weight.data.view(torch.int32).view(-1)[0] ^= 1
    assert models.fingerprint("policy") != again.fingerprint("policy")


def test_adapters_start_differently_by_name_and_seed(model_folder):
    one, other = build(model_folder, LORA, seed=0), build(model_folder, LORA, seed=1)
    prints = {m.fingerprint(name) for m in (one, other) for name in ("policy", "critic")}
    assert len(prints) == 4


ALL_LINEAR = LoraConfig(rank=4, alpha=8, targets=["all-linear"])


def in_dtype(model_folder, dtype: str, lora: LoraConfig | None = ALL_LINEAR) -> ModelSet:
    return ModelSet(model_config(model_folder, dtype=dtype, lora=lora), SPECS, "cpu", 0)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_adapters_have_base_dtype_and_float32_masters(model_folder, dtype):
    models = in_dtype(model_folder, dtype)
    optimizer = Optimizer(models.trainable("policy"), ADAM)
    assert {w.dtype for w in models.module("policy").parameters()} == {getattr(torch, dtype)}
    assert {master.dtype for master in optimizer.masters.values()} == {torch.float32}
