"""The public Python API: results of its functions, callbacks, resume, and mistakes."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import agentrl_cli
from agentrl_cli import api
from agentrl_cli.algos.base import PlayOnly
from agentrl_cli.config.compose import build
from agentrl_cli.core.types import Task
from agentrl_cli.models.specs import OptimizerSpec
from agentrl_cli.runs.run import Run as StoredRun
from tests.builders.errors import user_error
from tests.builders.report import BASE, BETTER, write_run
from tests.builders.runs import facts, folders, settings
from tests.fakes.coin import CoinEnv

QUICK = ["steps=3", "eval_every=1", "save_every=0", "eval.greedy=false"]


class Started(agentrl_cli.Callback):
    def on_train_start(self) -> None: ...


class Watch(agentrl_cli.Callback):
    """Records its calls. In the call `at` it stops the run, or raises `error`."""

    def __init__(self, at: tuple[str, int] | None = None, error: Exception | None = None) -> None:
        self.at, self.error = at, error
        self.calls: list[tuple[str, int, int]] = []

    def on_step(self, step: int, metrics: dict[str, float]) -> bool:
        return self.goes_on("step", step, metrics["episodes/count"])

    def on_evaluation(self, step: int, metrics: dict[str, float]) -> bool:
        assert len(self.run.episodes(step=step)) == metrics["eval/test_episodes"]
        return self.goes_on("evaluation", step, metrics["eval/test_episodes"])

    def goes_on(self, kind: str, step: int, episodes: float) -> bool:
        self.calls.append((kind, step, int(episodes)))
        if (kind, step) == self.at and self.error is not None:
            raise self.error
        return (kind, step) != self.at


def config(root: Path, name: str, *more: str) -> agentrl_cli.Config:
    return agentrl_cli.compose([*settings(root, "rft", name), *QUICK, *more], folders(root))


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def watch() -> Watch:
    return Watch()


@pytest.fixture(scope="module")
def run(root: Path, watch: Watch) -> agentrl_cli.Run:
    """A finished run, trained outside the main thread, as some notebooks do."""
    torch.set_num_threads(1)
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(agentrl_cli.train, config(root, "it"), [watch]).result()


def stored(run: agentrl_cli.Run) -> dict[str, Any]:
    return facts(StoredRun(run.folder)) | {"step": None}  # step-3 or last-3


def test_callback_is_called_after_steps_and_evaluations(run: agentrl_cli.Run, watch: Watch):
    assert watch.calls == [
        ("evaluation", 0, 4), ("step", 1, 8), ("evaluation", 1, 4), ("step", 2, 8),
        ("evaluation", 2, 4), ("step", 3, 8), ("evaluation", 3, 4),
    ]  # fmt: skip
    assert (run.status, run.name, watch.run.folder) == ("done", "it", run.folder)
    assert run.config == agentrl_cli.Run(str(run.folder)).config


def test_stopped_and_broken_run_resumes_to_equal_run(root: Path, run: agentrl_cli.Run):
    part = agentrl_cli.train(config(root, "part"), [Watch(at=("step", 1))])
    assert part.status == "stopped" and [row["step"] for row in rows(part)] == [0, 1]
    broken = Watch(at=("evaluation", 2), error=ValueError("no disk"))
    with user_error("callback", "Watch", "no disk"):
        agentrl_cli.resume(part, callbacks=[broken])
    assert part.status == "stopped" and broken.calls == [("step", 2, 8), ("evaluation", 2, 4)]
    whole = agentrl_cli.resume(str(part.folder))
    assert whole.status == "done" and stored(whole) == stored(run)


class Length(agentrl_cli.Callback):
    """Logs a metric, and stops the run after step 2."""

    def on_step(self, step: int, metrics: dict[str, float]) -> dict[str, float]:
        return {"mine/length": step / 2}

    def on_evaluation(self, step: int, metrics: dict[str, float]) -> bool | dict[str, float]:
        return step != 2 and {"mine/evaluated": 1}


def test_metrics_of_a_callback_are_logged_and_resumed(root: Path, run: agentrl_cli.Run):
    own = agentrl_cli.train(config(root, "own", "save_every=1"), [Length()])
    agentrl_cli.resume(own, callbacks=[Length()])
    found = rows(own)
    assert [row.get("mine/length") for row in found[1:]] == [0.5, 1.0, 1.5]
    assert [row.get("mine/evaluated") == 1 for row in found] == [True, True, False, True]
    plain = [{k: v for k, v in row.items() if "mine/" not in k} for row in found]
    assert [row.keys() for row in plain] == [row.keys() for row in rows(run)]


@pytest.mark.parametrize("found", [{"eval/x": 1.0}, {"time/x": 1.0}, {"x": "1"}, {1: 1.0}])
def test_metrics_of_a_callback_are_numbers_with_names_of_its_own(root: Path, found: dict[Any, Any]):
    class Wrong(agentrl_cli.Callback):
        def on_step(self, step: int, metrics: dict[str, float]) -> dict[str, float]:
            return found

    with user_error("callback", "Wrong", repr(next(iter(found)))):
        agentrl_cli.train(config(root, f"wrong-{len([*root.iterdir()])}"), [Wrong()])


def rows(run: agentrl_cli.Run) -> list[dict[str, Any]]:
    """The metrics as a list, also with pandas."""
    found = run.metrics()
    return found if isinstance(found, list) else found.to_dict("records")


def test_metrics_have_one_row_per_step(run: agentrl_cli.Run, monkeypatch: pytest.MonkeyPatch):
    pandas = pytest.importorskip("pandas")
    frame = run.metrics()
    monkeypatch.setattr(api, "find_spec", lambda name: None)
    plain = run.metrics()
    assert [row["step"] for row in plain] == [0, 1, 2, 3] and "reward/mean" not in plain[0]
    assert all({"reward/mean", "eval/test_success"} <= row.keys() for row in plain[1:])
    pandas.testing.assert_frame_equal(frame, pandas.DataFrame(plain))


def test_episodes_are_those_of_a_step(run: agentrl_cli.Run):
    of_run = StoredRun(run.folder)
    assert run.episodes() == of_run.read_episodes("eval", 3)
    assert run.episodes("train", 1) == of_run.read_episodes("train", 1)


def test_evaluation_repeats_that_of_training(root: Path, run: agentrl_cli.Run):
    first, *_, last = rows(run)
    for found, row in (
        (agentrl_cli.evaluate(run), last),
        (agentrl_cli.evaluate(run.config), first),
    ):
        names = [name for name in found if name.startswith("eval/")]
        assert len(names) > 5 and all(found[name] == row[name] for name in names)
    assert agentrl_cli.evaluate(run, ["eval.tasks=1"])["eval/test_episodes"] == 2
    assert len((run.folder / "evaluations.jsonl").read_text().splitlines()) == 2


def test_policy_has_the_weights_of_the_run(run: agentrl_cli.Run):
    model, tokenizer = agentrl_cli.load_policy(run)
    last = StoredRun(run.folder).latest_checkpoint()
    saved = load_file(last / "models" / "policy" / "model.safetensors")
    weights = model.state_dict()
    assert saved.keys() <= weights.keys()
    assert all(torch.equal(weights[name], tensor) for name, tensor in saved.items())
    ids = tokenizer("Is it alive?", return_tensors="pt")["input_ids"]
    reply = model.generate(ids, max_new_tokens=2, do_sample=False)  # pyright: ignore
    assert reply.shape[1] > ids.shape[1] and not model.training  # pyright: ignore


def test_comparison_has_a_row_for_each_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(api, "find_spec", lambda name: None)
    for seed in (0, 1):
        write_run(tmp_path / f"grpo-{seed}", seed=seed, final=BASE)
        write_run(tmp_path / f"nlac-{seed}", algo="nlac", seed=seed, final=BETTER)
    first, second = agentrl_cli.compare([str(tmp_path)], against="grpo")
    assert [first["configuration"], second["configuration"]] == ["grpo", "nlac"]
    assert first["seeds"] == second["seeds"] == [0, 1] and second["episodes"] == 200
    assert (first["final"], second["final"]) == (0.25, 0.625)
    assert second["difference_low"] <= second["difference"] == 0.375 <= second["difference_high"]
    assert second["gain"] == 0.375 and "difference" not in first
    alone = agentrl_cli.compare([agentrl_cli.Run(tmp_path / "nlac-0")])
    assert [row["seeds"] for row in alone] == [[0]]


def test_environment_takes_settings():
    env = agentrl_cli.make_env("twentyq", max_turns=1)
    env.reset(env.tasks("test")[0], seed=0)
    assert env.step("Is it alive?").done
    assert agentrl_cli.make_env("twentyq").tasks("test")


def test_object_equals_an_option(root: Path):
    named = agentrl_cli.compose(["env=coin"], folders(root))
    algo = Own(optimizer=OptimizerSpec(lr=0.5))
    given = agentrl_cli.compose(env=CoinEnv(turns=2), algo=algo)
    assert given.env == named.env and given.choices.env == "CoinEnv"
    assert build(given.env) == CoinEnv(turns=2) and build(given.algo) == algo


def score(prompts: list[str], completions: list[str], **_: object) -> list[float]:
    return [float("ant" in text) for text in completions]


def test_setting_may_be_a_function(tmp_path: Path):
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(f'{{"prompt": "Name insect {i}."}}\n' for i in range(10)))
    env = agentrl_cli.make_env("prompts", data=str(rows), reward=score)
    env.reset(env.tasks("train")[0], seed=0)
    assert env.step("An ant.").reward == 1.0
    given = agentrl_cli.compose(env=env).env
    assert given.reward == "tests.test_api:score" and build(given) == env


@dataclass(kw_only=True)
class Own(PlayOnly):
    optimizer: OptimizerSpec


@dataclass(kw_only=True)
class NoSplits(CoinEnv):
    def tasks(self, split: str) -> list[Task]:
        return super().tasks("test")


MISTAKES: dict[str, tuple[str, Callable[[agentrl_cli.Run], object]]] = {
    "key": ("unknown-key", lambda run: agentrl_cli.compose(["stpes=2"])),
    "text": ("invalid-override", lambda run: agentrl_cli.compose("steps=2")),
    "name": ("run-exists", lambda run: agentrl_cli.train(run.config)),
    "run": ("not-a-config", lambda run: agentrl_cli.train(run)),  # pyright: ignore
    "finished": ("nothing-left", lambda run: agentrl_cli.resume(run)),
    "class": ("invalid-callback", lambda run: agentrl_cli.train(run.config, [Watch])),  # pyright: ignore
    "no run": ("unknown-run", lambda run: agentrl_cli.evaluate("nope")),
    "both": ("conflict", lambda run: agentrl_cli.evaluate(run.config, ["eval.tasks=1"])),
    "step": ("no-episodes", lambda run: run.episodes("train", 7)),
    "env": ("unknown-option", lambda run: agentrl_cli.make_env("twentyqq")),
    "contract": ("contract", lambda run: agentrl_cli.check_env(NoSplits(turns=2))),
    "class of env": ("not-a-component", lambda run: agentrl_cli.compose(env=CoinEnv)),  # pyright: ignore
    "env twice": (
        "conflict",
        lambda run: agentrl_cli.compose(["env.turns=3"], env=CoinEnv(turns=2)),
    ),
    "untyped check": ("not-an-env", lambda run: agentrl_cli.check_env("twentyq")),  # pyright: ignore
    "grade": ("invalid-value", lambda run: agentrl_cli.grade(5, "5")),  # pyright: ignore
    "mistyped key": ("unknown-key", lambda run: agentrl_cli.resume(run, ["stepz=3"])),
    "hook": ("invalid-callback", lambda run: agentrl_cli.resume(run, ["steps=9"], [Started()])),
    "one callback": ("invalid-callback", lambda run: agentrl_cli.resume(run, [], object())),  # pyright: ignore
    "nested function": (
        "not-importable",
        lambda run: agentrl_cli.make_env("prompts", data="x.jsonl", reward=lambda **_: [1.0]),
    ),
    "setting": ("unknown-key", lambda run: agentrl_cli.make_env("twentyq", turns=2)),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistake_is_refused(run: agentrl_cli.Run, mistake: str):
    code, call = MISTAKES[mistake]
    before = sorted(run.folder.parent.iterdir())
    with user_error(code):
        call(run)
    assert sorted(run.folder.parent.iterdir()) == before


def test_changed_value_is_checked_again(root: Path):
    wrong = config(root, "wrong")
    wrong.steps = 0
    with user_error("invalid-value"):
        agentrl_cli.train(wrong)
    assert not (root / "wrong").exists()
