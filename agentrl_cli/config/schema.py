"""A dataclass is the schema of a node of configuration: values are read against it. `validate`
collects every mistake and never constructs, so a whole configuration can be checked before anything
is built; `construct` builds what was validated. Nothing here knows files or overrides."""

from __future__ import annotations

import difflib
import enum
import importlib
import inspect
import sys
import types
import typing
from collections.abc import Container, Iterable
from dataclasses import MISSING, dataclass, fields, is_dataclass, make_dataclass
from functools import cache
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from agentrl_cli.core import files

PACKAGE = "agentrl_cli"
PUBLIC = ("algos", "envs", "generators", "rollout", "runs")
LEAVES = {int: "integer", float: "float", bool: "boolean", str: "string", Path: "path"}
CONTAINERS = {list: "list", dict: "mapping", tuple: "list"}


@dataclass
class Validated:
    """A class to construct and the values of its fields, some of which are Validated, too."""

    cls: type
    target: str | None
    values: dict[str, Any]


def nearest(word: str, names: Iterable[str]) -> str:
    """The end of an error: `; did you mean 'x'?`, or what there is to choose from."""
    choices = sorted(names)
    close = difflib.get_close_matches(word, choices, n=1)
    if close:
        return f"; did you mean '{close[0]}'?"
    return f"; there is {', '.join(choices)}" if choices else "; it takes none"


def validate(
    cls: type, node: dict[str, Any], path: str, errors: list[str], not_required: Container[str] = ()
) -> Validated:
    """Read `node` as the fields of dataclass `cls`; append one line to `errors` for each mistake.
    Fields named in `not_required` need not be in the node."""
    schema = {field.name: field for field in fields(cls) if field.init}
    for key in node:
        if key not in schema and key != "_target_":
            errors.append(unknown_key(str(key), path, schema, node))
    values: dict[str, Any] = {}
    for name, field in schema.items():
        kind = hints(cls)[name]
        required = field.default is MISSING and field.default_factory is MISSING
        if name in node:
            values[name] = validate_value(kind, node[name], _join(path, name), errors)
        elif name not in not_required and required and is_leaf(kind):
            errors.append(_missing(_join(path, name)))
    return Validated(cls, node.get("_target_"), values)


def unknown_key(key: str, path: str, known: Iterable[str], node: dict[str, Any]) -> str:
    """The line for a key that the node at `path` does not have: with the key of that name further
    inside, or else the nearest of those that are `known`."""
    of = f"a key of {path}" if path else "a setting"
    inner = [name for name in files.flatten(node) if name.endswith(f".{key}")]
    hint = f"; did you mean {_join(path, inner[0])}?" if inner else nearest(key, known)
    return f"{_join(path, key)} is not {of}{hint}"


def validate_value(kind: Any, value: Any, path: str, errors: list[str]) -> Any:
    """`value` as type `kind`, Validated where that is a dataclass or it names a `_target_`."""
    inner, optional = _strip_optional(kind)
    if isinstance(value, str) and value == "???":
        errors.append(_missing(path))
        return None
    if value is None and optional:
        return None
    may_be_target = inner is Any or not is_leaf(inner)
    if isinstance(value, dict) and "_target_" in value and may_be_target:
        base = inner if isinstance(inner, type) and inner is not Any else object
        return validate_target(value, path, errors, base=base)
    if is_dataclass(inner) and isinstance(value, dict):
        return validate(typing.cast(type, inner), value, path, errors)
    if typing.get_origin(inner) in (list, dict) and not is_leaf(inner):
        part = typing.get_args(inner)[-1]
        if isinstance(value, list):
            return [validate_value(part, v, f"{path}[{i}]", errors) for i, v in enumerate(value)]
        if isinstance(value, dict):
            return {k: validate_value(part, v, _join(path, k), errors) for k, v in value.items()}
    return _validate_leaf(kind, value, path, errors)


def needed_nodes(cls: type) -> list[str]:
    """The fields of a dataclass that are nodes of their own and cannot be null."""
    kinds = {name: _strip_optional(kind) for name, kind in hints(cls).items()}
    return [name for name, (kind, optional) in kinds.items() if not optional and not is_leaf(kind)]


def construct(value: Any) -> Any:
    """Construct a Validated and those inside it; other values pass through."""
    if isinstance(value, Validated):
        return value.cls(**{name: construct(item) for name, item in value.values.items()})
    return _map_items(construct, value)


def to_plain(value: Any) -> Any:
    """A Validated as a node of configuration again, every value now of its declared type."""
    if isinstance(value, Validated):
        head = {"_target_": value.target} if value.target else {}
        return head | {name: to_plain(item) for name, item in value.values.items()}
    return _map_items(to_plain, value)


@cache
def hints(cls: type) -> dict[str, Any]:
    """The types of a class's fields; `object` where one is imported for type checkers only."""
    found: dict[str, Any] = {}
    for owner in reversed(cls.__mro__):
        names = vars(sys.modules[owner.__module__])
        annotations = inspect.get_annotations(owner).items()
        found |= {name: hint(annotation, names) for name, annotation in annotations}
    return found


def hint(annotation: Any, names: dict[str, Any]) -> Any:
    """The type that an annotation means, by what its names are; `object` where one is missing."""
    alone = types.SimpleNamespace(__annotations__={"field": annotation})
    try:
        return typing.get_type_hints(alone, names)["field"]
    except NameError:
        return object


def is_leaf(kind: Any) -> bool:
    """Whether the configuration must hold such a field: numbers, text, containers of them."""
    inner, _ = _strip_optional(kind)
    if typing.get_origin(inner) is typing.Literal:
        return True
    if typing.get_origin(inner) in CONTAINERS:
        return all(is_leaf(part) for part in typing.get_args(inner) if part is not Ellipsis)
    is_enum = isinstance(inner, type) and issubclass(inner, enum.Enum)
    return inner in LEAVES or inner in CONTAINERS or inner is Any or is_enum


def validate_target(
    node: dict[str, Any],
    path: str,
    errors: list[str],
    not_required: Container[str] = (),
    base: Any = object,
) -> Validated | None:
    """`validate` for the class that the node's `_target_` names, which must be a `base`. An outline
    in its place (`outline.py`) is read as it is, unless it is none: its class will be refused."""
    if isinstance(node["_target_"], type):
        is_base = issubclass(node["_target_"], base)
        return validate(node["_target_"], node, path, errors, not_required) if is_base else None
    target = str(node["_target_"])
    if is_private(target):
        errors.append(f"{path}._target_ '{target}' is no public name{nearest_public(target)}")
        return None
    module, _, name = target.rpartition(".")
    try:
        cls = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        errors.append(f"{path}._target_ '{target}' cannot be imported ({error}); correct the name")
        return None
    if not is_dataclass(cls) or not isinstance(cls, type):
        errors.append(f"{path}._target_ '{target}' is not a dataclass; decorate it with @dataclass")
        return None
    if not issubclass(cls, base):
        errors.append(f"{path}._target_ must be one of {base.__name__}, not {target}")
        return None
    return validate(cls, node, path, errors, not_required)


def is_private(target: str) -> bool:
    """Whether a target names, by its file, a class of this package that has a public name, or had
    one in an earlier version. Files may move; one that is added needs no public name."""
    public, (module, _, name) = public_names(), target.rpartition(".")
    if not target.startswith(f"{PACKAGE}.") or target in public.values():
        return False
    try:
        return name in public or not hasattr(importlib.import_module(module), name)
    except (ImportError, ValueError):
        return True


@cache
def public_names() -> dict[str, str]:
    """The public names of the packages whose classes a configuration may name, in full."""
    packages = {package: importlib.import_module(f"{PACKAGE}.{package}") for package in PUBLIC}
    return {
        name: f"{PACKAGE}.{package}.{name}"
        for package, found in packages.items()
        for name in found.__all__
    }


def nearest_public(target: str) -> str:
    """The end of an error: the public name of the class that a private target means."""
    known = public_names()
    close = difflib.get_close_matches(target.rpartition(".")[2], known, n=1, cutoff=0.5)
    return f"; write {known[close[0]]}" if close else f"; there is {', '.join(known.values())}"


def _validate_leaf(kind: Any, value: Any, path: str, errors: list[str]) -> Any:
    inner, optional = _strip_optional(kind)
    if not is_leaf(kind):
        either = "a node of keys or null" if optional else "a node of keys"
        errors.append(f"{path} must be {either}, not {value!r}")
        return None
    if typing.get_origin(inner) is typing.Literal:
        if value not in (choices := typing.get_args(inner)):
            errors.append(f"{path} must be one of {', '.join(map(str, choices))}, not {value!r}")
        return value
    try:
        box = OmegaConf.structured(make_dataclass("Box", [("value", kind)]))
        box.value = value
    except (OmegaConfBaseException, OverflowError):
        errors.append(f"{path} must be {describe(kind)}, not {value!r}")
        return None
    typed = OmegaConf.to_container(box)["value"]  # type: ignore[index, call-overload]
    return tuple(typed) if typing.get_origin(inner) is tuple and typed is not None else typed


def describe(kind: Any) -> str:
    """A type in words: `a float`, `a list of integers or null`."""
    inner, optional = _strip_optional(kind)
    name = LEAVES.get(inner, CONTAINERS.get(typing.get_origin(inner) or inner, "value"))
    if isinstance(inner, type) and issubclass(inner, enum.Enum):
        name = "member of " + ", ".join(inner.__members__)
    parts = [LEAVES[part] for part in typing.get_args(inner)[-1:] if part in LEAVES]
    words = ("an " if name[0] in "aeiou" else "a ") + name
    return words + (f" of {parts[0]}s" if parts else "") + (" or null" if optional else "")


def _map_items(function: Any, value: Any) -> Any:
    """`function` of every item of a list or mapping; other values as they are."""
    if isinstance(value, list):
        return [function(item) for item in value]
    if isinstance(value, dict):
        return {key: function(item) for key, item in value.items()}
    return value


def _strip_optional(kind: Any) -> tuple[Any, bool]:
    parts = typing.get_args(kind)
    if typing.get_origin(kind) not in (typing.Union, types.UnionType) or type(None) not in parts:
        return kind, False
    rest = tuple(part for part in parts if part is not type(None))
    return typing.Union[rest], True  # noqa: UP007 - a union of one is that one


def _missing(path: str) -> str:
    return f"{path} is missing; give it as {path}=VALUE"


def _join(path: str, key: object) -> str:
    return f"{path}.{key}" if path else str(key)
