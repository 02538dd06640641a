"""NLAC with one part exchanged: the ablations of arXiv 2512.04601, each a class.

Whatever a variant leaves out, the rest of the algorithm is NLAC's own. Options of NLAC (k, m,
replay, controls) need no class; conf/experiment/ has a preset for each.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, get_args

from agentrl_cli.algos.base import Phase
from agentrl_cli.algos.nlac.algorithm import NLAC
from agentrl_cli.algos.nlac.backup import Target
from agentrl_cli.algos.nlac.choice import Control, Lesson
from agentrl_cli.algos.nlac.monitor import drift
from agentrl_cli.algos.nlac.probe import start_from
from agentrl_cli.algos.nlac.roles import Ids
from agentrl_cli.algos.samples import TurnRef
from agentrl_cli.core.errors import UserError, require_at_least
from agentrl_cli.core.statistics import mean
from agentrl_cli.core.types import Episode
from agentrl_cli.models.specs import ModelSpec
from agentrl_cli.rollout.play import EpisodeStart
from agentrl_cli.rollout.replay_buffer import ReplayBuffer, TurnKey


@dataclass(kw_only=True)
class NLACMonteCarlo(NLAC):
    """The successor model learns from how the episode itself ended, not from a forecast made at
    the next state: no bootstrapping, the outcome of the policy that played."""

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse(self, "control=shuffled_outcomes")

    def evaluation_texts(self, turns: int) -> dict[str, int]:
        """The targets are what the world said."""
        return {}

    def language_backup(self, turns: list[TurnRef], episodes: list[Episode]) -> list[Target]:
        """What the world answered and how the episode ended; None where it was cut off."""
        return [
            self.outcome_ids(turn.response, turn.episode) if turn.episode.stop == "done" else None
            for turn in turns
        ]


@dataclass(kw_only=True)
class NLRL(NLAC):
    """NLRL-style values (Feng et al. 2024, arXiv 2411.14251): the text of a value is drawn together
    from `rollouts` on-policy continuations of the action, by the target; no bootstrapping."""

    rollouts: int

    def __post_init__(self) -> None:
        super().__post_init__()
        require_at_least(1, rollouts=self.rollouts)
        refuse(self, "control=shuffled_outcomes")

    def evaluation_texts(self, turns: int) -> dict[str, int]:
        """A backup for each turn that is replayed, drawn from rollouts behind it."""
        count = self.turns_per_update
        return {"rollouts": count * self.rollouts * turns, "backups": count}

    def language_backup(self, turns: list[TurnRef], episodes: list[Episode]) -> list[Target]:
        """One forecast of each turn, written from what came of it in fresh rollouts; None where the
        text names no outcome or was cut off, or where no rollout ended."""
        actions = [turn.action_ids for turn in turns]
        rollouts = rollouts_of(self, turns, self.rollouts, actions)
        prompts = [self._prompt(*row) for row in zip(turns, rollouts, strict=True) if row[1]]
        written = iter(self.roles.write(prompts, 1, "target", role="aggregate"))
        return [self.backup.if_readable(next(written)[0]) if row else None for row in rollouts]

    def _evaluate_policy(self, keys: list[TurnKey], *more: Any) -> Phase:
        """As NLAC's, with the rollouts counted: they steer the run."""
        phase = super()._evaluate_policy(keys, *more)
        phase.metrics["rollouts/episodes"] = float(len(keys) * self.rollouts)
        return phase

    def _prompt(self, turn: TurnRef, rollouts: list[Episode]) -> Ids:
        """The action, what the world answered to it, and how each rollout ended."""
        texts = {"response": turn.response, "rollouts": "\n".join(map(self._end, rollouts))}
        return self.roles.prompt(turn, turn.action_ids, self.prompts.aggregate, **texts)

    def _end(self, episode: Episode) -> str:
        return self.outcome_text(TurnRef(episode, len(episode.turns) - 1).response, episode)


@dataclass(kw_only=True)
class NLACSelfDistillation(NLAC):
    """No successor model and no critique: the refiner reads `rollouts` fresh on-policy rollouts
    from the state, the first of which begins with the action to rewrite."""

    rollouts: int

    def __post_init__(self) -> None:
        super().__post_init__()
        require_at_least(1, rollouts=self.rollouts)
        controls = [c for c in get_args(Control) if c != "none"]
        refuse(self, *(f"control={control}" for control in controls), "keep_optimal=true")
        if self.guard or self.critic == "own" or self.improvement != "refinement":
            line = "NLACSelfDistillation has no critic: it takes no algo.guard, no algo.critic=own"
            raise UserError(f"{line} and no algo.improvement but refinement; use algo=nlac")
        if self.advanced.role_weights == "target":
            raise UserError("algo.advanced.role_weights is target, of which there is none here")

    def models(self) -> dict[str, ModelSpec]:
        """The policy and its start."""
        return {k: spec for k, spec in super().models().items() if k in ("policy", "reference")}

    def update(self, episodes: list[Episode], buffer: ReplayBuffer) -> Iterator[Phase]:
        """Improvement alone."""
        self.require_readable_roles(buffer)
        self.roles.begin_stream("nlac", self.context.step)
        keys = self.sample_turns(buffer, priority_exponent=0.0)
        lessons, metrics = self.improve([TurnRef(buffer.episode(k), k.turn) for k in keys])
        yield self._distillation(lessons, metrics, self.reads_packed)

    def evaluation_texts(self, turns: int) -> dict[str, int]:
        """Nothing is evaluated."""
        return {}

    def language_backup(self, turns: list[TurnRef], episodes: list[Episode]) -> list[Target]:
        """There is no successor role, so there are no targets."""
        return [None for _ in turns]

    def write_improvements(self, turns: list[TurnRef]) -> None:
        """Let the refiner write by rollouts."""
        self.improve(turns)

    def improvement_texts(self, turns: int) -> dict[str, int]:
        """A refinement for each turn, and rollouts from it."""
        count = self.turns_per_update
        return {"rollouts": count * self.rollouts * turns, "refinements": count}

    def improve(self, turns: list[TurnRef]) -> tuple[list[Lesson], dict[str, float]]:
        """The rewritten actions; a turn none of whose rollouts ended drops out."""
        rollouts = rollouts_of(self, turns, self.rollouts, None)
        rows = [row for row in zip(turns, rollouts, strict=True) if row[1]]
        first = [of_turn[0].turns[turn.turn].action_ids for turn, of_turn in rows]
        refined = self.roles.refine([self._prompt(*row) for row in rows])
        written = [Lesson(turn, ids) for (turn, _), ids in zip(rows, refined, strict=True)]
        lessons = [lesson for lesson in written if self.roles.is_complete(lesson.action_ids)]
        changed = [a != b for a, b in zip(first, refined, strict=True)]
        return lessons, {
            "nlac/changed_share": mean(changed),
            "nlac/distilled_share": len(lessons) / len(turns),
            "rollouts/episodes": float(len(turns) * self.rollouts),
        }

    def _prompt(self, turn: TurnRef, rollouts: list[Episode]) -> Ids:
        """The refiner's prompt: the first rollout's action, then all rollouts in a line each."""
        lines = "\n".join(self._line(TurnRef(episode, turn.turn)) for episode in rollouts)
        action = rollouts[0].turns[turn.turn].action_ids
        return self.roles.prompt(turn, action, self.prompts.refine_by_rollouts, rollouts=lines)

    def _line(self, turn: TurnRef) -> str:
        """A rollout as the refiner reads it: the action, the answer, the end."""
        end = self.outcome_text(turn.response, turn.episode)
        return " ".join([*turn.action.split(), *end.split()])

    def annotate(self, episodes: list[Episode]) -> None:
        """There is no critic to ask."""

    def monitor(self, episodes: list[Episode]) -> dict[str, float]:
        """Drift alone: there is no critic to measure."""
        return drift(self.context, episodes) if self.advanced.monitored_states else {}


def rollouts_of(
    algo: NLAC, turns: list[TurnRef], count: int, actions: list[Ids] | None
) -> list[list[Episode]]:
    """For each turn `count` fresh plays of the current policy from its state, after the given
    action or, where none are given, one of its own; those that broke or were cut off have no
    outcome and are left out."""
    rounds = []
    for k in range(count):
        given = actions or [None] * len(turns)
        starts = [_start(algo, turn, k, ids) for turn, ids in zip(turns, given, strict=True)]
        rounds.append(algo.context.probe(starts))
    return [
        [e for e in of_turn if e.stop == "done" and len(e.turns) > turn.turn]
        for turn, of_turn in zip(turns, zip(*rounds, strict=True), strict=True)
    ]


def refuse(algo: NLAC, *settings: str) -> None:
    """Raise UserError where a setting asks for, or spoils, a part that the variant lacks."""
    advanced, name = algo.advanced, type(algo).__name__
    given = (f"control={advanced.control}", f"keep_optimal={advanced.keep_optimal}".lower())
    for setting in settings:
        if setting in given:
            raise UserError(f"algo.advanced.{setting} means nothing to {name}; use algo=nlac")


def _start(algo: NLAC, turn: TurnRef, number: int, action: Ids | None) -> EpisodeStart:
    seed = algo.roles.seed("rollout", turn.episode.id, turn.turn, number)
    return start_from(algo.context.chat, turn, action, seed, number)
