"""The corpus behind the embedded model of the small shop: mediocre service, and NLAC's roles.

Every text is of another shop with other orders, so that no task of the environment is ever shown.
No text is an expert's: forecasts tell how really played conversations went on, critiques compare
such ends, and a refinement is another draw of the same clerk.
"""

from __future__ import annotations

import copy
import random
from dataclasses import dataclass

from agentrl_cli.algos.nlac.prompts import fill
from agentrl_cli.core.types import Message, Step, Turn
from agentrl_cli.corpora.base import UNTRAINED, Corpus, CritiqueExample, Writer, role_turns
from agentrl_cli.corpora.clerk import Clerk, ClerkErrorRates, ClerkState
from agentrl_cli.envs.tau.data import Domain
from agentrl_cli.envs.tau.env import TauBench
from agentrl_cli.envs.tau.mini import make_shop
from agentrl_cli.envs.tau.mini_user import MiniUser

MORE_ITEMS_SHARE = 2 / 3  # of the returns in which the customer wants more, as in the tasks
SUCCESS, FAILURE = "Success.", "Failure."


@dataclass(kw_only=True)
class OtherShop(TauBench):
    """The environment with a shop that is given."""

    shop: Domain

    @property
    def domain_data(self) -> Domain:
        """The given shop."""
        return self.shop


@dataclass
class Snapshot:
    """A conversation before an action: the world, what the clerk knows, the last observation."""

    env: OtherShop
    state: ClerkState
    observation: list[Message]

    def fork(self) -> Snapshot:
        """A snapshot that can be played on without changing this one."""
        env = copy.copy(self.env)
        env.conversation = copy.deepcopy(self.env.conversation)
        return Snapshot(env, copy.deepcopy(self.state), self.observation)


@dataclass
class Transition:
    """What was done at a snapshot, and what came of it."""

    before: Snapshot
    action: str
    step: Step


@dataclass(kw_only=True)
class TauCorpus(Corpus):
    """Writes conversations of a clerk with `habits` in shops like that of `env`."""

    env: TauBench
    habits: ClerkErrorRates

    def __post_init__(self) -> None:
        super().__post_init__()
        self.clerk = Clerk(self.habits)

    def writers(self) -> dict[str, Writer]:
        """Conversations, and the four roles."""
        return {
            "service": self.service, "forecast": self.forecast, "backup": self.backup,
            "evaluate": self.evaluate, "refine": self.refine,
        }  # fmt: skip

    def service(self, rng: random.Random) -> list[Turn]:
        """A whole conversation."""
        return _as_turns(self.play(rng))

    def forecast(self, rng: random.Random) -> list[Turn]:
        """What an action led to: the one that was played, or another draw, played on."""
        played = self.play(rng)
        at = rng.randrange(len(played))
        action, future = played[at].action, played[at:]
        if rng.random() >= 0.5:
            action = self._other_action(played[at], rng)
            future = self._imagine(played[at].before, action, rng)
        turns = _turns_up_to(played, at, action)
        return role_turns(turns, self.prompts.forecast, true_forecast(future))

    def backup(self, rng: random.Random) -> list[Turn]:
        """The response seen and a forecast from the next action make a forecast of this one."""
        played = self.play(rng)
        while len(played) < 2:
            played = self.play(rng)
        at = rng.randrange(len(played) - 1)
        response = "\n".join(message.content for message in played[at].step.messages)
        later = true_forecast(played[at + 1 :])
        prompt = fill(self.prompts.backup, response=response, forecast=later)
        return role_turns(_as_turns(played[: at + 1]), prompt, true_forecast(played[at:]))

    def critique_example(self, rng: random.Random) -> CritiqueExample:
        """The played action or another one, judged by the ends imagined from both."""
        played = self.play(rng)
        at = rng.randrange(len(played))
        action, other = played[at].action, self._other_action(played[at], rng)
        if rng.random() < 0.5:
            action, other = other, action
        mine, others = (self._ends(played[at], choice, rng) for choice in (action, other))
        prompt, critique = self.evaluation_prompt(mine, others), write_critique(mine, others)
        refinement = other if critique.startswith("Optimality: No") else action
        return CritiqueExample(_turns_up_to(played, at, action), prompt, critique, refinement)

    def _ends(self, played: Transition, action: str, rng: random.Random) -> list[str]:
        """Forecasts of an action, as many as a critique reads."""
        imagined = (self._imagine(played.before, action, rng) for _ in range(self.forecasts))
        return [true_forecast(future) for future in imagined]

    def play(self, rng: random.Random) -> list[Transition]:
        """A conversation of the clerk in a new shop."""
        shop = make_shop(rng, 1)
        env = OtherShop(shop=shop, **{name: getattr(self.env, name) for name in _SETTINGS})
        task = env.tasks("train")[rng.randrange(len(shop.tasks["train"]))]
        observation = env.reset(task, rng.randrange(1 << 30))
        start = Snapshot(env, ClerkState(self.clerk.draw_errors(rng)), observation)
        return self._play_on(start, rng)

    def _play_on(
        self, now: Snapshot, rng: random.Random, action: str | None = None
    ) -> list[Transition]:
        """Play until the end, `action` first where one is given; `now` moves on."""
        played: list[Transition] = []
        while not played or not (played[-1].step.done or played[-1].step.truncated):
            self.clerk.observe(now.state, now.observation[-1].content)
            before = now.fork()
            choice = self.clerk.choose_action(now.state, rng) if action is None else action
            action = None
            step = now.env.step(choice)
            played.append(Transition(before, choice, step))
            now.observation = step.messages
        return played

    def _imagine(self, before: Snapshot, action: str, rng: random.Random) -> list[Transition]:
        """Act and go on, with newly drawn errors and a customer of whom only what was said is
        known."""
        now = before.fork()
        redraw_unspoken_wish(now, rng)
        now.state.errors = self.clerk.draw_errors(rng)
        now.state.asked_for_more |= "more?" in action
        return self._play_on(now, rng, action)

    def _other_action(self, played: Transition, rng: random.Random) -> str:
        """Another action at the same snapshot, if a few draws find one."""
        for _ in range(8):
            state = copy.deepcopy(played.before.state)
            state.errors = self.clerk.draw_errors(rng)
            action = self.clerk.choose_action(state, rng)
            if action != played.action:
                return action
        return "It is finished." if played.action != "It is finished." else "What is your zip?"


_SETTINGS = ("domain", "data", "user", "actions", "turns", "holdout", "llm")


def redraw_unspoken_wish(now: Snapshot, rng: random.Random) -> None:
    """Draw again what nobody has asked for: whether the customer wants more of an order back."""
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


def true_forecast(played: list[Transition]) -> str:
    """A forecast that came true: the response, what was then written, and how it ended."""
    response = played[0].step.messages[-1].content.split("\n")[0]
    writes = [later.step.messages[-1].content for later in played[1:] if _is_write(later)]
    written = writes[-1:] if not played[0].step.done else []
    return " ".join([response, *written, SUCCESS if played[-1].step.reward else FAILURE])


def write_critique(mine: list[str], others: list[str]) -> str:
    """The critique that the ends bear out: optimal unless the other action ends better."""
    wins, other_wins = (sum(text.endswith(SUCCESS) for text in texts) for texts in (mine, others))
    if wins >= other_wins:
        return "Optimality: Yes. It ends as well as another turn."
    return "Optimality: No. It ends worse than another turn."


def _is_write(played: Transition) -> bool:
    return played.step.info["tool"] in ("cancel", "return", "transfer")


def _as_turns(played: list[Transition]) -> list[Turn]:
    turns = [Turn(list(t.before.observation), t.action, [], [], []) for t in played]
    turns[0].observation.insert(0, Message("system", played[0].before.env.system()))
    return turns


def _turns_up_to(played: list[Transition], at: int, action: str) -> list[Turn]:
    """The conversation up to number `at` with `action` in its place; another action than was played
    is seen but not taught."""
    turns = _as_turns(played[: at + 1])
    if action != played[at].action:
        turns[-1].action, turns[-1].info = action, dict(UNTRAINED)
    return turns
