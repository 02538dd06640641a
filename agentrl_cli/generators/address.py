"""Addresses of servers that a user gives."""

from __future__ import annotations

from urllib.parse import SplitResult, urlsplit

from agentrl_cli.core.errors import UserError


def address_parts(url: str, key: str, remedy: str) -> SplitResult:
    """The parts of the address that `key` holds. UserError where it is none or holds a user, whose
    key is to be given as `remedy` says; it is not shown, for what is no port may be a password."""
    try:
        parts = urlsplit(url)
        _ = parts.port  # raises where it is no number
    except ValueError:
        line = f"{key} holds what is no address"
        raise UserError(f"{line}; give addresses such as http://127.0.0.1:8000") from None
    if parts.username is not None:
        raise UserError(f"{key} holds a user; give the address alone, and {remedy}")
    return parts
