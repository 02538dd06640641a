"""Validate nodes of a configuration with pydantic, and build objects from them.

The fields of a dataclass are the schema of a node. For `_target_: package.Class` they are the
fields of `package.ClassConfig` if there is one, so that a class that imports torch is imported only
after its settings are valid. Values keep their types: no text for a number, no 1.5 for an integer.
"""

from __future__ import annotations

import difflib
import enum
import importlib
import inspect
import sys
import types
import typing
from collections.abc import Callable, Collection, Iterator
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, NotRequired

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    PlainValidator,
    TypeAdapter,
    ValidationError,
)
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails, PydanticCustomError
from typing_extensions import TypedDict

from agentrl_cli.config.renames import renamed_key
from agentrl_cli.core import files
from agentrl_cli.core.errors import UserError

PACKAGE = "agentrl_cli"
PUBLIC = ("algos", "envs", "generators", "rollout", "runs")
LEAVES = (int, float, bool, str, Path, list, dict, tuple, Any, object, type(None))
CODES = {
    "missing": "missing-key",
    "extra_forbidden": "unknown-key",
    "literal_error": "unknown-option",
}
MISSING_TEXT = "{key} is missing; give it as {key}=VALUE"
NO_CHOICE_TEXT = "{key} is missing; choose one with {key}=NAME (agentrl list {key})"
MAX_SHOWN = 200  # characters of a value in an error
Key = tuple[str | int, ...]


@dataclass(frozen=True)
class Mistake:
    """A mistake in the value at `key`. In `text`, `{key}` stands for the whole key in dots, and
    `{node}` for the beginning of the keys of its node."""

    key: Key
    text: str
    code: str = "invalid-value"

    def line(self) -> str:
        full, node = dotted(self.key), dotted(self.key[:-1])
        if self.code == "unknown-key" and (new := renamed_key(full)):
            return f"'{full}' is now '{new}'"
        return self.text.replace("{key}", full).replace("{node}", f"{node}." if node else "")


class Injected:
    """The type of a field that is given when the object is built, not in a configuration."""


def raise_mistakes(mistakes: list[Mistake]) -> None:
    """Raise one UserError with a line for each mistake, if there are any."""
    if mistakes:
        lines = dict.fromkeys(mistake.line() for mistake in mistakes)
        raise UserError("\n".join(lines), code=mistakes[0].code)


def validate(
    cls: type, node: dict[str, Any], mistakes: list[Mistake], key: Key = (),
    optional: Collection[str] = (),
) -> dict[str, Any]:  # fmt: skip
    """Return the values of a node, typed as the fields of a dataclass, and collect its mistakes.

    Fields named in `optional` need not be in the node.
    """
    try:
        return _adapter(cls, frozenset(optional)).validate_python(node)
    except ValidationError as error:
        for found in error.errors(include_url=False):
            mistakes += _mistakes(cls, node, found, key)
        return {}


def validate_target(
    node: dict[str, Any], mistakes: list[Mistake], key: Key = (), optional: Collection[str] = ()
) -> dict[str, Any]:
    """Return the typed values of a node that names a `_target_`, and collect its mistakes."""
    target, values = node["_target_"], {k: v for k, v in node.items() if k != "_target_"}
    cls = settings_class(target)
    if isinstance(cls, str):
        mistakes.append(Mistake((*key, "_target_"), f"{{key}} '{target}' {cls}", "unknown-target"))
        return {}
    return {"_target_": target, **validate(cls, values, mistakes, key, optional)}


def settings_class(target: Any) -> type | str:
    """Return the dataclass that describes the settings of a target, or why there is none."""
    module, _, name = str(target).rpartition(".")
    if module.startswith(f"{PACKAGE}.") and target not in public_names():
        return f"is not a public name{_nearest_public(name)}"
    try:
        found = importlib.import_module(module)
        cls = getattr(found, f"{name}Config", None) or getattr(found, name)
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        return f"cannot be imported ({error}); correct the name"
    if not is_dataclass(cls) or not isinstance(cls, type):
        return "is not a dataclass; decorate it with @dataclass"
    return cls


def _nearest_public(name: str) -> str:
    known = {full.rpartition(".")[2]: full for full in public_names()}
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return f"; write {known[close[0]]}" if close else f"; choose one of {', '.join(public_names())}"


@cache
def public_names() -> list[str]:
    """Return the full names of the classes that a configuration may name."""
    packages = [f"{PACKAGE}.{package}" for package in PUBLIC]
    return [f"{p}.{name}" for p in packages for name in importlib.import_module(p).__all__]


def without_missing(node: Any, mistakes: list[Mistake], key: Key = ()) -> Any:
    """Return a node without the values that are still `???`, and collect these as mistakes."""
    if not isinstance(node, dict):
        return node
    given = {}
    for name, value in node.items():
        if value == "???":
            mistakes.append(Mistake((*key, name), MISSING_TEXT, "missing-key"))
        else:
            given[name] = without_missing(value, mistakes, (*key, name))
    return given


def settings_mistakes(node: Any, key: Key = ()) -> Iterator[Mistake]:
    """Yield the mistakes that the settings classes inside a valid node find across their fields."""
    for name, value in node.items() if isinstance(node, dict) else ():
        cls = settings_class(value["_target_"]) if is_target_node(value) else None
        if isinstance(cls, type) and not value["_target_"].endswith(f".{cls.__name__}"):
            try:
                construct(cls, value, settings_class)
            except UserError as error:
                yield Mistake((*key, name), str(error), error.code)
        yield from settings_mistakes(value, (*key, name))


def is_target_node(value: Any) -> bool:
    """Whether a value is a node that names a `_target_`."""
    return isinstance(value, dict) and "_target_" in value


def construct(
    cls: type, values: dict[str, Any], find: Callable[[str], Any] | None = None, **injected: Any
) -> Any:
    """Build an object and those inside it from validated values and the injected ones. `find`
    returns the class of a target; by default this is the class that it names."""
    kinds, find = hints(cls), find or target_class
    built = {k: _construct(kinds[k], v, find) for k, v in values.items() if k != "_target_"}
    return cls(**built, **injected)


def target_class(target: str) -> type:
    """Return the class that a validated target names."""
    module, _, name = target.rpartition(".")
    return getattr(importlib.import_module(module), name)


def _construct(kind: Any, value: Any, find: Callable[[str], Any]) -> Any:
    inner, part = _plain(kind), (typing.get_args(_plain(kind)) or (Any,))[-1]
    if is_target_node(value):
        return construct(find(value["_target_"]), value, find)
    if isinstance(value, dict) and is_dataclass(inner):
        return construct(typing.cast(type, inner), value, find)
    if isinstance(value, list):
        return [_construct(part, item, find) for item in value]
    if isinstance(value, dict):
        return {key: _construct(part, item, find) for key, item in value.items()}
    return value


def dotted(key: Key) -> str:
    """Return a key as it is written: `env.parts[0].size`."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in key)
    return text.removeprefix(".")


def described(cls: type, node: dict[str, Any], key: Key = ()) -> Iterator[tuple[str, str]]:
    """Yield the keys of a node in dots, each with the description of its field, if it has one."""
    for field in fields(cls) if is_dataclass(cls) else ():
        if field.name not in node:
            continue
        kind, value, full = hints(cls)[field.name], node[field.name], (*key, field.name)
        texts = [m.description for m in typing.get_args(kind)[1:] if isinstance(m, FieldInfo)]
        if typing.get_origin(kind) is Annotated and any(texts):
            yield dotted(full), str(next(filter(None, texts)))
        inner = _plain(kind)
        if is_target_node(value):
            inner = settings_class(value["_target_"])
        if isinstance(value, dict) and isinstance(inner, type):
            yield from described(inner, value, full)


@cache
def hints(cls: type) -> dict[str, Any]:
    """Return the types of a class's fields, `Annotated` ones with their annotations. The type is
    `Injected` if its name is imported for type checkers only."""
    found: dict[str, Any] = {}
    for owner in reversed(cls.__mro__):
        names = vars(sys.modules[owner.__module__])
        for name, annotation in inspect.get_annotations(owner).items():
            alone = types.SimpleNamespace(__annotations__={"field": annotation})
            try:
                hint = typing.get_type_hints(alone, names, include_extras=True)["field"]
            except NameError:
                hint = Injected
            found[name] = hint
    return found


@cache
def _adapter(cls: type, optional: frozenset[str]) -> TypeAdapter[dict[str, Any]]:
    return TypeAdapter(_typed_dict(cls, optional))


def _typed_dict(cls: type, optional: Collection[str] = (), *, is_nested: bool = False) -> Any:
    """Return a TypedDict with the keys of a dataclass: validated values stay a plain node. A nested
    one may name its class as `_target_`, as in a node that builds on an option of a group."""

    def check_target(target: str) -> str:
        named = settings_class(target)
        if not isinstance(named, type) or not (issubclass(named, cls) or issubclass(cls, named)):
            raise PydanticCustomError("target", f"Input should be {cls.__name__}")  # type: ignore
        return target

    name_of_class = NotRequired[Annotated[str, AfterValidator(check_target)]]
    keys: dict[str, Any] = {"_target_": name_of_class} if is_nested else {}
    for field in fields(cls):
        if field.init:
            kind = hints(cls)[field.name]
            has_default = not field.default is field.default_factory is MISSING
            is_optional = has_default or field.name in optional or _may_be_left_out(kind)
            keys[field.name] = NotRequired[_schema(kind)] if is_optional else _schema(kind)
    found: Any = TypedDict(cls.__name__, keys)  # pyright: ignore
    found.__pydantic_config__ = ConfigDict(strict=True, extra="forbid")
    return found


def _schema(kind: Any) -> Any:
    """Return the type by which pydantic reads a field of a dataclass from a configuration."""
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if origin is Annotated:
        return Annotated[(_schema(parts[0]), *parts[1:])]
    if kind is str:  # a name may look like a number
        return Annotated[str, BeforeValidator(lambda v: str(v) if type(v) in (int, float) else v)]
    if kind is Path:
        return Annotated[Path, BeforeValidator(lambda v: Path(v) if isinstance(v, str) else v)]
    if origin in (typing.Union, types.UnionType):
        return typing.Union[tuple(map(_schema, parts))]  # noqa: UP007 - of a tuple
    if origin is tuple:
        read = tuple(part if part is Ellipsis else _schema(part) for part in parts)
        return Annotated[tuple[read], BeforeValidator(lambda v: tuple(v) if type(v) is list else v)]
    if origin in (list, dict):
        return origin[tuple(map(_schema, parts))]  # pyright: ignore
    if is_dataclass(kind) and isinstance(kind, type) and not inspect.isabstract(kind):
        return _typed_dict(kind, is_nested=True)
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return Annotated[kind, BeforeValidator(lambda v: kind.__members__.get(str(v), v))]
    if kind in LEAVES[:8] or kind is type(None) or origin is Literal:
        return kind
    return Annotated[Any, PlainValidator(_any_value if kind is Any else _target_node)]


def _any_value(value: Any) -> Any:
    return _target_node(value) if is_target_node(value) else value


def _target_node(value: Any) -> Any:
    if not is_target_node(value):
        raise PydanticCustomError("node", "Input should be a node that names a _target_")
    mistakes: list[Mistake] = []
    typed = validate_target(value, mistakes)
    if mistakes:
        raise PydanticCustomError("mistakes", "of a node", {"mistakes": mistakes})
    return typed


def _is_setting(kind: Any) -> bool:
    """Whether the configuration must hold such a field. Other objects are injected."""
    kind = _plain(kind)
    if typing.get_origin(kind) is Literal:
        return True
    parts = [part for part in typing.get_args(kind) if part is not Ellipsis]
    if typing.get_origin(kind) in (list, dict, tuple, typing.Union, types.UnionType):
        return all(map(_is_setting, parts))
    is_enum = isinstance(kind, type) and issubclass(kind, enum.Enum)
    return kind in LEAVES or is_enum or is_dataclass(kind)


def _may_be_left_out(kind: Any) -> bool:
    """Whether a field of this type is injected, or is an optional node that names its target."""
    kind = typing.get_args(kind)[0] if typing.get_origin(kind) is Annotated else kind
    return not _is_setting(kind) or (_plain(kind) is object and kind is not object)


def _plain(kind: Any) -> Any:
    """Return a type without its annotations and without None."""
    if typing.get_origin(kind) is Annotated:
        return _plain(typing.get_args(kind)[0])
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        parts = [part for part in typing.get_args(kind) if part is not type(None)]
        return _plain(parts[0]) if len(parts) == 1 else kind
    return kind


def _mistakes(cls: type, node: Any, found: ErrorDetails, key: Key) -> Iterator[Mistake]:
    """Yield the mistakes of an error of pydantic."""
    full, kind = (*key, *found["loc"]), found["type"]
    if kind == "mistakes":
        for inner in found["ctx"]["mistakes"]:  # pyright: ignore[reportTypedDictNotRequiredAccess]
            yield Mistake((*full, *inner.key), inner.text, inner.code)
        return
    if kind == "missing":
        is_group = not key and hints(cls).get(str(full[0])) is object
        text = NO_CHOICE_TEXT if is_group else MISSING_TEXT
    elif kind == "extra_forbidden":
        text = f"Unknown key '{{key}}'. {_remedy(cls, node, found['loc'])}"
    else:
        shown = repr(found["input"])
        shown = shown if len(shown) <= MAX_SHOWN else f"{shown[:MAX_SHOWN]}…"
        wish = found["msg"].replace("a valid integer", "an integer").replace("valid ", "")
        is_wish = wish.startswith("Input should ")
        wish = f"must {wish.removeprefix('Input should ')}, not {shown}"
        text = f"{{key}} {wish}" if is_wish else f"{{key}} is {shown}: {found['msg']}"
    yield Mistake(full, text, CODES.get(kind, "invalid-value"))


def _remedy(cls: type, node: Any, loc: Key) -> str:
    """Return a suggestion for the unknown key at `loc`: a key of that name further inside, the
    nearest of the keys of its node, or all of these."""
    name, known = str(loc[-1]), _keys_at(cls, loc[:-1])
    inner = [k for k in files.flatten(node) if k.endswith(f".{name}")]
    if inner and len(loc) == 1:
        return f"Did you mean '{{node}}{inner[0]}'?"
    if close := difflib.get_close_matches(name, known, n=1):
        return f"Did you mean '{{node}}{close[0]}'?"
    return f"Choose one of {', '.join(known)}." if known else "There are no keys here."


def _keys_at(cls: type, loc: Key) -> list[str]:
    kind: Any = cls
    for part in loc:
        of = _plain(kind)
        kind = hints(of).get(str(part)) if is_dataclass(of) else (typing.get_args(of) or (Any,))[-1]
    kind = _plain(kind)
    return [field.name for field in fields(kind) if field.init] if is_dataclass(kind) else []
