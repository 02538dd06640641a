"""A small conf/ folder and the dataclasses it names, for the tests of composing and building."""

from __future__ import annotations

from pathlib import Path

from omegaconf import OmegaConf

from tests.paths import CONF

NODES = """
from __future__ import annotations
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from agentrl_cli.core.errors import UserError

if TYPE_CHECKING:
    from elsewhere import Engine


@dataclass(kw_only=True)
class Advanced:
    rounds: int
    weights: list[float]


@dataclass(kw_only=True)
class Algo:
    clip_eps: float
    epochs: int
    require_optimal: bool
    kind: Literal["soft", "hard"]
    limit: float | None
    prompts: dict[str, str]
    advanced: Advanced


@dataclass(kw_only=True)
class Part:
    size: int


@dataclass(kw_only=True)
class World:
    engine: Engine
    part: Part | None
    parts: list[Part]
    helper: Any
    folder: Path
    shape: tuple[int, ...]


@dataclass(kw_only=True)
class LightConfig:
    low: Annotated[int, Field(description="The lower limit.")]
    high: int

    def __post_init__(self) -> None:
        if self.low > self.high:
            raise UserError("low is above high", code="low-above-high")


@dataclass(kw_only=True)
class Light(LightConfig):
    pass
"""

CONFIG = OmegaConf.load(CONF / "config.yaml")
GROUPS = [{"env": "world"}, {"algo": "first"}, {"model": "tiny"}]
GROUPS += [{"recipe": None}, {"optional recipe_algos": "${recipe}_${algo}"}, {"ablation": None}]
PART = {"_target_": "sample_nodes.Part", "size": 1}
HARDWARE = {"device": "cpu", "threads": None, "microbatch_tokens": 64, "generator": PART}
NODES_OF_OURS = {"rollout": PART, "logger": PART, "hardware": HARDWARE, "steps": 10}
ROOT = OmegaConf.to_yaml(
    OmegaConf.merge(CONFIG, {"defaults": ["_self_", *GROUPS], **NODES_OF_OURS})
)

FOLDER = Path(__file__).parent / "sample_conf"
FILES = {str(file.relative_to(FOLDER)): file.read_text() for file in sorted(FOLDER.rglob("*.yaml"))}
FILES["config.yaml"] = ROOT
