"""Secrets are refused before anything is written, and never printed."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentrl_cli.cli.train import start
from agentrl_cli.config.compose import check, compose, load, parse_overrides
from agentrl_cli.config.secrets import leaves, secret_errors, secret_in
from agentrl_cli.core.errors import UserError
from tests.builders.errors import user_error

KEY = "sk-" + "proj0123456789abcdef"
SECRETS = [
    "https://me:s3cret0@host/v1", "postgresql+x://me:s3cret0@host:5432/db", KEY,
    f"Bearer {KEY[3:]}",
    "http://host/v1?api_key=s3cret0", "hf_" + "s3cret0" * 4, "http://host/v1?a=1&token=s3cret0",
    "gsk_" + "s3cret0" * 4, "nvapi-" + "s3cret0" * 4, "glpat-" + "s3cret0" * 4,
    "wandb_v1_" + "s3cret0" * 4, "AIza" + "s3cret0" * 5,
    "eyJ" + "s3cret0" * 2 + ".eyJ" + "s3cret0" * 2 + ".x",
]  # fmt: skip


@pytest.mark.parametrize("text", SECRETS)
def test_secrets_are_refused_and_not_shown(text: str, tmp_path: Path):
    for given in (f"env.llm.base_url='{text}'", f"+x='{text}'"):
        with pytest.raises(UserError) as refused:
            parse_overrides([given])
        assert refused.value.code == "invalid-override"
        assert "s3cret0" not in str(refused.value) and KEY not in str(refused.value)
    with pytest.raises(UserError):
        start(["env=tau_mini", f"env.llm.base_url='{text}'", f"runs={tmp_path}/runs"])
    assert list(tmp_path.iterdir()) == []
    cfg = compose(["env=tau_mini"])
    cfg.env.llm.base_url = text
    with user_error("secret", "env.llm.base_url") as refused:
        check(cfg)
    assert "s3cret0" not in str(refused.value)


@pytest.mark.parametrize("text", [
    "runs/wandb_offline_run_of_the_first_week", "eyJust-a-name.of-a-file", "AIza-short",
    "https://host:8080/v1", "git@host:a/b", "http://host/a@b?keys=2", "sk-short", "OPENAI_API_KEY",
    "runs/sk_2026", "tokens=3", "task-desk-of-the-long-name-is-no-key",
    "hf-internal-testing/tiny-random-LlamaForCausalLM",
])  # fmt: skip
def test_similar_texts_are_not_secrets(text: str):
    assert secret_in(text) is None


def test_values_with_names_of_secrets_are_refused():
    node = {"options": {"api_key": "x", "tokens": "y", "password": None}, "rows": [{"secret": "z"}]}
    assert [str(error).partition(" ")[0] for error in secret_errors(node)] == [
        "options.api_key", "rows[0].secret",
    ]  # fmt: skip


@pytest.mark.parametrize("value", ["${oc.env:HOME}", "a ${oc.${x}:HOME} b"])
@pytest.mark.parametrize("beside", ["", "env.name: hidden\n", "list: [1]\n"])
def test_stored_configuration_calls_no_resolver(value: str, beside: str, tmp_path: Path):
    (tmp_path / "config.yaml").write_text(f"steps: 1\nenv: {{name: '{value}'}}\n{beside}")
    with user_error("resolver", "env.name"):
        load(tmp_path / "config.yaml", [])


def test_no_value_hides_another():
    node = {"a": {"b": "x", "c": [{"d": 1}, "y"]}, "a.b": "z", "e": {}, 5: None}
    found = [("a.b", "x"), ("a.c[0].d", 1), ("a.c[1]", "y"), ("a.b", "z"), ("5", None)]
    assert list(leaves(node)) == found
