"""Secrets have no place in a configuration, which is kept in the run's folder and handed on. What
looks like one is refused, and not shown."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

SECRETS = {
    "a user and a password": re.compile(r"://[^/\s@]*:[^/\s@]*@"),
    "a key": re.compile(
        r"\b(?:sk-[\w-]{16,}|(?:hf|gh[opsu]|github_pat)_\w{20,}|AKIA\w{16}|Bearer [\w.-]{16,})"
        r"|[?&](?:api[-_]?key|key|(?:access[-_]?)?token|password|secret)=[^&\s]",
        re.IGNORECASE,
    ),
}
NAMES = re.compile(r"(?:^|_)(?:api_?key|password|passwd|secret|access_token)$", re.IGNORECASE)
REMEDY = (
    "a configuration is kept and handed on, so give it by an environment variable (the one that"
    " key_variable names, or the client library's own)"
)


def secret_in(text: str) -> str | None:
    """What kind of secret a text seems to hold; None for none."""
    return next((kind for kind, shape in SECRETS.items() if shape.search(text)), None)


def secret_errors(value: Any, path: str = "") -> Iterator[str]:
    """A sentence for each value of a nested node that looks like a secret."""
    if isinstance(value, dict):
        for key, item in value.items():
            inner = f"{path}.{key}" if path else str(key)
            if isinstance(item, str) and NAMES.search(str(key)):
                yield f"{inner} names a secret; {REMEDY}"
            else:
                yield from secret_errors(item, inner)
    elif isinstance(value, list | tuple):
        for number, item in enumerate(value):
            yield from secret_errors(item, f"{path}[{number}]")
    elif isinstance(value, str) and (kind := secret_in(value)):
        yield f"{path} holds {kind}; {REMEDY}"
