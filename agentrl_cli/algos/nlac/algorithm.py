"""NLAC: natural language actor-critic (arXiv 2512.04601).

The critic is a language model that explains in words how good an action is. The policy imitates
actions that were improved with these words. A state s is the interaction so far, and an action a is
one turn of the agent. One update:

    (s, a, s') ~ replay buffer                                       sample_turns
    policy evaluation: train the successor model M                   policy_evaluation
        a' ~ π(s'),  d' ~ M_target(s', a')     forecast of the rest of the episode
        y  ~ Backup(s, a, s', d')              roles.py; d' is the true outcome at the end
        L1 = -log M(y | s, a)
    target ← decay · target + (1 - decay) · M, each optimizer step   update_target
    policy improvement: train the policy π                           policy_improvement
        a  ~ π(s),  d_1 … d_k ~ M(s, a),  q ~ E(s, a, d)             improve.py
        a* ~ π^r(s, a, q)
        L2 = -Σ w(a) log π(a | s)

The policy imitates a* (w is 1), without a policy gradient. With `policy_target=refined`, as in the
paper, a* is the refined action; by default (`best_of_n`) it is the best of that and several draws.
Only `advantage_weighted` trains on several actions of a state, with other weights.
Rewards enter only as the success or failure of an episode, in the target of its last turn.

| role | model that writes it |
|---|---|
| policy π | `policy` |
| successor M | `critic`, or `policy` without `separate_critic` |
| M_target | `target`, an EMA of the successor |
| backup | `advanced.backup_model`, by default `reference`: the initial weights |
| evaluator E and refiner π^r | `advanced.role_model`, by default `reference` |

Three options extend the paper. The evaluator can also read forecasts of other actions
(`show_alternatives`). The first updates can train the critic only (`critic_warmup`). A refined
action can require the approval of its own critique (`require_optimal`).

roles.py has the roles and the backup, improve.py the improvement step, parse.py the parsers,
diagnostics.py the measurements, ablations.py the ablations, algos/settings.py the settings.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby
from math import ceil
from typing import Any

from agentrl_cli.algos.base import Algorithm, Context, Phase, Texts
from agentrl_cli.algos.losses import Loss, nll, with_kl
from agentrl_cli.algos.nlac import diagnostics
from agentrl_cli.algos.nlac.improve import (
    ABLATIONS,
    Ablation,
    ActionSelector,
    Candidates,
    TrainingTarget,
)
from agentrl_cli.algos.nlac.parse import RoleReport, require_parsable, role_reports
from agentrl_cli.algos.nlac.roles import (
    Ids,
    Roles,
    backup_targets,
    fill,
    outcome_word,
    success_share,
)
from agentrl_cli.algos.samples import (
    TurnRef,
    all_turns,
    branches_sample,
    completion_sample,
    last_turn,
)
from agentrl_cli.algos.settings import NLACConfig
from agentrl_cli.core.errors import UserError
from agentrl_cli.core.terminal import echo
from agentrl_cli.core.types import Episode, Sample, evenly_spaced
from agentrl_cli.generators.base import Generator
from agentrl_cli.models.forward import Batch, Outputs, add_logprobs, causal_lm, token_logprobs
from agentrl_cli.models.packed_attention import enable_packing
from agentrl_cli.models.specs import ModelSpec
from agentrl_cli.rollout.replay_buffer import ReplayBuffer, TurnKey

CHECKED_TURNS = 8  # at which every role writes before the first update


@dataclass(kw_only=True)
class NLAC(NLACConfig, Algorithm):
    """The algorithm. `NLACConfig` documents its settings."""

    learns_offline = off_policy = True
    is_warned = False

    @property
    def critic_name(self) -> str:
        """The successor model M: a separate critic, or the policy."""
        return "critic" if self.separate_critic else "policy"

    @property
    def replay_capacity(self) -> int:
        return self.advanced.buffer_size

    @cached_property
    def ablation(self) -> Ablation:
        """The part of the algorithm that is changed on purpose; by default none."""
        return ABLATIONS[self.advanced.ablation]()

    def models(self) -> dict[str, ModelSpec]:
        """Return the models: policy, critic (unless shared), EMA target, and frozen reference."""
        trained = ModelSpec(kind="trained", generates=True, optimizer=self.optimizer)
        critic = replace(
            trained, begins_as="policy", optimizer=self.critic_optimizer or self.optimizer
        )
        own = {"critic": critic} if self.separate_critic else {}
        return {
            "policy": trained,
            **own,
            "target": ModelSpec(kind="ema", generates=True, follows=self.critic_name),
            "reference": ModelSpec(kind="frozen", generates=True),
        }

    def bind(self, context: Context) -> None:
        """Connect the roles, the selector and the measurements to the run's models."""
        super().bind(context)
        advanced = self.advanced
        self.roles = Roles(context, self.prompts, advanced, self.critic_name)
        self.selector = ActionSelector(
            self.roles, self, self.ablation,
            num_candidates=self.num_candidates, num_forecasts=self.num_forecasts,
        )  # fmt: skip
        measured = replace(
            self.selector,
            num_candidates=self.diagnostics.num_actions,
            num_forecasts=self.diagnostics.num_forecasts,
        )
        self.critic_monitor = diagnostics.Monitor(
            measured, states=self.diagnostics.num_states, rollouts=self.diagnostics.num_rollouts
        )
        self.checker = None
        if self.checks_improvement and self.improvement_check:
            self.checker = diagnostics.ImprovementCheck(self.improvement_check, self.roles)

    # --- one update ---

    def update(self, episodes: list[Episode], buffer: ReplayBuffer) -> Iterator[Phase]:
        """Train the successor model, move the target model, train the policy."""
        self.require_parsable_roles(buffer)
        self.roles.begin_stream("nlac", self.context.step)
        packed = self.can_pack  # before any forward pass, because it changes the attention
        keys = self.sample_turns(buffer, self.advanced.priority_exponent)
        turns = [TurnRef(buffer.episode(key), key.turn) for key in keys]

        if self.ablation.trains_critic:
            yield self.policy_evaluation(keys, turns, buffer)
            self.context.generator.mark_changed("target")

        if self.context.step >= self.critic_warmup:
            yield self.policy_improvement(turns, packed)

    def sample_turns(self, buffer: ReplayBuffer, priority_exponent: float) -> list[TurnKey]:
        """Sample the turns of this update from the replay buffer."""
        seed = self.roles.seed("replay")
        return buffer.sample_turns(self.turns_per_update, seed, priority_exponent)

    def policy_evaluation(
        self, keys: list[TurnKey], turns: list[TurnRef], buffer: ReplayBuffer
    ) -> Phase:
        """Return the successor phase, L1 = -log M(y | s, a). Turns without a valid target are left
        out. The priority of a turn becomes its loss per token (Schaul et al. 2016)."""
        targets = self.successor_targets(turns, buffer.episodes())
        valid = [(k, t, y) for k, t, y in zip(keys, turns, targets, strict=True) if y]
        samples = [
            completion_sample(self.roles.prompt(t, t.action_ids, self.prompts.forecast), y)
            for _, t, y in valid
        ]
        if self.advanced.priority_exponent:
            self._set_priorities(keys, [key for key, _, _ in valid], samples, buffer)
        tokens = sum(sum(sample.mask) for sample in samples)
        return Phase(
            "successor", samples, nll, model=self.critic_name, after_step=self.update_target,
            minibatch_tokens=ceil(tokens / self.advanced.critic_steps),
            metrics={"nlac/unparsed_targets": 1 - len(samples) / len(turns)},
        )  # fmt: skip

    def successor_targets(self, turns: list[TurnRef], episodes: list[Episode]) -> list[Ids | None]:
        """Return the targets y of the successor model. `episodes` are those in the buffer."""

        def true_end(turn: TurnRef) -> tuple[TurnRef, str] | None:
            """Return a last turn and the true outcome of its episode, as the whole target or as the
            forecast that is backed up. Success or failure enters only here."""
            if turn.episode.stop != "done":
                return None
            ended = self.ablation.outcome_of(turn.episode, episodes, self.roles)
            if self.advanced.terminal_targets == "backup":
                return last_turn(ended), outcome_word(ended)
            return last_turn(ended), self.outcome_text(last_turn(ended).response, ended)

        return backup_targets(self.roles, turns, true_end, self.ablation)

    def outcome_text(self, response: str, episode: Episode) -> str:
        """Return a response of the environment and the episode's outcome in the form of a
        forecast."""
        return fill(self.prompts.terminal, response=response, outcome=outcome_word(episode))

    def _set_priorities(
        self, keys: list[TurnKey], valid: list[TurnKey], samples: list[Sample], buffer: ReplayBuffer
    ) -> None:
        """Set the priorities of the turns. A turn without a target, which may get one later, takes
        the lowest loss of this update, or the lowest priority if there is no loss."""
        logprobs = token_logprobs(self.context.models.forward(self.critic_name), samples)
        losses = [-sum(row) / sum(s.mask) for row, s in zip(logprobs, samples, strict=True)]
        lowest = min(losses or [buffer.priority(key) for key in keys])
        missed = [key for key in keys if key not in valid]
        buffer.set_priorities(missed + valid, [lowest] * len(missed) + losses)

    def update_target(self) -> None:
        """Move the target model towards the successor model, after each of its optimizer steps."""
        self.context.models.ema_update("target", self.critic_name, self.advanced.ema_decay)

    def policy_improvement(self, turns: list[TurnRef], packed: bool) -> Phase:
        """Return the distillation phase, L2 = -log π(a* | s) under the plain prompt of the policy,
        with weights and with `kl_coef` times the divergence from the initial policy."""
        targets, metrics = self.improve(turns)
        if self.checker:
            metrics |= self.checker.measure(self.context.step, targets)
            targets = targets if self.checker.is_open else []
        samples = distillation_samples(targets, packed)
        if self.kl_coef:
            add_logprobs(self.context.models.forward("reference"), samples, "reference_logprob")
        return Phase(
            "policy", samples, self.distillation_loss,
            minibatch_tokens=self.advanced.minibatch_tokens, metrics=metrics,
        )  # fmt: skip

    def improve(self, turns: list[TurnRef]) -> tuple[list[TrainingTarget], dict[str, float]]:
        """Return the training targets of fresh candidates at each turn, and metrics."""
        stored = self.advanced.first_action == "stored"
        groups = self.selector.draw(turns, [t.action_ids for t in turns] if stored else None)
        self._warn_if_unparsable(groups)
        targets = [target for group in groups for target in self.selector.targets(group)]
        return targets, diagnostics.improvement_metrics(groups, targets, self.num_forecasts)

    def distillation_loss(self, outputs: Outputs, batch: Batch) -> Loss:
        """Return L2 as a sum over tokens."""
        return with_kl(nll(outputs, batch), outputs, batch, self.kl_coef)

    @cached_property
    def can_pack(self) -> bool:
        """Whether the models of the distillation phase can read several actions of a state in one
        row. The first access prepares them for that."""
        models, chat = self.context.models, self.context.chat
        with suppress(UserError):
            for name in ("policy", "reference") if self.kl_coef else ("policy",):
                model = causal_lm(models.module(name))
                with models.whole(name):
                    enable_packing(model, [chat.end_of_turn], "visible_first", "full")
            return True
        return False

    # --- checks of the roles' texts ---

    @property
    def _required_parse_rate(self) -> float:
        """`min_parse_rate`, but 0 for random weights, which only test the set-up."""
        return 0.0 if self.context.models.config.has_random_weights else self.min_parse_rate

    def require_parsable_roles(self, buffer: ReplayBuffer) -> None:
        """Raise UserError before the first update if less than `min_parse_rate` of a role's texts
        can be parsed."""
        if self.context.step == 0 and self._required_parse_rate:
            require_parsable(self.role_reports(buffer.episodes()), self._required_parse_rate)

    def check(self, episodes: list[Episode]) -> Iterator[tuple[str, str]]:
        """Yield one row per role about its texts at turns of these episodes. Raises UserError if
        they cannot be parsed."""
        reports = self.role_reports(episodes)
        yield from ((f"role {report.role}", report.line) for report in reports)
        require_parsable(reports, self._required_parse_rate)

    def role_reports(self, episodes: list[Episode]) -> list[RoleReport]:
        """Let every role write at a few turns of these episodes, and report how it is parsed."""
        turns = evenly_spaced(all_turns(episodes), CHECKED_TURNS)
        self.roles.begin_stream("role_check")
        self.roles.record = texts = []
        if self.ablation.trains_critic:
            self.successor_targets(turns, episodes)
        self.sample_improvements(turns)
        self.roles.record = None
        return role_reports(texts, self.roles.parser)

    def sample_improvements(self, turns: list[TurnRef]) -> None:
        """Let the roles of the improvement step write at these turns."""
        self.selector.draw(turns, [turn.action_ids for turn in turns])

    def _warn_if_unparsable(self, groups: list[Candidates]) -> None:
        """Warn once if no forecast, or less than `min_parse_rate` of them, has an outcome."""
        actions = [action for group in groups for action in group.drawn]
        share = sum(len(a.forecasts) for a in actions) / max(1, self.num_forecasts * len(actions))
        is_low = share == 0 or share < self.min_parse_rate
        is_expected = not (self.ablation.uses_critic and self.ablation.needs_verdicts)
        if is_low and not is_expected and not self.is_warned:
            self.is_warned = True
            line = f"warning: only {share:.2f} of the forecasts of {len(groups)} turns name"
            remedy = "change algo.prompts, or start from a model that was trained on such texts"
            echo(f"{line} 'Success.' or 'Failure.'; {remedy}", err=True)

    # --- sizes, known before models are loaded ---

    def texts(self, turns: int, max_tokens: int) -> dict[str, Texts]:
        """Return the number and length of the texts of one update, by role."""
        counts = Counter(self.evaluation_texts(turns))
        counts.update(self.improvement_texts(turns))
        if (check := self.improvement_check) and check.every:
            counts["checks"] = 2 * check.num_targets * check.num_rollouts * turns // check.every
        as_long = ("actions", "refinements", "rollouts", "checks")  # as an action of the policy
        role_tokens = self.advanced.role_tokens
        return {
            role: Texts(count, max_tokens if role in as_long else role_tokens)
            for role, count in counts.items()
            if count
        }

    def evaluation_texts(self, turns: int) -> dict[str, int]:
        """Return the texts of policy evaluation in episodes of so many turns. A trace has one
        backup per expected link of its chains."""
        if not self.ablation.trains_critic:
            return {}
        links, count = sum(self.advanced.td_lambda**i for i in range(turns)), self.turns_per_update
        return {"actions": count, "forecasts": count, "backups": round(count * links)}

    def improvement_texts(self, turns: int) -> dict[str, int]:
        """Return the texts of policy improvement, at most: forecasts of all candidates and of the
        refined actions that are judged, critiques, and refinements."""
        judged = self.num_refinements - 1 + self.require_optimal  # refined actions with a critique
        drawn, valued = self.num_candidates, self.policy_target != "refined"
        counts = {"actions": drawn - (self.advanced.first_action == "stored")}
        if self.ablation.uses_critic:
            counts["forecasts"] = self.num_forecasts * drawn
            counts["critiques"] = drawn if self.policy_target == "best_critique" else 0
            if self.policy_target != "best_critique":
                counts["forecasts"] += self.num_forecasts * (judged + valued)
                counts["critiques"] = 1 + judged + drawn * (self.policy_target == "best_of_n")
                counts["refinements"] = self.num_refinements
        return {role: count * self.turns_per_update for role, count in counts.items()}

    def extra_prompt_tokens(self) -> int:
        """Return the tokens of the longest dialogue with a role after an action: instructions, the
        texts that the role reads, and its own."""
        prompts, text = self.prompts, self.advanced.role_tokens
        shown = self.num_forecasts * (2 if self.show_alternatives else 1)
        evaluate = self.instruction_tokens(prompts.evaluate)
        if self.show_alternatives:
            evaluate += len(self.context.chat.encode_action(prompts.alternatives))
        rewritten = text + self.context.sampling.max_tokens  # by a critique
        return max(
            self.instruction_tokens(prompts.forecast) + text,
            self.instruction_tokens(prompts.backup) + 2 * text,
            evaluate + (shown + 1) * text,
            self.num_refinements * (self.instruction_tokens(prompts.refine) + rewritten),
        )

    def instruction_tokens(self, instruction: str) -> int:
        """Return the tokens that an instruction without its texts adds to an episode."""
        return len(self.roles.prompt_after([], [], instruction))

    # --- evaluation and checkpoints ---

    def generator(self, act: str) -> Generator:
        """Return the generator that plays the action to distill, for `eval.act=refined`."""
        if act != "refined":
            return super().generator(act)
        self.roles.begin_stream("refined")
        return diagnostics.RefinedPolicy(self.selector, self.context.generator)

    def annotate(self, episodes: list[Episode]) -> None:
        """Write forecasts, critique and refined action into `info["critic"]` of every turn."""
        self.roles.begin_stream("annotate", self.context.step)
        turns = all_turns(episodes)
        for group in self.selector.draw(turns, [turn.action_ids for turn in turns]):
            diagnostics.annotate(group, self.selector)

    def monitor(self, episodes: list[Episode]) -> dict[str, float]:
        """Return the metrics of the critic, of refined actions, and of policy drift."""
        self.roles.begin_stream("watch")
        return self.critic_monitor.measure(episodes)

    def action_values(self, turns: list[TurnRef]) -> list[float]:
        """Return the share of `diagnostics.num_forecasts` forecasts that predict success. Raises
        UserError if the ablation uses no critic."""
        if not self.ablation.uses_critic:
            return super().action_values(turns)
        self.roles.begin_stream("values", self.context.step)
        actions = [turn.action_ids for turn in turns]
        rows = self.roles.forecast(turns, actions, self.diagnostics.num_forecasts)
        return [success_share(row, self.roles.parser) for row in rows]

    def state(self) -> dict[str, Any]:
        """Return the measurements of the improvement check."""
        return {"guard": self.checker.gains} if self.checker else {}

    def load(self, state: dict[str, Any]) -> None:
        if self.checker:
            self.checker.gains = state["guard"]


def distillation_samples(targets: list[TrainingTarget], packed: bool) -> list[Sample]:
    """Return the training samples of the targets, each token with the weight of its target. If
    `packed`, the actions of a state share one sample in which they cannot see each other."""
    if packed:
        groups = [list(of_turn) for _, of_turn in groupby(targets, lambda target: target.turn)]
        rows = [
            (branches_sample(g[0].turn.state_ids, [t.action_ids for t in g]), g) for g in groups
        ]
    else:
        rows = [(completion_sample(t.turn.state_ids, t.action_ids), [t]) for t in targets]
    for sample, group in rows:
        weights = [target.weight for target in group for _ in target.action_ids]
        sample.per_token["weight"] = [0.0] * len(group[0].turn.state_ids) + weights
    return [sample for sample, _ in rows]
