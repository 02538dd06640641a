"""Validate nodes of a configuration with pydantic, and build objects from them.

The fields of a dataclass are the schema of a node. For `_target_: package.Class` they are the
fields of `package.ClassConfig` if there is one, so that a class that imports torch is imported only
after its settings are valid. Values keep their types: no text for a number, no 1.5 for an integer.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import sys
import types
import typing
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, NotRequired

from pydantic import AfterValidator, BeforeValidator, ConfigDict, TypeAdapter, ValidationError
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
UPDATES = "Give steps=N for N updates, each of rollout.episodes_per_step episodes."
OTHER_LIBRARIES = {  # names in TRL, verl and Stable-Baselines3: our key, or a sentence
    "batch_size": "algo.minibatch_tokens", "beta": "algo.kl_coef",
    "clip_range": "algo.clip_eps", "clip_range_vf": "algo.value_clip", "epsilon": "algo.clip_eps",
    "epsilon_high": "algo.clip_eps_high", "eval_steps": "eval_every",
    "gradient_accumulation_steps": "algo.minibatch_tokens", "learning_rate": "algo.optimizer.lr",
    "load_best_model_at_end": "save_best", "lora_alpha": "model.lora.alpha", "max_steps": "steps",
    "max_completion_length": "rollout.max_new_tokens", "max_model_len": "rollout.max_seq_len",
    "model_name_or_path": "model.path", "n_epochs": "algo.epochs",
    "n_steps": "rollout.episodes_per_step",
    "num_generations": "algo.group_size", "num_iterations": "algo.epochs",
    "num_train_epochs": UPDATES, "output_dir": "Give runs=FOLDER name=NAME for FOLDER/NAME.",
    "ppo_epochs": "algo.epochs",
    "per_device_train_batch_size": "hardware.microbatch_tokens", "report_to": "logger",
    "run_name": "name", "save_steps": "save_every", "scale_rewards": "algo.normalise_advantages",
    "target_modules": "model.lora.targets", "top_k": "There is no top_k.",
    "top_p": "There is no top_p.", "total_timesteps": UPDATES, "use_vllm": "Give hardware=vllm.",
    "vf_coef": "algo.value_coef",
}  # fmt: skip
MAX_SHOWN = 200  # characters of a value in an error
Key = tuple[str | int, ...]
Node = dict[str, Any]


class Injected:
    """The type of a field that is given when the object is built, not in a configuration."""


def raise_all(mistakes: list[UserError]) -> None:
    """Raise one UserError with a line for each mistake, if there are any."""
    if mistakes:
        raise UserError("\n".join(dict.fromkeys(map(str, mistakes))), code=mistakes[0].code)


def validate(
    cls: type, node: Node, mistakes: list[UserError], key: Key = (), optional: Collection[str] = ()
) -> Node:
    """Return the values of a node, typed as the fields of a dataclass, and collect its mistakes.

    Fields named in `optional` need not be in the node.
    """
    node = {name: _validate_inner(value, mistakes, (*key, name)) for name, value in node.items()}
    try:
        return _adapter(cls, frozenset(optional)).validate_python(node)
    except ValidationError as error:
        mistakes += [_mistake(cls, node, e, key) for e in error.errors(include_url=False)]
        return {}


def _validate_inner(value: Any, mistakes: list[UserError], key: Key) -> Any:
    """Return a value with every node inside it that names a `_target_` typed."""
    if is_target_node(value):
        return validate_target(value, mistakes, key) or value
    if isinstance(value, list):
        return [_validate_inner(item, mistakes, (*key, i)) for i, item in enumerate(value)]
    if isinstance(value, dict):
        return {name: _validate_inner(v, mistakes, (*key, name)) for name, v in value.items()}
    return value


def validate_target(
    node: Node, mistakes: list[UserError], key: Key = (), optional: Collection[str] = ()
) -> Node:
    """Return the typed values of a node that names a `_target_`, and collect its mistakes, also
    those that the settings class of a valid node finds across its fields."""
    target, count = node["_target_"], len(mistakes)
    try:
        cls = settings_class(target)
    except UserError as error:
        mistakes.append(UserError(f"{dotted((*key, '_target_'))} {error}", code=error.code))
        return {}
    values = {name: value for name, value in node.items() if name != "_target_"}
    typed = {"_target_": target, **validate(cls, values, mistakes, key, optional)}
    if len(mistakes) > count:
        return {}
    if not optional and cls.__name__ != target.rpartition(".")[2]:
        try:
            construct(cls, typed, settings_class)
        except UserError as error:
            mistakes.append(error)
    return typed


def settings_class(target: Any) -> type:
    """Return the dataclass that describes the settings of a target. Raises UserError if there is
    none."""
    module, _, name = str(target).rpartition(".")
    reason = "is not a dataclass; decorate it with @dataclass"
    if module.startswith(f"{PACKAGE}.") and target not in public_names():
        known = {full.rpartition(".")[2]: full for full in public_names()}
        close = [known[n] for n in difflib.get_close_matches(name, known, n=1, cutoff=0.5)]
        reason = f"is not a public name; choose one of {', '.join(close or known.values())}"
    else:
        try:
            found = importlib.import_module(module)
            cls = getattr(found, f"{name}Config", None) or getattr(found, name)
            if is_dataclass(cls) and isinstance(cls, type):
                return cls
        except (ImportError, AttributeError, TypeError, ValueError) as error:
            reason = f"cannot be imported ({error}); correct the name, or install its package"
    raise UserError(f"'{target}' {reason}", code="unknown-target")


@cache
def public_names() -> list[str]:
    """Return the full names of the classes that a configuration may name."""
    packages = [f"{PACKAGE}.{package}" for package in PUBLIC]
    return [f"{p}.{name}" for p in packages for name in importlib.import_module(p).__all__]


def without_missing(node: Any, mistakes: list[UserError], key: Key = ()) -> Any:
    """Return a node without the values that are still `???`, and collect these as mistakes."""
    if not isinstance(node, dict):
        return node
    mistakes += [_missing(dotted((*key, name))) for name, value in node.items() if value == "???"]
    return {k: without_missing(v, mistakes, (*key, k)) for k, v in node.items() if v != "???"}


def is_target_node(value: Any) -> bool:
    return isinstance(value, dict) and "_target_" in value


def target_class(target: str) -> type:
    """Return the class that a validated target names."""
    module, _, name = target.rpartition(".")
    return getattr(importlib.import_module(module), name)


def construct(
    kind: Any, value: Any, find: Callable[[str], type] = target_class, **injected: Any
) -> Any:
    """Build an object and those inside it from validated values and the injected ones. `find`
    returns the class of a target."""
    plain = _plain(kind)
    part = (typing.get_args(plain) or (Any,))[-1]
    if isinstance(value, list):
        return [construct(part, item, find) for item in value]
    if not isinstance(value, dict):
        return value
    if is_target_node(value):
        plain = find(value["_target_"])
    elif not is_dataclass(plain):
        return {key: construct(part, item, find) for key, item in value.items()}
    kinds = hints(typing.cast(type, plain))
    built = {k: construct(kinds[k], v, find) for k, v in value.items() if k != "_target_"}
    return typing.cast(type, plain)(**built, **injected)


def dotted(key: Key) -> str:
    """Return a key as it is written: `env.parts[0].size`."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in key)
    return text.removeprefix(".")


def described(cls: type, node: Node, key: Key = ()) -> Iterator[tuple[str, str]]:
    """Yield the keys of a node in dots, each with the description of its field, if it has one."""
    for name in [field.name for field in fields(cls) if field.name in node]:
        kind, value = hints(cls)[name], node[name]
        notes = typing.get_args(kind)[1:] if typing.get_origin(kind) is Annotated else ()
        for text in [m.description for m in notes if isinstance(m, FieldInfo) and m.description]:
            yield dotted((*key, name)), text
        inner = _plain(kind)
        with suppress(UserError):  # reported when the node is validated
            inner = settings_class(value["_target_"]) if is_target_node(value) else inner
        if isinstance(value, dict) and isinstance(inner, type) and is_dataclass(inner):
            yield from described(inner, value, (*key, name))


def field_type(cls: type, node: Any, path: list[str]) -> Any:
    """Return the declared type of the field at `path` in a node, or None if there is none."""
    kind: Any = cls
    for name in path:
        kind = _plain(kind)
        with suppress(UserError):  # reported when the node is validated
            kind = settings_class(node["_target_"]) if is_target_node(node) else kind
        if not (isinstance(kind, type) and is_dataclass(kind) and isinstance(node, dict)):
            return None
        kind, node = hints(kind).get(name), node.get(name)
    return kind


def is_text(cls: type, node: Any, path: list[str]) -> bool:
    """Return whether the field at `path` in a node is declared as a text."""
    return _plain(field_type(cls, node, path)) is str


@cache
def hints(cls: type) -> dict[str, Any]:
    """Return the types of a class's fields, `Annotated` ones with their annotations. The type is
    `Injected` if its name is imported for type checkers only."""
    found: dict[str, Any] = {}
    for owner in reversed(cls.__mro__):
        names = vars(sys.modules[owner.__module__])
        for name, annotation in inspect.get_annotations(owner).items():
            alone = types.SimpleNamespace(__annotations__={name: annotation})
            found[name] = Injected
            with suppress(NameError):
                found |= typing.get_type_hints(alone, names, include_extras=True)
    return found


@cache
def _adapter(cls: type, optional: frozenset[str]) -> TypeAdapter[Node]:
    return TypeAdapter(_typed_dict(cls, optional))


def _typed_dict(cls: type, optional: Collection[str] = (), *, is_nested: bool = False) -> Any:
    """Return a TypedDict with the keys of a dataclass: validated values stay a plain node. A nested
    one may name its class as `_target_`, as in a node that builds on an option of a group."""

    def check_target(target: str) -> str:
        with suppress(UserError):
            named = settings_class(target)
            if issubclass(named, cls) or issubclass(cls, named):
                return target
        raise PydanticCustomError("target", f"Input should be {cls.__name__}")  # type: ignore

    name_of_class = NotRequired[Annotated[str, AfterValidator(check_target)]]
    keys: Node = {"_target_": name_of_class} if is_nested else {}
    for field in fields(cls):
        if field.init:
            kind = hints(cls)[field.name]
            has_default = not field.default is field.default_factory is MISSING
            is_optional_node = _plain(kind) is object and _bare(kind) is not object
            is_given = field.name in optional or not _is_setting(kind)
            is_optional = has_default or is_optional_node or is_given
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
    if (kind in LEAVES and kind is not object) or origin is Literal:
        return kind
    return Annotated[Any, AfterValidator(_require_target)]


def _require_target(value: Any) -> Any:
    if not is_target_node(value):
        raise PydanticCustomError("node", "Input should be a node that names a _target_")
    return value


def _is_setting(kind: Any) -> bool:
    """Return whether the configuration must hold such a field. Other objects are injected."""
    kind = _plain(kind)
    parts = [part for part in typing.get_args(kind) if part is not Ellipsis]
    if parts and typing.get_origin(kind) is not Literal:
        return all(map(_is_setting, parts))
    return typing.get_origin(kind) is Literal or kind in LEAVES or is_dataclass(kind)


def _bare(kind: Any) -> Any:
    return typing.get_args(kind)[0] if typing.get_origin(kind) is Annotated else kind


def _plain(kind: Any) -> Any:
    """Return a type without its annotations and without None."""
    kind = _bare(kind)
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        parts = [part for part in typing.get_args(kind) if part is not type(None)]
        return _plain(parts[0]) if len(parts) == 1 else kind
    return kind


def _missing(key: str, *, is_group: bool = False) -> UserError:
    remedy = f"choose one with {key}=NAME (agentrl list {key})" if is_group else f"give {key}=VALUE"
    return UserError(f"{key} is missing; {remedy}", code="missing-key")


def _mistake(cls: type, node: Any, found: ErrorDetails, key: Key) -> UserError:
    """Return the mistake that an error of pydantic describes."""
    full, kind = dotted((*key, *found["loc"])), found["type"]
    if kind == "missing":
        return _missing(full, is_group=not key and hints(cls).get(full) is object)
    shown = repr(found["input"])
    shown = shown if len(shown) <= MAX_SHOWN else f"{shown[:MAX_SHOWN]}…"
    if kind == "extra_forbidden" and (new := renamed_key(full)):
        line = f"'{full}' is now '{new}'"
    elif kind == "extra_forbidden":
        line = f"Unknown key '{full}'. {_remedy(cls, node, found['loc'], key)}"
    elif found["msg"].startswith("Input should "):
        wish = found["msg"].removeprefix("Input should ").replace("a valid integer", "an integer")
        line = f"{full} must {wish.replace('valid ', '')}, not {shown}"
    else:
        line = f"{full} is {shown}: {found['msg']}"
    return UserError(line, code=CODES.get(kind, "invalid-value"))


def _remedy(cls: type, node: Any, loc: Key, key: Key) -> str:
    """Return a suggestion for the unknown key at `loc`: a key of that name further inside, the
    nearest of the keys of its node, or all of these."""
    kind: Any = cls
    for part in loc[:-1]:
        of = _plain(kind)
        kind = hints(of).get(str(part)) if is_dataclass(of) else (typing.get_args(of) or (Any,))[-1]
    kind = _plain(kind)
    known = [field.name for field in fields(kind) if field.init] if is_dataclass(kind) else []
    name = str(loc[-1])
    inner: Iterable[str] = files.flatten(node) if len(loc) == 1 else ()
    close = [k for k in inner if k.endswith(f".{name}")]
    if not close and (ours := OTHER_LIBRARIES.get(name)) and key[:1] != ("env",):
        full = (".".join(map(str, (*key, k))) for k in inner)
        if " " in ours or not ours.startswith("algo.") or ours in full:
            return ours if " " in ours else f"It is '{ours}' here."
    if close := close or difflib.get_close_matches(name, known):
        return f"Did you mean '{dotted((*key, *loc[:-1], close[0]))}'?"
    known = [name for name in known if name != "choices"]  # which groups fill
    return f"Choose one of {', '.join(known)}." if known else "There are no keys here."
