"""The corpus behind the embedded model of the small shop: mediocre service, and NLAC's roles.

Every text is of another shop with other orders, so that no task of the environment is ever shown.
No text is an expert's: forecasts check an action against what was observed and tell how really
played conversations went on, critiques compare such forecasts, and a refinement is another draw of
the same clerk.
"""

from __future__ import annotations

import copy
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from agentrl_cli.algos.nlac.prompts import fill
from agentrl_cli.core.types import Episode, Message, Step, Turn
from agentrl_cli.corpora.base import (
    READ_FORECASTS,
    ROLLOUTS,
    UNTRAINED,
    Branch,
    Corpus,
    CritiqueExample,
    Text,
    best_of_rollouts,
    branches_of,
    rollout_line,
)
from agentrl_cli.corpora.clerk import RULES, Clerk, ClerkHabits, ClerkState, check
from agentrl_cli.envs.base import Env
from agentrl_cli.envs.tau.data import Domain
from agentrl_cli.envs.tau.env import TauBench
from agentrl_cli.envs.tau.mini import ITEMS, make_shop
from agentrl_cli.envs.tau.mini_user import MiniUser

MORE_ITEMS_SHARE = 2 / 3  # of the returns in which the customer wants more, as in the tasks
SUCCESS, FAILURE = "Success.", "Failure."
WRITING = ("cancel", "return", "transfer")  # tools of which a forecast tells
ENDING = ("transfer()", "It is finished.")  # actions after which little more is said
CUSTOMERS = 20  # of a shop in which the model plays
FACTS = 6  # of a text of them; a third more are of items that the customer hardly has
IMAGINED = 8  # conversations that decide a verdict
CLEARLY_WORSE = 0.2  # success rates that differ by less count as equal in a verdict


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
    habits: ClerkHabits

    def __post_init__(self) -> None:
        super().__post_init__()
        self.clerk = Clerk(self.habits)

    def exercises(self) -> dict[str, Callable[[random.Random], list[Turn] | Text]]:
        """Questions about orders, actions of any kind."""
        return {"facts": self.facts, "wild": self.wild}

    def facts(self, rng: random.Random) -> Text:
        """Looks at orders, which are not taught, and where items are: what all service rests on."""
        now = self._start(rng)
        tables = now.env.domain_data.tables
        zip_code, orders = tables["users"]["user_0"]["zip"], tables["orders"]
        looks = [f"get({number})" for number in rng.choices([*orders], k=rng.randint(1, 5))]
        played = self._follow(now, ["What is your zip?", f"find({zip_code})", *looks])
        self.clerk.observe(now.state, now.observation[-1].content, rng)
        played += self._follow(now, [self.clerk.any_action(now.state, rng)])
        places = {i: f"{n} {status}" for n, (status, held) in now.state.seen.items() for i in held}
        there = [item for order in orders.values() for item in order["items"]]
        branches = [
            Branch(len(played) - 1, f"My {item}?", f"{item} {places.get(item, 'not seen')}.")
            for item in [*rng.sample(there, FACTS), *rng.sample(ITEMS, FACTS // 3)]
        ]
        return Text("facts", _untaught(_turns_of(played)), branches)

    def _follow(self, now: Snapshot, actions: Sequence[str]) -> list[Transition]:
        """Do as given; `now` moves on."""
        played = list[Transition]()
        for action in actions:
            self.clerk.observe(now.state, now.observation[-1].content, random.Random(0))
            played.append(self._act(now, action, now.fork()))
        return played

    def _act(self, now: Snapshot, action: str, before: Snapshot) -> Transition:
        """Do this; `now` moves on from `before`."""
        self.clerk.note(now.state, action)
        step = now.env.step(action)
        now.observation = step.messages
        return Transition(before, action, step)

    def wild(self, rng: random.Random) -> Text:
        """Actions of any kind, which are not taught, each with a forecast, as another one has."""
        played = self.wander(rng)
        branches = [
            Branch(at, self.prompts.forecast, true_forecast(self._imagine(t.before, a, rng)), a)
            for at, t in enumerate(played)
            for a in (t.action, self._other_action(t, rng, any_kind=0.8))
        ]
        return Text("wild", _untaught(_turns_of(played)), branches)

    def wander(self, rng: random.Random) -> list[Transition]:
        """A conversation of actions of any kind. A clerk finds what it looks for in the order that
        it looked at last: from its play alone a forecast would learn to recall that one."""
        now, played = self._start(rng), list[Transition]()
        while not played or not (played[-1].step.done or played[-1].step.truncated):
            self.clerk.observe(now.state, now.observation[-1].content, rng)
            before, action = now.fork(), self._wild_action(now, rng)
            played.append(self._act(now, action, before))
        return played

    def _wild_action(self, now: Snapshot, rng: random.Random) -> str:
        """What the clerk would do or, as often, anything; half of the time, and mostly in place of
        what would end the conversation, a look at any order."""
        own = rng.random() < 0.5
        action = self._fresh_action(now, rng) if own else self.clerk.any_action(now.state, rng)
        if now.state.orders and rng.random() < (0.8 if action in ENDING else 0.5):
            return f"get({rng.choice(now.state.orders)})"
        return action

    def play(self, rng: random.Random, roles: Mapping[str, float]) -> Text:
        """A whole conversation, and what roles say of its actions."""
        played = self.converse(rng)
        writers = {
            "forecast": self._forecast, "explored": self._explored_forecast,
            "backup": self._backup, "evaluate": self._evaluate, "refine": self._refine,
            "rollouts": self._refine_by_rollouts, "aggregate": self._aggregate,
        }  # fmt: skip
        turns = _turns_of(played)
        said = branches_of(turns, roles, rng, lambda role, at: writers[role](played, at, rng))
        return Text("play", turns, said)

    def converse(self, rng: random.Random) -> list[Transition]:
        """A conversation of the clerk in a new shop."""
        return self._play_on(self._start(rng), rng)

    def _start(self, rng: random.Random) -> Snapshot:
        """A customer's first words in a new shop."""
        env = self._other_shop(rng, 1)
        task = rng.choice(env.tasks("train"))
        return Snapshot(env, ClerkState(), env.reset(task, rng.randrange(1 << 30)))

    def other_world(self, rng: random.Random) -> Env:
        """A shop with other customers."""
        return self._other_shop(rng, CUSTOMERS)

    def _other_shop(self, rng: random.Random, customers: int) -> OtherShop:
        settings = {name: getattr(self.env, name) for name in _SETTINGS}
        return OtherShop(shop=make_shop(rng, customers), **settings)

    # the roles, each behind number `at` of what was played

    def _forecast(self, played: list[Transition], at: int, rng: random.Random) -> Branch:
        """What an action led to."""
        return Branch(at, self.prompts.forecast, true_forecast(played[at:]))

    def _explored_forecast(self, played: list[Transition], at: int, rng: random.Random) -> Branch:
        """What another action leads to, mostly of any kind, played on: what a forecast recalls must
        come from the conversation, and not from what this action would be done after."""
        action = self._other_action(played[at], rng, any_kind=0.8)
        future = self._imagine(played[at].before, action, rng)
        return Branch(at, self.prompts.forecast, true_forecast(future), action)

    def _backup(self, played: list[Transition], at: int, rng: random.Random) -> Branch | None:
        """The response seen and a forecast of an action that may follow make a forecast of this
        one: its own check, the response, and what was foretold."""
        if at + 1 == len(played):
            return None
        following = played[at + 1].before
        imagined = self._imagine(following, self._fresh_action(following, rng), rng)
        response = "\n".join(message.content for message in played[at].step.messages)
        prompt = fill(self.prompts.backup, response=response, forecast=true_forecast(imagined))
        return Branch(at, prompt, true_forecast([played[at], *imagined]))

    def _evaluate(self, played: list[Transition], at: int, rng: random.Random) -> Branch:
        """A critique of what forecasts of an action and of another one bear out."""
        return self.critique_branch(self._critique_example(played[at], at, rng))

    def _refine(self, played: list[Transition], at: int, rng: random.Random) -> Branch:
        """The same action where its critique approves of it, else another draw without it."""
        return self.refinement_branch(self._critique_example(played[at], at, rng))

    def _refine_by_rollouts(self, played: list[Transition], at: int, rng: random.Random) -> Branch:
        """The action that succeeded most often in a few plays from here; another draw of the clerk
        where none did."""
        before = played[at].before
        actions = [self._fresh_action(before, rng) for _ in range(ROLLOUTS)]
        futures = [self._imagine(before, action, rng) for action in actions]
        lines = [
            rollout_line(action, f"{_response(future[0])} {_outcome(future)}")
            for action, future in zip(actions, futures, strict=True)
        ]
        best = best_of_rollouts(actions, [bool(future[-1].step.reward) for future in futures])
        prompt = fill(self.prompts.refine_by_rollouts, rollouts="\n".join(lines))
        return Branch(at, prompt, best or self._fresh_action(before, rng), actions[0])

    def _aggregate(self, played: list[Transition], at: int, rng: random.Random) -> Branch | None:
        """How a few plays ended that went on from an action make a forecast of it."""
        if at + 1 == len(played):
            return None
        following = played[at + 1].before
        futures = [
            self._imagine(following, self._fresh_action(following, rng), rng)
            for _ in range(ROLLOUTS)
        ]
        ends = [f"{_response(future[-1])} {_outcome(future)}" for future in futures]
        prompt = fill(
            self.prompts.aggregate, response=_response(played[at]), rollouts="\n".join(ends)
        )
        return Branch(at, prompt, true_forecast([played[at], *rng.choice(futures)]))

    def true_forecasts(self, episode: Episode) -> list[str]:
        """Of each action a check, the response, what was last written, and how it ended."""
        state, draw, checks = ClerkState(), random.Random(0), list[str]()
        for turn in episode.turns:
            self.clerk.observe(state, turn.observation[-1].content, draw)
            checks.append(check(state, turn.action))
            self.clerk.note(state, turn.action)
        responses = [episode.response(i)[-1].content for i in range(len(episode.turns))]
        writes = [t.info["tool"] in WRITING for t in episode.turns]
        end, texts = SUCCESS if episode.success else FAILURE, []
        for i, checked in enumerate(checks[:-1]):
            later = [
                r for r, write in zip(responses[i + 1 :], writes[i + 1 :], strict=True) if write
            ]
            texts.append(" ".join([checked, responses[i].split("\n")[0], *later[-1:], end]))
        return [*texts, f"{responses[-1].split(chr(10))[0]} {end}"]

    def _critique_example(self, played: Transition, at: int, rng: random.Random) -> CritiqueExample:
        """The played action or, more often, another one, judged by the ends imagined from it and
        from a draw of the clerk."""
        action = played.action if rng.random() < 0.3 else self._other_action(played, rng)
        other = self._fresh_action(played.before, rng)
        sides = [
            [true_forecast(self._imagine(played.before, a, rng)) for _ in range(IMAGINED)]
            for a in (action, other)
        ]
        critique, count, refinement = write_critique(*sides), rng.choice(READ_FORECASTS), action
        if critique.startswith("Optimality: No"):
            for _ in range(20):
                refinement = self._fresh_action(played.before, rng)
                if refinement != action:
                    break
        mine, others = (texts[:count] for texts in sides)
        return CritiqueExample(at, action, mine, others, critique, refinement)

    def _play_on(
        self, now: Snapshot, rng: random.Random, action: str | None = None
    ) -> list[Transition]:
        """Play until the end, `action` first where one is given; `now` moves on. Behind a given
        action only the first snapshot is kept."""
        imagined = action is not None
        played: list[Transition] = []
        while not played or not (played[-1].step.done or played[-1].step.truncated):
            if played or action is None:
                self.clerk.observe(now.state, now.observation[-1].content, rng)
            before = now if imagined and played else now.fork()
            choice = self.clerk.choose_action(now.state, rng) if action is None else action
            action = None
            played.append(self._act(now, choice, before))
        return played

    def _imagine(self, before: Snapshot, action: str, rng: random.Random) -> list[Transition]:
        """Act and go on, with newly drawn errors and a customer of whom only what was said is
        known."""
        now = before.fork()
        redraw_unspoken_wish(now, rng)
        now.state.errors = self.habits.draw_errors(now.state.item, rng)
        return self._play_on(now, rng, action)

    def _fresh_action(self, before: Snapshot, rng: random.Random) -> str:
        """Another draw of the clerk."""
        errors = self.habits.draw_errors(before.state.item, rng)
        return self.clerk.choose_action(replace(before.state, errors=errors), rng)

    def _other_action(self, played: Transition, rng: random.Random, any_kind: float = 0.5) -> str:
        """An action of any kind with this probability, else the clerk's."""
        if rng.random() < any_kind:
            return self.clerk.any_action(played.before.state, rng)
        return self._fresh_action(played.before, rng)


_SETTINGS = ("domain", "data", "user", "actions", "turns", "holdout", "llm")


def _turns_of(played: list[Transition]) -> list[Turn]:
    turns = [Turn(list(t.before.observation), t.action, [], [], []) for t in played]
    turns[0].observation.insert(0, Message("system", played[0].before.env.system()))
    return turns


def _untaught(turns: list[Turn]) -> list[Turn]:
    for turn in turns:
        turn.info.update(UNTRAINED)
    return turns


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
    """A forecast that came true: a check of the action unless it is the last one, the response,
    what was then written, and how it ended."""
    first = played[0]
    response = first.step.messages[-1].content.split("\n")[0]
    end = SUCCESS if played[-1].step.reward else FAILURE
    if first.step.done or first.step.truncated:
        return f"{response} {end}"
    writes = [later.step.messages[-1].content for later in played[1:] if _is_write(later)]
    return " ".join([check(first.before.state, first.action), response, *writes[-1:], end])


def write_critique(mine: Sequence[str], others: Sequence[str]) -> str:
    """The critique that forecasts bear out: not optimal where the action breaks a rule, which is
    named, and does not end better than the other one, or ends clearly worse."""
    wins, other_wins = (sum(text.endswith(SUCCESS) for text in texts) for texts in (mine, others))
    checked = Counter(map(rule_of, mine)).most_common(1)[0][0]
    if checked in RULES and wins <= other_wins:
        return f"Optimality: No. {checked}"
    if wins < other_wins - CLEARLY_WORSE * len(mine):
        return "Optimality: No. It ends worse than another turn."
    return "Optimality: Yes. It ends as well as another turn."


def rule_of(forecast: str) -> str:
    """The second sentence of a forecast, which of all but a last action names the rule broken."""
    return f"{'. '.join([*forecast.split('. '), ''][1:2]).rstrip('.')}."


def _is_write(played: Transition) -> bool:
    return played.step.info["tool"] in WRITING


def _response(played: Transition) -> str:
    return "\n".join(message.content for message in played.step.messages)


def _outcome(played: list[Transition]) -> str:
    return SUCCESS if played[-1].step.reward else FAILURE
