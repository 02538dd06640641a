"""Stored configurations and metrics of older versions are read with the names of this version."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from agentrl_cli.config import renames
from agentrl_cli.config.compose import check, compose, load
from agentrl_cli.core.errors import UserError
from agentrl_cli.report.records import read_record
from agentrl_cli.runs.run import Run
from tests.builders.report import write_run


@pytest.fixture(autouse=True)
def renamed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(renames, "KEYS", {"old_steps": "steps", "model.lora.r": "model.lora.rank"})
    monkeypatch.setattr(renames, "METRICS", {"old/loss": "policy/loss"})
    monkeypatch.setattr(renames, "TARGETS", {"agentrl_cli.envs.Old": "agentrl_cli.envs.TwentyQ"})


def test_stored_configuration_is_read_with_new_names(tmp_path: Path):
    lora = "model.lora={rank:8,alpha:16,targets:[all-linear]}"
    cfg = OmegaConf.to_container(check(compose(["env=twentyq", lora])))
    assert isinstance(cfg, dict)
    new = OmegaConf.create(cfg)
    cfg["old_steps"] = cfg.pop("steps")
    cfg["model"]["lora"]["r"] = cfg["model"]["lora"].pop("rank")
    cfg["env"]["_target_"] = "agentrl_cli.envs.Old"
    del cfg["save_best"], cfg["choices"]["recipe"], cfg["choices"]["ablation"]
    cfg["choices"] |= {"experiment": "wiki_majority", "wording": "game", "rollout": "solve"}
    OmegaConf.save(OmegaConf.create(cfg), tmp_path / "config.yaml")
    found = check(load(tmp_path / "config.yaml", []))
    for group, option in {"recipe": "wiki", "algo": "nlac", "ablation": "majority"}.items():
        new.choices[group] = option
    assert found == new


def test_old_key_is_refused_with_its_new_name():
    with pytest.raises(UserError) as error:
        check(compose(["old_steps=3"]))
    assert str(error.value) == "'old_steps' is now 'steps'"
    assert error.value.code == "unknown-key"


def test_stored_metrics_are_read_with_new_names(tmp_path: Path):
    write_run(tmp_path / "it", algo="grpo")
    with (tmp_path / "it" / "metrics.jsonl").open("a") as file:
        file.write('{"step": 99, "old/loss": 0.5}\n')
    assert Run(tmp_path / "it").metrics()[-1] == {"step": 99, "policy/loss": 0.5}


OLD = Path(__file__).parent / "old_run"  # of NLAC with the options of the paper, before the renames


def test_old_run_is_read_completely(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.undo()
    folder = tmp_path / "old"
    shutil.copytree(OLD, folder)
    cfg = check(load(folder / "config.yaml", []))
    new = check(compose(["recipe=tau_mini", "algo=nlac", "ablation=paper"]))
    assert cfg.algo.keys() == new.algo.keys() and cfg.algo.optimizer == new.algo.optimizer
    assert (cfg.algo.policy_target, cfg.algo.separate_critic) == ("refined", False)
    assert cfg.choices == new.choices
    record = read_record(Run(folder))
    names = {
        *record.columns,
        *record.config["rollout"],
        *record.config["algo"],
    }
    assert not names & {*renames.METRICS, "policy/informative_episodes", "max_tokens", "guard"}
    assert renames.renamed_metrics({"policy/informative_episodes": 0.75}) == {
        "reward/frac_zero_std": 0.25
    }


def test_stored_archer_is_now_archer_small(tmp_path: Path):
    new = check(compose(["recipe=wiki", "algo=archer_small"]))
    stored = OmegaConf.to_container(new)
    assert isinstance(stored, dict)
    stored["choices"]["algo"] = "archer"
    for key in ("num_critics", "head_layers", "actor_states"):
        del stored["algo"][key]
    OmegaConf.save(OmegaConf.create(stored), tmp_path / "config.yaml")
    assert check(load(tmp_path / "config.yaml", [])) == new
    current = check(compose(["algo=archer"]))
    OmegaConf.save(current, tmp_path / "config.yaml")
    assert check(load(tmp_path / "config.yaml", [])) == current
