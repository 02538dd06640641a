"""What the language critic's roles are asked. How their answers are read is in reading.py."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from agentrl_cli.algos.nlac.reading import READINGS, Reading, ReadingName
from agentrl_cli.core.errors import UserError

PLACE = re.compile(r"\{(\w+)\}")
FILLED = {
    "forecast": (),
    "backup": ("response", "forecast"),
    "evaluate": ("forecasts", "others"),
    "refine": ("critique",),
    "refine_by_rollouts": ("rollouts",),
    "aggregate": ("response", "rollouts"),
    "terminal": ("response", "outcome"),
    "frame": ("instruction",),
}


@dataclass(kw_only=True)
class Prompts:
    """The roles' instructions, sent as a message of `speaker` behind what was played; `{…}` are
    filled in. Where the template has no such turn, the user sends them in the `frame`, which says
    who speaks. `reading` says how the answers are read.

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
    reading: ReadingName = "exact"
    speaker: Literal["user", "system"] = "user"
    frame: str = "{instruction}"

    def __post_init__(self) -> None:
        for role, known in FILLED.items():
            for name in PLACE.findall(vars(self)[role]):
                if name not in known:
                    text = ", ".join(known) or "nothing"
                    raise UserError(f"prompts.{role} asks for '{name}'; it can be given {text}")
        if "{instruction}" not in self.frame:
            raise UserError("prompts.frame holds no '{instruction}'; say where it stands")

    @property
    def reader(self) -> Reading:
        """How forecasts and critiques are read."""
        return READINGS[self.reading]


def fill(prompt: str, **texts: str) -> str:
    """Put texts into a prompt's `{name}`s; braces inside the texts stay what they are."""
    return PLACE.sub(lambda found: texts[found[1]], prompt)
