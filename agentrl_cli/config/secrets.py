"""Values of a configuration that look like secrets."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from agentrl_cli.core.errors import UserError

SECRETS = {
    "a user and a password": re.compile(r"://[^/\s@]*:[^/\s@]*@"),
    "a key": re.compile(
        r"\b(?:(?:sk|nvapi|glpat)-[\w-]{16,}|(?:hf|gsk|wandb_v\d|gh[opsu]|github_pat)_\w{20,}"
        r"|A(?:KIA\w{16}|Iza[\w-]{30,})|eyJ[\w-]{10,}\.eyJ[\w.-]{10,}|Bearer [\w.-]{16,})"
        r"|[?&](?:api[-_]?key|key|(?:access[-_]?)?token|password|secret)=[^&\s]",
        re.IGNORECASE,
    ),
}
SECRET_KEYS = re.compile(
    r"(?:^|_)(?:api_?key|password|passwd|secret(?:_key)?|(?:access|auth|hf)_?token)$|^token$",
    re.IGNORECASE,
)
NO_SECRETS = "configurations are stored and shared, so give secrets in environment variables"


def leaves(node: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield each value inside nested mappings and lists with its path, such as `a.b[0]`. Unlike in
    a flat mapping no value can hide another."""
    if isinstance(node, dict):
        for key, value in node.items():
            yield from leaves(value, f"{path}.{key}" if path else str(key))
    elif isinstance(node, list | tuple):
        for i, value in enumerate(node):
            yield from leaves(value, f"{path}[{i}]")
    else:
        yield path, node


def secret_in(text: str) -> str | None:
    """Return which kind of secret a text contains, if any."""
    return next((kind for kind, shape in SECRETS.items() if shape.search(text)), None)


def secret_errors(node: dict[str, Any]) -> Iterator[UserError]:
    """Yield an error, which does not show the value, for each value that looks like a secret."""
    for key, value in leaves(node):
        if isinstance(value, str) and SECRET_KEYS.search(key.rpartition(".")[2]):
            yield UserError(f"{key} is a secret; {NO_SECRETS}", code="secret")
        elif isinstance(value, str) and (kind := secret_in(value)):
            yield UserError(f"{key} holds {kind}; {NO_SECRETS}", code="secret")
