"""Every algorithm trains on MATH, and a thought is a turn with credit of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentrl_cli.cli.environment import write_demos
from agentrl_cli.cli.evaluate import evaluate_command
from agentrl_cli.cli.train import start
from agentrl_cli.core.types import Episode
from agentrl_cli.runs.run import Run
from tests.builders.runs import ALGORITHMS, DEMOS
from tests.fakes.student import student_overrides
from tests.paths import CONF

SMALL = [
    "model.weights=null", "steps=2", "eval_every=0", "eval.tasks=2", "eval.episodes_per_task=4",
    "eval.splits=[test]", "eval.baseline=false", "rollout.episodes_per_step=8", "name=it",
]  # fmt: skip


def trained(root: Path, algo: str, *more: str) -> Run:
    chosen, world = ALGORITHMS.get(algo, [f"algo={algo}"]), student_overrides(root)
    if DEMOS in chosen:
        out, asked = root / "demos.jsonl", [item for item in [*world, *more] if "env" in item]
        write_demos([*asked, "n=4", f"out={out}"], [root / "groups"])
        chosen = [f"data.demos={out}" if item == DEMOS else item for item in chosen]
    overrides = [*SMALL, *chosen, *world, f"runs={root}", *more]
    start(overrides, config_dirs=[root / "groups"])
    return Run(root / "it")


def episodes(run: Run) -> list[Episode]:
    from agentrl_cli.runs import episode_files

    return [one for file in run.episode_files() for one in episode_files.read_all(file)]


# all that learn from episodes that were played
PLAYERS = {file.stem for file in (CONF / "algo").glob("*.yaml")}


# all other algorithms have a preset with thoughts, which a test of presets runs
THOUGHTS = [("archer_small", "thoughts"), ("nlac_role_sft", "thoughts")]


@pytest.mark.slow
@pytest.mark.parametrize(("algo", "turns"), [*((a, "retry") for a in sorted(PLAYERS)), *THOUGHTS])
def test_every_algorithm_trains_on_it(tmp_path: Path, algo: str, turns: str):
    run = trained(tmp_path, algo, f"env.turn_mode={turns}")
    rows = run.metrics()
    assert run.meta["status"] == "done"
    assert any(name.endswith("/loss") for row in rows for name in row)
    assert 0 < rows[-1]["eval/test_level_1"] <= 1
    assert rows[-1]["eval/test_level_1"] == rows[-1]["eval/test_success"]


def test_thoughts_are_turns_of_one_reply(tmp_path: Path):
    run = trained(tmp_path, "grpo")
    found = [one for one in episodes(run) if len(one.turns) == 3]
    assert found
    for episode in found:
        first, *more = episode.turns
        assert first.action == "3+3=6\n\n" and more[-1].action == "\\boxed{7}"
        assert [turn.observation_ids for turn in more] == [[], []]
        assert [turn.observation for turn in more] == [[], []]
        assert [turn.reward for turn in episode.turns] == [0.0, 0.0, 1.0]


def test_self_ac_gives_each_thought_an_advantage(tmp_path: Path):
    run = trained(tmp_path, "self_ac", "algo.gae_lambda=0.5")
    found = [one for one in episodes(run) if len(one.turns) == 3]
    credits = [{turn.info["advantage"] for turn in one.turns} for one in found]
    assert credits and all(len(row) > 1 for row in credits)


def test_an_evaluation_reads_a_file_of_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    trained(tmp_path, "sft")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").symlink_to(tmp_path)
    rows = tmp_path / "other.jsonl"
    rows.write_text('{"problem": "6+1?", "level": 4, "subject": "Sums", "answer": 7}\n')
    found = evaluate_command("it", [f"env.data={rows}", "env.test_share=1.0"])
    assert found["eval/test_level_4"] == found["eval/test_subject_sums"] > 0
    assert (
        found["eval/test_pass_at_4"] >= found["eval/test_pass_at_2"] >= found["eval/test_success"]
    )
