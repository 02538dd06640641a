"""The expert: the ground-truth actions in order, with the replies that they need."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from agentrl_cli.envs.tau import mini
from agentrl_cli.envs.tau.actions import RESPOND, Action, parse, respond
from agentrl_cli.envs.tau.conversation import Conversation
from agentrl_cli.envs.tau.data import Domain

ASK_IDENTITY = "Could you tell me your name with your zip code, or your email?"
DONE = "That is done. Anything else?"


def expert_texts(
    domain: Domain, conversation: Conversation, *, user: str, style: str
) -> Iterator[str]:
    """The expert's texts in this style until the conversation ends, by its task's ground truth."""
    for thought, action in _expert_turns(domain, conversation, user):
        if conversation.over:
            return
        yield format_action(action, style, thought)


def _expert_turns(
    domain: Domain, conversation: Conversation, user: str
) -> Iterator[tuple[str, Action]]:
    """Actions, each with the thought before it; "" for none."""
    if user != "silent" and domain.name == "mini":
        turns = mini.expert_turns(conversation.task, domain.tables)
        return ((thought, parse(text, "call", mini.TOOLS)) for thought, text in turns)
    if user == "silent":
        actions = _silent_actions(domain, conversation.task)
    else:
        actions = _conversation_actions(domain, conversation)
    return (("", action) for action in actions)


def format_action(action: Action, style: str, thought: str = "") -> str:
    """An action in a style's form, behind a thought where the form has room for one; the inverse of
    `parse`."""
    call = json.dumps({"name": action.name, "arguments": action.arguments})
    if style == "react":
        return f"Thought:\n{thought or 'The next step.'}\nAction:\n{call}"
    if style == "native":
        is_reply = action.name == RESPOND
        return _plain_action(action) if is_reply else f"<tool_call>\n{call}\n</tool_call>"
    return "\n".join(filter(None, [thought, _plain_action(action)]))


def _plain_action(action: Action) -> str:
    """Words for the user, or a call as `name(argument, …)`."""
    if action.name == RESPOND:
        return str(action.arguments["content"])
    return f"{action.name}({', '.join(map(_plain_text, action.arguments.values()))})"


def _conversation_actions(domain: Domain, conversation: Conversation) -> Iterator[Action]:
    """Every write is proposed before it and reported after it; the transfer comes last."""
    task, transfer = conversation.task, None
    yield respond(ASK_IDENTITY)
    yield _identify(domain, task["user_id"], conversation.user_message)
    for action in task["actions"]:
        if action["name"] == domain.terminal_tool:
            transfer = action
            continue
        if action["name"] in domain.writes:
            yield respond(_proposal(domain, action))
        yield Action(action["name"], action["kwargs"])
        if action["name"] in domain.writes:
            yield respond(DONE)
    if task["outputs"]:
        yield respond(f"To answer you: {'; '.join(task['outputs'])}.")
    if transfer is not None:
        yield Action(transfer["name"], transfer["kwargs"])
    while True:
        yield respond(DONE)


def _silent_actions(domain: Domain, task: dict[str, Any]) -> Iterator[Action]:
    """The calls alone, then the outputs in one reply: for a user who hangs up at the first."""
    for action in task["actions"]:
        if action["name"] != domain.terminal_tool:
            yield Action(action["name"], action["kwargs"])
    yield respond("; ".join(task["outputs"]) or DONE)


def _identify(domain: Domain, user_id: str, message: str) -> Action:
    """How the agent learns who the user is, by the user's message and the tables."""
    user = domain.tables["users"][user_id]
    if user["email"] in message and "find_user_id_by_email" in domain.tools:
        return Action("find_user_id_by_email", {"email": user["email"]})
    if "find_user_id_by_name_zip" not in domain.tools:
        return Action("get_user_details", {"user_id": user_id})
    arguments = {**user["name"], "zip": user["address"]["zip"]}
    return Action("find_user_id_by_name_zip", arguments)


def _proposal(domain: Domain, action: dict[str, Any]) -> str:
    """An action's details and the question whether to go on."""
    arguments = action["kwargs"]
    details = [f"{key.replace('_', ' ')} {_plain_text(value)}" for key, value in arguments.items()]
    items = _item_descriptions(domain, arguments)
    listed = [f"that is {'; '.join(items)}"] if items else []
    act = action["name"].replace("_", " ")
    return f"I will {act}: {', '.join([*details, *listed])}. Do you confirm (yes/no)?"


def _item_descriptions(domain: Domain, arguments: dict[str, Any]) -> list[str]:
    """The items of a call by name and, where they are swapped, with their new options."""
    if "item_ids" not in arguments:
        return []
    ordered = domain.tables["orders"][arguments["order_id"]]["items"]
    items = {item["item_id"]: item for item in ordered}
    replacements = arguments.get("new_item_ids", [])
    replaced_by = dict(zip(arguments["item_ids"], replacements, strict=False))
    descriptions = []
    for item_id in arguments["item_ids"]:
        item = items[item_id]
        variants = domain.tables["products"][item["product_id"]]["variants"]
        options = variants[replaced_by[item_id]]["options"] if item_id in replaced_by else {}
        words = _plain_text([f"{key} {value}" for key, value in options.items()])
        descriptions.append(f"{item['name']} {words}".strip())
    return descriptions


def _plain_text(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
