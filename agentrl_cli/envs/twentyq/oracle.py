"""Answers free questions about an object with a language model, for worlds without a table."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field

from agentrl_cli.core.thinking import without_thinking
from agentrl_cli.core.types import Message
from agentrl_cli.envs.twentyq.questions import action_text, normalise

PROMPT = "Answer truthfully about the object with one word: yes, no or sometimes."
ANSWER = re.compile(r"\W*(yes|no|sometimes)\b", re.IGNORECASE)
ChatFunction = Callable[[list[Message], int], str]  # messages and a seed to a text


@dataclass
class Oracle:
    """Yes, no or sometimes from `chat`; cut to that word, so that it cannot leak the object."""

    chat: Callable[[list[Message]], str]
    cache: dict[tuple[str, str], str] = field(default_factory=dict)

    def answer(self, object: str, text: str) -> str:
        """The answer to a player's text, asked once per object and question; "" for none."""
        question = normalise(action_text(text))
        if question is None:
            return ""
        if (object, question) not in self.cache:
            self.cache[object, question] = self._ask(object, question)
        return self.cache[object, question]

    def _ask(self, object: str, question: str) -> str:
        asked = Message("user", f"Object: {object}\nQuestion: {question}?")
        said = without_thinking(self.chat([Message("system", PROMPT), asked]))
        match = ANSWER.match(said)
        return match[1].lower() if match else ""
