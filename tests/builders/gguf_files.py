"""A tiny random Llama as a GGUF file, as llama.cpp writes it, and a wheel that holds it."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import numpy as np
from gguf import GGUFWriter, RopeScalingType, TokenType
from torch import Tensor
from transformers import PreTrainedModel

from tests.builders.tiny_models import CHATML, SPECIAL, tiny_model, tiny_tokenizer

NAMES = {  # of tensors, in GGUF
    "embed_tokens": "token_embd", "norm": "output_norm", "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
}  # fmt: skip


def write_gguf(
    file: Path,
    architecture: str = "llama",
    template: str | None = CHATML,
    *,
    scaling: RopeScalingType | None = None,
    has_factors: bool = False,
) -> PreTrainedModel:
    """Write the file and return the model in float32."""
    tokenizer = tiny_tokenizer()
    model = tiny_model(tokenizer, "llama")
    config = model.config
    writer = GGUFWriter(file, architecture)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(10000.0)
    if scaling is not None:
        writer.add_rope_scaling_type(scaling)
    if has_factors:
        writer.add_tensor("rope_freqs.weight", np.full(config.head_dim // 2, 8, np.float32))
    writer.add_vocab_size(config.vocab_size)
    inner = json.loads(tokenizer.backend_tokenizer.to_str())["model"]
    words = sorted(tokenizer.get_vocab(), key=tokenizer.get_vocab().__getitem__)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(words)
    writer.add_token_merges([" ".join(pair) for pair in inner["merges"]])
    writer.add_token_types([TokenType.CONTROL if w in SPECIAL else TokenType.NORMAL for w in words])
    writer.add_eos_token_id(words.index("<|im_end|>"))
    writer.add_bos_token_id(words.index("<|im_start|>"))
    if template is not None:
        writer.add_chat_template(template)
    for key, weight in model.state_dict().items():
        if key == "lm_head.weight":  # tied
            continue
        *layer, name = key.removeprefix("model.").removesuffix(".weight").split(".", 2)
        is_inner = layer[:1] == ["layers"]
        short = NAMES[name if is_inner else ".".join([*layer, name])]
        heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
        values = _interleaved(weight, heads[short]) if short in heads else weight
        full = f"blk.{layer[1]}.{short}.weight" if is_inner else f"{short}.weight"
        writer.add_tensor(full, values.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return model


def _interleaved(weight: Tensor, heads: int) -> Tensor:
    """Order the rows of a query or key projection as llama.cpp's rotary positions need them."""
    rows, width = weight.shape
    split = weight.view(heads, 2, rows // heads // 2, width)
    return split.transpose(1, 2).reshape(rows, width).contiguous()


def write_wheel(folder: Path, requirement: str, name: str, content: bytes) -> Path:
    """A wheel with one file that pip accepts."""
    project, version = requirement.split("==")
    stem = f"{project.replace('-', '_')}-{version}"
    wheel = folder / f"{stem}-py3-none-any.whl"
    info = f"{stem}.dist-info"
    about = f"Metadata-Version: 2.1\nName: {project}\nVersion: {version}\n"
    with zipfile.ZipFile(wheel, "w") as packed:
        packed.writestr(name, content)
        packed.writestr(f"{info}/METADATA", about)
        packed.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        packed.writestr(f"{info}/RECORD", "")
    return wheel
