"""The scripted user of retail: a deterministic customer who needs no language model.

It names itself only when asked, states its wishes one by one, says yes to what it wants and
corrects what it does not want. It knows its instruction and the names of the shop's products.
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass, field

from agentrl_cli.envs.tau.instruction import Instruction, Item, Request, read
from agentrl_cli.envs.tau.users import STOP, Reply, User

IDENTITY = re.compile(
    r"\b(e-?mail|zip|postal|identi\w+|authenticat\w+|full name|your name)\b", re.I
)
CONFIRM = re.compile(
    r"\b(confirm\w*|yes/no|yes or no|proceed|go ahead|(shall|should) i|"
    r"(would|do) you (like|want) me to|is (this|that|it) (right|correct|ok(ay)?))\b",
    re.I,
)
DETAIL = re.compile(r"\bconfirm (the|your|which|what)\b", re.I)  # "please confirm the order id"
OPEN = re.compile(r"\b(what|which|how|when|where|who|could you|can you)\b", re.I)
DONE = re.compile(
    r"\b(done|all set)\b|\b(is|are|has|have|was|were|been|successfully|now|'ve)\b(\s\w+){0,3}?\s"
    r"(cancell?ed|returned|exchanged|modified|updated|changed|submitted|initiated|completed)\b",
    re.I,
)
REFUSED = re.compile(r"\b(cannot|can't|can not|unable|not (possible|able|allowed))\b", re.I)
ELSE = re.compile(r"\b(anything|something|what) else\b|\bfurther\b", re.I)
SENTENCE = re.compile(r"(?<=[.!?])\s+|\n+")
ORDERS = re.compile(r"#W\d+")
PAYMENTS = re.compile(r"\b(?:credit_card|gift_card|paypal)_\d+")
REASONS = ("no longer needed", "ordered by mistake")
VERBS = {
    "cancel": r"\bcancel",
    "return": r"\breturn",
    "exchange": r"\bexchang",
    "modify": r"\b(modif|chang|swap|updat|replac)",
    "payment": r"\b(payment|pay|charge)",
    "address": r"\b(address|ship|deliver to|send)",
}
EXCLUSIVE = ("cancel", "return", "exchange")  # acts that none of the others may be called
OPENERS = ("Hi!", "Hello.", "Good day.", "")


@dataclass
class RetailUser(User):
    """`products` are the shop's product names, to notice an item that nobody asked for."""

    instruction: Instruction
    products: list[str]
    rng: random.Random
    at: int = 0
    agreed: bool = False
    named: set[str] = field(default_factory=set)

    @classmethod
    def of(cls, text: str, seed: int, products: list[str]) -> RetailUser:
        """The user of an instruction's text. UserError where that is not templated."""
        return cls(read(text), products, random.Random(seed))

    @property
    def request(self) -> Request:
        """The wish in work."""
        return self.instruction.requests[self.at]

    def start(self) -> Reply:
        """A greeting and the first wish."""
        return Reply(f"{self.rng.choice(OPENERS)} {state(self.request)}".strip())

    def reply(self, said: str) -> Reply:
        """Identity, a yes or a correction, the next wish, or the present one again."""
        if self._asks_who(said):
            return Reply(self._identify(said))
        if asks_yes(said):
            return Reply(self._confirm(said))
        ended = DONE.search(said) or REFUSED.search(said) or ELSE.search(said)
        if ended or (self.agreed and not OPEN.search(said)):
            return self._next()
        return Reply(state(self.request))

    def _asks_who(self, said: str) -> bool:
        """Whether the words ask for identity; those that name an order are about the order."""
        return bool(IDENTITY.search(said)) and not ORDERS.search(said)

    def _identify(self, said: str) -> str:
        who, known = self.instruction, f"My name is {self.instruction.name}"
        if who.email:
            return f"{known} and my email is {who.email}. I do not remember my zip code."
        return f"{known} and my zip code is {who.zip}. I do not remember my email."

    def _confirm(self, said: str) -> str:
        wrong = self._objection(said)
        if wrong:
            return f"No, {wrong}. {state(self.request)}"
        self.agreed = True
        return self.rng.choice(("Yes, please.", "Yes, that is right.", "Yes, go ahead."))

    def _next(self) -> Reply:
        self.at, self.agreed = self.at + 1, False
        if self.at < len(self.instruction.requests):
            return Reply(state(self.request))
        self.at = len(self.instruction.requests) - 1
        return Reply(STOP)

    def _objection(self, said: str) -> str:
        """What in a proposal is not what the user wants; "" for nothing."""
        wish, text = self.request, said.lower()
        if any(order != wish.order for order in ORDERS.findall(said)):
            return "that is not the order I mean"
        if wish.kind != "cancel" and self._other_payment(said):
            return "that is not the payment method I want"
        other = [reason for reason in REASONS if reason in text and reason != wish.reason]
        if wish.reason and other and wish.reason not in text:
            return "that is not my reason"
        if self._other_act(text):
            return "that is not what I asked for"
        return self._other_items(text) or self._other_address(text)

    def _other_payment(self, said: str) -> bool:
        named, wanted = set(PAYMENTS.findall(said)), self.request.payment
        return bool(named) and wanted not in named and bool(wanted)

    def _other_act(self, text: str) -> bool:
        """Whether an act is named that the user did not ask for, and its own is not."""
        own = re.search(VERBS[self.request.kind], text)
        others = [kind for kind in EXCLUSIVE if kind != self.request.kind]
        return not own and any(re.search(VERBS[kind], text) for kind in others)

    def _other_items(self, text: str) -> str:
        """Items that the proposal names but nobody wants, or that it forgets while naming some."""
        wanted = [item.name for item in self.request.items]
        named = [name for name in self.products if _says(name, text)]
        values = [v for item in self.request.items for v in (item.options | item.wanted).values()]
        inside = " ".join([*wanted, *values]).lower()
        if wanted and any(name.lower() not in inside for name in named):
            return "I did not ask for that item"
        if named and any(name.lower() not in text for name in wanted):
            return "you left an item out"
        if any(_other_options(item, text) for item in self.request.items):
            return "those are not the options I want"
        return ""

    def _other_address(self, text: str) -> str:
        """A proposal that spells the street must spell the right one."""
        address = self.request.address
        street = re.search(r"\b\d+ [a-z]+ (street|avenue|drive|road|lane|boulevard)\b", text)
        if address and street and address["address1"].lower() not in text:
            return "that is not the address I want"
        return ""


def asks_yes(said: str) -> bool:
    """Whether a sentence asks for a yes; "please confirm the order id" asks for something else."""
    if DETAIL.search(said) and not ORDERS.search(said):
        return False
    asking = (sentence for sentence in SENTENCE.split(said) if CONFIRM.search(sentence))
    return any(not OPEN.search(sentence) for sentence in asking)


def state(wish: Request) -> str:
    """A wish in words, all that the instruction holds of it."""
    items = "; ".join(_described(item) for item in wish.items)
    address = ", ".join(v for k, v in wish.address.items() if k != "order_id" and v)
    return {
        "cancel": f"Please cancel my order {wish.order}. The reason: {wish.reason}.",
        "return": f"I want to return from order {wish.order}: {items}. "
        f"The refund should go to {wish.payment}.",
        "payment": f"Please change the payment of order {wish.order} to {wish.payment}.",
        "address": f"Please change the address of order {wish.order} to {address}.",
        "modify": f"Please change items of my pending order {wish.order}: {items}. "
        f"Use {wish.payment} for the difference.",
        "exchange": f"I want to exchange items of order {wish.order}: {items}. "
        f"Use {wish.payment} for the difference.",
    }[wish.kind]


def _described(item: Item) -> str:
    now = f" ({_spelled(item.options)})" if item.options else ""
    return (
        f"{item.name}{now} for one with {_spelled(item.wanted)}" if item.wanted else item.name + now
    )


def _spelled(options: dict[str, str]) -> str:
    return ", ".join(f"{key} {value}" for key, value in options.items())


def _other_options(item: Item, text: str) -> bool:
    """Whether a proposal speaks of the options of an item that shall change, and does not name all
    that are wanted."""
    if not item.wanted or not _says(item.name, text):
        return False
    named = [_says(value, text) for value in item.wanted.values()]
    speaks = any(named) or any(_says(key, text) for key in item.wanted)
    return speaks and not all(named)


def _says(words: str, text: str) -> bool:
    """Whether a text in lower case holds the words as whole words."""
    return re.search(rf"(?<!\w){re.escape(words.lower())}(?!\w)", text) is not None
