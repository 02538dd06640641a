"""The state of one conversation: its task, its database, its user, what was said."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from agentrl_cli.envs.tau.database import Database
from agentrl_cli.envs.tau.users import User


@dataclass
class Conversation:
    """The episode in progress."""

    task: dict[str, Any]
    database: Database
    user: User
    agent_messages: list[str] = field(default_factory=list)
    user_message: str = ""  # the last one
    confirmed: bool = False  # the user's last message said yes
    turn: int = 0
    over: bool = False
    split: str = "train"
    first_fault: str = ""  # of the user's first message
