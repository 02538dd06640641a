"""The roles of a language critic on one model: forecaster, evaluator, refiner, and the plain
policy.

A role's prompt is what was played plus the role's instruction at the end, so all roles of a turn
share the episode's cached prefix. What the roles write is sampled; here it is only parsed.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from agentrl_cli.algos.base import Context
from agentrl_cli.algos.nlac.prompts import Prompts, fill, outcome, verdict
from agentrl_cli.core.types import Episode, derive_seed
from agentrl_cli.rollout.play import first_turn


@dataclass(frozen=True, eq=False)
class TurnRef:
    """A turn of an episode, compared by identity."""

    episode: Episode
    turn: int

    @property
    def state(self) -> list[int]:
        """The ids in which the turn's action was sampled."""
        return self.episode.state_ids(self.turn)

    @property
    def action(self) -> list[int]:
        """The ids of the action that was played."""
        return self.episode.turns[self.turn].action_ids

    @property
    def response(self) -> str:
        """What the world answered."""
        return "\n".join(message.content for message in self.episode.response(self.turn))

    @property
    def last(self) -> bool:
        """Whether the episode ended with this turn."""
        return self.turn == len(self.episode.turns) - 1


@dataclass
class CritiquedAction:
    """An action at a place, its forecasts, those of another action (`others`), and the critique."""

    place: TurnRef
    action: list[int]
    forecasts: list[str] = field(default_factory=list)
    others: list[str] = field(default_factory=list)
    critique: str = ""

    @property
    def optimal(self) -> bool | None:
        """The critique's verdict; None where it has none."""
        return verdict(self.critique)

    @property
    def value(self) -> float:
        """The share of the forecasts that name success; 0.5 without forecasts."""
        named = [outcome(text) for text in self.forecasts]
        return sum(map(bool, named)) / len(named) if named else 0.5


@dataclass
class Roles:
    """Every call draws from a random stream of its own; `begin` names those of what follows."""

    context: Context
    prompts: Prompts
    tokens: int
    temperature: float
    critique_temperature: float
    writer: str
    stream: tuple[object, ...] = ()
    calls: int = 0

    def begin(self, *stream: object) -> None:
        """Seeds from here on derive from the run's seed, `stream` and the number of the call."""
        self.stream, self.calls = stream, 0

    def seed(self, *parts: object) -> int:
        """A seed of the current stream."""
        return derive_seed(self.context.seed, *self.stream, *parts)

    def act(self, places: list[TurnRef]) -> list[list[int]]:
        """A fresh action of the policy at each place."""
        sampling, prompts = self.context.sampling, [place.state for place in places]
        written = self.context.generator.generate(prompts, self._seeds(places), sampling)
        return [self._turn(row[0].ids) for row in written]

    def forecast(
        self, places: list[TurnRef], actions: list[list[int]], count: int, model: str = "policy"
    ) -> list[list[str]]:
        """`count` forecasts of each action; those that name no outcome are left out."""
        pairs = zip(places, actions, strict=True)
        prompts = [self.prompt(place, action, self.prompts.forecast) for place, action in pairs]
        texts = [[self.read(ids) for ids in row] for row in self.write(prompts, count, model)]
        return [[text for text in row if outcome(text) is not None] for row in texts]

    def judge(
        self, places: list[TurnRef], actions: list[list[int]], others: list[list[str]], count: int
    ) -> list[CritiquedAction]:
        """Forecast each action `count` times, and let the evaluator write a critique beside
        `others`, the forecasts of another action."""
        rows = zip(places, actions, self.forecast(places, actions, count), others, strict=True)
        judged = [CritiquedAction(*row) for row in rows]
        self.criticise(judged)
        return judged

    def criticise(self, judged: list[CritiquedAction]) -> None:
        """Write a critique of each action; none where no forecast could be read."""
        prompts = [
            self.prompt(
                one.place, one.action, self.prompts.evaluate,
                forecasts="\n".join(one.forecasts), others="\n".join(one.others) or "none",
            )
            for one in judged
        ]  # fmt: skip
        critiques = self.write(prompts, 1, self.writer, self.critique_temperature)
        for one, (ids,) in zip(judged, critiques, strict=True):
            one.critique = self.read(ids) if one.forecasts else ""

    def refine(self, prompts: list[list[int]], writer: str) -> list[list[int]]:
        """The refiner's action behind each prompt."""
        return [self._turn(ids) for (ids,) in self.write(prompts, 1, writer)]

    def prompt(
        self, place: TurnRef, action: list[int], instruction: str, **texts: str
    ) -> list[int]:
        """The ids of a role's prompt: what was played, the action, the filled-in instruction."""
        return self.context.chat.role(place.state, action, fill(instruction, **texts))

    def write(
        self,
        prompts: list[list[int]],
        count: int = 1,
        model: str = "policy",
        temperature: float | None = None,
    ) -> list[list[list[int]]]:
        """`count` texts behind each prompt, as ids; at the roles' temperature unless given."""
        heat = self.temperature if temperature is None else temperature
        sampling = replace(self.context.sampling, n=count, max_tokens=self.tokens, temperature=heat)
        seeds = self._seeds(prompts)
        written = self.context.generator.generate(prompts, seeds, sampling, model)
        return [[one.ids for one in row] for row in written]

    def read(self, ids: list[int]) -> str:
        """The text of sampled ids."""
        return self.context.chat.decode(ids)

    def ended(self, ids: list[int]) -> bool:
        """Whether sampled ids end with a closing token, or where the world cuts a reply, and not at
        the limit of tokens."""
        cut = self.context.turn_delimiter
        closed = bool(ids) and ids[-1] in self.context.sampling.stop_ids
        return closed or (cut != "" and self.read(ids).endswith(cut))

    def _turn(self, ids: list[int]) -> list[int]:
        """Of a sampled reply what the world takes as one turn."""
        return first_turn(ids, self.context.turn_delimiter, self.context.chat)

    def _seeds(self, rows: list[TurnRef] | list[list[int]]) -> list[int]:
        self.calls += 1
        return [self.seed(self.calls, i) for i in range(len(rows))]
