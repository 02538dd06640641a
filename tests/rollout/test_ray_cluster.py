"""What is refused before Ray is asked; the rest is in tests/training/test_ray.py."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field
from typing import Any

import pytest

from agentrl_cli.core.errors import UserError
from agentrl_cli.rollout import RayCluster

USUAL: dict[str, Any] = {
    "count": 2, "gpus": 1.0, "staleness": 2, "cpus": 1.0, "address": None, "start_timeout": 60.0,
}  # fmt: skip


@dataclass
class SlowRay:
    """Its first `slow` starts come to nothing."""

    slow: int = 0
    calls: list[str] = field(default_factory=list[str])

    def init(self, address: str, **_: Any) -> None:
        self.calls.append(f"init {address}")
        if self.slow:
            self.slow -= 1
            raise RuntimeError("the node timed out.")

    def shutdown(self) -> None:
        self.calls.append("shutdown")


def test_a_missing_ray_is_one_sentence(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UserError, match=r"not installed; pip install 'agentrl-cli\[ray\]'$"):
        RayCluster(**USUAL).connect([])


@pytest.mark.parametrize(("key", "value"), [("cpus", -1), ("start_timeout", 0)])
def test_numbers_that_cannot_be_are_refused(key: str, value: int):
    with pytest.raises(UserError, match=rf"hardware\.actors\.{key} is {value}; give"):
        RayCluster(**{**USUAL, key: value})


def test_more_gpus_than_a_machine_has_are_refused_at_once():
    sentence = r"hardware\.actors asks for 2 times 1 GPUs, and there are 1 for actors here; lower"
    with pytest.raises(UserError, match=sentence):
        RayCluster(**USUAL).connect(["0"])


@pytest.fixture
def own_ray(monkeypatch: pytest.MonkeyPatch) -> SlowRay:
    """In the place of the real one; what it is told by variables is forgotten afterwards."""
    found = SlowRay()
    monkeypatch.setitem(sys.modules, "ray", found)  # pyright: ignore[reportArgumentType]
    monkeypatch.setattr(os, "environ", dict(os.environ))
    return found


def test_a_ray_that_a_busy_machine_was_too_slow_for_is_begun_anew(own_ray: SlowRay):
    own_ray.slow = 2
    RayCluster(**USUAL).connect([])
    assert own_ray.calls == ["init local", "shutdown", "init local", "shutdown", "init local"]


def test_a_ray_that_never_starts_is_one_sentence(own_ray: SlowRay):
    own_ray.slow = 100
    with pytest.raises(UserError, match=r"^Ray cannot start here \(the node timed out\); mend"):
        RayCluster(**USUAL).connect([])
    assert own_ray.calls == ["init local", "shutdown"] * 3


def test_a_cluster_that_was_named_is_asked_once(own_ray: SlowRay):
    own_ray.slow = 100
    with pytest.raises(UserError, match=r"^Ray cannot be reached at 'auto'"):
        RayCluster(**{**USUAL, "address": "auto"}).connect([])
    assert own_ray.calls == ["init auto"]
