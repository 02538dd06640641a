"""Code that came with a foreign model or run is not imported by what must not run it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.builders.command_line import agentrl
from tests.builders.runs import trained
from tests.models.test_load import refuse

CODE = "from pathlib import Path\nPath({marker!r}).touch()\n"


def test_code_of_a_model_is_not_run(tmp_path: Path, model_folder: Path):
    folder, marker = tmp_path / "foreign", tmp_path / "ran"
    shutil.copytree(model_folder, folder)
    (folder / "theirs.py").write_text(CODE.format(marker=str(marker)))
    config = json.loads((folder / "config.json").read_text())
    names = {"AutoConfig": "theirs.Config", "AutoModelForCausalLM": "theirs.Model"}
    changed = {**config, "model_type": "theirs", "auto_map": names}
    (folder / "config.json").write_text(json.dumps(changed))
    refuse(folder, "unreadable-model")
    assert not marker.exists()


@pytest.mark.slow
def test_reading_verbs_import_nothing_that_a_run_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    run, marker = trained(tmp_path / "runs", "sft", "it", "steps=1"), tmp_path / "ran"
    (tmp_path / "theirs.py").write_text(CODE.format(marker=str(marker)))
    text = run.config_file.read_text()
    run.config_file.write_text(text.replace("tests.fakes.coin.CoinEnv", "theirs.CoinEnv"))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    for verb in (["ls"], ["show", "it"], ["report", "runs"]):
        assert agentrl(*verb).exit_code == 0, verb
    assert not marker.exists()
    agentrl("eval", "it")
    assert marker.exists()  # it would have been, by a verb that takes the folder as code
