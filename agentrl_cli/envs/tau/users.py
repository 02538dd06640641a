"""The user that the agent talks to: retail's scripted customer, a language model, or a person.

A user plays one conversation: `start` returns the first line, `reply` answers the agent, and a line
that contains STOP ends the conversation. The scripted user of the mini domain is in mini.py.

The scripted retail user parses the templated instructions of the train tasks. It gives its identity
on request, states its wishes one by one, confirms correct proposals and corrects the others.
Messages are judged sentence by sentence, because a statement in one is not a question in another.
"""

from __future__ import annotations

import ast
import random
import re
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from agentrl_cli.core.errors import SimulatorError, UserError
from agentrl_cli.core.terminal import echo
from agentrl_cli.core.types import Message, derive_seed

STOP = "###STOP###"
GREETING = "Hi! How can I help you today?"
ID_PATTERN = re.compile(r"#W\d+|\b(?:credit_card|gift_card|paypal|certificate)_\d+|\S+@\S+\.\w+")
YES_WORDS = re.compile(
    r"\b(yes|yeah|yep|sure|correct|confirm(ed)?|please do|go ahead|proceed|agreed?|ok(ay)?)\b", re.I
)
NO_WORDS = re.compile(r"\W*(no|nope|not|don't|do not)\b", re.I)
PROMPT = """You are a customer who is talking to a service agent.

Instruction: {instruction}

Rules:
- Write one line at a time, as the customer would.
- Give only the information that the current step needs. Do not reveal the whole instruction.
- Do not invent information. If the instruction does not contain what the agent asks for, say that \
you do not know it or do not remember it.
- Use your own words. Do not repeat the instruction.
- When everything in the instruction is done, write only {stop} and nothing else.
- Make the conversation sound natural, and keep the personality that the instruction gives you."""

ChatFunction = Callable[[list[Message], int], str]  # messages and a seed to a text


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
        prompt = PROMPT.format(instruction=self.instruction, stop=STOP)
        self.messages = [Message("system", prompt)]
        first = self.reply(GREETING)
        return Reply(first.text, "broke_off") if first.stops else first

    def reply(self, message: str) -> Reply:
        self.messages.append(Message("user", message))
        try:
            text = self.chat(self.messages, derive_seed(self.seed, len(self.messages))).strip()
        except OSError as error:
            raise SimulatorError(f"the user's model does not answer ({error})") from error
        if not text:
            raise SimulatorError("the user's model returned an empty text")
        self.messages.append(Message("assistant", text))
        known = self.instruction + " ".join(m.content for m in self.messages if m.role == "user")
        is_invented = any(name.rstrip(".") not in known for name in ID_PATTERN.findall(text))
        return Reply(text, "invented" if is_invented else "")


def agrees(line: str) -> bool:
    """Return whether a line of the user agrees."""
    return NO_WORDS.match(line) is None and YES_WORDS.search(line) is not None


# --- The instruction of a scripted retail user ---------------------------------------------------

HEAD = re.compile(
    r"Your name is (?P<name>[^.]+?) and your "
    r"(?:zip code is (?P<zip>\d+)|email is (?P<email>\S+))\. You are [^.]*\.\s*"
)
ORDER, PAYMENT = r"(?P<order>#W\d+)", r"(?P<payment>\w+_\d+)"
NAME, OPTIONS = r"[A-Z][\w '()-]*?", r"\{[^{}]*\}"
ITEMS = rf"(?P<items>(?:{NAME}(?: {OPTIONS})?(?: to {OPTIONS})?; )+)"
PATTERNS = {
    "cancel": re.compile(rf"Cancel order {ORDER} because (?P<reason>[a-z ]+)\.\s*"),
    "return": re.compile(rf"Return {ORDER} via {PAYMENT}: {ITEMS}"),
    "payment": re.compile(rf"For {ORDER}, change payment to {PAYMENT}\.\s*"),
    "address": re.compile(
        rf"For {ORDER}, change address to (?P<address>{OPTIONS})(?: \([^)]*\))?\.\s*"
    ),
    "modify": re.compile(rf"For {ORDER}, modify {ITEMS}via {PAYMENT}\.\s*"),
    "exchange": re.compile(rf"For {ORDER}, exchange {ITEMS}via {PAYMENT}\.\s*"),
}
ITEM = re.compile(rf"({NAME})(?: ({OPTIONS}))?(?: to ({OPTIONS}))?; ")
LITERAL_ERRORS = (ValueError, TypeError, AttributeError, SyntaxError, MemoryError, RecursionError)


@dataclass(frozen=True)
class Item:
    """A product by name, its present options and the wanted ones."""

    name: str
    options: dict[str, str]
    wanted: dict[str, str]


@dataclass(frozen=True)
class Request:
    """One wish about one order; `kind` is a key of PATTERNS."""

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
    head = HEAD.match(text)
    requests, at, end = list[Request](), head.end() if head else 0, len(text.rstrip())
    while head and at < end:
        matches = ((kind, pattern.match(text, at)) for kind, pattern in PATTERNS.items())
        kind, match = next((pair for pair in matches if pair[1]), ("", None))
        if match is None:
            break
        parts = match.groupdict()
        try:
            items = tuple(
                Item(name.strip(), _parse_options(options), _parse_options(wanted))
                for name, options, wanted in ITEM.findall(parts.get("items", ""))
            )
            address = _parse_options(parts.get("address", ""))
        except LITERAL_ERRORS:
            break
        payment, reason = parts.get("payment", ""), parts.get("reason", "")
        requests.append(Request(kind, parts["order"], payment, reason, address, items))
        at = match.end()
    if head is None or at < end or not requests:
        raise UserError(
            f"the scripted user cannot parse the instruction '{text[:60]}…'; it supports only the "
            "train tasks of retail, so set env.user to llm, human or silent for others",
            code="unsupported-instruction",
        )
    return Instruction(head["name"], head["zip"] or "", head["email"] or "", tuple(requests))


def _parse_options(text: str) -> dict[str, str]:
    value: Any = ast.literal_eval(text) if text else {}
    return {str(key): str(item) for key, item in value.items()}


# --- Questions, confirmations and reports in a message of the agent ------------------------------

IDENTITY = re.compile(
    r"\b(e-?mail|zip|postal|identi\w+|authenticat\w+|full name|your name|first and last name|"
    r"who (am i|are you|you are))\b",
    re.I,
)
ASKS = re.compile(r"\?|\b(please|provide|tell|need|may i|could you)\b", re.I)
REQUESTS = re.compile(
    r"\?|\b(please (tell|provide|repeat|give|specify|name|share|confirm)|tell me|could you|may i|"
    r"i (\w+ )?need)\b",
    re.I,
)
CONFIRM = re.compile(
    r"\b(confirm\w*|yes/no|yes or no|proceed|go ahead|(shall|should) i|"
    r"(would|do) you (like|want) me to|is (this|that|it) (right|correct|ok(ay)?))\b",
    re.I,
)
YES_NO = re.compile(r"\b(yes/no|yes or no)\b", re.I)
EXPLICIT = re.compile(  # a request for a yes, whatever else the sentence contains
    r"\bdo you confirm\b|\b(could|can) you (please )?confirm"
    r"(?! (the|your|this|which|what|how|when|where|who)\b)|"
    r"\bconfirm (the|your|this) (cancel|return|exchange|modif|change|detail)",
    re.I,
)
DETAIL = re.compile(r"\bconfirm (the|your|which|what)\b", re.I)  # "please confirm the order id"
OPEN_QUESTION = re.compile(r"\b(what|which|how|when|where|who|could you|can you)\b", re.I)
DONE = re.compile(
    r"\b(done|all set)\b|\b(is|are|has|have|was|were|been|successfully|now|'ve)\b(\s\w+){0,3}?\s"
    r"(cancell?ed|returned|exchanged|modified|updated|changed|submitted|initiated|completed)\b",
    re.I,
)
REFUSED = re.compile(r"\b(cannot|can't|can not|unable|not (possible|able|allowed))\b", re.I)
ANYTHING_ELSE = re.compile(
    r"\b(anything|something|what|how) else\b|\bfurther\b|\bany other\b|\bdo next\b", re.I
)
# a line that starts like a list item belongs to the sentence before it
SENTENCE_END = re.compile(r"(?<=[.!?])(?<!\s\d\.)\s+(?![\s*•-])|\n+(?!\s*(?:[*•-]|\d+[.)]))")
ORDER_ID = re.compile(r"#W\d+")


def sentences(text: str) -> list[str]:
    """Split a text into sentences; a list stays with the words that introduce it."""
    return SENTENCE_END.split(text)


def asks_confirmation(text: str) -> bool:
    """Return whether a sentence requests a yes; "please confirm the order id" does not."""
    if YES_NO.search(text):
        return True
    if DETAIL.search(text) and not ORDER_ID.search(text):
        return False
    asking = [s for s in sentences(text) if CONFIRM.search(s)]
    return any(EXPLICIT.search(s) or not OPEN_QUESTION.search(s) for s in asking)


def reports_completion(text: str) -> bool:
    """Return whether a sentence without a question reports success or refusal of the wish."""
    statements = [sentence for sentence in sentences(text) if not REQUESTS.search(sentence)]
    return any(DONE.search(sentence) or REFUSED.search(sentence) for sentence in statements)


# --- Objections to a proposal of the agent --------------------------------------------------------

PAYMENTS = r"\b(?:credit_card|gift_card|paypal)_\d+"
STREETS = r"\b\d+ [a-z]+ (?:street|avenue|drive|road|lane|boulevard)\b"
FILLER = r"(?:(?:the|your|to|on|old|current|original|payment|method|card) )*"
REJECTS = rf"\b(?:instead of|rather than|not) {FILLER}"  # the text after it is not proposed
MOVES_FROM = rf"\bfrom {FILLER}"
REASONS = ("no longer needed", "ordered by mistake")
OFFERS = re.compile(r"\b(i will|i'll|i am going to|i'm going to|(shall|should) i)\b", re.I)
IMPOSSIBLE = re.compile(r"\b((can|will|could) (no longer|not)|no longer be|won't|anymore)\b", re.I)
CLAUSE = re.compile(r"[.!?;]\s|\n|,|\b(?:since|because|as|but)\b")
CHANGES = r"\b(?:modif|chang|swap|updat|replac|switch)\w*\b"
SAME_CLAUSE = r"(?:(?!\b(?:items?|with|using|via|for|and)\b)[^.:;,?])*?"
OWN_WORDS = {
    "cancel": r"\bcancel",
    "return": r"\breturn",
    "exchange": r"\bexchang|\b(chang|swap|replac)",
    "modify": CHANGES,
    "payment": rf"\b(payment|pay|charge)|{PAYMENTS}",
    "address": rf"\b(address|ship|deliver to|send)|{STREETS}",
}
OTHER_WORDS = {  # stricter: words that name the act and are not a detail of another
    "cancel": r"\bcancel",
    "return": r"(?<!how to )(?<!you )\breturn(s|ing)?\b(?! to| of the (money|refund))"
    r"|\bbe returned\b(?! to)",
    "exchange": r"\bexchang",
    "modify": rf"{CHANGES}[^.:;,?]*?\bitems?\b",
    "payment": rf"{CHANGES}{SAME_CLAUSE}\bpayment",
    "address": rf"{CHANGES}{SAME_CLAUSE}(?<!mail )\baddress"
    r"|\b(ship|deliver|send)(ing)?\b[^.:;,?]*?\bto \d",
}
ANY_ACT = rf"\b(cancel|return|exchang)|{CHANGES}"
INTERCHANGEABLE = {"modify", "exchange"}  # synonyms, if the wish's own word is used as well
REPLACEMENT = re.compile(
    r"\b(for|to|with|into)\s+(?!(the |a |your |this )?(order|payment|difference|refund|card|"
    r"credit_card|gift_card|paypal|proceed|confirm|you|your|this|be|go|do|settle|cover)\b|#)"
)


def objection(wish: Request, products: list[str], proposal: str) -> str:
    """Return the user's objection to a proposal, or "". `products` are all product names."""
    proposal = YES_NO.sub("", proposal)
    part = proposed_part(proposal)
    text = part.lower()
    if any(order != wish.order for order in ORDER_ID.findall(part) or ORDER_ID.findall(proposal)):
        return "that is not the order I mean"
    paid = text if re.search(PAYMENTS, text) else proposal.lower()
    if wish.payment and _names_other(wish.payment, PAYMENTS, paid, moves=wish.kind == "payment"):
        return "that is not the payment method I want"
    other = [reason for reason in REASONS if reason in text and reason != wish.reason]
    if wish.reason and other and wish.reason not in text:
        return "that is not my reason"
    if _names_other_act(wish.kind, text):
        return "that is not what I asked for"
    street = wish.address.get("address1", "").lower()
    if street and _names_other(street, STREETS, text, moves=True):
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
    parts, acts = sentences(proposal), "|".join(OWN_WORDS.values())
    for i, sentence in enumerate(parts):
        proposes = OFFERS.search(sentence) or CONFIRM.search(sentence)
        if proposes and re.search(acts, sentence.lower()):
            return "\n".join(parts[i:])
    return proposal


def contains_words(words: str, text: str) -> bool:
    """Return whether a lower-case text contains the words as whole words."""
    return re.search(rf"(?<!\w){re.escape(words.lower())}(?!\w)", text) is not None


def _names_other(wanted: str, pattern: str, text: str, *, moves: bool) -> bool:
    """Return whether the text proposes a match of `pattern` that is not wanted, or rejects the
    wanted one. If the act `moves` something, its origin does not count."""
    rejected = re.findall(rf"{REJECTS}({pattern})", text)
    text = re.sub(rf"{REJECTS}{pattern}", "", text)
    text = re.sub(rf"{MOVES_FROM}{pattern}", "", text) if moves else text
    return wanted in rejected or any(found != wanted for found in re.findall(pattern, text))


def _names_other_act(kind: str, text: str) -> bool:
    """Return whether an unwanted act is proposed; an act that is called impossible is not."""
    clauses = [c for c in CLAUSE.split(text) if not REFUSED.search(c) and not IMPOSSIBLE.search(c)]
    own = any(re.search(OWN_WORDS[kind], clause) for clause in clauses)
    same = INTERCHANGEABLE if own and kind in INTERCHANGEABLE else {kind}
    acts = [words for other, words in OTHER_WORDS.items() if other not in same]
    return any(re.search(act, c) for c in clauses for act in (acts if own else [ANY_ACT, *acts]))


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
    if not REPLACEMENT.search(after) and not any(contains_words(word, after) for word in words):
        after = text
        if not any(contains_words(word, text) for word in words):
            return False
    return not all(contains_words(value, after) for value in item.wanted.values())


# --- The scripted retail user --------------------------------------------------------------------


@dataclass
class RetailUser(User):
    """Follows a templated instruction. `products` are the shop's product names, by which it detects
    an item that it did not ask for."""

    instruction: Instruction
    products: list[str]
    rng: random.Random
    request_index: int = 0
    confirmed: bool = False

    @classmethod
    def of(cls, text: str, seed: int, products: list[str]) -> RetailUser:
        """Return the user of an instruction. Raises UserError if it is not templated."""
        return cls(parse_instruction(text), products, random.Random(seed))

    @property
    def request(self) -> Request:
        """The current wish."""
        return self.instruction.requests[self.request_index]

    def start(self) -> Reply:
        opener = self.rng.choice(("Hi!", "Hello.", "Good day.", ""))
        return Reply(f"{opener} {request_text(self.request)}".strip())

    def reply(self, message: str) -> Reply:
        """Return the identity, a yes or a correction, the next wish, or the current one again."""
        asked = [s for s in sentences(message) if IDENTITY.search(s) and ASKS.search(s)]
        if any(not asks_confirmation(sentence) for sentence in asked):
            return Reply(self._identity())
        if asks_confirmation(message):
            return Reply(self._confirm(message))
        requests = [s for s in sentences(message) if REQUESTS.search(s)]
        if any(not ANYTHING_ELSE.search(sentence) for sentence in requests):
            return Reply(request_text(self.request))
        if reports_completion(message):
            return self._next()
        if ANYTHING_ELSE.search(message):
            return self._next() if self.confirmed else Reply("No, only that.")
        if self.confirmed and not OPEN_QUESTION.search(message):
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
    items = []
    for item in wish.items:
        text = f"{item.name} ({_options_text(item.options)})" if item.options else item.name
        wanted = f" for one with {_options_text(item.wanted)}" if item.wanted else ""
        items.append(text + wanted)
    listed = "; ".join(items)
    address = ", ".join(v for k, v in wish.address.items() if k != "order_id" and v)
    return {
        "cancel": f"Please cancel my order {wish.order}. The reason: {wish.reason}.",
        "return": f"I want to return from order {wish.order}: {listed}. "
        f"The refund should go to {wish.payment}.",
        "payment": f"Please change the payment of order {wish.order} to {wish.payment}.",
        "address": f"Please change the address of order {wish.order} to {address}.",
        "modify": f"Please change items of my pending order {wish.order}: {listed}. "
        f"Use {wish.payment} for the difference.",
        "exchange": f"I want to exchange items of order {wish.order}: {listed}. "
        f"Use {wish.payment} for the difference.",
    }[wish.kind]


def _options_text(options: dict[str, str]) -> str:
    return ", ".join(f"{key} {value}" for key, value in options.items())
