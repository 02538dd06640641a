"""The world and the algorithm that docs/usage.md shows work as they stand there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.builders.runs import Agentrl
from tests.paths import ROOT

USAGE = (ROOT / "docs" / "usage.md").read_text()
PYTHON = re.findall(r"^```python\n(.*?)^```", USAGE, re.MULTILINE | re.DOTALL)
YAML = re.findall(r"^In `(my_conf/\S+)`:\n\n```yaml\n(.*?)^```", USAGE, re.MULTILINE | re.DOTALL)


@pytest.fixture
def written(tmp_path: Path) -> Path:
    """The page's files in an empty folder."""
    (tmp_path / "mine.py").write_text("\n".join(PYTHON))
    for name, text in YAML:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


@pytest.mark.slow
def test_the_page_s_world_and_algorithm_train(agentrl: Agentrl, written: Path):
    chosen = ["algo=mine", "env=sums", "model.weights=null", "steps=1", "eval.tasks=2"]
    small = [
        "rollout.episodes_per_step=8",
        "rollout.max_new_tokens=4",
        "hardware.threads=1",
        "name=it",
    ]
    done = agentrl("train", *chosen, *small, "--config-dir", str(written / "my_conf"))
    assert done.returncode == 0, done.stderr
    assert (written / "runs" / "it" / "checkpoints").is_dir()


def test_check_env_has_nothing_to_mend_in_the_page_s_world(
    written: Path, monkeypatch: pytest.MonkeyPatch
):
    from agentrl_cli.envs.check import check_env

    monkeypatch.syspath_prepend(written)
    import mine  # pyright: ignore[reportMissingImports]

    assert check_env(lambda: mine.Sums(largest=20)) == []
