"""The expert: the ground-truth actions in order, with the replies that the user needs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from agentrl_cli.envs.tau import mini
from agentrl_cli.envs.tau.actions import Action, format_action, parse, plain_text, respond
from agentrl_cli.envs.tau.data import Domain

if TYPE_CHECKING:
    from agentrl_cli.envs.tau.env import Conversation

ASK_IDENTITY = "Could you tell me your name with your zip code, or your email?"
DONE = "That is done. Anything else?"


def expert_texts(
    domain: Domain, conversation: Conversation, *, user: str, style: str
) -> Iterator[str]:
    """Yield the expert's texts until the conversation ends."""
    if user == "silent":
        turns = (("", action) for action in _silent_actions(domain, conversation.task))
    elif domain.name == "mini":
        texts = mini.expert_turns(conversation.task, domain.tables)
        turns = ((thought, parse(text, "call", mini.TOOLS)) for thought, text in texts)
    else:
        turns = (("", action) for action in _conversation_actions(domain, conversation))
    for thought, action in turns:
        if conversation.over:
            return
        yield format_action(action, style, thought)


def _conversation_actions(domain: Domain, conversation: Conversation) -> Iterator[Action]:
    """Propose every write before it and report it after; a transfer comes last."""
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
    """Yield the calls, then all outputs in one reply, because this user leaves at the first."""
    for action in task["actions"]:
        if action["name"] != domain.terminal_tool:
            yield Action(action["name"], action["kwargs"])
    yield respond("; ".join(task["outputs"]) or DONE)


def _identify(domain: Domain, user_id: str, message: str) -> Action:
    """Return the call that identifies the user by the user's message."""
    user = domain.tables["users"][user_id]
    if user["email"] in message and "find_user_id_by_email" in domain.tools:
        return Action("find_user_id_by_email", {"email": user["email"]})
    if "find_user_id_by_name_zip" not in domain.tools:
        return Action("get_user_details", {"user_id": user_id})
    arguments = {**user["name"], "zip": user["address"]["zip"]}
    return Action("find_user_id_by_name_zip", arguments)


def _proposal(domain: Domain, action: dict[str, Any]) -> str:
    """Return the details of an action and the question whether to proceed."""
    arguments = action["kwargs"]
    details = [f"{key.replace('_', ' ')} {plain_text(value)}" for key, value in arguments.items()]
    if items := _item_descriptions(domain, arguments):
        details.append(f"that is {'; '.join(items)}")
    act = action["name"].replace("_", " ")
    return f"I will {act}: {', '.join(details)}. Do you confirm (yes/no)?"


def _item_descriptions(domain: Domain, arguments: dict[str, Any]) -> list[str]:
    """Return the items of a call by name, each with its new options if it is replaced."""
    if "item_ids" not in arguments:
        return []
    ordered = domain.tables["orders"][arguments["order_id"]]["items"]
    items = {item["item_id"]: item for item in ordered}
    new_items = dict(zip(arguments["item_ids"], arguments.get("new_item_ids", []), strict=False))
    descriptions = []
    for item_id in arguments["item_ids"]:
        item = items[item_id]
        variants = domain.tables["products"][item["product_id"]]["variants"]
        options = variants[new_items[item_id]]["options"] if item_id in new_items else {}
        words = plain_text([f"{key} {value}" for key, value in options.items()])
        descriptions.append(f"{item['name']} {words}".strip())
    return descriptions
