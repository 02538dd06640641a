"""What the language critic's roles are asked and how their answers are read. Text is parsed, never
repaired."""

from __future__ import annotations

import re
from dataclasses import dataclass

from agentrl_cli.core.errors import UserError

VERDICT = re.compile(r"\s*Optimality:\s*(Yes|No)\b")
OUTCOME = re.compile(r"\b(Success|Failure)\W*\Z")
PLACE = re.compile(r"\{(\w+)\}")
FILLED = {
    "forecast": (),
    "backup": ("response", "forecast"),
    "evaluate": ("forecasts", "others"),
    "refine": ("critique",),
    "refine_by_rollouts": ("rollouts",),
    "aggregate": ("response", "rollouts"),
    "terminal": ("response", "outcome"),
}


@dataclass(kw_only=True)
class Prompts:
    """The roles' instructions, sent as a user message behind what was played; `{…}` are filled in.

    `refine_by_rollouts` is Self-Distillation's and `aggregate` NLRL's; their `rollouts` are plays
    that ended, one a line. `terminal` is the one text that code composes: the true end of an
    episode as a forecast.
    """

    forecast: str
    backup: str
    evaluate: str
    refine: str
    refine_by_rollouts: str
    aggregate: str
    terminal: str

    def __post_init__(self) -> None:
        for role, known in FILLED.items():
            for name in PLACE.findall(vars(self)[role]):
                if name not in known:
                    text = ", ".join(known) or "nothing"
                    raise UserError(f"prompts.{role} asks for '{name}'; it can be given {text}")


def outcome(forecast: str) -> bool | None:
    """The outcome that a forecast ends with: Success (True), Failure (False), or None."""
    found = OUTCOME.search(forecast)
    return None if found is None else found[1] == "Success"


def verdict(critique: str) -> bool | None:
    """Whether a critique opens with `Optimality: Yes` or `Optimality: No`; None for neither."""
    found = VERDICT.match(critique)
    return None if found is None else found[1] == "Yes"


def fill(prompt: str, **texts: str) -> str:
    """Put texts into a prompt's `{name}`s; braces inside the texts stay what they are."""
    return PLACE.sub(lambda found: texts[found[1]], prompt)
