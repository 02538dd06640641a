"""NLAC: natural language actor-critic (arXiv 2512.04601).

One model plays five roles. The successor role M forecasts in words how an episode goes on after an
action and is trained off-policy by a language Bellman backup; the evaluator turns forecasts into a
critique; the refiner rewrites the action by it; the rewritten action is distilled into the plain
policy. No policy gradient. Our choices where the paper is silent: the evaluator may also read
forecasts of another action of the same state (`compare`), the policy stays frozen for the first
`critic_warmup` updates, and a gate drops refinements that their own critique does not call optimal.
The parts in the paper's order: roles.py, backup.py, refine.py, distillation.py;
monitor.py measures, variants.py has the ablations, settings.py what is rarely changed.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

from agentrl_cli.algos.base import Algorithm, Context, Phase, Texts
from agentrl_cli.algos.losses import Loss, nll, with_kl
from agentrl_cli.algos.nlac import role_check
from agentrl_cli.algos.nlac.backup import LanguageBackup, Target
from agentrl_cli.algos.nlac.choice import Candidates, Chooser, Improvement, Lesson
from agentrl_cli.algos.nlac.distillation import can_read_packed, lesson_samples
from agentrl_cli.algos.nlac.guard import Guard, GuardSettings
from agentrl_cli.algos.nlac.monitor import Monitor, annotate, improvement
from agentrl_cli.algos.nlac.prompts import Prompts, fill
from agentrl_cli.algos.nlac.refine import Refiner
from agentrl_cli.algos.nlac.refined_play import RefinedPlay
from agentrl_cli.algos.nlac.roles import Ids, Roles
from agentrl_cli.algos.nlac.settings import Advanced
from agentrl_cli.algos.role_report import RoleReport, refuse_unreadable
from agentrl_cli.algos.samples import TurnRef, all_turns, completion_sample
from agentrl_cli.core.errors import UserError, require_above, require_at_least, require_fraction
from agentrl_cli.core.terminal import say
from agentrl_cli.core.types import Episode, Sample
from agentrl_cli.generators.base import Generator
from agentrl_cli.models.forward import Batch, Outputs, add_logprobs, token_logprobs
from agentrl_cli.models.specs import ModelSpec, OptimizerSpec
from agentrl_cli.rollout.replay_buffer import ReplayBuffer, TurnKey


@dataclass(kw_only=True)
class NLAC(Algorithm):
    """`forecasts` is the paper's k, `rounds` its m. `improvement` says what is distilled: the
    `refinement` of an action (the paper's), or the best `choice` among `candidates` fresh actions
    and the refined one (choice.py); `contrast` weighs all of them. The `critic`, who forecasts,
    shares the policy's weights or has its own; `guard` lets the policy wait while what it would
    learn is not shown to be better than what it plays. Where less than the share `min_readable` of
    a role's answers can be read, the run does not begin."""

    turns_per_update: int
    forecasts: int
    rounds: int
    improvement: Improvement
    candidates: int
    choice_temperature: float
    critic: Literal["shared", "own"]
    guard: GuardSettings | None
    compare: bool
    gate: bool
    kl_coef: float
    critic_warmup: int
    min_readable: float
    optimizer: OptimizerSpec
    advanced: Advanced
    prompts: Prompts
    roles: Roles = field(init=False, repr=False)
    backup: LanguageBackup = field(init=False, repr=False)
    chooser: Chooser = field(init=False, repr=False)
    critic_monitor: Monitor = field(init=False, repr=False)
    policy_guard: Guard = field(init=False, repr=False)
    is_warned: bool = field(init=False, repr=False, default=False)

    learns_offline = True

    def __post_init__(self) -> None:
        self.guard = self.guard if self.guard and self.guard.every else None
        require_fraction(min_readable=self.min_readable)
        require_at_least(1, turns_per_update=self.turns_per_update)
        require_at_least(1, forecasts=self.forecasts, rounds=self.rounds)
        require_at_least(0, kl_coef=self.kl_coef, critic_warmup=self.critic_warmup)
        compares = self.compare or self.improvement != "refinement"
        require_at_least(2 if compares else 1, candidates=self.candidates)
        require_above(0, choice_temperature=self.choice_temperature)
        self._refuse_contradictions()

    def _refuse_contradictions(self) -> None:
        """Raise UserError for settings that mean nothing beside each other."""
        improvement, control = self.improvement, self.advanced.control
        if self.guard and self.critic == "shared":
            line = "algo.guard needs algo.critic=own: with shared weights a policy that waits"
            raise UserError(f"{line} would still move; set algo.critic=own")
        if self.gate and improvement in ("choice", "contrast"):
            line = f"algo.gate=true means nothing to algo.improvement={improvement}"
            raise UserError(f"{line}, which compares values; set algo.gate=false")
        if control == "frozen_critic" and self.critic == "shared":
            line = "algo.advanced.control=frozen_critic needs algo.critic=own: with shared weights"
            raise UserError(f"{line} what the policy learns moves the critic; set algo.critic=own")
        if control == "majority" and improvement != "choice":
            line = "algo.advanced.control=majority needs algo.improvement=choice"
            raise UserError(f"{line}; set that, too")
        if control == "empty_critiques" and improvement in ("critique", "contrast"):
            line = f"algo.advanced.control=empty_critiques leaves algo.improvement={improvement}"
            raise UserError(f"{line} nothing to learn; use shuffled_critiques")
        if self.advanced.keep_optimal and improvement == "critique":
            line = "algo.advanced.keep_optimal=true means nothing to algo.improvement=critique"
            raise UserError(f"{line}, which refines nothing; set it to false")

    @property
    def critic_name(self) -> str:
        """The model that forecasts and is trained to."""
        return "critic" if self.critic == "own" else "policy"

    @property
    def replay_capacity(self) -> int:
        """Episodes kept for replay."""
        return self.advanced.buffer_size

    def models(self) -> dict[str, ModelSpec]:
        """The critic forecasts (the policy, where they share weights); the target, which follows
        it, writes backups; the reference is the start."""
        trained = ModelSpec(kind="trained", generates=True, optimizer=self.optimizer)
        own = {"critic": replace(trained, begins_as="policy")} if self.critic == "own" else {}
        return {
            "policy": trained,
            **own,
            "target": ModelSpec(kind="ema", generates=True, follows=self.critic_name),
            "reference": ModelSpec(kind="frozen", generates=True),
        }

    def texts(self, turns: int, max_tokens: int) -> dict[str, Texts]:
        """What evaluating the policy samples, what improving it does, and the guard's probes."""
        counts = self.evaluation_texts(turns)
        for role, count in self.improvement_texts(turns).items():
            counts[role] = counts.get(role, 0) + count
        if self.guard and self.guard.every:
            probed = 2 * self.guard.lessons * self.guard.probes
            counts["guard"] = probed * turns // self.guard.every
        as_long = ("actions", "refinements", "rollouts", "guard")  # as an action of the policy
        role_tokens = self.advanced.role_tokens
        return {
            role: Texts(count, max_tokens if role in as_long else role_tokens)
            for role, count in counts.items()
            if count
        }

    def evaluation_texts(self, turns: int) -> dict[str, int]:
        """A forecast of the next turn for each turn that is replayed, and a backup of it; with a
        trace, as many backups as its chains are expected to have."""
        if self.advanced.control == "frozen_critic":
            return {}
        links = sum(self.advanced.trace**i for i in range(turns))
        count = self.turns_per_update
        return {"actions": count, "forecasts": count, "backups": round(count * links)}

    def improvement_texts(self, turns: int) -> dict[str, int]:
        """The candidates of each turn, k forecasts of each, and what rewriting the first takes: a
        critique a round, and forecasts and a critique of each rewritten action that is judged. For
        a choice at most one critique of each, fewer where the first in the lead stays there."""
        judged = self.rounds - 1 + self.gate  # of the rewritten actions, by the refiner
        drawn, valued = self.candidates, self.improvement != "refinement"
        counts = {"actions": drawn - (self.advanced.first_action == "stored")}
        if self.advanced.control != "majority":
            counts["forecasts"] = self.forecasts * drawn
            counts["critiques"] = drawn if self.improvement == "critique" else 0
            if self.improvement != "critique":
                counts["forecasts"] += self.forecasts * (judged + valued)
                counts["critiques"] = 1 + judged + drawn * (self.improvement == "choice")
                counts["refinements"] = self.rounds
        return {role: count * self.turns_per_update for role, count in counts.items()}

    def role_ids(self) -> int:
        """Of a critique, which reads k forecasts of the action, with `compare` k more of another;
        the longest instruction counts for any."""
        prompts, compared = self.prompts, 2 if self.compare else 1
        asked = (prompts.forecast, prompts.backup, prompts.evaluate, prompts.refine)
        longest = max(len(self.roles.asked([], [], instruction)) for instruction in asked)
        return longest + (compared * self.forecasts + 1) * self.advanced.role_tokens

    def update(self, episodes: list[Episode], buffer: ReplayBuffer) -> Iterator[Phase]:
        """Policy evaluation by the language Bellman backup, then improvement by refinement."""
        self.require_readable_roles(buffer)
        self.roles.begin_stream("nlac", self.context.step)
        packed = self.reads_packed  # asked first, since it readies the models: all is read alike
        keys = self.sample_turns(buffer, self.advanced.priority_exponent)
        turns = [TurnRef(buffer.episode(key), key.turn) for key in keys]

        if self.advanced.control != "frozen_critic":
            targets = self.language_backup(turns, buffer.episodes())
            yield self._evaluate_policy(keys, turns, targets, buffer)
            self._move_target()

        if self.context.step >= self.critic_warmup:
            lessons, metrics = self.improve(turns)
            if self.guard:
                metrics |= self.policy_guard.check(self.context.step, lessons)
                lessons = lessons if self.policy_guard.is_open else []
            yield self._distillation(lessons, metrics, packed)

    def require_readable_roles(self, buffer: ReplayBuffer) -> None:
        """At the first step, raise UserError where this model's roles cannot be read."""
        if self.context.step == 0 and self.min_readable:
            refuse_unreadable(self.check_roles(buffer.episodes()), self.min_readable)

    def check_roles(self, episodes: list[Episode]) -> list[RoleReport]:
        """What every role writes at a few states of these episodes, and how it is read."""
        with role_check.recorded(self.roles) as texts:
            turns = role_check.role_states(episodes)
            if self.advanced.control != "frozen_critic":
                self.language_backup(turns, episodes)
            self.write_improvements(turns)
        return role_check.role_reports(texts, self.prompts.reader)

    def write_improvements(self, turns: list[TurnRef]) -> None:
        """Let the roles of the improvement step write at these turns, to be looked at."""
        self.chooser.draw(turns, [turn.action_ids for turn in turns])

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
        if self.advanced.priority_exponent:
            self._set_priorities(keys, [key for key, _, _ in valid], samples, buffer)
        return Phase(
            "successor", samples, nll, model=self.critic_name,
            tokens_per_step=self.advanced.successor_tokens_per_step,
            metrics={"nlac/unparsed_targets": 1 - len(samples) / len(turns)},
        )  # fmt: skip

    def _set_priorities(
        self, keys: list[TurnKey], valid: list[TurnKey], samples: list[Sample], buffer: ReplayBuffer
    ) -> None:
        """The priority of a turn is its target's loss per token, as the error is in Schaul et al.
        (2016). A turn that got no target may get one later: it takes the lowest loss of this
        update, or where nothing was learned the lowest priority of the turns that were drawn."""
        logprobs = token_logprobs(self.context.models.reader(self.critic_name), samples)
        losses = [-sum(row) / sum(s.mask) for row, s in zip(logprobs, samples, strict=True)]
        lowest = min(losses or [buffer.priority(key) for key in keys])
        missed = [key for key in keys if key not in valid]
        buffer.set_priorities(missed + valid, [lowest] * len(missed) + losses)

    def _move_target(self) -> None:
        """The target moves towards the critic that has just learned."""
        models = self.context.models
        models.ema_update("target", self.critic_name, self.advanced.ema_decay)
        self.context.generator.load("target", models.version("target"))

    def improve(self, turns: list[TurnRef]) -> tuple[list[Lesson], dict[str, float]]:
        """What is learnt from fresh candidates of each turn (choice.py); metrics."""
        stored = self.advanced.first_action == "stored"
        groups = self.chooser.draw(turns, [t.action_ids for t in turns] if stored else None)
        self._warn_of_a_mute_critic(groups)
        lessons = [lesson for group in groups for lesson in self.chooser.lessons(group)]
        return lessons, improvement(groups, lessons, self.forecasts)

    def _warn_of_a_mute_critic(self, groups: list[Candidates]) -> None:
        """Say once where no forecast, or less than `min_readable` of them, names an outcome."""
        actions = [action for group in groups for action in group.actions]
        read = sum(len(a.forecasts) for a in actions) / max(1, self.forecasts * len(actions))
        asked = self.advanced.control != "majority" and not self.is_warned
        if asked and (read == 0 or read < self.min_readable):
            self.is_warned = True
            say(role_check.mute_critic(read, len(groups)), err=True)

    def _distillation(
        self, lessons: list[Lesson], metrics: dict[str, float], packed: bool
    ) -> Phase:
        """L2: what is learnt behind the plain prompt; the start's log-probs for the anchor."""
        samples = lesson_samples(lessons, packed)
        if self.kl_coef:
            add_logprobs(self.context.models.reader("reference"), samples, "reference_logprob")
        return Phase(
            "policy", samples, self.distillation_loss,
            tokens_per_step=self.advanced.tokens_per_step, metrics=metrics,
        )  # fmt: skip

    @cached_property
    def reads_packed(self) -> bool:
        """Whether all who are to read the lessons of a turn can read them together."""
        names = ("policy", "reference") if self.kl_coef else ("policy",)
        return can_read_packed(self.context, names)

    def distillation_loss(self, outputs: Outputs, batch: Batch) -> Loss:
        """L2 = -log policy(a | s), weighed, and `kl_coef` times the divergence from the start."""
        return with_kl(nll(outputs, batch), outputs, batch, self.kl_coef)

    def bind(self, context: Context) -> None:
        """Receive the given objects; the roles speak through them."""
        super().bind(context)
        advanced = self.advanced
        self.roles = Roles(
            context, self.prompts, advanced.role_tokens, advanced.role_temperature,
            advanced.critique_temperature, self.critic_name, advanced.role_weights,
        )  # fmt: skip
        self.backup = LanguageBackup(self.roles, self.prompts.backup, advanced.trace)
        refiner = Refiner(
            roles=self.roles, forecasts=self.forecasts, rounds=self.rounds, gate=self.gate,
            keep_optimal=advanced.keep_optimal, control=advanced.control,
        )  # fmt: skip
        self.chooser = Chooser(
            roles=self.roles, refiner=refiner, improvement=self.improvement,
            candidates=self.candidates, forecasts=self.forecasts,
            temperature=self.choice_temperature, compare=self.compare, control=advanced.control,
        )  # fmt: skip
        self.critic_monitor = Monitor(
            chooser=replace(
                self.chooser, candidates=advanced.monitored_actions,
                forecasts=advanced.monitored_forecasts,
            ),
            states=advanced.monitored_states, probes=advanced.probes,
        )  # fmt: skip
        if self.guard:
            self.policy_guard = Guard(self.guard, self.roles)

    def refined_generator(self) -> Generator:
        """Plays what would be distilled with the present weights, without distilling it."""
        self.roles.begin_stream("refined")
        return RefinedPlay(chooser=self.chooser, generator=self.context.generator)

    def annotate(self, episodes: list[Episode]) -> None:
        """Write forecasts, critique and refined action into `info["critic"]` of every turn."""
        self.roles.begin_stream("annotate", self.context.step)
        turns = all_turns(episodes)
        for group in self.chooser.draw(turns, [turn.action_ids for turn in turns]):
            annotate(group, self.chooser)

    def state(self) -> dict[str, Any]:
        """What the guard has measured."""
        return {"guard": self.policy_guard.gains} if self.guard else {}

    def load(self, state: dict[str, Any]) -> None:
        """Inverse of `state`."""
        if self.guard:
            self.policy_guard.gains = state["guard"]

    def monitor(self, episodes: list[Episode]) -> dict[str, float]:
        """Calibration and within-state discrimination of forecasts, gain of refining, drift."""
        self.roles.begin_stream("watch")
        return self.critic_monitor.measure(episodes)
