"""Parse an agent's text as a tool call or as words for the user, in one of three styles.

`react` is τ-bench's: the text after the last `Action:` is JSON or a reply. `native` reads the tool
calls of chat templates. `call` is `name(argument, …)`, for models too small to write JSON.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from agentrl_cli.core.text import CLOSED, OPENED, without_thinking
from agentrl_cli.envs.tau.tools import Tool, parameters

RESPOND = "respond"
STYLES = ("react", "native", "call")
MAX_CALL_LENGTH, MAX_CALL_DEPTH = 100_000, 40  # characters, and nested brackets
TAGGED = re.compile(r"<tool_call>(.*?)(?:</tool_call>|$)", re.DOTALL)
FENCE = re.compile(r"```\w*\s(.*)```", re.DOTALL)
OBJECT = re.compile(r"[*`\s]*(?:json\s*)?\{")
LABEL = re.compile(r"(?i)action\s?:[* ]{0,3}(?=`?\w+\()")
QUOTED = re.compile(r"([\"'])(.*)\1", re.DOTALL)
PLAIN_CALL = re.compile(r"(?<!\w)(\w+)\(([^()\n]*)\)\s*(?:[.;]\s*)?$")


@dataclass(frozen=True)
class Action:
    """A tool and its arguments; the tool `respond` speaks to the user.

    `problem` is the reason why a call cannot be executed. `malformed` marks text that looks like a
    call and is none, even if it is sent to the user as words.
    """

    name: str
    arguments: dict[str, Any] = field(default_factory=dict)
    problem: str = ""
    malformed: bool = False


def parse(text: str, style: str, tools: Mapping[str, Tool]) -> Action:
    """Return the first action in the text after its reasoning. Never raises."""
    if OPENED.match(text.lstrip()) or CLOSED.search(text):
        text = without_thinking(text)
    if style == "react":
        return _parse_react(text)
    return _parse_native(text) if style == "native" else _parse_call(text, tools)


def respond(text: str, *, malformed: bool = False) -> Action:
    """Return the action that says `text` to the user."""
    return Action(RESPOND, {"content": text}, malformed=malformed or not text.strip())


def format_action(action: Action, style: str, thought: str = "") -> str:
    """Return the text of an action, after its thought if the style has room for one. This is the
    inverse of `parse`."""
    call = json.dumps({"name": action.name, "arguments": action.arguments})
    if style == "react":
        return f"Thought:\n{thought or 'The next step.'}\nAction:\n{call}"
    if action.name == RESPOND:
        plain = str(action.arguments["content"])
    else:
        plain = f"{action.name}({', '.join(map(plain_text, action.arguments.values()))})"
    if style == "native":
        return plain if action.name == RESPOND else f"<tool_call>\n{call}\n</tool_call>"
    return f"{thought}\n{plain}" if thought else plain


def plain_text(value: Any) -> str:
    """Return an argument as text, the items of a list joined by commas."""
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _parse_react(text: str) -> Action:
    content = text.rpartition("Action:")[2].strip()
    value, _ = _load_json(content)
    if not isinstance(value, dict):
        return respond(content, malformed=bool(OBJECT.match(content)))
    return _from_json_object(value)


def _parse_native(text: str) -> Action:
    content = text.strip()
    if (fenced := FENCE.fullmatch(content)) and OBJECT.match(fenced[1].lstrip("[")):
        content = fenced[1].strip()
    tagged = TAGGED.search(content)
    value, error = _load_json(tagged[1] if tagged else content)
    value = value[0] if isinstance(value, list) and value else value
    if isinstance(value, dict) and (tagged or "name" in value or "function" in value):
        return _from_json_object(value)
    if tagged:
        return _malformed(
            f"the tool call is not JSON ({error})" if error else "it is not an object"
        )
    return respond(content, malformed=content[:1] == "{")


def _parse_call(text: str, tools: Mapping[str, Tool]) -> Action:
    """A call is the whole last line; the last parameter of a tool takes all remaining text."""
    content = text.strip().rpartition("\n")[2].strip()
    if PLAIN_CALL.search(bare := content.strip("`* ")):
        label = LABEL.match(bare)
        content = bare[label.end() if label else 0 :].strip("`* ")
    match = PLAIN_CALL.match(content)
    if match is None:
        return respond(content, malformed=bool(re.match(r"\w+\(", content)))
    name, given = match[1], match[2].strip()
    if name not in tools:
        return respond(given) if name == RESPOND else Action(name)
    names = parameters(tools[name])
    parts = given.split(",", max(0, len(names) - 1)) if given else []
    values = [", ".join(map(_unquoted, part.split(", "))) for part in map(str.strip, parts)]
    if len(values) > len(names):
        return _malformed(f"{name} takes {len(names)} arguments")
    return Action(name, dict(zip(names, values, strict=False)))


def _unquoted(text: str) -> str:
    quoted = QUOTED.fullmatch(text)
    return quoted[2] if quoted else text


def _from_json_object(value: dict[str, Any]) -> Action:
    """Arguments may be JSON in a string, as endpoints send them, and their key may be `parameters`,
    or `kwargs` as in the benchmark's own files."""
    inner = value.get("function")
    value = inner if isinstance(inner, dict) else value
    keys = (key for key in ("arguments", "parameters", "kwargs") if key in value)
    name, arguments = value.get("name"), value.get(next(keys, "arguments"))
    if isinstance(arguments, str):
        arguments = _load_json(arguments)[0]
    if not isinstance(name, str) or not isinstance(arguments, dict):
        return _malformed('a call is {"name": <text>, "arguments": {<name>: <value>}}')
    if name != RESPOND:
        return Action(name, arguments)
    content = arguments.get("content")
    if not isinstance(content, str):
        return _malformed("the content of respond is not text")
    return respond(content)


def _malformed(problem: str) -> Action:
    return Action("", problem=problem, malformed=True)


def _load_json(text: str) -> tuple[Any, str]:
    """Return the value of JSON text, or None and the reason, which may be its length or depth."""
    if len(text) > MAX_CALL_LENGTH:
        return None, f"longer than {MAX_CALL_LENGTH} characters"
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        return None, str(error)
    depth, layer = 0, [value]
    while nested := [item for item in layer if isinstance(item, dict | list)]:
        layer = [x for item in nested for x in (item.values() if isinstance(item, dict) else item)]
        depth += 1
    return (None, f"deeper than {MAX_CALL_DEPTH}") if depth > MAX_CALL_DEPTH else (value, "")
