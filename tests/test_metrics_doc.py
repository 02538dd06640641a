"""docs/metrics.md explains every metric that a run logs, and the pages name no key that is gone."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from omegaconf import DictConfig

from agentrl_cli.cli.train import start
from agentrl_cli.config.compose import compose
from agentrl_cli.runs.run import Run
from tests.builders.runs import ACTORS, ALGORITHMS, GUARDED, SMALL, SPEAKER, folders
from tests.builders.vllm import vllm_run
from tests.fakes.student import student_overrides
from tests.fakes.vllm_server import serving
from tests.paths import ROOT
from tests.test_docs_commands import PAGES

FOUND = sorted(file.stem for file in (ROOT / "conf" / "algo").glob("*.yaml"))
TAU = ["env._target_=agentrl_cli.envs.TauBench", "~env.turns", *(
    f"+env.{key}={value}" for key, value in {
        "domain": "mini", "data": "null", "user": "scripted", "actions": "call", "max_turns": 4,
        "holdout": 0, "llm": "null",
    }.items()
), "steps=1", "rollout.episodes_per_step=2"]  # fmt: skip
WIKI = ["env._target_=agentrl_cli.envs.Wiki", "~env.turns", *(
    f"+env.{key}={value}" for key, value in {
        "data": "null", "test_data": "null", "test_share": 0.2, "world": "small", "world_seed": 0,
        "pages": 60, "questions": 8, "test_questions": 4, "task": "question", "reward": "both",
        "max_turns": 3, "page_lines": 8, "page_results": 2,
    }.items()
), "steps=1", "rollout.episodes_per_step=2"]  # fmt: skip
NLRL = ["algo._target_=agentrl_cli.algos.NLRL", "+algo.rollouts=2", "steps=1"]
FLAGS = "(invalid|repeated|unboxed|tool_error|unconfirmed)"


def documented() -> list[str]:
    rows = re.findall(
        r"^\| `([^`]*/[^`]+)` \|", (ROOT / "docs" / "metrics.md").read_text(), re.MULTILINE
    )
    shapes = [re.sub(r"<\w+>", "[a-z0-9_]+", name.replace("<flag>", FLAGS)) for name in rows]
    return [f"{shape}(_low|_high)?" for shape in shapes]  # the ends of an interval have no rows


def logged(algo: str, folder: Path, *more: str) -> set[str]:
    small = [*SMALL, f"algo={algo}", *ALGORITHMS.get(algo, []), f"runs={folder}", "name=it", *more]
    start(small, config_dirs=[folders(folder)])
    return {name for row in Run(folder / "it").metrics() for name in row} - {"step"}


def logged_with_server(folder: Path, model_folder: Path) -> set[str]:
    with serving(model_folder) as server:
        run = vllm_run(server.url, model_folder, folder, "grpo", "steps=1")
        start(run, config_dirs=[folders(folder)])
    return {name for row in Run(folder / "it").metrics() for name in row} - {"step"}


@pytest.fixture(scope="module")
def every_metric(tmp_path_factory: pytest.TempPathFactory, model_folder: Path) -> set[str]:
    found = logged("sft", tmp_path_factory.mktemp("run"))
    for algo in sorted(FOUND):
        found |= logged(algo, tmp_path_factory.mktemp("run"), SPEAKER)
    found |= logged("nlac", tmp_path_factory.mktemp("run"), SPEAKER, *GUARDED)
    found |= logged("nlac", tmp_path_factory.mktemp("run"), SPEAKER, ACTORS, "steps=1")
    found |= logged("nlac", tmp_path_factory.mktemp("run"), SPEAKER, *NLRL)
    found |= logged("grpo", tmp_path_factory.mktemp("run"), SPEAKER, "ablation=frozen_forecast")
    school = tmp_path_factory.mktemp("run")
    found |= logged("sft", school, *student_overrides(school))
    found |= logged_with_server(tmp_path_factory.mktemp("run"), model_folder)
    for world in (TAU, WIKI):
        found |= logged("sft", tmp_path_factory.mktemp("run"), *world)
    return found


@pytest.mark.slow
def test_every_metric_is_documented(every_metric: set[str]):
    shapes = documented()
    assert {m for m in every_metric if not any(re.fullmatch(s, m) for s in shapes)} == set()


@pytest.mark.slow
def test_every_documented_metric_is_logged(every_metric: set[str]):
    trained = [s for s in documented() if not s.startswith("search/")]  # eval logs the others
    assert {s for s in trained if not any(re.fullmatch(s, m) for m in every_metric)} == set()


def test_every_metric_is_documented_once():
    names = documented()
    assert len(names) == len(set(names))


def test_pages_name_only_documented_metrics():
    shapes = documented()
    parts = {shape.split("/")[0] for shape in shapes} - {"[a-z0-9_]+"} | {"successor", "<phase>"}
    pages = [ROOT / "docs" / name for name in ("pitfalls.md", "findings.md")]
    text = "\n".join(page.read_text() for page in pages)
    named = set(re.findall(rf"`((?:{'|'.join(sorted(parts))})/[\w<>]+)`", text))
    filled = {re.sub(r"[<>]", "", name) for name in named}
    assert len(named) > 15
    assert {m for m in filled if not any(re.fullmatch(s, m) for s in shapes)} == set()


def keys(node: DictConfig, path: str = "") -> set[str]:
    found = {f"{path}{key}" for key in node}
    inner = {f"{path}{key}.": node._get_node(key) for key in node}
    return found.union(*(keys(n, p) for p, n in inner.items() if isinstance(n, DictConfig)))


@pytest.mark.slow
def test_pages_name_only_existing_keys():
    given = ["model=hf", "model.path=x"]
    engines = ("hardware=ddp", "hardware=fsdp", "hardware=ray", "hardware=vllm")
    chosen = [*(f"algo={algo}" for algo in FOUND), "logger=wandb", *engines]
    known = set().union(*(keys(compose([one, *given])) for one in chosen))
    known |= keys(compose(["recipe=arithmetic", "algo=nlac", "ablation=nlrl"]))
    known |= keys(compose(["algo=grpo", "ablation=frozen_forecast"]))
    known |= keys(compose(["model=endpoint"]))
    roots = "algo|rollout|eval|hardware|model|logger"
    text = "\n".join(page.read_text() for page in PAGES)
    named = set(re.findall(rf"`((?:{roots})(?:\.[a-z_]+)+)[`=]", text))
    assert len(named) > 20 and named - known == set()
