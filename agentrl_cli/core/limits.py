"""Validate settings that are built in Python rather than from a configuration."""

from __future__ import annotations

from functools import cache
from typing import Annotated, Literal, get_origin, get_type_hints

from pydantic import TypeAdapter, ValidationError

from agentrl_cli.core.errors import UserError

CODES = {
    "greater_than": "too-small",
    "greater_than_equal": "too-small",
    "less_than_equal": "too-large",
    "literal_error": "unknown-option",
}


def check_limits(settings: object) -> None:
    """Raise UserError for the first field of `settings` outside the limits of its `Field` or the
    options of its `Literal`."""
    for name, adapter in _adapters(type(settings)).items():
        value = getattr(settings, name, None)
        try:
            adapter.validate_python(value, strict=True)
        except ValidationError as error:
            (first, *_) = error.errors(include_url=False)
            if value is not None and first["type"] in CODES:
                wish = first["msg"].removeprefix("Input should ")
                line = f"{name} must {wish}, not {value!r}"
                raise UserError(line, code=CODES[first["type"]]) from None


@cache
def _adapters(cls: type) -> dict[str, TypeAdapter]:
    """Return a validator per field with limits or options."""
    kinds = get_type_hints(cls, include_extras=True).items()
    return {n: TypeAdapter(kind) for n, kind in kinds if get_origin(kind) in (Annotated, Literal)}
