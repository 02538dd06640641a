"""NLAC: natural language actor-critic (arXiv 2512.04601).

One model plays five roles. The successor role forecasts in words how an episode goes on after an
action and is trained off-policy by a language Bellman backup; the evaluator turns forecasts into a
critique; the refiner rewrites the action by it; the rewritten action is distilled into the plain
policy. No policy gradient. Our choices where the paper is silent: the evaluator may also read
forecasts of another action of the same state (`compare`), the policy stays frozen for the first
`critic_warmup` steps, and a gate drops refinements that their own critique does not call optimal.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from torch import Tensor

from agentrl_cli.algos.base import Algorithm, Context, Phase
from agentrl_cli.algos.losses import nll, with_kl
from agentrl_cli.algos.nlac import monitor
from agentrl_cli.algos.nlac.backup import LanguageBackup
from agentrl_cli.algos.nlac.prompts import Prompts, fill
from agentrl_cli.algos.nlac.refine import RefinedPlay, Refinement
from agentrl_cli.algos.nlac.roles import Roles, TurnRef
from agentrl_cli.algos.samples import completion_sample
from agentrl_cli.core.errors import require_at_least, require_fraction
from agentrl_cli.core.types import Episode, Sample
from agentrl_cli.generators.base import Generator
from agentrl_cli.models.policy import Batch, Outputs, add_logprobs, token_logprobs
from agentrl_cli.models.specs import ModelSpec, OptimizerSpec
from agentrl_cli.rollout.replay_buffer import ReplayBuffer

Lesson = tuple[TurnRef, list[int]]


@dataclass(frozen=True, kw_only=True)
class Advanced:
    """Rarely changed. With `keep_optimal` an action that its critique calls optimal stays as it is,
    else the refiner is asked all the same. `role_weights` names the weights that write critiques
    and refinements: nothing trains these roles, so the live policy forgets them and its start
    (reference) does not. `control` spoils one part on purpose: what NLAC gains over it is that
    part's work. The successor's targets are mostly one sampled outcome each, so one step on all of
    them (`successor_tokens_per_step` 0) follows their noise less than many small ones.
    `monitored_states`, `monitored_actions` and `probes` size the measurements at evaluation."""

    first_action: Literal["fresh", "stored"]
    keep_optimal: bool
    role_weights: Literal["policy", "target", "reference"]
    control: Literal["none", "shuffled_outcomes", "shuffled_critiques", "empty_critiques"]
    role_tokens: int
    role_temperature: float
    critique_temperature: float
    tokens_per_step: int
    successor_tokens_per_step: int
    monitored_states: int
    monitored_actions: int
    probes: int

    def __post_init__(self) -> None:
        require_at_least(1, role_tokens=self.role_tokens, monitored_actions=self.monitored_actions)
        require_at_least(1, probes=self.probes)
        require_at_least(
            0, role_temperature=self.role_temperature, monitored_states=self.monitored_states
        )
        require_at_least(0, critique_temperature=self.critique_temperature)


@dataclass(kw_only=True)
class NLAC(Algorithm):
    """`forecasts` is the paper's k, `rounds` its m; `ema_decay` is the share that the target keeps;
    `trace` chains backups along what was played (0: the paper's single one)."""

    turns_per_update: int
    forecasts: int
    rounds: int
    compare: bool
    gate: bool
    ema_decay: float
    trace: float
    priority_exponent: float
    kl_coef: float
    critic_warmup: int
    buffer_size: int
    optimizer: OptimizerSpec
    advanced: Advanced
    prompts: Prompts
    roles: Roles = field(init=False, repr=False)
    backup: LanguageBackup = field(init=False, repr=False)
    refine: Refinement = field(init=False, repr=False)

    def __post_init__(self) -> None:
        require_at_least(1, turns_per_update=self.turns_per_update, buffer_size=self.buffer_size)
        require_at_least(1, forecasts=self.forecasts, rounds=self.rounds)
        require_at_least(
            0,
            priority_exponent=self.priority_exponent,
            kl_coef=self.kl_coef,
            critic_warmup=self.critic_warmup,
        )
        require_fraction(ema_decay=self.ema_decay, trace=self.trace)

    @property
    def replay_capacity(self) -> int:
        """Episodes kept for replay."""
        return self.buffer_size

    def models(self) -> dict[str, ModelSpec]:
        """The policy speaks all roles; the target writes backups; the reference is the start."""
        return {
            "policy": ModelSpec(kind="trained", generates=True, optimizer=self.optimizer),
            "target": ModelSpec(kind="ema", generates=True),
            "reference": ModelSpec(kind="frozen", generates=True),
        }

    def bind(self, context: Context) -> None:
        """Receive the given objects; the roles speak through them."""
        super().bind(context)
        advanced = self.advanced
        self.roles = Roles(
            context, self.prompts, advanced.role_tokens, advanced.role_temperature,
            advanced.critique_temperature, advanced.role_weights,
        )  # fmt: skip
        self.backup = LanguageBackup(self.roles, self.prompts.backup, self.trace)
        self.refine = Refinement(
            roles=self.roles, forecasts=self.forecasts, rounds=self.rounds, compare=self.compare,
            gate=self.gate, keep=advanced.keep_optimal, writer=advanced.role_weights,
            control=advanced.control,
        )  # fmt: skip

    def update(self, episodes: list[Episode], buffer: ReplayBuffer) -> Iterator[Phase]:
        """Policy evaluation by the language Bellman backup, then improvement by refinement."""
        self.roles.begin("nlac", self.context.step)
        keys = buffer.sample_turns(
            self.turns_per_update, self.roles.seed("replay"), self.priority_exponent
        )
        places = [TurnRef(buffer.episode(key), key.turn) for key in keys]

        targets = self.language_backup(places, buffer.episodes())
        told = [row for row in zip(keys, places, targets, strict=True) if row[2]]
        samples = [self._successor(place, y) for _, place, y in told if y]
        if self.priority_exponent:
            buffer.set_priorities([key for key, _, _ in told], self._losses(samples))
        untold = 1 - len(samples) / len(places)
        yield self._phase("successor", samples, {"nlac/unparsed_targets": untold})
        self._move_target()

        if self.context.step >= self.critic_warmup:
            lessons, metrics = self.improve(places)
            yield self._phase("policy", self._anchored(lessons), metrics)

    # policy evaluation

    def language_backup(
        self, places: list[TurnRef], episodes: list[Episode]
    ) -> list[list[int] | None]:
        """Targets y ~ Backup(s, a, s', d') with d' ~ M(s', a') and a' ~ policy(s'), M and Backup by
        the EMA weights, over as many turns as `trace` has it; at an episode's end its true
        outcome. None where a text names no outcome or was cut off."""
        return self.backup.targets(places, lambda place: self._terminal(place, episodes))

    def _terminal(self, place: TurnRef, episodes: list[Episode]) -> list[int] | None:
        """The true end of an episode as a forecast; nothing for an episode that was cut off."""
        episode = place.episode
        if episode.stop != "done":
            return None
        if self.advanced.control == "shuffled_outcomes":
            ended = [one for one in episodes if one.stop == "done"]
            episode = random.Random(self.roles.seed("shuffle", episode.id)).choice(ended)
        said = TurnRef(episode, len(episode.turns) - 1).response
        end = "Success." if episode.success else "Failure."
        text = fill(self.prompts.terminal, response=said, outcome=end)
        return self.context.chat.encode_action(text)

    def _successor(self, place: TurnRef, target: list[int]) -> Sample:
        """L1: the target's tokens behind the forecast prompt."""
        return completion_sample(
            self.roles.prompt(place, place.action, self.prompts.forecast), target
        )

    def _losses(self, samples: list[Sample]) -> list[float]:
        """The mean loss per token of each target: its turn's priority in the replay."""
        rows = token_logprobs(self.context.models.module("policy"), samples)
        return [-sum(row) / sum(s.mask) for row, s in zip(rows, samples, strict=True)]

    def _move_target(self) -> None:
        models = self.context.models
        models.ema_update("target", "policy", self.ema_decay)
        self.context.generator.load("target", models.version("target"))

    # policy improvement

    def improve(self, places: list[TurnRef]) -> tuple[list[Lesson], dict[str, float]]:
        """The actions to distil, refined by `rounds` critiques and passed by the gate; monitors."""
        fresh = self.advanced.first_action == "fresh"
        first = self.roles.act(places) if fresh else [place.action for place in places]
        chains = self.refine.chains(places, first)
        passed = [chain for chain in chains if self.refine.passes(chain)]
        lessons = [(chain[0].place, chain[-1].action) for chain in passed]
        counts = len(lessons), len(places), self.forecasts
        return lessons, monitor.improvement(chains, *counts)

    def _anchored(self, lessons: list[Lesson]) -> list[Sample]:
        """L2: the refined action behind the plain prompt; the start's log-probs for the anchor."""
        samples = [completion_sample(place.state, action) for place, action in lessons]
        if self.kl_coef:
            start = self.context.models.module("reference")
            add_logprobs(start, samples, "reference_logprob")
        return samples

    def distil(self, outputs: Outputs, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """The likelihood of the refined actions, and `kl_coef` times the KL from the start."""
        return with_kl(nll(outputs, batch), outputs, batch, self.kl_coef)

    def _phase(self, name: str, samples: list[Sample], metrics: dict[str, float]) -> Phase:
        policy, advanced = name == "policy", self.advanced
        loss = self.distil if policy else nll
        size = advanced.tokens_per_step if policy else advanced.successor_tokens_per_step
        return Phase(name, samples, loss, tokens_per_step=size, metrics=metrics)

    def refined_generator(self) -> Generator:
        """Plays refined actions with the present weights, without distilling them."""
        self.roles.begin("refined")
        return RefinedPlay(refine=self.refine, generator=self.context.generator)

    # what a reader sees

    def annotate(self, episodes: list[Episode]) -> None:
        """Write forecasts, critique and refined action into `info["critic"]` of every turn."""
        self.roles.begin("annotate", self.context.step)
        places = [TurnRef(episode, t) for episode in episodes for t in range(len(episode.turns))]
        for chain in self.refine.chains(places, [place.action for place in places]):
            monitor.note(chain, self.roles)

    def monitor(self, episodes: list[Episode]) -> dict[str, float]:
        """Calibration and within-state discrimination of forecasts, gain of refining, drift."""
        self.roles.begin("watch")
        return monitor.critic(self, episodes)
