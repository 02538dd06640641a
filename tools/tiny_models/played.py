"""The base of corpora whose environments can be forked: a scripted player acts in similar
environments, and NLAC's roles describe how played episodes went on."""

from __future__ import annotations

import random
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, Self, TypeVar

from agentrl_cli.algos.nlac.roles import fill
from agentrl_cli.core.types import Message, Step, Turn
from tools.tiny_models.base import (
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

SUCCESS, FAILURE = "Success.", "Failure."
IMAGINED = 8  # episodes that decide a verdict
CLEARLY_WORSE = 0.2  # success rates that differ by less count as equal in a verdict


class Snapshot(Protocol):
    """An episode before an action: the environment, the player's state, the last observation."""

    env: Any
    state: Any
    observation: list[Message]

    def fork(self) -> Self:
        """Return a copy of a snapshot that can be played on."""
        ...


S = TypeVar("S", bound=Snapshot)


@dataclass
class Transition(Generic[S]):
    """An action at a snapshot, and its result."""

    before: S
    action: str
    step: Step

    @property
    def is_last(self) -> bool:
        return self.step.done or self.step.truncated


@dataclass(kw_only=True)
class PlayedCorpus(Corpus, Generic[S]):
    """Writes episodes of a scripted player and the roles' outputs for its actions."""

    @abstractmethod
    def start(self, rng: random.Random) -> S:
        """Begin an episode in another environment."""

    @abstractmethod
    def act(self, now: S, action: str, before: S) -> Transition[S]:
        """Do this; `now` moves on from `before`."""

    def look(self, now: S, rng: random.Random) -> None:
        """Update the player with the observation before it acts."""

    @abstractmethod
    def choose_action(self, now: S, rng: random.Random) -> str:
        """What the player does, with the mistakes that it is about to make."""

    @abstractmethod
    def fresh_action(self, before: S, rng: random.Random) -> str:
        """Another draw of the player, with mistakes drawn anew."""

    @abstractmethod
    def any_action(self, before: S, rng: random.Random) -> str:
        """An action of any kind."""

    @abstractmethod
    def redraw_unknown(self, now: S, rng: random.Random) -> None:
        """Draw again everything that the observations leave open, before an episode is imagined."""

    @abstractmethod
    def true_forecast(self, played: list[Transition[S]]) -> str:
        """Return the forecast of the first action that came true."""

    @abstractmethod
    def critique(self, mine: Sequence[str], others: Sequence[str]) -> str:
        """Return the critique that follows from forecasts of an action and of another one."""

    def told(self, played: Transition[S]) -> str:
        """Return the response as a line of rollouts."""
        return response(played)

    def wild(self, rng: random.Random) -> Text:
        """Return random actions, which are not trained, each with a forecast, also of another
        action."""
        played = self.wander(rng)
        branches = [
            Branch(at, self.prompts.forecast, self.true_forecast(self.imagine(t.before, a, rng)), a)
            for at, t in enumerate(played)
            for a in (t.action, self.other_action(t, rng, any_kind=0.8))
        ]
        return Text("wild", untaught(turns_of(played)), branches)

    @abstractmethod
    def wander(self, rng: random.Random) -> list[Transition[S]]:
        """Return an episode of random actions mixed with the player's."""

    def play(self, rng: random.Random, roles: Mapping[str, float]) -> Text:
        played = self.episode(rng)
        writers: dict[str, Callable[..., Branch | None]] = {
            "forecast": self._forecast, "explored": self._explored_forecast,
            "backup": self._backup, "evaluate": self._evaluate, "refine": self._refine,
            "rollouts": self._refine_by_rollouts, "aggregate": self._aggregate,
        }  # fmt: skip
        turns = turns_of(played)
        said = branches_of(turns, roles, rng, lambda role, at: writers[role](played, at, rng))
        return Text("play", turns, said)

    def episode(self, rng: random.Random) -> list[Transition[S]]:
        """Return an episode of the player in another environment."""
        return self.play_on(self.start(rng), rng)

    def play_on(self, now: S, rng: random.Random, action: str | None = None) -> list[Transition[S]]:
        """Play until the end, from `action` if it is given; `now` changes. After a given action
        only the first snapshot is kept."""
        imagined = action is not None
        played: list[Transition[S]] = []
        while not played or not played[-1].is_last:
            if played or action is None:
                self.look(now, rng)
            before = now if imagined and played else now.fork()
            choice = self.choose_action(now, rng) if action is None else action
            action = None
            played.append(self.act(now, choice, before))
        return played

    def imagine(self, before: S, action: str, rng: random.Random) -> list[Transition[S]]:
        """Act and continue in an environment that is consistent with the observations."""
        now = before.fork()
        self.redraw_unknown(now, rng)
        return self.play_on(now, rng, action)

    def other_action(self, played: Transition[S], rng: random.Random, any_kind: float = 0.5) -> str:
        """Return a random action with probability `any_kind`, otherwise the player's."""
        if rng.random() < any_kind:
            return self.any_action(played.before, rng)
        return self.fresh_action(played.before, rng)

    # the roles, each behind number `at` of what was played

    def _forecast(self, played: list[Transition[S]], at: int, rng: random.Random) -> Branch:
        return Branch(at, self.prompts.forecast, self.true_forecast(played[at:]))

    def _explored_forecast(
        self, played: list[Transition[S]], at: int, rng: random.Random
    ) -> Branch:
        """Return the result of another action, mostly a random one, played on. A forecast must
        depend on observations, not on the player that would choose the action."""
        action = self.other_action(played[at], rng, any_kind=0.8)
        future = self.imagine(played[at].before, action, rng)
        return Branch(at, self.prompts.forecast, self.true_forecast(future), action)

    def _backup(self, played: list[Transition[S]], at: int, rng: random.Random) -> Branch | None:
        """Return a forecast of this action from the response and a forecast of a next action: its
        own check, the response, and the end of the latter."""
        if at + 1 == len(played):
            forecast = self.true_forecast(played[at:])
            return self.terminal_backup(at, response(played[at]), forecast)
        following = played[at + 1].before
        imagined = self.imagine(following, self.fresh_action(following, rng), rng)
        forecast = self.true_forecast(imagined)
        prompt = fill(self.prompts.backup, response=response(played[at]), forecast=forecast)
        return Branch(at, prompt, self.true_forecast([played[at], *imagined]))

    def _evaluate(self, played: list[Transition[S]], at: int, rng: random.Random) -> Branch:
        return self.critique_branch(self._critique_example(played[at], at, rng), rng)

    def _refine(self, played: list[Transition[S]], at: int, rng: random.Random) -> Branch:
        return self.refinement_branch(self._critique_example(played[at], at, rng))

    def _refine_by_rollouts(
        self, played: list[Transition[S]], at: int, rng: random.Random
    ) -> Branch:
        """Return the action that succeeded most often in a few rollouts, or another draw of the
        player if none did."""
        before = played[at].before
        actions = [self.fresh_action(before, rng) for _ in range(ROLLOUTS)]
        futures = [self.imagine(before, action, rng) for action in actions]
        lines = [
            rollout_line(action, f"{self.told(future[0])} {outcome(future)}")
            for action, future in zip(actions, futures, strict=True)
        ]
        best = best_of_rollouts(actions, [bool(future[-1].step.reward) for future in futures])
        prompt = fill(self.prompts.refine_by_rollouts, rollouts="\n".join(lines))
        return Branch(at, prompt, best or self.fresh_action(before, rng), actions[0])

    def _aggregate(self, played: list[Transition[S]], at: int, rng: random.Random) -> Branch | None:
        """Return a forecast from the ends of a few rollouts after an action."""
        if at + 1 == len(played):
            return None
        following = played[at + 1].before
        futures = [
            self.imagine(following, self.fresh_action(following, rng), rng) for _ in range(ROLLOUTS)
        ]
        ends = [f"{response(future[-1])} {outcome(future)}" for future in futures]
        prompt = fill(
            self.prompts.aggregate, response=response(played[at]), rollouts="\n".join(ends)
        )
        return Branch(at, prompt, self.true_forecast([played[at], *rng.choice(futures)]))

    def _critique_example(
        self, played: Transition[S], at: int, rng: random.Random
    ) -> CritiqueExample:
        """Return the played action or, more often, another one, judged by ends imagined from it and
        from a draw of the player."""
        action = played.action if rng.random() < 0.3 else self.other_action(played, rng)
        other = self.fresh_action(played.before, rng)
        sides = [
            [self.true_forecast(self.imagine(played.before, a, rng)) for _ in range(IMAGINED)]
            for a in (action, other)
        ]
        critique, count, refinement = self.critique(*sides), rng.choice(READ_FORECASTS), action
        if critique.startswith("Optimality: No"):
            for _ in range(20):
                refinement = self.fresh_action(played.before, rng)
                if refinement != action:
                    break
        mine, others = (texts[:count] for texts in sides)
        return CritiqueExample(at, action, mine, others, critique, refinement)


def verdict(mine: Sequence[str], others: Sequence[str], rules: Collection[str]) -> str:
    """Return the critique that follows from forecasts: not optimal if the action breaks a rule,
    which is named, and does not end better than the other one, or if it ends clearly worse."""
    wins, other_wins = (sum(text.endswith(SUCCESS) for text in texts) for texts in (mine, others))
    checked = Counter(map(rule_of, mine)).most_common(1)[0][0]
    if checked in rules and wins <= other_wins:
        return f"Optimality: No. {checked}"
    if wins < other_wins - CLEARLY_WORSE * len(mine):
        return "Optimality: No. It ends worse than another turn."
    return "Optimality: Yes. It ends as well as another turn."


def rule_of(forecast: str) -> str:
    """Return the second sentence of a forecast, which names the broken rule (except for a last
    action)."""
    return f"{'. '.join([*forecast.split('. '), ''][1:2]).rstrip('.')}."


def response(played: Transition[Any]) -> str:
    """Return the environment's message."""
    return "\n".join(message.content for message in played.step.messages)


def outcome(played: Sequence[Transition[Any]]) -> str:
    return SUCCESS if played[-1].step.reward else FAILURE


def turns_of(played: Sequence[Transition[Any]]) -> list[Turn]:
    """Return the turns without token ids, after the environment's system message."""
    turns = [Turn(list(t.before.observation), t.action, [], [], []) for t in played]
    turns[0].observation.insert(0, Message("system", played[0].before.env.system()))
    return turns


def untaught(turns: list[Turn]) -> list[Turn]:
    for turn in turns:
        turn.info.update(UNTRAINED)
    return turns
