"""The user that the agent talks to: retail's scripted customer, a language model, or a person.

A user plays one conversation: `start` returns the first line, `reply` answers the agent, and a line
that contains STOP ends the conversation. The scripted user of the mini domain is in mini.py.

The scripted retail user parses the templated instructions of the train tasks. It gives its identity
on request, states its wishes one by one, confirms correct proposals and corrects the others.
Messages are judged sentence by sentence, because a statement in one is not a question in another.
phrases.yaml holds its sentences and the expressions by which it understands an agent.
"""

from __future__ import annotations

import ast
import random
import re
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import yaml

from agentrl_cli.core.errors import SimulatorError, UserError
from agentrl_cli.core.terminal import echo
from agentrl_cli.core.text import without_thinking
from agentrl_cli.core.types import Message, derive_seed

STOP = "###STOP###"
GREETING = "Hi! How can I help you today?"
REASONS = ("no longer needed", "ordered by mistake")
INTERCHANGEABLE = {"modify", "exchange"}  # synonyms, if the wish's own word is used as well
LITERAL_ERRORS = (ValueError, TypeError, AttributeError, SyntaxError, MemoryError, RecursionError)
ChatFunction = Callable[[list[Message], int], str]  # messages and a seed to a text


def _load_phrases() -> tuple[Any, Any]:
    """Return the groups of phrases.yaml, with its parts filled in, and its compiled patterns."""
    groups = yaml.safe_load(Path(__file__).with_name("phrases.yaml").read_text("utf-8"))
    for name in groups["parts"]:
        for group in groups.values():
            for key, text in group.items():
                text = "|".join(text) if isinstance(text, list) else text
                group[key] = text.replace(f"{{{{{name}}}}}", groups["parts"][name])
    patterns = {name: re.compile(text) for name, text in groups["patterns"].items()}
    return SimpleNamespace(**groups), SimpleNamespace(**patterns)


PHRASES, PATTERNS = _load_phrases()


@dataclass(frozen=True)
class Reply:
    """One line of the user; `fault` is a mistake of the user: invented, broke_off, or ""."""

    text: str
    fault: str = ""

    @property
    def stops(self) -> bool:
        """Whether the conversation ends here."""
        return STOP in self.text


class User(ABC):
    """The other side of one conversation."""

    @abstractmethod
    def start(self) -> Reply:
        """Return the first line."""

    @abstractmethod
    def reply(self, message: str) -> Reply:
        """Return the answer to the agent."""


class SilentUser(User):
    """Ends the conversation at the first reply; used to replay tool calls."""

    def start(self) -> Reply:
        return Reply("Hello.")

    def reply(self, message: str) -> Reply:
        return Reply(STOP)


@dataclass
class HumanUser(User):
    """A person at the keyboard. The agent's words and the instruction are printed to stderr."""

    instruction: str

    def start(self) -> Reply:
        return self.reply(self.instruction)

    def reply(self, message: str) -> Reply:
        """Return the next line of stdin; the end of the input ends the conversation."""
        echo(f"{message}\nyou are the user; {STOP} ends> ", err=True, end="")
        line = sys.stdin.readline()
        return Reply(line.strip() if line else STOP)


@dataclass
class LLMUser(User):
    """A language model, prompted as in τ-bench. Raises SimulatorError if `chat` raises OSError or
    returns an empty text: such an episode is neither won nor lost."""

    instruction: str
    chat: ChatFunction
    seed: int
    messages: list[Message] = field(default_factory=list)

    def start(self) -> Reply:
        prompt = PHRASES.prompts["model"].format(instruction=self.instruction, stop=STOP)
        self.messages = [Message("system", prompt)]
        first = self.reply(GREETING)
        return Reply(first.text, "broke_off") if first.stops else first

    def reply(self, message: str) -> Reply:
        self.messages.append(Message("user", message))
        try:
            said = self.chat(self.messages, derive_seed(self.seed, len(self.messages)))
        except OSError as error:
            raise SimulatorError(f"the user's model does not answer ({error})") from error
        if not (text := without_thinking(said).strip()):
            raise SimulatorError("the user's model returned no text, or only its reasoning")
        self.messages.append(Message("assistant", text))
        known = self.instruction + " ".join(m.content for m in self.messages if m.role == "user")
        names = PATTERNS.identifier.findall(text)
        is_invented = any(name.rstrip(".") not in known for name in names)
        return Reply(text, "invented" if is_invented else "")


def agrees(line: str) -> bool:
    """Return whether a line of the user agrees."""
    return not PATTERNS.declines.match(line) and bool(PATTERNS.agrees.search(line))


# --- The instruction of a scripted retail user ---------------------------------------------------


@dataclass(frozen=True)
class Item:
    """A product by name, its present options and the wanted ones."""

    name: str
    options: dict[str, str]
    wanted: dict[str, str]


@dataclass(frozen=True)
class Request:
    """One wish about one order; `kind` is a key of the clauses in phrases.yaml."""

    kind: str
    order: str
    payment: str = ""
    reason: str = ""
    address: dict[str, str] = field(default_factory=dict)
    items: tuple[Item, ...] = ()


@dataclass(frozen=True)
class Instruction:
    """A customer; `zip` or `email` is empty if the customer does not remember it."""

    name: str
    zip: str
    email: str
    requests: tuple[Request, ...]


def parse_instruction(text: str) -> Instruction:
    """Parse a templated instruction. Raises UserError for any other text."""
    head = PATTERNS.head.match(text)
    requests, at, end = list[Request](), head.end() if head else 0, len(text.rstrip())
    while head and at < end:
        matches = ((kind, re.compile(p).match(text, at)) for kind, p in PHRASES.clauses.items())
        kind, match = next((pair for pair in matches if pair[1]), ("", None))
        if match is None:
            break
        parts: dict[str, Any] = {"items": "", "address": ""} | match.groupdict()
        items = PATTERNS.item.findall(parts.pop("items"))
        try:
            found = tuple(Item(n.strip(), _options(now), _options(new)) for n, now, new in items)
            parts["address"] = _options(parts["address"])
        except LITERAL_ERRORS:
            break
        requests.append(Request(kind, **parts, items=found))
        at = match.end()
    if head is None or at < end or not requests:
        raise UserError(
            f"the scripted user cannot parse the instruction '{text[:60]}…'; it supports only the "
            "train tasks of retail, so set env.user to llm, human or silent for others",
            code="unsupported-instruction",
        )
    return Instruction(head["name"], head["zip"] or "", head["email"] or "", tuple(requests))


def _options(text: str) -> dict[str, str]:
    value: Any = ast.literal_eval(text) if text else {}
    return {str(key): str(item) for key, item in value.items()}


# --- Questions, confirmations and reports in a message of the agent ------------------------------


def sentences(text: str) -> list[str]:
    """Split a text into sentences; a list stays with the words that introduce it."""
    return PATTERNS.sentence_end.split(text)


def asks_confirmation(text: str) -> bool:
    """Return whether a sentence requests a yes; "please confirm the order id" does not."""
    if PATTERNS.yes_no.search(text):
        return True
    if PATTERNS.detail.search(text) and not PATTERNS.order_id.search(text):
        return False
    asking = [s for s in sentences(text) if PATTERNS.confirm.search(s)]
    return any(
        PATTERNS.explicit.search(sentence) or not PATTERNS.open_question.search(sentence)
        for sentence in asking
    )


def reports_completion(text: str) -> bool:
    """Return whether a sentence without a question reports success or refusal of the wish."""
    statements = [s for s in sentences(text) if not PATTERNS.requests.search(s)]
    return any(PATTERNS.done.search(s) or PATTERNS.refused.search(s) for s in statements)


# --- Objections to a proposal of the agent --------------------------------------------------------


def objection(wish: Request, products: list[str], proposal: str) -> str:
    """Return the user's objection to a proposal, or "". `products` are all product names."""
    proposal = PATTERNS.yes_no.sub("", proposal)
    part = proposed_part(proposal)
    text = part.lower()
    orders = PATTERNS.order_id.findall(part) or PATTERNS.order_id.findall(proposal)
    if any(order != wish.order for order in orders):
        return "that is not the order I mean"
    payments, streets = PHRASES.parts["payments"], PHRASES.parts["streets"]
    paid = text if re.search(payments, text) else proposal.lower()
    if wish.payment and _names_other(wish.payment, payments, paid, moves=wish.kind == "payment"):
        return "that is not the payment method I want"
    other = [reason for reason in REASONS if reason in text and reason != wish.reason]
    if wish.reason and other and wish.reason not in text:
        return "that is not my reason"
    if _names_other_act(wish.kind, text):
        return "that is not what I asked for"
    street = wish.address.get("address1", "").lower()
    if street and _names_other(street, streets, text, moves=True):
        return "that is not the address I want"
    if not any(contains_words(name, text) for name in products):
        text = proposal.lower()
    named = [name for name in products if contains_words(name, text)]
    values = [v for item in wish.items for v in (item.options | item.wanted).values()]
    known = " ".join([*(item.name for item in wish.items), *values]).lower()
    if wish.items and any(name.lower() not in known for name in named):
        return "I did not ask for that item"
    if named and any(item.name.lower() not in text for item in wish.items):
        return "you left an item out"
    if any(_options_differ(item, products, text) for item in wish.items):
        return "those are not the options I want"
    return ""


def proposed_part(proposal: str) -> str:
    """Return the text from the first sentence that names the agent's act; else the whole text."""
    parts, acts = sentences(proposal), "|".join(PHRASES.own_acts.values())
    for i, sentence in enumerate(parts):
        proposes = PATTERNS.offers.search(sentence) or PATTERNS.confirm.search(sentence)
        if proposes and re.search(acts, sentence.lower()):
            return "\n".join(parts[i:])
    return proposal


def contains_words(words: str, text: str) -> bool:
    """Return whether a lower-case text contains the words as whole words."""
    return re.search(rf"(?<!\w){re.escape(words.lower())}(?!\w)", text) is not None


def _names_other(wanted: str, pattern: str, text: str, *, moves: bool) -> bool:
    """Return whether the text proposes a match of `pattern` that is not wanted, or rejects the
    wanted one. If the act `moves` something, its origin does not count."""
    rejects, origin = PHRASES.parts["rejects"], PHRASES.parts["moves_from"]
    rejected = re.findall(rf"{rejects}({pattern})", text)
    text = re.sub(rf"{rejects}{pattern}", "", text)
    text = re.sub(rf"{origin}{pattern}", "", text) if moves else text
    return wanted in rejected or any(found != wanted for found in re.findall(pattern, text))


def _names_other_act(kind: str, text: str) -> bool:
    """Return whether an unwanted act is proposed; an act that is called impossible is not."""
    denied = (PATTERNS.refused, PATTERNS.impossible)
    clauses = [c for c in PATTERNS.clause_end.split(text) if not any(d.search(c) for d in denied)]
    own = any(re.search(PHRASES.own_acts[kind], clause) for clause in clauses)
    same = INTERCHANGEABLE if own and kind in INTERCHANGEABLE else {kind}
    acts = [words for other, words in PHRASES.other_acts.items() if other not in same]
    acts = acts if own else [PHRASES.parts["any_act"], *acts]
    return any(re.search(act, clause) for clause in clauses for act in acts)


def _options_differ(item: Item, products: list[str], text: str) -> bool:
    """Return whether the text names new options of an item, but not all wanted ones."""
    if not item.wanted or not contains_words(item.name, text):
        return False
    # the text after the item's name, up to another product or the end of the clause
    own = {item.name.lower(), *map(str.lower, (item.options | item.wanted).values())}
    others = [re.escape(name.lower()) for name in products if name.lower() not in own]
    end = "|".join([rf"(?<!\w)(?:{name})(?!\w)" for name in others] + [r";|[.!?]\s|$"])
    name = re.escape(item.name.lower())
    after = " ".join(re.findall(rf"(?<!\w){name}(?!\w)(.*?)(?={end})", text, re.S))
    words = [word for pair in item.wanted.items() for word in pair]
    if not PATTERNS.replacement.search(after) and not any(contains_words(w, after) for w in words):
        after = text
        if not any(contains_words(word, text) for word in words):
            return False
    return not all(contains_words(value, after) for value in item.wanted.values())


# --- The scripted retail user --------------------------------------------------------------------


class RetailUser(User):
    """Follows a templated instruction. `products` are the shop's product names, by which it detects
    an item that it did not ask for. Raises UserError if the instruction is not templated."""

    def __init__(self, instruction: str, seed: int, products: list[str]) -> None:
        self.instruction = parse_instruction(instruction)
        self.products, self.rng = products, random.Random(seed)
        self.request_index, self.confirmed = 0, False

    @property
    def request(self) -> Request:
        """The current wish."""
        return self.instruction.requests[self.request_index]

    def start(self) -> Reply:
        opener = self.rng.choice(("Hi!", "Hello.", "Good day.", ""))
        return Reply(f"{opener} {request_text(self.request)}".strip())

    def reply(self, message: str) -> Reply:
        """Return the identity, a yes or a correction, the next wish, or the current one again."""
        parts = sentences(message)
        asked = [s for s in parts if PATTERNS.identity.search(s) and PATTERNS.asks.search(s)]
        if any(not asks_confirmation(sentence) for sentence in asked):
            return Reply(self._identity())
        if asks_confirmation(message):
            return Reply(self._confirm(message))
        requests = [s for s in parts if PATTERNS.requests.search(s)]
        if any(not PATTERNS.anything_else.search(sentence) for sentence in requests):
            return Reply(request_text(self.request))
        if reports_completion(message):
            return self._next()
        if PATTERNS.anything_else.search(message):
            return self._next() if self.confirmed else Reply("No, only that.")
        if self.confirmed and not PATTERNS.open_question.search(message):
            return self._next()
        return Reply(request_text(self.request))

    def _identity(self) -> str:
        who = self.instruction
        if who.email:
            known = f"email is {who.email}. I do not remember my zip code."
        else:
            known = f"zip code is {who.zip}. I do not remember my email."
        return f"My name is {who.name} and my {known}"

    def _confirm(self, message: str) -> str:
        if wrong := objection(self.request, self.products, message):
            return f"No, {wrong}. {request_text(self.request)}"
        self.confirmed = True
        return self.rng.choice(("Yes, please.", "Yes, that is right.", "Yes, go ahead."))

    def _next(self) -> Reply:
        self.confirmed = False
        if self.request_index + 1 == len(self.instruction.requests):
            return Reply(STOP)
        self.request_index += 1
        return Reply(request_text(self.request))


def request_text(wish: Request) -> str:
    """Return a wish in words, with all its details."""

    def listed(options: dict[str, str]) -> str:
        return ", ".join(f"{key} {value}" for key, value in options.items())

    items = [
        f"{item.name}{f' ({listed(item.options)})' if item.options else ''}"
        f"{f' for one with {listed(item.wanted)}' if item.wanted else ''}"
        for item in wish.items
    ]
    address = [value for key, value in wish.address.items() if key != "order_id" and value]
    shown = {"items": "; ".join(items), "address": ", ".join(address)}
    return PHRASES.wishes[wish.kind].format(**(vars(wish) | shown))
