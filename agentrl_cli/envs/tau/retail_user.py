"""The scripted user of retail: a deterministic customer who needs no language model.

It names itself only when asked, states its wishes one by one, says yes to what it wants and
corrects what it does not want. It knows its instruction and the names of the shop's products.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from agentrl_cli.envs.tau import intents
from agentrl_cli.envs.tau.instruction import Instruction, Item, Request, parse_instruction
from agentrl_cli.envs.tau.proposals import objection
from agentrl_cli.envs.tau.users import STOP, Reply, User

OPENERS = ("Hi!", "Hello.", "Good day.", "")


@dataclass
class RetailUser(User):
    """`products` are the shop's product names, to notice an item that nobody asked for."""

    instruction: Instruction
    products: list[str]
    rng: random.Random
    request_index: int = 0
    confirmed: bool = False

    @classmethod
    def of(cls, text: str, seed: int, products: list[str]) -> RetailUser:
        """The user of an instruction's text. UserError where that is not templated."""
        return cls(parse_instruction(text), products, random.Random(seed))

    @property
    def request(self) -> Request:
        """The wish in work."""
        return self.instruction.requests[self.request_index]

    def start(self) -> Reply:
        """A greeting and the first wish."""
        return Reply(f"{self.rng.choice(OPENERS)} {request_text(self.request)}".strip())

    def reply(self, message: str) -> Reply:
        """Identity, a yes or a correction, the next wish, or the present one again."""
        if intents.asks_identity(message):
            return Reply(self._identify())
        if intents.asks_confirmation(message):
            return Reply(self._confirm(message))
        if intents.asks_something(message):
            return Reply(request_text(self.request))
        if intents.reports_completion(message):
            return self._next()
        if intents.asks_for_more(message):
            return self._next() if self.confirmed else Reply("No, only that.")
        if self.confirmed and not intents.OPEN_QUESTION.search(message):
            return self._next()
        return Reply(request_text(self.request))

    def _identify(self) -> str:
        who, known = self.instruction, f"My name is {self.instruction.name}"
        if who.email:
            return f"{known} and my email is {who.email}. I do not remember my zip code."
        return f"{known} and my zip code is {who.zip}. I do not remember my email."

    def _confirm(self, message: str) -> str:
        wrong = objection(self.request, self.products, message)
        if wrong:
            return f"No, {wrong}. {request_text(self.request)}"
        self.confirmed = True
        return self.rng.choice(("Yes, please.", "Yes, that is right.", "Yes, go ahead."))

    def _next(self) -> Reply:
        self.request_index, self.confirmed = self.request_index + 1, False
        if self.request_index < len(self.instruction.requests):
            return Reply(request_text(self.request))
        self.request_index = len(self.instruction.requests) - 1
        return Reply(STOP)


def request_text(wish: Request) -> str:
    """A wish in words, all that the instruction holds of it."""
    items = "; ".join(_item_text(item) for item in wish.items)
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


def _item_text(item: Item) -> str:
    text = f"{item.name} ({_options_text(item.options)})" if item.options else item.name
    return f"{text} for one with {_options_text(item.wanted)}" if item.wanted else text


def _options_text(options: dict[str, str]) -> str:
    return ", ".join(f"{key} {value}" for key, value in options.items())
