"""The corpus behind the embedded model of the small shop: mediocre service, and NLAC's roles.

Every text is of another shop with other orders, so that no task of the environment is ever shown.
No text is an expert's: forecasts tell how really played conversations went on, verdicts compare
such ends, and a refinement is another draw of the same clerk.
"""

from __future__ import annotations

import copy
import random
from dataclasses import dataclass

from agentrl_cli.algos.nlac.algorithm import NLAC
from agentrl_cli.algos.nlac.prompts import fill
from agentrl_cli.core.types import Episode, Message, Step, Task, Turn
from agentrl_cli.corpora.base import Corpus
from agentrl_cli.corpora.clerk import Clerk, Habits, Notes
from agentrl_cli.envs.tau.data import Domain
from agentrl_cli.envs.tau.env import TauBench
from agentrl_cli.envs.tau.mini import shop
from agentrl_cli.envs.tau.mini_user import MiniUser

UNTRAINED = {"weight": 0.0}
MORE = 2 / 3  # share of the returns in which the customer wants more, as in the tasks
RIGHT, WRONG = "Success.", "Failure."


@dataclass(kw_only=True)
class OtherShop(TauBench):
    """The environment with a shop that is given."""

    shop: Domain

    @property
    def service(self) -> Domain:
        """The given shop."""
        return self.shop


@dataclass
class Moment:
    """A conversation before an action: the world, the clerk's notes, what was heard last."""

    env: OtherShop
    notes: Notes
    heard: list[Message]

    def fork(self) -> Moment:
        """A moment that can be played on without changing this one."""
        env = copy.copy(self.env)
        env.conversation = copy.deepcopy(self.env.conversation)
        return Moment(env, copy.deepcopy(self.notes), self.heard)


@dataclass
class Move:
    """What was done at a moment, and what came of it."""

    before: Moment
    action: str
    step: Step


@dataclass(kw_only=True)
class TauCorpus(Corpus):
    """Writes texts of any kind; the prompts of the roles, and how many forecasts a critique reads,
    are those of `nlac`."""

    env: TauBench
    habits: Habits
    nlac: NLAC

    def __post_init__(self) -> None:
        self.clerk = Clerk(self.habits)
        self.prompts, self.forecasts = self.nlac.prompts, self.nlac.forecasts

    def _episode(self, kind: str, seed: int) -> Episode:
        writers = {
            "service": self.service, "forecast": self.forecast, "backup": self.backup,
            "evaluate": self.evaluate, "refine": self.refine,
        }  # fmt: skip
        task = Task(f"corpus-{kind}", "train", {"kind": kind})
        return Episode(f"{kind}-{seed}", task, kind, seed, writers[kind](random.Random(seed)))

    def service(self, rng: random.Random) -> list[Turn]:
        """A whole conversation."""
        return _turns(self.play(rng))

    def forecast(self, rng: random.Random) -> list[Turn]:
        """What an action led to: the one that was played, or another draw, played on."""
        moves = self.play(rng)
        at = rng.randrange(len(moves))
        if rng.random() < 0.5:
            return self._role(_turns(moves[: at + 1]), self.prompts.forecast, told(moves[at:]))
        action = self._other(moves[at], rng)
        played = self._imagine(moves[at].before, action, rng)
        return self._role(_ending_in(moves, at, action), self.prompts.forecast, told(played))

    def backup(self, rng: random.Random) -> list[Turn]:
        """The response seen and a forecast from the next action make a forecast of this one."""
        moves = self.play(rng)
        while len(moves) < 2:
            moves = self.play(rng)
        at = rng.randrange(len(moves) - 1)
        response = "\n".join(message.content for message in moves[at].step.messages)
        prompt = fill(self.prompts.backup, response=response, forecast=told(moves[at + 1 :]))
        return self._role(_turns(moves[: at + 1]), prompt, told(moves[at:]))

    def evaluate(self, rng: random.Random) -> list[Turn]:
        """Forecasts of an action and of another, and the verdict that their ends bear out."""
        turns, prompt, critique, _ = self._judged(rng)
        return self._role(turns, prompt, critique)

    def refine(self, rng: random.Random) -> list[Turn]:
        """A critique; the same action where it was optimal, else another draw of the clerk."""
        turns, _, critique, other = self._judged(rng)
        written = other if critique.startswith("Optimality: No") else turns[-1].action
        return self._role(turns, fill(self.prompts.refine, critique=critique), written)

    def play(self, rng: random.Random) -> list[Move]:
        """A conversation of the clerk in a new shop."""
        world = shop(rng, 1)
        settings = {name: getattr(self.env, name) for name in _SETTINGS}
        env = OtherShop(shop=world, **settings)
        task = env.tasks("train")[rng.randrange(len(world.tasks["train"]))]
        heard = env.reset(task, rng.randrange(1 << 30))
        return self._go_on(Moment(env, Notes(self.clerk.draw(rng)), heard), rng)

    def _go_on(self, moment: Moment, rng: random.Random, action: str | None = None) -> list[Move]:
        """Play until the end, `action` first where one is given."""
        moves: list[Move] = []
        while not moves or not (moves[-1].step.done or moves[-1].step.truncated):
            self.clerk.hear(moment.notes, moment.heard[-1].content)
            before = moment.fork()
            said = self.clerk.act(moment.notes, rng) if action is None else action
            action = None
            step = moment.env.step(said)
            moves.append(Move(before, said, step))
            moment.heard = step.messages
        return moves

    def _imagine(self, before: Moment, action: str, rng: random.Random) -> list[Move]:
        """Act and go on, with newly drawn habits and a customer of whom only what was heard is
        known."""
        moment = before.fork()
        wish_anew(moment, rng)
        moment.notes.habits = self.clerk.draw(rng)
        moment.notes.asked |= "more?" in action
        return self._go_on(moment, rng, action)

    def _other(self, move: Move, rng: random.Random) -> str:
        """Another action of the same moment, if a few draws find one."""
        for _ in range(8):
            notes = copy.deepcopy(move.before.notes)
            notes.habits = self.clerk.draw(rng)
            action = self.clerk.act(notes, rng)
            if action != move.action:
                return action
        return "It is finished." if move.action != "It is finished." else "What is your zip?"

    def _judged(self, rng: random.Random) -> tuple[list[Turn], str, str, str]:
        """A conversation up to a judged action, the evaluator's prompt, its critique, and the other
        action."""
        moves = self.play(rng)
        at = rng.randrange(len(moves))
        own, other = moves[at].action, self._other(moves[at], rng)
        if rng.random() < 0.5:
            own, other = other, own
        mine, others = (
            [told(self._imagine(moves[at].before, one, rng)) for _ in range(self.forecasts)]
            for one in (own, other)
        )
        texts = {"forecasts": "\n".join(mine), "others": "\n".join(others)}
        prompt = fill(self.prompts.evaluate, **texts)
        return _ending_in(moves, at, own), prompt, verdict(mine, others), other

    def _role(self, turns: list[Turn], prompt: str, written: str) -> list[Turn]:
        return [*turns, Turn([Message("user", prompt)], written, [], [], [], info={"role": True})]


_SETTINGS = ("domain", "data", "user", "actions", "turns", "holdout", "llm")


def wish_anew(moment: Moment, rng: random.Random) -> None:
    """Draw again what nobody has been told: whether the customer wants more of an order back."""
    now = moment.env.conversation
    if now is None or not isinstance(now.user, MiniUser):
        return
    wish = now.user.wishes[0]
    if wish["kind"] != "return" or now.user.told:
        return
    held = moment.env.service.tables["orders"][wish["order"]]["items"]
    others = [item for item in held if item != wish["item"]]
    wish["more"] = rng.sample(others, 1) if rng.random() < MORE else []
    for action in now.task["actions"]:
        if action["name"] == "return" and action["kwargs"]["order"] == wish["order"]:
            action["kwargs"]["items"] = [wish["item"], *wish["more"]]


def told(moves: list[Move]) -> str:
    """A forecast that came true: the response, what was then written, and how it ended."""
    response = moves[0].step.messages[-1].content.split("\n")[0]
    writes = [m.step.messages[-1].content for m in moves[1:] if _wrote(m)]
    rest = f" {writes[-1]}" if writes else ""
    end = RIGHT if moves[-1].step.reward else WRONG
    return f"{response}{rest} {end}" if not moves[0].step.done else f"{response} {end}"


def verdict(mine: list[str], others: list[str]) -> str:
    """The critique that the ends bear out: optimal unless the other action ends better."""
    won, lost = (sum(text.endswith(RIGHT) for text in texts) for texts in (mine, others))
    if won >= lost:
        return "Optimality: Yes. It ends as well as another turn."
    return "Optimality: No. It ends worse than another turn."


def _wrote(move: Move) -> bool:
    return move.step.info["tool"] in ("cancel", "return", "transfer")


def _turns(moves: list[Move]) -> list[Turn]:
    found = [Turn(list(move.before.heard), move.action, [], [], []) for move in moves]
    system = moves[0].before.env.system()
    found[0].observation = [Message("system", system), *found[0].observation]
    return found


def _ending_in(moves: list[Move], at: int, action: str) -> list[Turn]:
    """The conversation up to move `at` with `action` in its place; another action than was played
    is seen but not taught."""
    turns = _turns(moves[: at + 1])
    if action != moves[at].action:
        turns[-1].action, turns[-1].info = action, dict(UNTRAINED)
    return turns
