"""Errors before Ray starts; tests/training/test_ray.py has the rest."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field
from typing import Any

import pytest

from agentrl_cli.core.errors import UserError
from agentrl_cli.rollout import RayCluster


@dataclass
class SlowRay:
    """Fails at its first `slow` starts."""

    slow: int = 0
    calls: list[str] = field(default_factory=list[str])

    def init(self, address: str, **_: Any) -> None:
        self.calls.append(f"init {address}")
        if self.slow:
            self.slow -= 1
            raise RuntimeError("the node timed out.")

    def shutdown(self) -> None:
        self.calls.append("shutdown")


def cluster(**changes: Any) -> RayCluster:
    usual: dict[str, Any] = {
        "count": 2, "gpus": 1.0, "staleness": 2, "cpus": 1.0, "address": None,
        "start_timeout": 60.0,
    }  # fmt: skip
    return RayCluster(**(usual | changes))


@pytest.fixture
def own_ray(monkeypatch: pytest.MonkeyPatch) -> SlowRay:
    """Replaces Ray; variables that are set for it are undone afterwards."""
    found = SlowRay()
    monkeypatch.setitem(sys.modules, "ray", found)  # pyright: ignore[reportArgumentType]
    monkeypatch.setattr(os, "environ", dict(os.environ))
    return found


def test_missing_ray_or_gpus_are_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    for gpus, code in (([], "missing-extra"), (["0"], "too-few-gpus")):
        with pytest.raises(UserError) as refused:
            cluster().connect(gpus)
        assert refused.value.code == code


@pytest.mark.parametrize(
    ("slow", "address", "calls"),
    [
        (2, None, ["init local", "shutdown", "init local", "shutdown", "init local"]),
        (100, None, ["init local", "shutdown"] * 3),
        (100, "auto", ["init auto"]),
    ],
)
def test_slow_local_ray_is_restarted(
    own_ray: SlowRay, slow: int, address: str | None, calls: list[str]
):
    own_ray.slow = slow
    if slow == 100:
        with pytest.raises(UserError, match=r"\(the node timed out\)") as refused:
            cluster(address=address).connect([])
        assert refused.value.code == "ray-unreachable"
    else:
        cluster(address=address).connect([])
    assert own_ray.calls == calls
