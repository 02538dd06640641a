"""What is refused before Ray is asked; the rest is in tests/training/test_ray.py."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from agentrl_cli.core.errors import UserError
from agentrl_cli.rollout import RayCluster

USUAL: dict[str, Any] = {
    "count": 2, "gpus": 1.0, "staleness": 2, "cpus": 1.0, "address": None, "start_timeout": 60.0,
}  # fmt: skip


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
