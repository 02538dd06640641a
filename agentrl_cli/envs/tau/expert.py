"""The expert: the ground-truth actions in order, with the replies that they need."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from agentrl_cli.envs.tau import mini
from agentrl_cli.envs.tau.actions import RESPOND
from agentrl_cli.envs.tau.conversation import Conversation
from agentrl_cli.envs.tau.data import Domain

ASK_IDENTITY = "Could you tell me your name with your zip code, or your email?"
DONE = "That is done. Anything else?"


def expert_actions(
    service: Domain, conversation: Conversation, *, domain: str, user: str, style: str
) -> Iterator[str]:
    """The expert's texts in this style until the conversation ends, by its task's ground truth."""
    task = conversation.task
    steps = (
        _conversation_actions(service, conversation)
        if user != "silent"
        else _silent_actions(service, task)
    )
    if domain == "mini" and user != "silent":
        steps = map(_read, mini.expert_texts(task, service.tables))
    for name, arguments in steps:
        if conversation.over:
            return
        yield write(style, name, arguments)


def write(style: str, name: str, arguments: dict[str, Any]) -> str:
    """An action in a style's form; the inverse of `parse`."""
    row = {"name": name, "arguments": arguments}
    if style == "react":
        return f"Thought:\nThe next step.\nAction:\n{json.dumps(row)}"
    if name == RESPOND:
        return str(arguments["content"])
    if style == "native":
        return f"<tool_call>\n{json.dumps(row)}\n</tool_call>"
    return f"{name}({', '.join(map(_plain_text, arguments.values()))})"


def _conversation_actions(
    domain: Domain, conversation: Conversation
) -> Iterator[tuple[str, dict[str, Any]]]:
    task, ends = conversation.task, None
    yield _respond(ASK_IDENTITY)
    yield _identify(domain, task["user_id"], conversation.heard)
    for action in task["actions"]:
        if action["name"] == domain.terminates:
            ends = action
            continue
        if action["name"] in domain.writes:
            yield _respond(_proposal(domain, action))
        yield action["name"], action["kwargs"]
        if action["name"] in domain.writes:
            yield _respond(DONE)
    if task["outputs"]:
        yield _respond(f"To answer you: {'; '.join(task['outputs'])}.")
    if ends is not None:
        yield ends["name"], ends["kwargs"]
    while True:
        yield _respond(DONE)


def _silent_actions(domain: Domain, task: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The calls alone, then the outputs in one reply: for a user who hangs up at the first."""
    for action in task["actions"]:
        if action["name"] != domain.terminates:
            yield action["name"], action["kwargs"]
    yield _respond("; ".join(task["outputs"]) or DONE)


def _respond(words: str) -> tuple[str, dict[str, Any]]:
    return RESPOND, {"content": words}


def _read(text: str) -> tuple[str, dict[str, Any]]:
    from agentrl_cli.envs.tau.actions import parse

    action = parse(text, "call", mini.TOOLS)
    return action.name, action.arguments


def _identify(domain: Domain, user_id: str, heard: str) -> tuple[str, dict[str, Any]]:
    """How the agent learns who the user is, by what it heard and the tables hold."""
    user = domain.tables["users"][user_id]
    if user["email"] in heard and "find_user_id_by_email" in domain.tools:
        return "find_user_id_by_email", {"email": user["email"]}
    if "find_user_id_by_name_zip" not in domain.tools:
        return "get_user_details", {"user_id": user_id}
    return "find_user_id_by_name_zip", {**user["name"], "zip": user["address"]["zip"]}


def _proposal(domain: Domain, action: dict[str, Any]) -> str:
    """An action's details and the question whether to go on."""
    about = action["kwargs"]
    said = [f"{key.replace('_', ' ')} {_plain_text(value)}" for key, value in about.items()]
    items = _item_descriptions(domain, about)
    listed = [f"that is {'; '.join(items)}"] if items else []
    what = action["name"].replace("_", " ")
    return f"I will {what}: {', '.join([*said, *listed])}. Do you confirm (yes/no)?"


def _item_descriptions(domain: Domain, about: dict[str, Any]) -> list[str]:
    """The items of a call by name and, where they are swapped, with their new options."""
    held = domain.tables["orders"][about["order_id"]]["items"] if "item_ids" in about else []
    products = {item["item_id"]: item for item in held}
    wanted = dict(zip(about.get("item_ids", []), about.get("new_item_ids", []), strict=False))
    said = []
    for item_id in about.get("item_ids", []):
        item = products[item_id]
        variants = domain.tables["products"][item["product_id"]]["variants"]
        options = variants[wanted[item_id]]["options"] if item_id in wanted else {}
        said.append(
            f"{item['name']} {_plain_text([f'{k} {v}' for k, v in options.items()])}".strip()
        )
    return said


def _plain_text(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
