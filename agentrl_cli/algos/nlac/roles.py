"""The roles of NLAC and the language Bellman backup.

One language model plays every role. A role's prompt is the interaction so far, an action, and the
role's instruction as the last message, so all roles of a turn share the cached prefix of the
episode. `improve.py` uses the roles to find better actions.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import TYPE_CHECKING, Protocol

from agentrl_cli.algos.base import Context
from agentrl_cli.algos.nlac.parse import PARSERS, Parser, RoleText
from agentrl_cli.algos.samples import TurnRef
from agentrl_cli.algos.settings import (
    PLACEHOLDER,
    ForecastPromptConfig,
    NLACAdvancedConfig,
    NLACPromptsConfig,
)
from agentrl_cli.core.types import Episode, derive_seed
from agentrl_cli.generators.base import Sampling
from agentrl_cli.rollout.play import first_turn

if TYPE_CHECKING:
    from agentrl_cli.algos.nlac.improve import Ablation

Ids = list[int]  # token ids


def fill(prompt: str, **texts: str) -> str:
    """Replace each `{name}` of a prompt by its text. Braces inside the texts stay as they are."""
    return PLACEHOLDER.sub(lambda found: texts[found[1]], prompt)


@dataclass
class Candidate:
    """An action in the state of a turn, with the texts that the critic wrote about it.

    `draws` counts how often the policy sampled the action (0: only the refiner wrote it).
    `alternatives` are forecasts of other actions, which its critique also reads. `critique` is None
    until the evaluator has written one. `success` is the success rate measured by rollouts.
    """

    turn: TurnRef
    action_ids: Ids
    draws: int = 0
    forecasts: list[str] = field(default_factory=list)
    alternatives: list[str] = field(default_factory=list)
    critique: str | None = None
    success: float = 0.0
    parser: Parser = field(kw_only=True)

    @property
    def is_optimal(self) -> bool | None:
        """The verdict of the critique, None if there is none or it cannot be parsed."""
        return self.parser.verdict(self.critique or "")

    @property
    def value(self) -> float:
        """V(a), the estimate of Q(s, a) by the forecasts."""
        return success_share(self.forecasts, self.parser)


def success_share(forecasts: list[str], parser: Parser) -> float:
    """Return the share of forecasts that predict success; 0.5 without forecasts."""
    outcomes = [parser.outcome(text) is True for text in forecasts]
    return fmean(outcomes) if outcomes else 0.5


class TextSettings(Protocol):
    """Limits of sampled texts."""

    role_tokens: int
    role_temperature: float


@dataclass
class Forecaster:
    """Samples actions and forecasts. `critic` names the model that writes forecasts.

    Every call uses new seeds. They derive from the run's seed, the current stream, the number of
    the call in that stream, and the row, so the order of calls is part of the algorithm.
    """

    context: Context
    prompts: ForecastPromptConfig
    settings: TextSettings
    critic: str
    stream: tuple[object, ...] = ()
    calls: int = 0
    record: list[RoleText] | None = None

    @property
    def parser(self) -> Parser:
        return PARSERS[self.prompts.parser]

    def begin_stream(self, *stream: object) -> None:
        """Derive the seeds of the following calls from this stream."""
        self.stream, self.calls = stream, 0

    def seed(self, *parts: object) -> int:
        """Return a seed of the current stream."""
        return derive_seed(self.context.seed, *self.stream, *parts)

    def act(self, turns: list[TurnRef], sampling: Sampling | None = None) -> list[Ids]:
        """a ~ π(s): sample an action in the state of each turn, by default as in training."""
        states, sampling = [turn.state_ids for turn in turns], sampling or self.context.sampling
        replies = self.context.generator.generate(states, self._next_seeds(len(turns)), sampling)
        return [self._first_turn(completion.ids) for (completion,) in replies]

    def forecast(
        self, turns: list[TurnRef], actions: list[Ids], count: int, model: str | None = None
    ) -> list[list[str]]:
        """d ~ M(s, a): sample `count` forecasts of each action from the successor model, or from
        `model`. Forecasts without an outcome are dropped."""
        instruction = self.prompts.forecast
        prompts = [self.prompt(*row, instruction) for row in zip(turns, actions, strict=True)]
        rows = self.write("forecast", prompts, model or self.critic, count)
        texts = [[self.decode(ids) for ids in row] for row in rows]
        return [[text for text in row if self.parser.outcome(text) is not None] for row in texts]

    def prompt(self, turn: TurnRef, action: Ids, instruction: str, **texts: str) -> Ids:
        """Return a role's prompt: the state of the turn, the action, the filled-in instruction."""
        return self.prompt_after(turn.state_ids, action, fill(instruction, **texts))

    def prompt_after(self, state: Ids, action: Ids, instruction: str) -> Ids:
        """Return the token ids of a state, an action and an instruction."""
        framed, speaker = fill(self.prompts.frame, instruction=instruction), self.prompts.speaker
        return self.context.chat.role_prompt(state, action, instruction, speaker, framed)

    def write(
        self,
        role: str,
        prompts: list[Ids],
        model: str,
        count: int = 1,
        temperature: float | None = None,
        max_tokens: int | None = None,
    ) -> list[list[Ids]]:
        """Sample `count` texts after each prompt, by default with the roles' temperature and
        length. Returns token ids, [prompts, count]."""
        settings = self.settings
        sampling = replace(
            self.context.sampling, n=count, max_tokens=max_tokens or settings.role_tokens,
            temperature=settings.role_temperature if temperature is None else temperature,
        )  # fmt: skip
        seeds = self._next_seeds(len(prompts))
        rows = self.context.generator.generate(prompts, seeds, sampling, model)
        written = [[completion.ids for completion in row] for row in rows]
        if self.record is not None:
            texts = [ids for row in written for ids in row]
            self.record += [RoleText(role, self.decode(x), self.is_complete(x)) for x in texts]
        return written

    def decode(self, ids: Ids) -> str:
        """Return the text of sampled token ids."""
        return self.context.chat.decode(ids)

    def is_complete(self, ids: Ids) -> bool:
        """Return whether a sampled text ends with a stop token or the environment's turn delimiter,
        and not at the token limit."""
        delimiter = self.context.turn_delimiter
        stopped = bool(ids) and ids[-1] in self.context.sampling.stop_ids
        return stopped or (delimiter != "" and self.decode(ids).endswith(delimiter))

    def _next_seeds(self, count: int) -> list[int]:
        self.calls += 1
        return [self.seed(self.calls, i) for i in range(count)]

    def _first_turn(self, ids: Ids) -> Ids:
        return first_turn(ids, self.context.turn_delimiter, self.context.chat)


@dataclass
class Roles(Forecaster):
    """Samples the texts of all roles of NLAC."""

    prompts: NLACPromptsConfig
    settings: NLACAdvancedConfig

    def back_up(self, rows: list[tuple[TurnRef, str]]) -> list[Ids]:
        """y ~ Backup(s, a, s', d'): rewrite each forecast d' from the next state s' as a forecast
        from the turn (s, a, s')."""
        prompts = [
            self.prompt(t, t.action_ids, self.prompts.backup, response=t.response, forecast=text)
            for t, text in rows
        ]
        return [ids for (ids,) in self.write("backup", prompts, self.settings.backup_model)]

    def critiques(self, actions: list[Candidate]) -> list[str]:
        """q ~ E(s, a, d): sample a critique of each action, empty if it has no forecast."""
        prompts = [
            self.prompt(
                action.turn, action.action_ids, self.prompts.evaluate,
                forecasts="\n".join(action.forecasts),
                others="\n".join(action.alternatives) or "none",
                alternatives=self._alternatives(action),
            )
            for action in actions
        ]  # fmt: skip
        model, temperature = self.settings.role_model, self.settings.critique_temperature
        texts = self.write("evaluate", prompts, model, temperature=temperature)
        pairs = zip(actions, texts, strict=True)
        return [self.decode(ids) if action.forecasts else "" for action, (ids,) in pairs]

    def _alternatives(self, action: Candidate) -> str:
        """Return the part of an evaluator's prompt about other actions, empty if there are none."""
        others = "\n".join(action.alternatives)
        return fill(self.prompts.alternatives, others=others) if others else ""

    def refine(self, prompts: list[Ids]) -> list[Ids]:
        """a' ~ π^r(s, a, q): sample a refined action after each prompt."""
        longest, settings = self.context.sampling.max_tokens, self.settings
        written = self.write(
            "refine", prompts, settings.role_model, temperature=settings.refine_temperature,
            max_tokens=longest,
        )  # fmt: skip
        return [self._first_turn(ids) for (ids,) in written]

    def if_valid(self, ids: Ids) -> Ids | None:
        """Return a sampled forecast if it is complete and has an outcome, else None."""
        has_outcome = self.parser.outcome(self.decode(ids)) is not None
        return ids if has_outcome and self.is_complete(ids) else None


@dataclass
class Chain:
    """Backups from turn `start` of an episode back to turn `goal`. `text` is the forecast from turn
    `at`; `target` is the same as token ids, None until the first backup. `end` is the last turn of
    the episode whose outcome is backed up, if `start` is a last turn."""

    goal: TurnRef
    start: TurnRef
    at: int = 0
    text: str = ""
    target: Ids | None = None
    end: TurnRef | None = None

    @property
    def at_end(self) -> TurnRef | None:
        """`end` until it has been backed up."""
        return self.end if self.at == self.start.turn + 1 else None


def outcome_word(episode: Episode) -> str:
    """Return the true outcome of an episode as a forecast states it."""
    return "Success." if episode.success else "Failure."


def backup_targets(
    roles: Roles,
    turns: list[TurnRef],
    true_end: Callable[[TurnRef], tuple[TurnRef, str] | None],
    ablation: Ablation,
) -> list[Ids | None]:
    """Return a training target y of the successor model for each turn (s, a, s').

    y ~ Backup(s, a, s', d') with d' ~ M_target(s', a') and a' ~ π(s'), all of them newly sampled
    (arXiv 2512.04601). `true_end` gives the last turn of an episode and a text with its outcome,
    which is d' or the target itself (`terminal_targets`). With probability `td_lambda` the chain of
    backups starts one turn later, repeatedly, as λ does in TD(λ) (Sutton 1988; off-policy without
    correction, as in the Q(λ) of Peng and Williams 1996). With 1 the outcome of an episode reaches
    all its turns in one update. A target is None if a text of its chain has no outcome, if a
    backup was cut, or if the backup of a last turn changed the outcome.
    """
    draw, settings = random.Random(roles.seed("trace")), roles.settings
    chains = [Chain(turn, _chain_start(turn, settings.td_lambda, draw)) for turn in turns]

    for chain in chains:
        if chain.start.is_last and (end := true_end(chain.start)):
            chain.at, (chain.end, chain.text) = chain.start.turn + 1, end
            if settings.terminal_targets == "text":
                chain.target = roles.context.chat.encode_action(chain.text)
                chain.at, chain.text = chain.start.turn, roles.decode(chain.target)

    bootstrapped = [chain for chain in chains if not chain.start.is_last]
    next_turns = ablation.next_of([chain.start for chain in bootstrapped], roles)
    forecasts = roles.forecast(next_turns, roles.act(next_turns), 1, "target")
    for chain, texts in zip(bootstrapped, forecasts, strict=True):
        chain.at, chain.text = chain.start.turn + 1, texts[0] if texts else ""

    growing = [chain for chain in chains if chain.text]
    while growing := [chain for chain in growing if chain.at > chain.goal.turn]:
        written = roles.back_up([
            (chain.at_end or TurnRef(chain.goal.episode, chain.at - 1), chain.text)
            for chain in growing
        ])  # fmt: skip
        for chain, ids in zip(growing, written, strict=True):
            chain.target = roles.if_valid(ids)
            outcome = roles.parser.outcome(roles.decode(ids))
            if chain.at_end and outcome != chain.at_end.episode.success:
                chain.target = None
            chain.at, chain.text = chain.at - 1, roles.decode(chain.target or [])
        growing = [chain for chain in growing if chain.target is not None]
    return [chain.target for chain in chains]


def _chain_start(turn: TurnRef, td_lambda: float, draw: random.Random) -> TurnRef:
    """Return the turn at which the chain of `turn` starts. In an episode that was cut off,
    chains of earlier turns start before the last one, because it has no outcome."""
    start, last = turn.turn, len(turn.episode.turns) - 1 - (turn.episode.stop != "done")
    while start < last and draw.random() < td_lambda:
        start += 1
    return TurnRef(turn.episode, start)
