"""Check the values of settings that are built in Python, which pydantic has not validated."""

from __future__ import annotations

from functools import cache
from typing import Any, Literal, get_args, get_origin, get_type_hints

from annotated_types import Ge, Gt, Le

from agentrl_cli.core.errors import UserError, require_above, require_at_least, require_at_most


def check_limits(settings: object) -> None:
    """Raise UserError for the first field of `settings` outside the limits of its `Field` or the
    options of its `Literal`."""
    for name, kind in _type_hints(type(settings)).items():
        metadata, value = getattr(kind, "__metadata__", ()), getattr(settings, name, None)
        options = get_args(kind)[0] if metadata else kind
        if get_origin(options) is Literal and value not in get_args(options):
            known = ", ".join(map(str, get_args(options)))
            raise UserError(f"{name} is '{value}'; use one of {known}", code="unknown-option")
        for limit in (item for info in metadata for item in info.metadata):
            if value is not None and isinstance(limit, Ge):
                require_at_least(limit.ge, **{name: value})  # pyright: ignore[reportArgumentType]
            elif value is not None and isinstance(limit, Gt):
                require_above(limit.gt, **{name: value})  # pyright: ignore[reportArgumentType]
            elif value is not None and isinstance(limit, Le):
                require_at_most(limit.le, **{name: value})  # pyright: ignore[reportArgumentType]


@cache
def _type_hints(cls: type) -> dict[str, Any]:
    return get_type_hints(cls, include_extras=True)
