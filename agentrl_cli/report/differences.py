"""In which settings the groups of a world differ."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from agentrl_cli.report.compare import World
from agentrl_cli.report.records import group_settings
from agentrl_cli.report.tables import Cells

MAX_LETTERS = 48  # of a value
ABSENT = "–"


@dataclass(frozen=True)
class Differences:
    """A table of the settings that at least two groups have and that are not equal in all of them,
    and how many belong to a single group's algorithm alone."""

    cells: Cells
    of_one_group: int

    def of(self, group: str) -> list[tuple[str, str]]:
        """A group's values of these settings."""
        column = self.cells[0].index(group)
        return [(row[0], row[column]) for row in self.cells[1:] if row[column] != ABSENT]


def differences(world: World) -> Differences:
    """The table of a world, settings down and groups across."""
    found = {group.label: group_settings(group.records[0]) for group in world.groups}
    keys = dict.fromkeys(key for settings in found.values() for key in settings)
    values = {key: [settings.get(key, ABSENT) for settings in found.values()] for key in keys}
    owners = {key: sum(key in settings for settings in found.values()) for key in keys}
    differing = [key for key in keys if any(value != values[key][0] for value in values[key])]
    shared = [key for key in differing if owners[key] > 1 or len(found) == 1]
    rows = [[key, *map(_text, values[key])] for key in shared]
    return Differences([["setting", *found], *rows], len(differing) - len(shared))


def _text(value: Any) -> str:
    text = str(value).lower() if isinstance(value, bool) else str(value)
    text = "null" if value is None else text
    return text if len(text) <= MAX_LETTERS else f"{text[: MAX_LETTERS // 2]}…{text[-20:]}"
