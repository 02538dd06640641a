"""docs/metrics.md explains every metric that a run logs, and the pages name no key that is gone."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from agentrl_cli.config import compose
from agentrl_cli.run import Run
from agentrl_cli.train import start
from tests.sample_runs import ALGORITHMS, SMALL, SPEAKER, folders

ROOT = Path(__file__).parent.parent
FOUND = sorted(file.stem for file in (ROOT / "conf" / "algo").glob("*.yaml"))
FLAGS = "(invalid|repeated)"


def documented() -> list[str]:
    """The names in the first column of the tables, as regular expressions."""
    rows = re.findall(r"^\| `([^`]+)` \|", (ROOT / "docs" / "metrics.md").read_text(), re.MULTILINE)
    return [re.sub(r"<\w+>", "[a-z_]+", name.replace("<flag>", FLAGS)) for name in rows]


def logged(algo: str, folder: Path, *more: str) -> set[str]:
    small = [*SMALL, f"algo={algo}", *ALGORITHMS.get(algo, []), f"runs={folder}", "name=it", *more]
    start(small, config_dir=folders(folder))
    return {name for row in Run(folder / "it").metrics() for name in row} - {"step"}


@pytest.fixture(scope="module")
def every_metric(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    found = logged("sft", tmp_path_factory.mktemp("run"))
    for algo in FOUND:
        found |= logged(algo, tmp_path_factory.mktemp("run"), SPEAKER)
    return found


def test_every_metric_of_a_run_is_explained(every_metric: set[str]):
    shapes = documented()
    assert {m for m in every_metric if not any(re.fullmatch(s, m) for s in shapes)} == set()


def test_every_explained_metric_is_logged_by_some_run(every_metric: set[str]):
    assert {s for s in documented() if not any(re.fullmatch(s, m) for m in every_metric)} == set()


def test_every_metric_is_explained_once():
    names = documented()
    assert len(names) == len(set(names))


def test_pages_name_only_keys_of_the_configuration():
    cfgs = [compose([f"algo={algo}", "model=hf", "model.path=x"]) for algo in FOUND]
    known = lambda key: any(OmegaConf.select(cfg, key) is not None for cfg in cfgs)  # noqa: E731
    roots = "algo|rollout|eval|hardware|model|logger"
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    text = "\n".join(page.read_text() for page in pages)
    named = set(re.findall(rf"`((?:{roots})(?:\.[a-z_]+)+)[`=]", text))
    assert len(named) > 20 and {key for key in named if not known(key)} == set()
