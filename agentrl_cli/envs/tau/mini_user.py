"""The scripted user of the small shop: reactive, truthful, and silent about what nobody asks."""

from __future__ import annotations

import random
import re
from typing import Any

from agentrl_cli.envs.tau.mini import ITEMS, wish_sentence
from agentrl_cli.envs.tau.users import STOP, Reply, User

COMPLETION = re.compile(r"\b(finished|done|sorry|cannot|cancelled|returned)\b")
STATUS = re.compile(r"\b(pending|delivered|cancelled|returned)\b")


class MiniUser(User):
    """States its wishes one by one, gives its zip when asked, names further items when asked for
    more, and confirms only what it wants."""

    def __init__(self, task: dict[str, Any], seed: int) -> None:
        self.zip: str = task["zip"]
        self.wishes: list[dict[str, Any]] = list(task["requests"])
        self.please = "Please" if random.Random(seed).random() < 0.5 else "I would like to"
        self.was_asked_for_more = False

    def start(self) -> Reply:
        """The first wish."""
        return Reply(self._state())

    def reply(self, message: str) -> Reply:
        """What the words ask for: the zip, a yes or no, more items; else what comes next."""
        words = message.lower()
        if "zip" in words:
            return Reply(f"It is {self.zip}.")
        if "yes or no" in words:
            return Reply(self._confirm(words))
        if re.search(r"\bmore\b", words):
            return Reply(self._more())
        asks_status = self.wishes[0]["kind"] == "status"
        if COMPLETION.search(words) or (asks_status and STATUS.search(words)):
            return self._next()
        return Reply(self._state())

    def _state(self) -> str:
        return wish_sentence(self.wishes[0], self.please)

    def _more(self) -> str:
        more = self.wishes[0]["more"]
        self.was_asked_for_more = True
        return f"The {' and the '.join(more)} too." if more else "No more."

    def _confirm(self, words: str) -> str:
        """Yes to the wish in its own words; the items it has named must all be there, and no
        other."""
        wish, kind = self.wishes[0], self.wishes[0]["kind"]
        wanted = {wish["item"], *(wish["more"] if self.was_asked_for_more else ())}
        named = {item for item in ITEMS if re.search(rf"\b{item}\b", words)}
        wrong = {"return": ("cancel",), "cancel": ("return",)}.get(kind, ("return", "cancel"))
        incomplete = kind == "return" and named != wanted
        if any(act in words for act in wrong) or incomplete or not named <= wanted:
            return f"No. {self._state()}"
        return "Yes."

    def _next(self) -> Reply:
        self.was_asked_for_more = False
        if len(self.wishes) == 1:
            return Reply(STOP)
        self.wishes.pop(0)
        return Reply(self._state())
