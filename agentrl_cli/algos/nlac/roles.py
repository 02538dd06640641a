"""The roles of a language critic on one model: policy, forecaster, evaluator, refiner.

A role's prompt is what was played plus the role's instruction at the end, so all roles of a turn
share the episode's cached prefix. What the roles write is sampled; here it is only parsed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean

from agentrl_cli.algos.base import Context
from agentrl_cli.algos.nlac.prompts import Prompts, fill
from agentrl_cli.algos.nlac.reading import Reading
from agentrl_cli.algos.samples import TurnRef
from agentrl_cli.core.types import derive_seed
from agentrl_cli.rollout.play import first_turn

Ids = list[int]


@dataclass
class CritiquedAction:
    """An action in the state of a turn, its k forecasts, those of an alternative action, and the
    critique that was written from both; `reading` says how these texts are read."""

    turn: TurnRef
    action_ids: Ids
    forecasts: list[str] = field(default_factory=list)
    alternative_forecasts: list[str] = field(default_factory=list)
    critique: str = ""
    reading: Reading = field(kw_only=True)

    @property
    def is_optimal(self) -> bool | None:
        """The critique's verdict; None where it has none."""
        return self.reading.verdict(self.critique)

    @property
    def forecast_success(self) -> float:
        """The mean success that the forecasts foretell; 0.5 without forecasts."""
        return mean_success(self.forecasts, self.reading)


def mean_success(forecasts: Sequence[str], reading: Reading) -> float:
    """The share of forecasts that name success; 0.5 of none."""
    return fmean(reading.outcome(text) is True for text in forecasts) if forecasts else 0.5


@dataclass(frozen=True)
class RoleText:
    """What a role wrote, and whether it ended by itself."""

    role: str
    text: str
    is_complete: bool


@dataclass
class Roles:
    """Every call samples from a random stream of its own; `begin_stream` names those of what
    follows. `critic` names the model that forecasts, `role_weights` the one that writes critiques
    and refinements; `max_tokens` bounds every text of a role but an action, which may be as long as
    the policy's."""

    context: Context
    prompts: Prompts
    max_tokens: int
    temperature: float
    critique_temperature: float
    critic: str
    role_weights: str
    stream: tuple[object, ...] = ()
    calls: int = 0
    record: list[RoleText] | None = None  # where it is a list, all that the roles write is kept

    @property
    def reading(self) -> Reading:
        """How forecasts and critiques are read."""
        return self.prompts.reader

    def begin_stream(self, *stream: object) -> None:
        """Seeds from here on derive from the run's seed, `stream` and the number of the call."""
        self.stream, self.calls = stream, 0

    def seed(self, *parts: object) -> int:
        """A seed of the current stream."""
        return derive_seed(self.context.seed, *self.stream, *parts)

    def act(self, turns: list[TurnRef]) -> list[Ids]:
        """a ~ policy(s): a fresh action in the state of each turn."""
        states, sampling = [turn.state_ids for turn in turns], self.context.sampling
        replies = self.context.generator.generate(states, self._next_seeds(turns), sampling)
        return [self._first_turn(completion.ids) for (completion,) in replies]

    def forecast(
        self, turns: list[TurnRef], actions: list[Ids], count: int, model: str | None = None
    ) -> list[list[str]]:
        """d ~ M(s, a): `count` forecasts of each action, by the critic unless another model is
        named; those without an outcome are left out."""
        instruction = self.prompts.forecast
        pairs = zip(turns, actions, strict=True)
        prompts = [self.prompt(turn, action, instruction) for turn, action in pairs]
        rows = self.write(prompts, count, model or self.critic, role="forecast")
        texts, read = [[self.decode(ids) for ids in row] for row in rows], self.reading.outcome
        return [[text for text in row if read(text) is not None] for row in texts]

    def write_critiques(self, actions: list[CritiquedAction]) -> None:
        """q ~ evaluator(s, a, d): write the critique of each; none where no forecast was read."""
        prompts = [
            self.prompt(
                action.turn, action.action_ids, self.prompts.evaluate,
                forecasts="\n".join(action.forecasts),
                others="\n".join(action.alternative_forecasts) or "none",
            )
            for action in actions
        ]  # fmt: skip
        temperature = self.critique_temperature
        texts = self.write(prompts, 1, self.role_weights, temperature, role="evaluate")
        for action, (ids,) in zip(actions, texts, strict=True):
            action.critique = self.decode(ids) if action.forecasts else ""

    def refine(self, prompts: list[Ids]) -> list[Ids]:
        """a' ~ refiner(s, a, q): the action that is written behind each prompt."""
        longest = self.context.sampling.max_tokens
        written = self.write(prompts, 1, self.role_weights, max_tokens=longest, role="refine")
        return [self._first_turn(ids) for (ids,) in written]

    def prompt(self, turn: TurnRef, action: Ids, instruction: str, **texts: str) -> Ids:
        """A role's prompt: what was played, the action, the filled-in instruction."""
        return self.asked(turn.state_ids, action, fill(instruction, **texts))

    def asked(self, state: Ids, action: Ids, instruction: str) -> Ids:
        """What was played, then the instruction as a message of who gives it."""
        prompts = self.prompts
        framed = fill(prompts.frame, instruction=instruction)
        speaker = prompts.speaker
        return self.context.chat.role_prompt(state, action, instruction, speaker, framed)

    def write(
        self,
        prompts: list[Ids],
        count: int = 1,
        model: str = "policy",
        temperature: float | None = None,
        max_tokens: int | None = None,
        role: str = "",
    ) -> list[list[Ids]]:
        """`count` texts behind each prompt; at the roles' temperature and of their length unless
        others are given. `role` names who writes, for the record."""
        sampling = replace(
            self.context.sampling, n=count,
            max_tokens=self.max_tokens if max_tokens is None else max_tokens,
            temperature=self.temperature if temperature is None else temperature,
        )  # fmt: skip
        seeds = self._next_seeds(prompts)
        rows = self.context.generator.generate(prompts, seeds, sampling, model)
        written = [[completion.ids for completion in row] for row in rows]
        if self.record is not None:
            texts = [ids for row in written for ids in row]
            self.record += [RoleText(role, self.decode(x), self.is_complete(x)) for x in texts]
        return written

    def decode(self, ids: Ids) -> str:
        """The text of sampled ids."""
        return self.context.chat.decode(ids)

    def is_complete(self, ids: Ids) -> bool:
        """Whether a sampled text ends with a closing token, or where the world cuts a reply, and
        not at the limit of tokens."""
        delimiter = self.context.turn_delimiter
        closed = bool(ids) and ids[-1] in self.context.sampling.stop_ids
        return closed or (delimiter != "" and self.decode(ids).endswith(delimiter))

    def _first_turn(self, ids: Ids) -> Ids:
        """Of a sampled reply what the world takes as one turn."""
        return first_turn(ids, self.context.turn_delimiter, self.context.chat)

    def _next_seeds(self, rows: list[TurnRef] | list[Ids]) -> list[int]:
        self.calls += 1
        return [self.seed(self.calls, i) for i in range(len(rows))]
