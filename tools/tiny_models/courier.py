"""The corpus of the bundled model of the courier: the form of every role, nothing about values.

The player is careless. Forecasts recite facts (the road of the turn, whether it is closed, whether
a closed road was taken before) and end with a random outcome, so a critic with these weights ranks
actions by chance. Backups recite and copy the outcome of the later forecast. Critiques compare how
often forecasts say success. A refinement is another road, drawn at random.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from agentrl_cli.algos.nlac.role_sft import OUTCOMES, count_verdict
from agentrl_cli.algos.nlac.roles import fill
from agentrl_cli.core.types import Episode, Message, Turn
from agentrl_cli.envs.base import Env
from agentrl_cli.envs.courier import ROADS, Courier, CourierState
from tools.tiny_models.base import (
    READ_FORECASTS,
    Branch,
    Corpus,
    CritiqueExample,
    Text,
    branches_of,
)

CARELESS, TEMPTED = 0.25, 0.6  # probability of the closed road, without and with a temptation


@dataclass
class Delivery:
    """A played delivery: the state before each action, the actions, and the final message."""

    env: Courier
    states: list[CourierState]
    actions: list[str]
    turns: list[Turn]
    final: str

    def recite(self, at: int, action: str) -> str:
        """Return the facts of an action at a turn."""
        road = action.removesuffix(".")
        now = "wrong" if road == self.states[at].closed[at] else "right"
        before = "Wrong before." if self.was_wrong(at) else "Not wrong before."
        return f"{road} is {now}. {before}"

    def was_wrong(self, at: int) -> bool:
        """Return whether a closed road was taken before turn `at`."""
        pairs = zip(self.actions[:at], self.states[0].closed, strict=False)
        return any(action == f"{closed}." for action, closed in pairs)

    def response(self, at: int) -> str:
        return self.states[at + 1].text if at + 1 < len(self.states) else self.final


@dataclass(kw_only=True)
class CourierCorpus(Corpus):
    """Writes deliveries of a careless courier in all variants of the environment."""

    env: Courier

    def exercises(self) -> dict[str, Callable[[random.Random], list[Turn] | Text]]:
        return {}

    def other_world(self, rng: random.Random) -> Env:
        return self._variant(rng)

    def true_forecasts(self, episode: Episode) -> list[str]:
        raise NotImplementedError("the courier's model must not learn how its episodes end")

    def play(self, rng: random.Random, roles: Mapping[str, float]) -> Text:
        played = self._deliver(self._variant(rng), rng)
        write = {
            "forecast": self.forecast,
            "backup": self.backup,
            "evaluate": self.evaluate,
            "refine": self.refine,
        }
        branches = branches_of(
            played.turns, roles, rng, lambda role, at: write[role](played, at, rng)
        )
        return Text("play", played.turns, branches)

    def _variant(self, rng: random.Random) -> Courier:
        """Return the plain environment half of the time, otherwise any variant."""
        if rng.random() < 0.5:
            return copy.copy(self.env)
        flags = {name: rng.random() < 0.4 for name in ("second_road", "tempting", "weather")}
        return replace(self.env, max_turns=rng.randint(3, 5), **flags)

    def _deliver(self, env: Courier, rng: random.Random) -> Delivery:
        observation = env.reset(rng.choice(env.tasks("train")), rng.getrandbits(32))
        played = Delivery(env, [], [], [], "")
        while env.state.turns_left:
            state, action = env.state, self._road(env, rng)
            first = [] if played.turns else [Message("system", env.system())]
            played.turns.append(Turn([*first, *observation], action, [], [], []))
            played.states.append(state)
            played.actions.append(action)
            observation = env.step(action).messages
        played.final = observation[0].content
        return played

    def _road(self, env: Courier, rng: random.Random) -> str:
        closed = env.state.closed_action
        is_near = env.tempting and closed == f"{env.state.closed[0]}."
        if rng.random() < (TEMPTED if is_near else CARELESS):
            return closed
        return rng.choice([action for action in env.actions if action != closed])

    # --- roles ---

    def forecast(self, played: Delivery, at: int, rng: random.Random) -> Branch:
        action = self._any_road(rng)
        text = f"{played.recite(at, action)} {rng.choice(OUTCOMES)}"
        return Branch(at, self.prompts.forecast, text, action)

    def backup(self, played: Delivery, at: int, rng: random.Random) -> Branch:
        outcome = later = rng.choice(OUTCOMES)
        if at + 1 < len(played.states):
            later = f"{played.recite(at + 1, self._any_road(rng))} {outcome}"
        prompt = fill(self.prompts.backup, response=played.response(at), forecast=later)
        return Branch(at, prompt, f"{played.recite(at, played.actions[at])} {outcome}")

    def evaluate(self, played: Delivery, at: int, rng: random.Random) -> Branch:
        return self.critique_branch(self._example(played, at, rng), rng)

    def refine(self, played: Delivery, at: int, rng: random.Random) -> Branch:
        return self.refinement_branch(self._example(played, at, rng))

    def _example(self, played: Delivery, at: int, rng: random.Random) -> CritiqueExample:
        """Return forecasts of random outcomes, and the verdict that their numbers imply."""
        action, other = self._any_road(rng), self._any_road(rng)
        count = rng.choice(READ_FORECASTS[:3])
        mine = self._outcomes(count, rng)
        others = self._outcomes(count, rng) if rng.random() < 0.7 else []
        critique, is_good = count_verdict(mine, others)
        others_of = [f"{road}." for road in ROADS if f"{road}." != action]
        return CritiqueExample(
            at, action,
            [f"{played.recite(at, action)} {outcome}" for outcome in mine],
            [f"{played.recite(at, other)} {outcome}" for outcome in others],
            critique, action if is_good else rng.choice(others_of),
        )  # fmt: skip

    def _outcomes(self, count: int, rng: random.Random) -> list[str]:
        """Return outcomes of which a random share is success."""
        share = rng.random()
        return [OUTCOMES[rng.random() >= share] for _ in range(count)]

    def _any_road(self, rng: random.Random) -> str:
        return f"{rng.choice(ROADS)}."
