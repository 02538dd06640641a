"""Tools that retail and airline share: arithmetic, a thought, the transfer, a user's details."""

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
        return "Error: invalid characters in expression"
    try:
        return str(round(float(evaluate(expression)), 2))
    except Exception as error:
        return f"Error: {error}"


def think(data: Database, thought: Any) -> str:
    """Nothing happens."""
    return ""


def transfer_to_human_agents(data: Database, summary: Any) -> str:
    """Ends the episode."""
    return "Transfer successful"


def get_user_details(data: Database, user_id: Any) -> str:
    """The user's record."""
    if user_id in data["users"]:
        return json.dumps(data["users"][user_id])
    return "Error: user not found"
