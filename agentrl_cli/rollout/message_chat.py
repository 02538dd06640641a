"""Messages as ids without a tokenizer, for a model that is asked in messages: each byte of a text
is an id, and five more begin and end messages. A generator can read them back to the letter."""

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
    """A chat whose ids are bytes and marks of messages. UserError where an environment has tools of
    its own, which a server would have to be told in its way."""

    has_later_system_turns = True  # pyright: ignore[reportAssignmentType]

    def __init__(self) -> None:
        self.answer_prefix, self.closing, self.stop_ids = "", END, (END,)

    @property
    def fingerprint(self) -> str:
        """There is no template here."""
        return "messages"

    def start(self, messages: Sequence[Message], tools: Tools = ()) -> Ids:
        """The ids of the first messages and the beginning of the first answer."""
        return [*_ids(messages), BEGIN["assistant"]]

    def extend(self, messages: Sequence[Message], last_id: int | None, tools: Tools = ()) -> Ids:
        """The end of an answer unless it was sampled, the messages, and the next one's beginning;
        nothing where the same answer goes on."""
        if not messages:
            return []
        end = [] if last_id == END else [END]
        return [*end, *_ids(messages), BEGIN["assistant"]]

    def encode_action(self, text: str) -> Ids:
        """The ids of a whole answer, its end included."""
        return [*_bytes(text), END]

    def encode_raw(self, text: str) -> Ids:
        """Raises UserError: such a prompt is of tokens."""
        raise UserError("model=endpoint reads messages alone; use an algorithm without raw prompts")

    def decode(self, ids: Sequence[int]) -> str:
        """The text of an answer."""
        return self.text_of(ids)

    def text_of(self, ids: Sequence[int], *, special: bool = True) -> str:
        """The text of any ids, without marks."""
        return bytes(i for i in ids if i < BYTES).decode("utf-8", "replace")

    def vocabulary(self) -> list[str]:
        """Raises UserError: a server's tokens are not known."""
        raise UserError("model=endpoint has no vocabulary here; evaluate it without search")

    def check(self, tools: Tools = ()) -> None:
        """Raise UserError where there are tools."""
        if tools:
            line = "model=endpoint plays in text, and this environment offers tools to a template"
            raise UserError(f"{line}; give env.actions=react")


def _ids(messages: Sequence[Message]) -> Ids:
    return [i for m in messages for i in (BEGIN[m.role], *_bytes(_content(m)), END)]


def _content(message: Message) -> str:
    calls: Any = message.tool_calls
    return message.content if not calls else f"{message.content}{list(calls)}"


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "replace")
