"""NLAC: natural language actor-critic (arXiv 2512.04601).

One model plays five roles. The successor role M forecasts in words how an episode goes on after an
action and is trained off-policy by a language Bellman backup; the evaluator turns forecasts into a
critique; the refiner rewrites the action by it; the rewritten action is distilled into the plain
policy. No policy gradient. Our choices where the paper is silent: the evaluator may also read
forecasts of another action of the same state (`compare`), the policy stays frozen for the first
`critic_warmup` updates, and a gate drops refinements that their own critique does not call optimal.
The parts in the paper's order: roles.py, backup.py, refine.py; monitor.py measures, variants.py
has the ablations.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from agentrl_cli.algos.base import Algorithm, Context, Phase
from agentrl_cli.algos.losses import Loss, nll, with_kl
from agentrl_cli.algos.nlac.backup import LanguageBackup, Target
from agentrl_cli.algos.nlac.monitor import Monitor, annotate, improvement
from agentrl_cli.algos.nlac.prompts import Prompts, fill
from agentrl_cli.algos.nlac.refine import RefinedPlay, Refiner
from agentrl_cli.algos.nlac.roles import Ids, Roles
from agentrl_cli.algos.samples import completion_sample
from agentrl_cli.algos.turns import TurnRef, all_turns
from agentrl_cli.core.errors import require_at_least, require_fraction
from agentrl_cli.core.types import Episode, Sample
from agentrl_cli.generators.base import Generator
from agentrl_cli.models.policy import Batch, Outputs, add_logprobs, token_logprobs
from agentrl_cli.models.specs import ModelSpec, OptimizerSpec
from agentrl_cli.rollout.replay_buffer import ReplayBuffer, TurnKey


@dataclass(frozen=True)
class Lesson:
    """An action to distil in the state of a turn."""

    turn: TurnRef
    action_ids: Ids


@dataclass(frozen=True, kw_only=True)
class Advanced:
    """Rarely changed. With `keep_optimal` an action that its critique calls optimal stays as it is,
    else the refiner is asked all the same. `role_weights` names the model that writes critiques
    and refinements: nothing trains these roles, so the live policy forgets them and its start
    (reference) does not.
    `control` spoils one part on purpose: what NLAC gains over it is that part's work.
    The successor's targets are mostly one sampled outcome each, so one step on all of them
    (`successor_tokens_per_step` 0) follows their noise less than many small ones.
    `monitored_states`, `monitored_actions` of each, `monitored_forecasts` and `probes` of each
    action size the measurements at evaluation."""

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
    monitored_forecasts: int
    probes: int

    def __post_init__(self) -> None:
        require_at_least(1, role_tokens=self.role_tokens, monitored_actions=self.monitored_actions)
        require_at_least(1, monitored_forecasts=self.monitored_forecasts, probes=self.probes)
        require_at_least(0, role_temperature=self.role_temperature)
        require_at_least(0, monitored_states=self.monitored_states)
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
    refiner: Refiner = field(init=False, repr=False)
    critic_monitor: Monitor = field(init=False, repr=False)

    def __post_init__(self) -> None:
        require_at_least(1, turns_per_update=self.turns_per_update, buffer_size=self.buffer_size)
        require_at_least(1, forecasts=self.forecasts, rounds=self.rounds)
        require_at_least(0, priority_exponent=self.priority_exponent, kl_coef=self.kl_coef)
        require_at_least(0, critic_warmup=self.critic_warmup)
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

    def update(self, episodes: list[Episode], buffer: ReplayBuffer) -> Iterator[Phase]:
        """Policy evaluation by the language Bellman backup, then improvement by refinement."""
        self.roles.begin_stream("nlac", self.context.step)
        keys = self.sample_turns(buffer, self.priority_exponent)
        turns = [TurnRef(buffer.episode(key), key.turn) for key in keys]

        targets = self.language_backup(turns, buffer.episodes())
        yield self._evaluate_policy(keys, turns, targets, buffer)
        self._move_target()

        if self.context.step >= self.critic_warmup:
            lessons, metrics = self.improve(turns)
            yield self._distillation(lessons, metrics)

    def sample_turns(self, buffer: ReplayBuffer, priority_exponent: float) -> list[TurnKey]:
        """The replayed turns of this update."""
        seed = self.roles.seed("replay")
        return buffer.sample_turns(self.turns_per_update, seed, priority_exponent)

    def language_backup(self, turns: list[TurnRef], episodes: list[Episode]) -> list[Target]:
        """Targets y ~ Backup(s, a, s', d') with d' ~ M(s', a') and a' ~ policy(s'), M and Backup by
        the target model, over as many turns as `trace` has it; at an episode's end its true
        outcome. None where a text names no outcome or was cut off."""
        return self.backup.targets(turns, lambda turn: self._true_end(turn, episodes))

    def _true_end(self, turn: TurnRef, episodes: list[Episode]) -> Target:
        """The true end of an episode as a forecast; none for an episode that was cut off."""
        episode = turn.episode
        if episode.stop != "done":
            return None
        if self.advanced.control == "shuffled_outcomes":
            ended = [other for other in episodes if other.stop == "done"]
            episode = random.Random(self.roles.seed("shuffle", episode.id)).choice(ended)
        return self.outcome_ids(TurnRef(episode, len(episode.turns) - 1).response, episode)

    def outcome_ids(self, response: str, episode: Episode) -> Ids:
        """What the world answered and how the episode ended, worded as a forecast."""
        return self.context.chat.encode_action(self.outcome_text(response, episode))

    def outcome_text(self, response: str, episode: Episode) -> str:
        """The same as text."""
        end = "Success." if episode.success else "Failure."
        return fill(self.prompts.terminal, response=response, outcome=end)

    def _evaluate_policy(
        self, keys: list[TurnKey], turns: list[TurnRef], targets: list[Target], buffer: ReplayBuffer
    ) -> Phase:
        """L1 = -log M(y | s, a) on the valid targets."""
        valid = [(k, t, y) for k, t, y in zip(keys, turns, targets, strict=True) if y]
        forecast = self.prompts.forecast
        prompts = [self.roles.prompt(turn, turn.action_ids, forecast) for _, turn, _ in valid]
        samples = [completion_sample(p, y) for p, (_, _, y) in zip(prompts, valid, strict=True)]
        if self.priority_exponent:
            self._set_priorities(keys, [key for key, _, _ in valid], samples, buffer)
        return Phase(
            "successor", samples, nll, tokens_per_step=self.advanced.successor_tokens_per_step,
            metrics={"nlac/unparsed_targets": 1 - len(samples) / len(turns)},
        )  # fmt: skip

    def _set_priorities(
        self, keys: list[TurnKey], valid: list[TurnKey], samples: list[Sample], buffer: ReplayBuffer
    ) -> None:
        """The priority of a turn is its target's loss per token, as the error is in Schaul et al.
        (2016). A turn that got no target may get one later: it takes the lowest loss of this
        update, or where nothing was learned the lowest priority of the turns that were drawn."""
        logprobs = token_logprobs(self.context.models.module("policy"), samples)
        losses = [-sum(row) / sum(s.mask) for row, s in zip(logprobs, samples, strict=True)]
        lowest = min(losses or [buffer.priority(key) for key in keys])
        missed = [key for key in keys if key not in valid]
        buffer.set_priorities(missed + valid, [lowest] * len(missed) + losses)

    def _move_target(self) -> None:
        """The target moves towards the policy that has just learned."""
        models = self.context.models
        models.ema_update("target", "policy", self.ema_decay)
        self.context.generator.load("target", models.version("target"))

    def improve(self, turns: list[TurnRef]) -> tuple[list[Lesson], dict[str, float]]:
        """The actions to distil, refined by `rounds` critiques and passed by the gate; metrics."""
        fresh = self.advanced.first_action == "fresh"
        first = self.roles.act(turns) if fresh else [turn.action_ids for turn in turns]
        refinements = self.refiner.refine(turns, first)
        passed = [r for r in refinements if self.refiner.passes(r)]
        lessons = [Lesson(r.turn, r.last.action_ids) for r in passed]
        return lessons, improvement(refinements, len(lessons), len(turns), self.forecasts)

    def _distillation(self, lessons: list[Lesson], metrics: dict[str, float]) -> Phase:
        """L2: the refined action behind the plain prompt; the start's log-probs for the anchor."""
        samples = [completion_sample(x.turn.state_ids, x.action_ids) for x in lessons]
        if self.kl_coef:
            add_logprobs(self.context.models.module("reference"), samples, "reference_logprob")
        return Phase(
            "policy", samples, self.distillation_loss,
            tokens_per_step=self.advanced.tokens_per_step, metrics=metrics,
        )  # fmt: skip

    def distillation_loss(self, outputs: Outputs, batch: Batch) -> Loss:
        """L2 = -log policy(a_{m+1} | s), and `kl_coef` times the divergence from the start."""
        return with_kl(nll(outputs, batch), outputs, batch, self.kl_coef)

    def bind(self, context: Context) -> None:
        """Receive the given objects; the roles speak through them."""
        super().bind(context)
        advanced = self.advanced
        self.roles = Roles(
            context, self.prompts, advanced.role_tokens, advanced.role_temperature,
            advanced.critique_temperature, advanced.role_weights,
        )  # fmt: skip
        self.backup = LanguageBackup(self.roles, self.prompts.backup, self.trace)
        self.refiner = self.make_refiner()
        self.critic_monitor = Monitor(
            roles=self.roles, refiner=self.refiner, states=advanced.monitored_states,
            actions=advanced.monitored_actions, forecasts=advanced.monitored_forecasts,
            probes=advanced.probes,
        )  # fmt: skip

    def make_refiner(self) -> Refiner:
        """Who makes the actions that are distilled."""
        return Refiner(
            roles=self.roles, forecasts=self.forecasts, rounds=self.rounds, compare=self.compare,
            gate=self.gate, keep_optimal=self.advanced.keep_optimal, control=self.advanced.control,
        )  # fmt: skip

    def refined_generator(self) -> Generator:
        """Plays refined actions with the present weights, without distilling them."""
        self.roles.begin_stream("refined")
        return RefinedPlay(refiner=self.refiner, generator=self.context.generator)

    def annotate(self, episodes: list[Episode]) -> None:
        """Write forecasts, critique and refined action into `info["critic"]` of every turn."""
        self.roles.begin_stream("annotate", self.context.step)
        turns = all_turns(episodes)
        for refinement in self.refiner.refine(turns, [turn.action_ids for turn in turns]):
            annotate(refinement.first, refinement.last, self.roles)

    def monitor(self, episodes: list[Episode]) -> dict[str, float]:
        """Calibration and within-state discrimination of forecasts, gain of refining, drift."""
        self.roles.begin_stream("watch")
        return self.critic_monitor.measure(episodes)
