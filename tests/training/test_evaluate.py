"""Evaluation: numbers by hand, the same episodes every time, and nothing but a record written."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import pytest

from agentrl_cli.cli.evaluate import evaluate_command
from agentrl_cli.config.compose import as_dataclass, check, compose
from agentrl_cli.core.statistics import interval_over_tasks, pass_at_k
from agentrl_cli.core.types import Episode, Task, Turn, evenly_spaced
from agentrl_cli.runs.run import Run
from agentrl_cli.training.build import build_parts
from agentrl_cli.training.evaluate import episode_metrics, evaluate, play_split, success_gain
from agentrl_cli.training.loop import LOGPROB_GAP_EPISODES, logprob_gap
from tests.builders.runs import folders, settings, trained


def ended(task: str, turns: int, *, success: bool, **flags: bool) -> Episode:
    rows = [Turn([], "a", [1], [2], [0.0], info={"kind": "x", **flags}) for _ in range(turns)]
    rows[-1].info["success"], rows[-1].reward = success, float(success)
    return Episode(task, Task(task, "test", {}), task, 0, rows)


# numbers


def test_flag_cannot_replace_a_metric():
    found = episode_metrics([ended("a", 2, success=True, failed=True, episodes=True, late=True)])
    assert (found["failed"], found["episodes"], found["late"]) == (0, 1, 1)


def test_an_evaluation_counts_by_hand():
    found = episode_metrics(
        [
            ended("a", 2, success=True),
            ended("a", 4, success=False, invalid=True),
            ended("b", 4, success=True),
            ended("b", 10, success=False),
        ]
    )
    assert found["success"] == found["reward"] == 0.5 and found["episodes"] == 4
    assert found["turns"] == 5 and found["turns_to_success"] == 3
    assert found["invalid"] == 4 / 20
    # both tasks are won by halves, so up to z²/(2 + z²) of all may be won or lost
    limits = found["success_low"], found["success_high"]
    assert limits == pytest.approx((0.1712, 0.8288), abs=1e-4)
    assert "kind" not in found


def test_episodes_of_one_task_are_no_independent_evidence():
    alike = interval_over_tasks([[1.0] * 10] * 5 + [[0.0] * 10] * 5)
    mixed = interval_over_tasks([[1.0, 0.0] * 5] * 10)
    alone = interval_over_tasks([[1.0]] * 50 + [[0.0]] * 50)
    assert alike.mean == mixed.mean == alone.mean == 0.5
    assert (mixed.low, mixed.high) == pytest.approx((0.3612, 0.6388), abs=1e-4)
    # ten tasks: the standard error is 0.527 / √10, times Student's 2.262 for nine degrees
    assert (alike.low, alike.high) == pytest.approx((0.123, 0.877), abs=1e-3)
    assert alone.high - alone.low == pytest.approx(2 * 1.96 * 0.05, abs=0.03)


@pytest.mark.parametrize(("tasks", "high"), [(4, 0.4899), (40, 0.0876), (1, 0.7935)])
def test_all_or_no_wins_give_wilson_interval(tasks: int, high: float):
    lost = interval_over_tasks([[0.0, 0.0]] * tasks)
    won = interval_over_tasks([[1.0]] * tasks)
    assert (lost.low, lost.mean, lost.high) == pytest.approx((0.0, 0.0, high), abs=1e-4)
    assert (won.low, won.mean, won.high) == pytest.approx((1 - high, 1.0, 1.0), abs=1e-4)


def test_equal_games_leave_an_interval():
    both = [ended(name, 2, success=False) for name in "abcd"]
    found = success_gain(both, both)
    assert (found.low, found.mean, found.high) == pytest.approx((-0.4899, 0.0, 0.4899), abs=1e-4)


def test_interval_weighs_tasks_by_episodes():
    assert interval_over_tasks([[1.0], [0.0, 0.0, 0.0]]).mean == 0.25
    with pytest.raises(ValueError, match="at least one"):
        interval_over_tasks([])


# playing


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    root = tmp_path_factory.mktemp("runs")
    return trained(root, "nlac", "it", "steps=2", "algo.optimizer.lr=1e-2")


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory):
    root = tmp_path_factory.mktemp("parts")
    cfg = compose(settings(root, "sft", "it"), [folders(root)])
    return build_parts(check(cfg), None)


def test_every_evaluation_plays_the_same_episodes(parts):
    first = play_split(parts, "test", 2, 1.0)
    parts.collector.collect(0, 1)
    parts.step = 7
    again = play_split(parts, "test", 2, 1.0)
    assert [e.id for e in first] == ["test-0-e00", "test-0-e01", "test-1-e00", "test-1-e01"]
    assert [e.turns for e in again] == [e.turns for e in first]
    assert first[0].turns[0].action_ids != first[1].turns[0].action_ids


def test_every_split_is_measured_sampled_and_greedy(parts):
    how = as_dataclass(
        {"splits": ["test", "train"], "episodes_per_task": 1, "temperature": 1.0, "tasks": None,
         "greedy": True, "baseline": True},
        type(parts.eval),
    )  # fmt: skip
    found = evaluate(replace(parts, eval=how))
    for split in ("test", "train"):
        assert found[f"eval/{split}_episodes"] == 4
        assert f"eval/{split}_greedy_success" in found and f"eval/{split}_success_low" in found


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_evaluation_samples_at_its_temperatures(parts, monkeypatch, temperature: float):
    used, generate = set[float](), parts.generator.generate

    def observed(prompts, seeds, sampling, model="policy"):
        used.add(sampling.temperature)
        return generate(prompts, seeds, sampling, model)

    monkeypatch.setattr(parts.generator, "generate", observed)
    how = replace(parts.eval, greedy=True, temperature=temperature, splits=["test"])
    evaluate(replace(parts, eval=how))
    assert used == {temperature, 0.0}


def test_log_prob_gap_by_hand(parts):
    episodes = parts.collector.collect(0, 1)
    assert logprob_gap(parts, episodes)["sampling/logp_diff_max"] < 1e-4
    read = [turn for e in episodes[:LOGPROB_GAP_EPISODES] for turn in e.turns]
    count = sum(len(turn.logprobs) for turn in read)
    read[0].logprobs[0] -= 0.5
    gap = logprob_gap(parts, episodes)
    assert gap["sampling/logp_diff_max"] == pytest.approx(0.5, abs=1e-3)
    assert gap["sampling/logp_diff_mean"] == pytest.approx(0.5 / count, abs=1e-4)
    read[-1].logprobs[0] = math.nan
    assert math.isnan(logprob_gap(parts, episodes)["sampling/logp_diff_max"])


# commands


def numbers(row: dict) -> dict:
    return {name: value for name, value in row.items() if name.startswith("eval/")}


def test_evaluation_equals_end_of_training(run: Run):
    before = {file: file.read_bytes() for file in run.folder.rglob("*") if file.is_file()}
    record = evaluate_command(str(run.folder), [])
    assert (record["run"], record["step"]) == ("it", 2)
    assert numbers(record) == numbers(run.metrics()[-1])
    assert numbers(record) != numbers(run.metrics()[0])
    written = run.folder / "evaluations.jsonl"
    assert json.loads(written.read_text()) == record
    assert {file: file.read_bytes() for file in before} == before
    written.unlink()


def test_a_bare_model_is_evaluated_without_a_run(tmp_path: Path):
    overrides = settings(tmp_path, "sft", "it")
    record = evaluate_command(None, overrides, [folders(tmp_path)])
    assert record["model"] == "base" and record["eval/test_episodes"] == 4
    assert not (tmp_path / "it").exists()


def test_pass_at_k_equals_enumeration():
    for n, correct in ((1, 0), (1, 1), (5, 2), (6, 0), (6, 6), (7, 1)):
        won = [True] * correct + [False] * (n - correct)
        for k in range(1, n + 1):
            picks = list(combinations(won, k))
            assert pass_at_k(correct, n, k) == pytest.approx(sum(map(any, picks)) / len(picks))
    for wrong in ((1, 4, 0), (1, 4, 5), (5, 4, 1), (-1, 4, 1)):
        with pytest.raises(ValueError, match="pass@"):
            pass_at_k(*wrong)


def test_evenly_spaced_items():
    episodes = [Episode(str(i), Task("t", "test", {}), "g", 0, []) for i in range(7)]
    assert [e.id for e in evenly_spaced(episodes, 3)] == ["0", "2", "4"]
    assert evenly_spaced(episodes, 9) == episodes and evenly_spaced([], 3) == []
    assert [e.id for e in evenly_spaced(episodes, 4)] == ["0", "1", "3", "5"]  # to the end
