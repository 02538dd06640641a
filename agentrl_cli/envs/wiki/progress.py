"""What is known of an episode in progress: its task, its browser, how far it has come."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from agentrl_cli.envs.wiki.browser import Browser


@dataclass
class Search:
    """The episode in progress. `done_before` are the actions so far, each with what was open."""

    task: dict[str, Any]
    browser: Browser
    turn: int = 0
    over: bool = False
    split: str = "train"
    done_before: set[tuple[str, ...]] = field(default_factory=set)

    @property
    def proof(self) -> list[list[tuple[str, int]]]:
        """Of each step of the proof the lines that prove it."""
        return [[(title, number) for title, number in step] for step in self.task["proof"]]
