"""The corpus of the bundled model of the small shop: mediocre service, and NLAC's roles.

Every text has a different shop with other orders, so no task of the environment occurs. Forecasts
check an action and describe how conversations went on, critiques compare such forecasts, and a
refinement is another draw of the same clerk.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from agentrl_cli.core.types import Episode, Message, Turn
from agentrl_cli.envs.base import Env
from agentrl_cli.envs.tau.data import Domain
from agentrl_cli.envs.tau.env import TauBench
from agentrl_cli.envs.tau.mini import RARE_TASK_KINDS, TASK_KINDS, MiniUser, look_for, make_shop
from tools.tiny_models.base import Text
from tools.tiny_models.clerk import RULES, Clerk, ClerkHabits, ClerkState, behind, check, last_line
from tools.tiny_models.played import (
    FAILURE,
    SUCCESS,
    PlayedCorpus,
    Transition,
    outcome,
    response,
    verdict,
)

MORE_ITEMS_SHARE = 2 / 3  # of the returns in which the customer wants more, as in the tasks
WRITING = ("cancel", "return", "transfer")  # tools of which a forecast tells
ENDING = ("transfer()", "It is finished.")  # actions after which little more is said
RARE_SHARE = 1 / 3  # of the customers of played texts; of the environment's own it is a fifth
CUSTOMERS = 20  # of a shop in which the model plays


@dataclass(kw_only=True)
class OtherShop(TauBench):
    """The environment with a shop that is given."""

    shop: Domain

    def domain_of(self, split: str) -> Domain:
        return self.shop


@dataclass
class Snapshot:
    """A conversation before an action: the environment, the clerk's state, the last observation."""

    env: OtherShop
    state: ClerkState
    observation: list[Message]

    def fork(self) -> Snapshot:
        env = copy.copy(self.env)
        env.conversation = copy.deepcopy(self.env.conversation)
        return Snapshot(env, copy.deepcopy(self.state), self.observation)


@dataclass(kw_only=True)
class TauCorpus(PlayedCorpus[Snapshot]):
    """Writes conversations of a clerk with `habits` in shops like that of `env`."""

    env: TauBench
    habits: ClerkHabits

    def __post_init__(self) -> None:
        super().__post_init__()
        self.clerk = Clerk(self.habits)

    def exercises(self) -> dict[str, Callable[[random.Random], list[Turn] | Text]]:
        return {"wild": self.wild}

    def act(self, now: Snapshot, action: str, before: Snapshot) -> Transition[Snapshot]:
        self.clerk.note(now.state, action)
        step = now.env.step(action)
        now.observation = step.messages
        return Transition(before, action, step)

    def wander(self, rng: random.Random) -> list[Transition[Snapshot]]:
        """Return a conversation with random actions. From the clerk's play alone, a forecast would
        learn to repeat the last order that was found."""
        now, played = self.start(rng), list[Transition[Snapshot]]()
        while not played or not played[-1].is_last:
            self.clerk.observe(now.state, now.observation[-1].content, rng)
            before, action = now.fork(), self._wild_action(now, rng)
            played.append(self.act(now, action, before))
        return played

    def _wild_action(self, now: Snapshot, rng: random.Random) -> str:
        """Return the clerk's action or, in half of all cases, a random one, mostly in place of an
        end of the conversation; in a fifth of all cases look up another item of the customer."""
        own = rng.random() < 0.5
        action = self.fresh_action(now, rng) if own else self.clerk.any_action(now.state, rng)
        while last_line(action) in ENDING and rng.random() < 0.8:
            action = self.clerk.any_action(now.state, rng)
        if not now.state.zip or rng.random() < 0.8:
            return action
        tables, conversation = now.env.domain_data.tables, now.env.conversation
        assert conversation is not None
        mine = tables["users"][conversation.task["user_id"]]["orders"]
        item = rng.choice([item for number in mine for item in tables["orders"][number]["items"]])
        return behind(look_for(item), f"find({now.state.zip}, {item})")

    def start(self, rng: random.Random) -> Snapshot:
        env = self._other_shop(rng, len(RARE_TASK_KINDS))
        is_rare = rng.random() < RARE_SHARE
        kinds = len(TASK_KINDS) + 1  # of each customer, a rare one last
        of_kind = [
            row for row in env.tasks("train") if (row.data["id"] % kinds == kinds - 1) is is_rare
        ]
        task = rng.choice(of_kind)
        return Snapshot(env, ClerkState(), env.reset(task, rng.randrange(1 << 30)))

    def other_world(self, rng: random.Random) -> Env:
        return self._other_shop(rng, CUSTOMERS)

    def _other_shop(self, rng: random.Random, customers: int) -> OtherShop:
        settings = {name: getattr(self.env, name) for name in _SETTINGS}
        return OtherShop(shop=make_shop(rng, customers), **settings)

    def true_forecasts(self, episode: Episode) -> list[str]:
        state, draw, checks = ClerkState(), random.Random(0), list[str]()
        for turn in episode.turns:
            self.clerk.observe(state, turn.observation[-1].content, draw)
            checks.append(check(state, turn.action))
            self.clerk.note(state, turn.action)
        responses = [episode.response(i)[-1].content for i in range(len(episode.turns))]
        told = [in_short(response) for response in responses]
        writes = [t.info["tool"] in WRITING for t in episode.turns]
        end, texts = SUCCESS if episode.success else FAILURE, []
        for i, checked in enumerate(checks[:-1]):
            later = [r for r, write in zip(told[i + 1 :], writes[i + 1 :], strict=True) if write]
            texts.append(" ".join([checked, told[i], *later[-1:], end]))
        return [*texts, f"{checks[-1]} {responses[-1]} {end}"]

    def look(self, now: Snapshot, rng: random.Random) -> None:
        self.clerk.observe(now.state, now.observation[-1].content, rng)

    def choose_action(self, now: Snapshot, rng: random.Random) -> str:
        return self.clerk.choose_action(now.state, rng)

    def fresh_action(self, before: Snapshot, rng: random.Random) -> str:
        errors = self.habits.draw_errors(before.state.item, rng)
        return self.clerk.choose_action(replace(before.state, errors=errors), rng)

    def any_action(self, before: Snapshot, rng: random.Random) -> str:
        return self.clerk.any_action(before.state, rng)

    def redraw_unknown(self, now: Snapshot, rng: random.Random) -> None:
        redraw_unspoken_wish(now, rng)
        now.state.errors = self.habits.draw_errors(now.state.item, rng)

    def true_forecast(self, played: list[Transition[Snapshot]]) -> str:
        first, end = played[0], outcome(played)
        checked = check(first.before.state, first.action)
        if first.is_last:
            return f"{checked} {response(first)} {end}"
        writes = [in_short(response(later)) for later in played[1:] if _is_write(later)]
        return " ".join([checked, in_short(response(first)), *writes[-1:], end])

    def critique(self, mine: Sequence[str], others: Sequence[str]) -> str:
        return verdict(mine, others, RULES)


_SETTINGS = ("domain", "data", "user", "actions", "max_turns", "holdout", "llm")


def redraw_unspoken_wish(now: Snapshot, rng: random.Random) -> None:
    """Draw again whether the customer wants more of an order, if it was not mentioned."""
    conversation = now.env.conversation
    if conversation is None or not isinstance(conversation.user, MiniUser):
        return
    wish = conversation.user.wishes[0]
    if wish["kind"] != "return" or conversation.user.was_asked_for_more:
        return
    items = now.env.domain_data.tables["orders"][wish["order"]]["items"]
    others = [item for item in items if item != wish["item"]]
    wish["more"] = rng.sample(others, 1) if rng.random() < MORE_ITEMS_SHARE else []
    for action in conversation.task["actions"]:
        if action["name"] == "return" and action["kwargs"]["order"] == wish["order"]:
            action["kwargs"]["items"] = [wish["item"], *wish["more"]]


def in_short(response: str) -> str:
    """Return a response in short for a forecast: its first sentence, or that it is an error."""
    if response.startswith("Error"):
        return "Error."
    return f"{response.split('. ')[0].removesuffix('.')}."


def _is_write(played: Transition[Snapshot]) -> bool:
    return played.step.info["tool"] in WRITING
