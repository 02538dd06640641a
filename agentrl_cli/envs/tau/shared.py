"""Tools that retail and airline share: arithmetic, a thought, the transfer, a user's details.

What a tool raises becomes the observation `Error: …`, see calls.py.
"""

from __future__ import annotations

import json
from typing import Any

from agentrl_cli.envs.tau.arithmetic import evaluate
from agentrl_cli.envs.tau.database import Database

ALLOWED_CHARACTERS = "0123456789+-*/(). "
TERMINAL_TOOL = "transfer_to_human_agents"


def calculate(data: Database, expression: Any) -> str:
    """The value of an arithmetic expression, rounded to two places."""
    if not all(char in ALLOWED_CHARACTERS for char in expression):
        raise ValueError("invalid characters in expression")
    return str(round(float(evaluate(expression)), 2))


def think(data: Database, thought: Any) -> str:
    """Nothing happens."""
    return ""


def transfer_to_human_agents(data: Database, summary: Any) -> str:
    """Ends the episode."""
    return "Transfer successful"


def get_user_details(data: Database, user_id: Any) -> str:
    """The user's record."""
    return json.dumps(data.find("users", user_id, "user"))
