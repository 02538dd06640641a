"""Loading a base: exact numbers, and one sentence for each kind of bad input."""

from __future__ import annotations

import json
import shutil
from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from transformers import Gemma2Config, Gemma2ForCausalLM

from agentrl_cli.config.settings import LoraConfig
from agentrl_cli.core.errors import UserError
from agentrl_cli.models.load import TINY
from agentrl_cli.models.model_set import ModelSet
from tests.builders.errors import user_error
from tests.builders.models import LORA, SPECS, build, model_config
from tests.builders.tiny_models import tiny_model, tiny_tokenizer

BUNDLED = sorted(file.parent.name for file in TINY.glob("*/model.safetensors"))


def test_bfloat16_weights_are_upcast_exactly(model_folder, tmp_path):
    shutil.copytree(model_folder, tmp_path / "half")
    path = tmp_path / "half" / "model.safetensors"
    half = {key: w.bfloat16() for key, w in load_file(path).items()}
    save_file(half, path, {"format": "pt"})
    weights = build(tmp_path / "half").weights("policy")
    assert {w.dtype for w in weights.values()} == {torch.float32}
    assert all(torch.equal(weights[key], w.float()) for key, w in half.items())


@pytest.mark.parametrize("flag", ["avx512_bf16", "amx_bf16", None])
def test_auto_dtype_on_cpu(model_folder, monkeypatch, flag):
    found = {"avx512_bf16": False, "amx_bf16": False, "avx2": True} | ({flag: True} if flag else {})
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: found)
    fast = torch.bfloat16 if flag else torch.float32
    for path, expected in ((model_folder, fast), ("tiny", torch.float32)):
        weights = build(path, dtype="auto").weights("policy")
        assert {weight.dtype for weight in weights.values()} == {expected}


def broken(model_folder, tmp_path, change):
    """A copy of the model model_folder after `change(path)`."""
    path = tmp_path / "broken"
    shutil.copytree(model_folder, path)
    change(path)
    return path


def refuse(path, code, **changes):
    with pytest.raises(UserError) as caught:
        ModelSet(model_config(path, **changes), SPECS, "cpu", 0)
    assert caught.value.code == code and "\n" not in str(caught.value)


def test_bundled_tokenizer_equals_its_file():
    models = ModelSet(model_config("tiny"), SPECS, "cpu", 0)
    file = Tokenizer.from_file(str(TINY / "tokenizer.json"))
    text = "It's a naïve dog, isn't it?\n\nTen plus 12 is \\boxed{22}."
    assert models.tokenizer.encode(text, add_special_tokens=False) == file.encode(text).ids
    assert len(models.tokenizer) == models.module("policy").config.vocab_size


def shrink(path):
    model = tiny_model(tiny_tokenizer())
    model.resize_token_embeddings(300)
    model.save_pretrained(path)


def cut(path):
    file = path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:1000])


def pickled(path):
    torch.save(load_file(path / "model.safetensors"), path / "pytorch_model.bin")
    (path / "model.safetensors").unlink()


def swap(path):
    save_file({"foreign": torch.zeros(1)}, path / "model.safetensors", {"format": "pt"})


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (shrink, "tokenizer-too-large"),
        (cut, "unreadable-model"),
        (pickled, "unreadable-model"),
        (swap, "other-architecture"),
    ],
)
def test_invalid_weights_are_refused(model_folder, tmp_path, change, code):
    refuse(broken(model_folder, tmp_path, change), code)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("tokenizer.json", "[]"),
        ("tokenizer.json", '{"added_tokens": []}'),
        ("tokenizer_config.json", "null"),
        ("tokenizer_config.json", '{"tokenizer_class": 5}'),
        ("config.json", "{"),
        ("config.json", "null"),
        ("config.json", '{"model_type": []}'),
        ("config.json", '{"model_type": "qwen2", "max_position_embeddings": "x"}'),
        ("generation_config.json", "[]"),
    ],
)
def test_malformed_files_are_refused(model_folder, tmp_path, name, text):
    path = broken(model_folder, tmp_path, lambda path: (path / name).write_text(text))
    refuse(path, "unreadable-model")


def test_capped_logits_are_refused(tmp_path):
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
    refuse(tmp_path, "capped-logits", attention="eager")


def test_unknown_options_are_refused(model_folder, tmp_path):
    for missing in (tmp_path / "nowhere", "nowhere.gguf"):
        refuse(missing, "missing-file")
    refuse("tiny", "unknown-option", weights="nowhere")
    for attention in ("nonsense", "flash_attention_2"):
        refuse(model_folder, "bad-attention", attention=attention)
    lora = LoraConfig(rank=2, alpha=4, targets=["nothing"])
    refuse(model_folder, "no-lora-target", lora=lora)


@pytest.mark.parametrize("name", BUNDLED)
def test_bundled_weights_load(name):
    models = [ModelSet(model_config("tiny", weights=w), SPECS, "cpu", 0) for w in (name, None)]
    assert len({one.fingerprint("policy") for one in models}) == 2


def test_old_name_of_bundled_weights_loads():
    old, new = (
        ModelSet(model_config("tiny", weights=name), SPECS, "cpu", 0).fingerprint("policy")
        for name in ("math", "arithmetic")
    )
    assert old == new


def test_seed_determines_random_weights():
    prints = [
        ModelSet(model_config("tiny"), SPECS, "cpu", seed).fingerprint("policy")
        for seed in (0, 0, 1)
    ]
    assert prints[0] == prints[1] != prints[2]


def test_adapter_of_other_rank_is_refused(model_folder, tmp_path):
    build(model_folder, LoraConfig(rank=2, alpha=8, targets=["q_proj", "v_proj"])).save(tmp_path)
    fresh = build(model_folder, LORA)
    before = fresh.fingerprint("policy")
    with pytest.raises(UserError) as caught:
        fresh.load(tmp_path)
    assert caught.value.code == "other-rank"
    assert fresh.fingerprint("policy") == before


@pytest.mark.parametrize(
    ("key", "value", "code"),
    [
        ("alpha_pattern", {"q_proj": 64}, "not-plain-lora"),
        ("rank_pattern", {"q_proj": 2}, "not-plain-lora"),
        ("use_dora", True, "not-plain-lora"),
        ("bias", "lora_only", "not-plain-lora"),
        ("modules_to_save", ["lm_head"], "not-plain-lora"),
        ("peft_type", "ADALORA", "not-plain-lora"),
        ("rank_pattern", {}, None),
        ("bias", "none", None),
        ("inference_mode", True, None),  # PEFT writes it always
    ],
)
def test_only_a_plain_adapter_is_read(model_folder, tmp_path, key: str, value, code: str | None):
    build(model_folder, LORA).save(tmp_path)
    file = tmp_path / "policy" / "adapter_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {key: value}))
    with user_error(code, key if key != "peft_type" else value) if code else nullcontext():
        build(model_folder, LORA).load(tmp_path)


def test_adapter_on_other_layers_names_them(model_folder, tmp_path):
    build(model_folder, replace(LORA, targets=["q_proj"])).save(tmp_path)
    with user_error("other-targets", "model.lora.targets=[q_proj]"):
        build(model_folder, LORA).load(tmp_path)
