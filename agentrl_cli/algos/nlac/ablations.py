"""Ablations of NLAC that replace a part of the algorithm, as in arXiv 2512.04601.

Smaller ones are classes in improve.py (`algo.advanced.ablation`) and settings (`num_forecasts`,
`num_refinements`, `first_action`, `policy_target`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from agentrl_cli.algos.base import Algorithm, Phase
from agentrl_cli.algos.nlac.algorithm import NLAC
from agentrl_cli.algos.nlac.diagnostics import drift, start_at
from agentrl_cli.algos.nlac.improve import TrainingTarget
from agentrl_cli.algos.nlac.roles import Ids
from agentrl_cli.algos.samples import TurnRef, last_turn
from agentrl_cli.algos.settings import NLACSelfDistillationConfig, NLRLConfig
from agentrl_cli.core.statistics import mean
from agentrl_cli.core.types import Episode
from agentrl_cli.generators.base import Generator
from agentrl_cli.models.specs import ModelSpec
from agentrl_cli.rollout.replay_buffer import ReplayBuffer, TurnKey


@dataclass(kw_only=True)
class NLRL(NLRLConfig, NLAC):
    """Values in the style of NLRL (Feng et al. 2024, arXiv 2411.14251): the weights of
    `backup_model` summarize `rollouts` on-policy rollouts of the action. There is no
    bootstrapping."""

    def evaluation_texts(self, turns: int) -> dict[str, int]:
        count = self.turns_per_update
        return {"rollouts": count * self.rollouts * turns, "backups": count}

    def extra_prompt_tokens(self) -> int:
        """As for NLAC; a summary reads rollouts, each of which counts as a text of a role."""
        summary = self.instruction_tokens(self.prompts.aggregate)
        return max(
            super().extra_prompt_tokens(), summary + (self.rollouts + 1) * self.advanced.role_tokens
        )

    def policy_evaluation(
        self, keys: list[TurnKey], turns: list[TurnRef], buffer: ReplayBuffer
    ) -> Phase:
        phase = super().policy_evaluation(keys, turns, buffer)
        phase.metrics["rollouts/episodes"] = float(len(turns) * self.rollouts)
        return phase

    def successor_targets(self, turns: list[TurnRef], episodes: list[Episode]) -> list[Ids | None]:
        """Return one summary per turn, None if it is not valid or no rollout had an outcome."""
        rollouts = sample_rollouts(self, turns, self.rollouts, [turn.action_ids for turn in turns])
        prompts = [
            self.roles.prompt(
                turn, turn.action_ids, self.prompts.aggregate, response=turn.response,
                rollouts="\n".join(self.outcome_text(last_turn(e).response, e) for e in row),
            )
            for turn, row in zip(turns, rollouts, strict=True)
            if row
        ]  # fmt: skip
        written = iter(self.roles.write("aggregate", prompts, self.advanced.backup_model))
        return [self.roles.if_valid(next(written)[0]) if row else None for row in rollouts]


@dataclass(kw_only=True)
class NLACSelfDistillation(NLACSelfDistillationConfig, NLAC):
    """No critic: the refiner reads `rollouts` on-policy rollouts from the state. It rewrites the
    action that the first of them took."""

    def models(self) -> dict[str, ModelSpec]:
        return {k: spec for k, spec in super().models().items() if k in ("policy", "reference")}

    def generator(self, act: str) -> Generator:
        """Raise UserError unless the policy plays: one cannot refine by rollouts in an episode."""
        return Algorithm.generator(self, act)

    def action_values(self, turns: list[TurnRef]) -> list[float]:
        """Raise UserError, because there is no critic."""
        return Algorithm.action_values(self, turns)

    def update(self, episodes: list[Episode], buffer: ReplayBuffer) -> Iterator[Phase]:
        self.require_parsable_roles(buffer)
        self.roles.begin_stream("nlac", self.context.step)
        keys = self.sample_turns(buffer, priority_exponent=0.0)
        turns = [TurnRef(buffer.episode(key), key.turn) for key in keys]
        yield self.policy_improvement(turns, self.can_pack)

    def improve(self, turns: list[TurnRef]) -> tuple[list[TrainingTarget], dict[str, float]]:
        """Return the refined actions as training targets. A turn is left out if none of its
        rollouts had an outcome."""
        rollouts = sample_rollouts(self, turns, self.rollouts, None)
        rows = [(turn, row) for turn, row in zip(turns, rollouts, strict=True) if row]
        first = [row[0].turns[turn.turn].action_ids for turn, row in rows]
        prompts = [
            self.roles.prompt(
                turn, ids, self.prompts.refine_by_rollouts,
                rollouts="\n".join(self._line(TurnRef(episode, turn.turn)) for episode in row),
            )
            for (turn, row), ids in zip(rows, first, strict=True)
        ]  # fmt: skip
        refined = self.roles.refine(prompts)
        targets = [
            TrainingTarget(turn, ids)
            for (turn, _), ids in zip(rows, refined, strict=True)
            if self.roles.is_complete(ids)
        ]
        return targets, {
            "nlac/changed_share": mean([a != b for a, b in zip(first, refined, strict=True)]),
            "nlac/distilled_share": len(targets) / len(turns),
            "rollouts/episodes": float(len(turns) * self.rollouts),
        }

    def extra_prompt_tokens(self) -> int:
        """Return the tokens of a refinement; a rollout counts as an action and a text of a role."""
        action = self.context.sampling.max_tokens
        read = self.rollouts * (action + self.advanced.role_tokens)
        return self.instruction_tokens(self.prompts.refine_by_rollouts) + read + action

    def _line(self, turn: TurnRef) -> str:
        """Return a rollout as one line: its action, the response, the outcome."""
        text = f"{turn.action} {self.outcome_text(turn.response, turn.episode)}"
        return " ".join(text.split())

    def successor_targets(self, turns: list[TurnRef], episodes: list[Episode]) -> list[Ids | None]:
        return [None for _ in turns]

    def sample_improvements(self, turns: list[TurnRef]) -> None:
        self.improve(turns)

    def evaluation_texts(self, turns: int) -> dict[str, int]:
        return {}

    def improvement_texts(self, turns: int) -> dict[str, int]:
        count = self.turns_per_update
        return {"rollouts": count * self.rollouts * turns, "refinements": count}

    def annotate(self, episodes: list[Episode]) -> None:
        """Do nothing."""

    def monitor(self, episodes: list[Episode]) -> dict[str, float]:
        return drift(self.context, episodes) if self.diagnostics.num_states else {}


def sample_rollouts(
    algo: NLAC, turns: list[TurnRef], count: int, actions: list[Ids] | None
) -> list[list[Episode]]:
    """Sample `count` rollouts of the policy from the state of each turn, after the given action if
    there is one. Rollouts without an outcome are left out."""
    rounds = []
    for k in range(count):
        seeds = [algo.roles.seed("rollout", t.episode.id, t.turn, k) for t in turns]
        rows = zip(turns, actions or [None] * len(turns), seeds, strict=True)
        rounds.append(algo.context.probe([start_at(algo.roles, *row, k) for row in rows]))
    return [
        [e for e in of_turn if e.stop == "done" and len(e.turns) > turn.turn]
        for turn, of_turn in zip(turns, zip(*rounds, strict=True), strict=True)
    ]
