"""Who the agent talks to: a language model, a person, or nobody. The scripted users are elsewhere.

A user plays one conversation: `start` says the first line, `reply` answers; a line that holds STOP
ends it. `fault` says what the user, not the agent, did wrong.
"""

from __future__ import annotations

import re
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field

from agentrl_cli.core.errors import SimulatorError
from agentrl_cli.core.terminal import say
from agentrl_cli.core.types import Message, derive_seed

STOP = "###STOP###"
GREETING = "Hi! How can I help you today?"
ID_PATTERN = re.compile(r"#W\d+|\b(?:credit_card|gift_card|paypal|certificate)_\d+|\S+@\S+\.\w+")
YES_WORDS = re.compile(
    r"\b(yes|yeah|yep|sure|correct|confirm(ed)?|please do|go ahead|proceed|agreed?|ok(ay)?)\b", re.I
)
NO_WORDS = re.compile(r"\W*(no|nope|not|don't|do not)\b", re.I)
PROMPT = """You are a customer who talks to a service agent.

Instruction: {instruction}

Rules:
- Write one line at a time, as the customer would.
- Tell only what the present step needs; never the whole instruction at once.
- Invent nothing: where the instruction does not hold what the agent asks for, say that you do not \
know it or do not remember it.
- Use your own words instead of repeating the instruction.
- Once all that the instruction wants is done, write {stop} alone and nothing else.
- Sound natural, and keep to the personality that the instruction gives."""

ChatFunction = Callable[[list[Message], int], str]  # messages and a seed to a text


@dataclass(frozen=True)
class Reply:
    """One line of the user; `fault`: invented or broke_off, "" for none."""

    text: str
    fault: str = ""

    @property
    def stops(self) -> bool:
        """Whether the conversation ends here."""
        return STOP in self.text


def agrees(line: str) -> bool:
    """Whether a user's line says yes."""
    return NO_WORDS.match(line) is None and YES_WORDS.search(line) is not None


class User(ABC):
    """One conversation's other side."""

    @abstractmethod
    def start(self) -> Reply:
        """The first line."""

    @abstractmethod
    def reply(self, message: str) -> Reply:
        """The answer to what the agent said."""


class SilentUser(User):
    """Says one word and hangs up at the first reply: to replay tool calls alone."""

    def start(self) -> Reply:
        """A greeting."""
        return Reply("Hello.")

    def reply(self, message: str) -> Reply:
        """The end."""
        return Reply(STOP)


@dataclass
class HumanUser(User):
    """A person at the keyboard is the user; the agent's words and the instruction go to stderr."""

    instruction: str

    def start(self) -> Reply:
        """What the person opens with, the instruction shown."""
        return self.reply(self.instruction)

    def reply(self, message: str) -> Reply:
        """The next line of stdin; the end of the input ends the conversation."""
        say(f"{message}\nyou are the user; {STOP} ends> ", err=True, end="")
        line = sys.stdin.readline()
        return Reply(line.strip() if line else STOP)


@dataclass
class LLMUser(User):
    """A language model in the official manner. Where `chat` cannot answer (OSError) or says nothing
    the episode breaks with SimulatorError: nobody has lost or won it."""

    instruction: str
    chat: ChatFunction
    seed: int
    messages: list[Message] = field(default_factory=list)

    def start(self) -> Reply:
        """The model's first line."""
        prompt = PROMPT.format(instruction=self.instruction, stop=STOP)
        self.messages = [Message("system", prompt)]
        first = self.reply(GREETING)
        return Reply(first.text, "broke_off") if first.stops else first

    def reply(self, message: str) -> Reply:
        """The model's next line."""
        self.messages.append(Message("user", message))
        try:
            text = self.chat(self.messages, derive_seed(self.seed, len(self.messages))).strip()
        except OSError as error:
            raise SimulatorError(f"the user's model does not answer ({error})") from error
        if not text:
            raise SimulatorError("the user's model said nothing")
        self.messages.append(Message("assistant", text))
        return Reply(text, "invented" if self._invented(text) else "")

    def _invented(self, text: str) -> set[str]:
        """The ids in a line that neither the instruction holds nor the agent has named."""
        known = self.instruction + " ".join(m.content for m in self.messages if m.role == "user")
        return {name for name in ID_PATTERN.findall(text) if name.rstrip(".") not in known}
