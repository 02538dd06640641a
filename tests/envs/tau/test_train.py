"""Training on τ-bench itself: the whole path with real prompts of thousands of tokens."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from agentrl_cli.cli.train import start
from agentrl_cli.models.load import TINY
from agentrl_cli.runs.run import Run
from tests.builders.tau import DATA, needs_data

pytestmark = [needs_data, pytest.mark.slow]  # prompts of 10,000 tokens on a CPU
CONTEXT = 16384
ROLES = 1024  # ids that a role's prompt and answer may add to an episode
SETTINGS = [
    f"env.data={DATA}", "model=hf", "model.lora=null", f"rollout.max_seq_len={CONTEXT}",
    "rollout.max_new_tokens=12", "hardware.threads=1", "eval.episodes_per_task=2", "eval.tasks=1",
    "eval.greedy=false", "hardware.microbatch_tokens=16384",
]  # fmt: skip
NLAC = [
    "algo=nlac", "algo.critic_warmup=1", "algo.turns_per_update=2", "algo.num_forecasts=2",
    "algo.advanced.role_tokens=8", "algo.diagnostics.num_states=0",
]  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model of two narrow layers that reads 16k tokens."""
    path = tmp_path_factory.mktemp("long")
    tokenizer = PreTrainedTokenizerFast.from_pretrained(str(TINY))
    config = Qwen2Config(
        vocab_size=len(tokenizer), hidden_size=32, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=CONTEXT + ROLES,
        tie_word_embeddings=True, eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id, bos_token_id=None,
    )  # fmt: skip
    Qwen2ForCausalLM(config).save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


def test_nlac_trains_on_retail_with_the_scripted_user(folder: Path, tmp_path: Path):
    start([
        "env=tau_retail", f"model.path={folder}", *SETTINGS, *NLAC, "steps=2", "env.max_turns=2",
        "algo.min_parse_rate=0",
        "rollout.episodes_per_step=2", "eval.splits=[test]", f"runs={tmp_path}", "name=it",
    ])  # fmt: skip
    run = Run(tmp_path / "it")
    rows = run.metrics()
    assert rows[-1]["eval/test_pass_hat_2"] == 0.0 and rows[0]["eval/test_do_nothing"] == 0.0
    played = [json.loads(line) for file in run.folder.glob("episodes/*.jsonl")
              for line in file.read_text().splitlines()]  # fmt: skip
    assert {episode["stop"] for episode in played} == {"done"}
    assert all(len(episode["turns"][0]["observation_ids"]) > 4000 for episode in played)
