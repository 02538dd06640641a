"""Public shapes of models as folders that hold a config.json and nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

QWEN2 = {"model_type": "qwen2", "max_position_embeddings": 32768, "rms_norm_eps": 1e-6}
SHAPES: dict[str, dict[str, Any]] = {
    "Qwen2.5-7B": QWEN2 | {
        "vocab_size": 152064, "hidden_size": 3584, "num_hidden_layers": 28,
        "num_attention_heads": 28, "num_key_value_heads": 4, "intermediate_size": 18944,
        "tie_word_embeddings": False,
    },
    "Qwen2.5-1.5B": QWEN2 | {
        "vocab_size": 151936, "hidden_size": 1536, "num_hidden_layers": 28,
        "num_attention_heads": 12, "num_key_value_heads": 2, "intermediate_size": 8960,
        "tie_word_embeddings": True,
    },
    "Qwen3-0.6B": {
        "model_type": "qwen3", "max_position_embeddings": 40960, "rms_norm_eps": 1e-6,
        "vocab_size": 151936, "hidden_size": 1024, "num_hidden_layers": 28,
        "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128,
        "intermediate_size": 3072, "tie_word_embeddings": True,
    },
}  # fmt: skip


def write_shape(root: Path, name: str) -> Path:
    folder = root / name
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(SHAPES[name]))
    return folder
