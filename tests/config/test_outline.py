"""The outlines that a configuration is checked against before classes are imported are these."""

from __future__ import annotations

import importlib
import types
import typing
from dataclasses import MISSING, fields, is_dataclass
from typing import Any

import pytest

from agentrl_cli.config.outline import outline, outlined
from agentrl_cli.config.schema import hints, is_leaf, public_names, validate_target

NAMES = sorted(public_names().values())


def public(target: str) -> Any:
    """What a public name names."""
    module, _, name = target.rpartition(".")
    return getattr(importlib.import_module(module), name)


def shape(kind: Any) -> Any:
    """All that `validate` asks of a type: its parts, and of a dataclass each field with whether it
    must be given. Classes that configure nothing are all alike."""
    if is_dataclass(kind) and isinstance(kind, type):
        given = [field for field in fields(kind) if field.init]
        is_needed = {f.name: f.default is f.default_factory is MISSING for f in given}
        return {name: (shape(hints(kind)[name]), is_needed[name]) for name in is_needed}
    if isinstance(kind, list):  # what a Callable takes
        return [shape(part) for part in kind]
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Literal:
        return parts
    if parts:
        is_union = origin in (typing.Union, types.UnionType)
        return "union" if is_union else origin, [shape(part) for part in parts]
    return kind if kind is type(None) or is_leaf(kind) else object


@pytest.mark.parametrize("target", NAMES)
def test_an_outline_is_as_its_class(target: str):
    cls = public(target)
    found = outline(target)
    assert (found is not None) == (is_dataclass(cls) and isinstance(cls, type))
    if found is not None:
        assert shape(found) == shape(cls)


def test_there_are_outlines_of_algorithms_environments_and_loggers():
    rooms = {name.split(".")[1] for name in NAMES if outline(name)}
    assert {"algos", "envs", "generators", "rollout", "runs"} == rooms


@pytest.mark.parametrize("target", ["tests.fakes.coin.CoinEnv", "agentrl_cli.algos.Nothing", "x"])
def test_what_is_no_public_name_has_no_outline(target: str):
    assert outline(target) is None


def test_a_mistake_is_told_in_the_same_words_by_the_class_and_by_its_outline():
    node = {"_target_": "agentrl_cli.algos.SelfAC", "optimizer": {"lr": "three"}, "lr": 1}
    by_class: list[str] = []
    by_outline: list[str] = []
    validate_target(node, "algo", by_class)
    validate_target(outlined(node), "algo", by_outline)
    assert by_class == by_outline and len(by_class) > 3
    assert "algo.optimizer.lr must be a float, not 'three'" in by_class
