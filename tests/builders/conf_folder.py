"""A small conf/ folder and the dataclasses it names, for the tests of composing and building."""

from __future__ import annotations

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

MODEL = "dtype: auto\nattention: sdpa\ngradient_checkpointing: false\nlora: null\n"
FILES = {
    "config.yaml": ROOT,
    "algo/first.yaml": """
        # the first of two
        _target_: sample_nodes.Algo
        clip_eps: 0.2
        epochs: 1
        require_optimal: false
        kind: soft
        limit: null
        prompts: {critique: say what was wrong}
        advanced: {rounds: 1, weights: [1.0, 2.0]}
        """,
    "algo/second.yaml": "defaults: [first, _self_]\nclip_eps: 0.4\n",
    "algo/light.yaml": "_target_: sample_nodes.Light\nlow: 1\nhigh: 2\n",
    "env/world.yaml": """
        _target_: sample_nodes.World
        part: {size: 3}
        parts: [{size: 1}, {size: 2}]
        helper: {_target_: sample_nodes.Part, size: 7}
        folder: some/where
        shape: [2, 3]
        """,
    "model/tiny.yaml": f"path: tiny\nweights: ${{env.folder}}\n{MODEL}",
    "model/hf.yaml": f"path: ???\nweights: null\n{MODEL}",
    "recipe/quick.yaml": """
        # @package _global_
        # a short one
        defaults: [{override /model: hf}]
        steps: 2
        algos:
            second: {algo: {epochs: 3, limit: 1.0}}
        """,
    "recipe/quicker.yaml": """
        # @package _global_
        defaults: [quick, _self_]
        steps: 1
        """,
    "ablation.yaml": """
        # One part less.
        ungated:  # without the gate
            algo: {require_optimal: false, epochs: 4}
        short: {steps: 3}
        """,
}
