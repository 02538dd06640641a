"""The model set and the one pass: numbers, named weights, averages, folders, and bad input."""

from __future__ import annotations

import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer, Gemma2Config, Gemma2ForCausalLM

from agentrl_cli.algos.base import ModelSpec, OptimizerSpec
from agentrl_cli.errors import UserError
from agentrl_cli.models import policy
from agentrl_cli.models.policy import batches, forward, pack, score
from agentrl_cli.models.set import ModelSet
from agentrl_cli.settings import LoraConfig, ModelConfig
from agentrl_cli.types import Sample
from tests.helpers import tiny_model, tiny_tokenizer

LORA = LoraConfig(rank=4, alpha=8, targets=["q_proj", "v_proj"])
ADAM = OptimizerSpec(lr=1e-2)
SPECS = {
    "policy": ModelSpec(kind="trained", generates=True, optimizer=ADAM),
    "target": ModelSpec(kind="ema", generates=True),
    "reference": ModelSpec(kind="frozen", generates=False),
    "critic": ModelSpec(kind="trained", generates=False, optimizer=ADAM, head="value"),
}
SAMPLES = [
    Sample([5, 6, 7, 8, 9], [0, 0, 1, 1, 0]),
    Sample([10, 11, 12], [0, 1, 1]),
    Sample([13, 14, 15, 16], [0, 0, 0, 1]),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A random model and its tokenizer as a Hugging Face folder."""
    torch.set_num_threads(1)  # a tiny model is slower on two
    path = tmp_path_factory.mktemp("model")
    tokenizer = tiny_tokenizer()
    tiny_model(tokenizer).save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


def config(folder, dtype="float32", lora=None, checkpointing=False, attention="sdpa"):
    return ModelConfig(
        path=str(folder),
        weights=None,
        dtype=dtype,
        attention=attention,
        gradient_checkpointing=checkpointing,
        lora=lora,
    )


def build(folder, lora=None, specs=None, seed=0, dtype="float32"):
    return ModelSet(config(folder, dtype, lora), specs or SPECS, "cpu", seed)


@torch.no_grad()
def disturb(models, name, seed=1):
    """Other weights for one model."""
    torch.manual_seed(seed)
    for weight in models.weights(name).values():
        weight.add_(torch.randn_like(weight) * 0.1)


def naive_logprobs(module, ids):
    """log p(ids[t] | ids[:t]) of one unpadded sequence by the model's own logits."""
    logits = module(input_ids=torch.tensor([ids])).logits[0].log_softmax(-1)
    return [0.0] + [logits[t - 1, ids[t]].item() for t in range(1, len(ids))]


def test_logprobs_equal_the_models_own_logits_sample_by_sample(folder):
    module = build(folder).module("policy")
    found = score(module, SAMPLES, tokens_per_batch=8)
    for sample, row in zip(SAMPLES, found, strict=True):
        plain = naive_logprobs(module, sample.ids)
        expected = [p * m for p, m in zip(plain, sample.mask, strict=True)]
        assert row == pytest.approx(expected, abs=1e-5)


def test_padding_of_any_kind_reaches_no_trained_token(folder):
    module = build(folder).module("policy")
    zero, other = forward(module, pack(SAMPLES)), forward(module, pack(SAMPLES, pad_id=77))
    assert torch.equal(zero.logprobs, other.logprobs)
    assert torch.equal(zero.entropy, other.entropy)


def test_entropy_is_the_distributions_and_carries_no_gradient(folder):
    module = build(folder).module("policy")
    outputs = forward(module, pack(SAMPLES))
    logits = module(input_ids=torch.tensor([SAMPLES[1].ids])).logits[0]
    expected = torch.distributions.Categorical(logits=logits).entropy()[:2]
    assert outputs.entropy[1].tolist() == pytest.approx([0, *expected.tolist(), 0, 0], abs=1e-5)
    assert not outputs.entropy.requires_grad


def test_chunks_of_the_vocabulary_projection_change_neither_loss_nor_gradient(folder, monkeypatch):
    module = build(folder).module("policy")

    def grads():
        forward(module, pack(SAMPLES)).logprobs.sum().backward()
        found = [p.grad.clone() for p in module.parameters() if p.grad is not None]
        module.zero_grad()
        return found

    whole = grads()
    monkeypatch.setattr(policy, "CHUNK", 2 * module.config.vocab_size)
    for a, b in zip(whole, grads(), strict=True):
        assert torch.allclose(a, b, atol=1e-5)


def test_logits_never_exist_for_more_rows_than_a_chunk(folder, monkeypatch):
    module = build(folder).module("policy")
    seen = []
    head = policy.vocabulary_head(policy.causal(module))
    head.register_forward_hook(lambda m, i, o: seen.append(len(o)))
    forward(module, pack(SAMPLES))
    assert seen == [5]
    monkeypatch.setattr(policy, "CHUNK", 2 * module.config.vocab_size)
    forward(module, pack(SAMPLES))
    assert seen[1:] == [2, 2, 1]


@pytest.mark.parametrize("lora", [None, LORA])
def test_gradient_checkpointing_changes_no_gradient_and_leaves_the_cache_usable(folder, lora):
    plain = build(folder, lora).module("policy")
    saved = ModelSet(config(folder, lora=lora, checkpointing=True), SPECS, "cpu", 0)
    grads = []
    for module in (plain, saved.module("policy")):
        forward(module, pack(SAMPLES)).logprobs.sum().backward()
        grads.append([p.grad for p in module.parameters() if p.grad is not None])
    assert all(torch.equal(a, b) for a, b in zip(*grads, strict=True))
    with torch.no_grad():
        cache = saved.module("policy")(input_ids=torch.tensor([[5, 6]]), use_cache=True)
    assert cache.past_key_values.get_seq_length() == 2


def test_a_batch_without_trained_tokens_still_gives_values_with_gradient(folder):
    models = build(folder)
    batch = pack([Sample([1, 2, 3], [0, 0, 0])])
    outputs = forward(models.module("critic"), batch, models.head("critic"))
    assert outputs.values is not None
    assert outputs.values.tolist() == [[0, 0, 0]]
    (outputs.values.sum() + outputs.logprobs.sum()).backward()
    bias = models.weights("critic")["head.bias"]
    assert bias.grad is not None
    assert bias.grad.item() == 3


def test_a_value_reads_its_own_token_and_none_after_it(folder):
    models = build(folder)
    disturb(models, "critic")
    ids = [[5, 6, 7, 8], [5, 6, 9, 8]]
    batch = pack([Sample(row, [0, 0, 0, 0]) for row in ids])
    values = forward(models.module("critic"), batch, models.head("critic")).values
    assert values is not None
    one, other = values
    assert torch.allclose(one[:2], other[:2], atol=1e-6)
    assert one[2] != other[2]


def test_samples_that_train_their_first_token_or_mix_lengths_are_refused():
    with pytest.raises(ValueError, match="first token"):
        pack([Sample([1, 2], [1, 1])])
    with pytest.raises(ValueError, match="another length"):
        pack([Sample([1, 2], [0, 1], {"advantage": [1.0]})])


def test_micro_batches_hold_the_padded_budget_and_every_group_once():
    lengths = [3, 9, 4, 1, 7, 7, 2, 20]
    samples = [Sample([1] * n, [0] * n) for n in lengths]
    groups = [[0, 1], [2, 3], [4, 5], [6, 7]]
    found = list(batches(groups, samples, 18))
    assert sorted(i for rows in found for i in rows) == list(range(8))
    for rows in found:
        assert rows in groups or max(lengths[i] for i in rows) * len(rows) <= 18
        assert all(set(g) <= set(rows) or not set(g) & set(rows) for g in groups)


@pytest.mark.parametrize("lora", [None, LORA])
def test_every_model_starts_as_the_base(folder, lora):
    models = build(folder, lora)
    base = AutoModelForCausalLM.from_pretrained(folder)
    ids = torch.tensor([[5, 6, 7]])
    with torch.no_grad():
        for name in models.names:
            assert torch.equal(models.module(name)(ids).logits, base(ids).logits), name


@pytest.mark.parametrize("lora", [None, LORA])
def test_names_are_separate_weights(folder, lora):
    models = build(folder, lora)
    before = {name: score(models.module(name), SAMPLES, 99) for name in models.names}
    disturb(models, "policy")
    after = {name: score(models.module(name), SAMPLES, 99) for name in models.names}
    assert [name for name in models.names if before[name] != after[name]] == ["policy"]


@pytest.mark.parametrize("lora", [None, LORA])
def test_only_trained_models_have_trainable_weights(folder, lora):
    models = build(folder, lora)
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


@pytest.mark.parametrize("lora", [None, LORA])
def test_ema_update_equals_the_hand_computation(folder, lora):
    models = build(folder, lora)
    disturb(models, "policy")
    before = {key: w.detach().clone() for key, w in models.weights("target").items()}
    policy_weights = models.weights("policy")
    models.ema_update("target", "policy", 0.75)
    for key, weight in models.weights("target").items():
        expected = 0.75 * before[key] + 0.25 * policy_weights[key].detach()
        assert torch.allclose(weight, expected, rtol=1e-6, atol=1e-8)
        assert not torch.equal(weight, before[key])
    assert models.version("target") == 1


def test_ema_at_rate_one_stays_and_at_rate_zero_copies(folder):
    models = build(folder)
    disturb(models, "policy")
    start = models.fingerprint("target")
    models.ema_update("target", "policy", 1.0)
    assert models.fingerprint("target") == start
    models.ema_update("target", "policy", 0.0)
    assert models.fingerprint("target") == models.fingerprint("policy")


def test_an_average_in_bfloat16_moves_by_small_rates_and_survives_a_save(folder, tmp_path):
    models = build(folder, dtype="bfloat16")
    with torch.no_grad():
        models.weights("policy")["model.norm.weight"].fill_(2.0)
    for _ in range(100):
        models.ema_update("target", "policy", 0.999)
    weight = models.weights("target")["model.norm.weight"]
    assert weight.float().mean().item() == pytest.approx(2 - 0.999**100, abs=0.004)
    models.save(tmp_path)
    fresh = build(folder, dtype="bfloat16")
    fresh.load(tmp_path)
    for _ in range(5):
        models.ema_update("target", "policy", 0.99)
        fresh.ema_update("target", "policy", 0.99)
    assert fresh.fingerprint("target") == models.fingerprint("target")


@pytest.mark.parametrize("lora", [None, LORA])
def test_a_saved_set_loads_bit_for_bit(folder, tmp_path, lora):
    models = build(folder, lora)
    for seed, name in enumerate(models.names):
        disturb(models, name, seed)
    models.bump("policy")
    models.save(tmp_path)
    fresh = build(folder, lora, seed=9)
    fresh.load(tmp_path)
    for name in models.names:
        assert fresh.fingerprint(name) == models.fingerprint(name)
        assert fresh.version(name) == models.version(name)
        ours, theirs = (score(m.module(name), SAMPLES, 99) for m in (models, fresh))
        assert ours == theirs


def test_nothing_saved_can_unpickle(folder, tmp_path):
    for lora in (None, LORA):
        build(folder, lora).save(tmp_path / str(lora is None))
    endings = {path.suffix for path in tmp_path.rglob("*") if path.is_file()}
    assert endings == {".safetensors", ".json", ".jinja"}


def test_a_full_policy_folder_is_a_plain_hugging_face_model(folder, tmp_path):
    models = build(folder)
    disturb(models, "policy")
    models.save(tmp_path)
    plain = AutoModelForCausalLM.from_pretrained(tmp_path / "policy")
    ids = torch.tensor([[5, 6, 7]])
    with torch.no_grad():
        assert torch.equal(plain(ids).logits, models.module("policy")(ids).logits)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "policy")
    assert tokenizer.chat_template == models.tokenizer.chat_template


def test_an_adapter_folder_is_a_plain_peft_adapter(folder, tmp_path):
    from peft import PeftModel

    models = build(folder, LORA)
    disturb(models, "policy")
    models.save(tmp_path)
    base = AutoModelForCausalLM.from_pretrained(folder)
    plain = PeftModel.from_pretrained(base, str(tmp_path / "policy")).eval()
    ids = torch.tensor([[5, 6, 7]])
    with torch.no_grad():
        assert torch.equal(plain(ids).logits, models.module("policy")(ids).logits)


@pytest.mark.parametrize("lora", [None, LORA])
def test_starting_the_policy_from_weights_takes_ema_and_frozen_along(folder, tmp_path, lora):
    models = build(folder, lora)
    disturb(models, "policy")
    models.save(tmp_path)
    fresh = build(folder, lora)
    fresh.load_weights("policy", tmp_path / "policy")
    for name in ("policy", "target", "reference"):
        assert fresh.fingerprint(name) == models.fingerprint("policy")
    assert fresh.fingerprint("critic") == models.fingerprint("critic")
    assert fresh.version("policy") == fresh.version("target") == 1


@pytest.mark.parametrize("lora", [None, LORA])
def test_a_fingerprint_sees_one_changed_bit(folder, lora):
    models, again = build(folder, lora), build(folder, lora)
    assert models.fingerprint("policy") == again.fingerprint("policy")
    weight = next(iter(models.weights("policy").values()))
    weight.data.view(torch.int32).view(-1)[0] ^= 1
    assert models.fingerprint("policy") != again.fingerprint("policy")


def test_trained_adapters_start_from_different_random_halves_by_name_and_seed(folder):
    one, other = build(folder, LORA, seed=0), build(folder, LORA, seed=1)
    prints = {m.fingerprint(name) for m in (one, other) for name in ("policy", "critic")}
    assert len(prints) == 4


def test_building_leaves_the_global_random_state_alone(folder):
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    build(folder, LORA)
    assert torch.equal(torch.rand(1), expected)


def test_bfloat16_weights_are_upcast_exactly_for_training(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "half")
    path = tmp_path / "half" / "model.safetensors"
    half = {key: w.bfloat16() for key, w in load_file(path).items()}
    save_file(half, path, {"format": "pt"})
    weights = build(tmp_path / "half").weights("policy")
    assert {w.dtype for w in weights.values()} == {torch.float32}
    assert all(torch.equal(weights[key], w.float()) for key, w in half.items())


def test_auto_is_float32_on_the_cpu(folder):
    models = build(folder, dtype="auto")
    assert next(iter(models.weights("policy").values())).dtype == torch.float32


def test_dropout_is_off_whatever_the_config_says(tmp_path):
    tokenizer = tiny_tokenizer()
    model = tiny_model(tokenizer, "llama")
    model.config.attention_dropout = 0.5
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    module = ModelSet(config(tmp_path, checkpointing=True), SPECS, "cpu", 0).module("policy")
    one, other = (forward(module, pack(SAMPLES)).logprobs for _ in range(2))
    assert torch.equal(one, other)


# bad input: one sentence each


def broken(folder, tmp_path, change):
    """A copy of the model folder after `change(path)`."""
    path = tmp_path / "broken"
    shutil.copytree(folder, path)
    change(path)
    return path


def refuse(path, match, **changes):
    with pytest.raises(UserError, match=match) as caught:
        ModelSet(config(path, **changes), SPECS, "cpu", 0)
    assert "\n" not in str(caught.value)


def test_a_missing_folder_is_refused_by_name(tmp_path):
    refuse(tmp_path / "nowhere", "model folder '.*nowhere' does not exist")


def test_a_folder_without_a_model_is_refused(tmp_path):
    refuse(tmp_path, f"'{tmp_path}'")


def test_a_truncated_weight_file_is_refused(folder, tmp_path):
    def cut(path):
        file = path / "model.safetensors"
        file.write_bytes(file.read_bytes()[:1000])

    refuse(broken(folder, tmp_path, cut), "cannot read weights")


def test_pickled_weights_are_refused(folder, tmp_path):
    def pickle(path):
        torch.save(load_file(path / "model.safetensors"), path / "pytorch_model.bin")
        (path / "model.safetensors").unlink()

    refuse(broken(folder, tmp_path, pickle), "cannot read weights")


def test_weights_of_another_architecture_are_refused(folder, tmp_path):
    def swap(path):
        save_file({"foreign": torch.zeros(1)}, path / "model.safetensors", {"format": "pt"})

    refuse(broken(folder, tmp_path, swap), "do not fit its architecture")


def test_weights_of_another_size_are_refused(folder, tmp_path):
    def widen(path):
        tiny_model(tiny_tokenizer(), width=128).save_pretrained(path / "wide")
        shutil.copy(path / "wide" / "model.safetensors", path / "model.safetensors")

    refuse(broken(folder, tmp_path, widen), "cannot read weights|do not fit")


def test_an_unreadable_config_is_refused(folder, tmp_path):
    path = broken(folder, tmp_path, lambda path: (path / "config.json").write_text("{"))
    refuse(path, "cannot read a")


def test_a_model_that_caps_its_logits_is_refused(tmp_path):
    tokenizer = tiny_tokenizer()
    architecture = Gemma2Config(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=1,
        num_key_value_heads=1,
        head_dim=32,
    )
    Gemma2ForCausalLM(architecture).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    refuse(tmp_path, "scales or caps its logits", attention="eager")


def test_an_unknown_dtype_attention_or_lora_target_is_refused(folder):
    refuse(folder, "dtype 'int3' is unknown", dtype="int3")
    refuse(folder, "nonsense", attention="nonsense")
    lora = LoraConfig(rank=2, alpha=4, targets=["nothing"])
    refuse(folder, r"lora.targets \['nothing'\] fit no layer", lora=lora)


def test_unknown_embedded_weights_are_refused():
    wrong = ModelConfig(
        path="tiny",
        weights="nowhere",
        dtype="float32",
        attention="sdpa",
        gradient_checkpointing=False,
        lora=None,
    )
    with pytest.raises(UserError, match=r"'nowhere' do not exist|cannot read a"):
        ModelSet(wrong, SPECS, "cpu", 0)


@pytest.mark.parametrize("lora", [None, LORA])
def test_a_checkpoint_of_another_model_is_refused(folder, tmp_path, lora):
    other = LoraConfig(rank=2, alpha=8, targets=["q_proj", "v_proj"])
    build(folder, other if lora is None else None).save(tmp_path)
    fresh = build(folder, lora)
    with pytest.raises(UserError, match="cannot read"):
        fresh.load(tmp_path)


def test_an_adapter_of_another_rank_is_refused_and_changes_nothing(folder, tmp_path):
    build(folder, LoraConfig(rank=2, alpha=8, targets=["q_proj", "v_proj"])).save(tmp_path)
    fresh = build(folder, LORA)
    before = fresh.fingerprint("policy")
    with pytest.raises(UserError, match="are of another model"):
        fresh.load(tmp_path)
    assert fresh.fingerprint("policy") == before
