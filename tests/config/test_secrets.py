"""What looks like a secret is refused unshown before anything is written."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentrl_cli.cli.train import start
from agentrl_cli.config.compose import check, compose, load, parse_overrides
from agentrl_cli.config.secrets import secret_errors, secret_in
from agentrl_cli.core.errors import UserError

KEY = "sk-" + "proj0123456789abcdef"
SECRETS = [
    "https://me:s3cret0@host/v1", "postgresql+x://me:s3cret0@host:5432/db", KEY,
    f"Bearer {KEY[3:]}",
    "http://host/v1?api_key=s3cret0", "hf_" + "s3cret0" * 4, "http://host/v1?a=1&token=s3cret0",
]  # fmt: skip


@pytest.mark.parametrize("text", SECRETS)
def test_a_secret_is_refused_on_the_command_line_and_in_a_file_and_not_shown(
    text: str, tmp_path: Path
):
    for given in (f"env.llm.base_url='{text}'", f"+x='{text}'"):
        with pytest.raises(UserError, match=r"holds a .*; a configuration is kept") as refused:
            parse_overrides([given])
        assert "s3cret0" not in str(refused.value) and KEY not in str(refused.value)
    with pytest.raises(UserError, match="an override of"):
        start(["env=tau_mini", f"env.llm.base_url='{text}'", f"runs={tmp_path}/runs"])
    assert list(tmp_path.iterdir()) == []
    cfg = compose(["env=tau_mini"])
    cfg.env.llm.base_url = text
    with pytest.raises(UserError, match=r"env\.llm\.base_url holds") as refused:
        check(cfg)
    assert "s3cret0" not in str(refused.value)


@pytest.mark.parametrize("text", [
    "https://host:8080/v1", "git@host:a/b", "http://host/a@b?keys=2", "sk-short", "OPENAI_API_KEY",
    "runs/sk_2026", "tokens=3", "task-desk-of-the-long-name-is-no-key",
    "hf-internal-testing/tiny-random-LlamaForCausalLM",
])  # fmt: skip
def test_what_is_no_secret_passes(text: str):
    assert secret_in(text) is None


def test_a_value_under_the_name_of_a_secret_is_refused():
    node = {"options": {"api_key": "x", "tokens": "y", "password": None}, "rows": [{"secret": "z"}]}
    assert [line.partition(" ")[0] for line in secret_errors(node)] == [
        "options.api_key", "rows[0].secret",
    ]  # fmt: skip


def test_the_configurations_that_come_with_the_package_hold_none():
    for env in ("twentyq", "arithmetic", "tau_mini", "tau_retail"):
        check(compose([f"env={env}"]))


@pytest.mark.parametrize("value", ["${oc.env:HOME}", "a ${oc.${x}:HOME} b"])
def test_a_stored_configuration_reads_no_environment(value: str, tmp_path: Path):
    (tmp_path / "config.yaml").write_text(f"steps: 1\nenv: {{name: '{value}'}}\n")
    with pytest.raises(UserError, match=r"env\.name") as refused:
        load(tmp_path / "config.yaml", [])
    assert refused.value.code == "resolver"
