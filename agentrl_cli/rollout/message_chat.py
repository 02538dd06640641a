"""Messages as token ids without a tokenizer, for a model that takes messages.

Each byte of a text is an id, and further ids begin and end messages. A generator can decode them
without loss.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from agentrl_cli.core.errors import UserError
from agentrl_cli.core.types import ROLES, Message
from agentrl_cli.rollout.chat_template import Chat, Ids, Tools

BYTES = 256
BEGIN = {role: BYTES + number for number, role in enumerate(ROLES)}
ROLE = {mark: role for role, mark in BEGIN.items()}
END = BYTES + len(ROLES)


class MessageChat(Chat):
    """A chat of bytes and message marks. Environments with tool schemas are not supported."""

    has_later_system_turns = True  # pyright: ignore[reportAssignmentType]

    def __init__(self) -> None:
        self.answer_prefix, self.end_of_turn, self.stop_ids = "", END, (END,)

    @property
    def fingerprint(self) -> str:
        """A constant, because there is no template."""
        return "messages"

    def start(self, messages: Sequence[Message], tools: Tools = ()) -> Ids:
        """Return the ids of the first messages and the start of the first answer."""
        return [*_ids(messages), BEGIN["assistant"]]

    def extend(self, messages: Sequence[Message], last_id: int | None, tools: Tools = ()) -> Ids:
        """Return the end of an answer unless it was sampled, the messages, and the start of the
        next answer; [] without messages, because the same answer continues."""
        if not messages:
            return []
        end = [] if last_id == END else [END]
        return [*end, *_ids(messages), BEGIN["assistant"]]

    def encode_action(self, text: str) -> Ids:
        """Return the ids of a whole answer and its end."""
        return [*_bytes(text), END]

    def encode_raw(self, text: str) -> Ids:
        """Raise UserError, because raw prompts need tokens."""
        line = "model=endpoint takes messages only; use an algorithm without raw prompts"
        raise UserError(line, code="unsupported-model")

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of an answer."""
        return self.text_of(ids)

    def text_of(self, ids: Sequence[int], *, special: bool = True) -> str:
        """Return the text of any ids, without marks."""
        return bytes(i for i in ids if i < BYTES).decode("utf-8", "replace")

    def vocabulary(self) -> list[str]:
        """Raise UserError, because a server's tokens are unknown."""
        line = "model=endpoint has no vocabulary here; evaluate it without search"
        raise UserError(line, code="unsupported-model")

    def check(self, tools: Tools = ()) -> None:
        """Raise UserError if there are tools."""
        if tools:
            line = "model=endpoint plays in text, and this environment has tools for a template"
            raise UserError(f"{line}; set env.actions=react", code="unsupported-model")


def _ids(messages: Sequence[Message]) -> Ids:
    return [i for m in messages for i in (BEGIN[m.role], *_bytes(_content(m)), END)]


def _content(message: Message) -> str:
    calls: Any = message.tool_calls
    return message.content if not calls else f"{message.content}{list(calls)}"


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "replace")
