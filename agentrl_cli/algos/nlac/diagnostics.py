"""Measurements of the critic and of the training targets. Nothing here trains a model.

- `probe` measures the success rate of an action: replay the episode up to its turn, take the
  action, and let the current policy finish.
- `Monitor` runs at evaluation: calibration, ranking of actions, critique accuracy, policy drift.
- `ImprovementCheck` (`algo.improvement_check`) compares training targets with the policy's own
  play.
- `RefinedPolicy` (`eval.act=refined`) plays the actions that would be distilled.
"""

from __future__ import annotations

import itertools
import math
import random
import statistics
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from agentrl_cli.algos.base import Context
from agentrl_cli.algos.nlac.improve import ActionSelector, Candidates, TrainingTarget
from agentrl_cli.algos.nlac.roles import Candidate, Ids, Roles, success_share
from agentrl_cli.algos.samples import TurnRef, all_turns, episode_samples
from agentrl_cli.algos.settings import NLACImprovementCheckConfig
from agentrl_cli.core.errors import GeneratorError, UserError
from agentrl_cli.core.statistics import mean, student
from agentrl_cli.core.types import Episode, evenly_spaced
from agentrl_cli.generators.base import Completion, Generator, Sampling
from agentrl_cli.models.forward import token_logprobs
from agentrl_cli.rollout.play import EpisodeStart, probe_starts, split_into_turns

CALIBRATION_STATES = 4  # per state at which actions are probed
DRIFT_EPISODES = 64
STANDARD_ERRORS = 2.0  # by which two success rates must differ
MIN_GAINS = 8  # measured targets below which the improvement check stays closed


# --- rollouts from a stored state ---


class CannotReplay(UserError):
    """The environment gives other observations when it is replayed."""


def probe(
    roles: Roles, wanted: Sequence[tuple[TurnRef, Ids | None]], count: int
) -> list[float | None]:
    """Return the success rate of each action (None: the policy's own) over `count` rollouts.

    Rollouts use the tasks that the agent cannot tell apart at the turn, in random order. Actions of
    one turn share tasks and seeds. A rate is None if no rollout ended by itself. Raises
    CannotReplay if no rollout could be replayed.
    """
    starts = []
    tasks = {}
    for turn in dict.fromkeys(turn for turn, _ in wanted):
        tasks[turn] = list(roles.context.indistinguishable_tasks(turn.episode, turn.turn))
        random.Random(roles.seed("tasks", turn.episode.id, turn.turn)).shuffle(tasks[turn])
    for turn, action in wanted:
        for k, task in zip(range(count), itertools.cycle(tasks[turn])):
            seed = roles.seed("probe", turn.episode.id, turn.turn, k)
            starts.append(replace(start_at(roles, turn, action, seed, k), task=task))
    episodes = roles.context.probe(starts)
    replayed = [e for start, e in zip(starts, episodes, strict=True) if start.replayed]
    if replayed and all(episode.stop == "diverged" for episode in replayed):
        line = "the environment gives other observations when it is replayed, so actions cannot be"
        line += " measured; set algo.improvement_check=null"
        raise CannotReplay(line, code="cannot-replay")
    rows = [episodes[i : i + count] for i in range(0, len(wanted) * count, count)]
    ended = [[float(e.success) for e in row if e.stop == "done"] for row in rows]
    return [mean(row) if row else None for row in ended]


def start_at(
    roles: Roles, turn: TurnRef, action: Ids | None, seed: int, number: int
) -> EpisodeStart:
    """Return the start of a rollout that replays the episode up to the turn and takes the action.
    For None the policy acts."""
    episode = turn.episode
    if action is not None:
        return probe_starts(episode, turn.turn, roles.decode(action), action, [seed])[0]
    name = f"{episode.id}-r{turn.turn:02d}-{number}"
    return EpisodeStart(
        episode.task, name, seed, name, episode.turns[: turn.turn], world_seed=episode.seed,
        awaited=episode.turns[turn.turn].observation,
    )  # fmt: skip


# --- the monitor ---


@dataclass(frozen=True)
class Monitor:
    """Measures the critic at `states` states (0: never). Each candidate that `selector` draws there
    is played out `rollouts` times."""

    selector: ActionSelector
    states: int
    rollouts: int

    @property
    def roles(self) -> Roles:
        return self.selector.roles

    def measure(self, episodes: list[Episode]) -> dict[str, float]:
        """Return all metrics on states of these episodes (docs/metrics.md). Metrics that need
        rollouts are left out if the environment cannot be replayed."""
        rng, turns = random.Random(self.roles.seed("states")), all_turns(episodes)
        if not turns or not self.states:
            return {}
        sampled = rng.sample(turns, min(len(turns), CALIBRATION_STATES * self.states))
        measured = self.calibration(sampled)
        with suppress(CannotReplay):
            measured |= self.discrimination(sampled[: self.states])
        measured |= drift(self.roles.context, episodes)
        initial = self.calibration(sampled, "reference")
        if "nlac/brier" in initial:
            measured["nlac/brier_start"] = initial["nlac/brier"]
        return measured

    def calibration(self, turns: list[TurnRef], model: str | None = None) -> dict[str, float]:
        """Return the Brier score and the bias of forecast success against the outcomes of the
        episodes. Episodes without an outcome and turns without a valid forecast do not count."""
        count, actions = self.selector.num_forecasts, [turn.action_ids for turn in turns]
        texts = self.roles.forecast(turns, actions, count, model)
        errors = [
            success_share(row, self.roles.parser) - float(turn.episode.success)
            for turn, row in zip(turns, texts, strict=True)
            if row and turn.episode.stop == "done"
        ]
        score = {"nlac/brier": mean([e**2 for e in errors]), "nlac/value_bias": mean(errors)}
        valid = sum(map(len, texts)) / (count * len(turns))
        return {**(score if errors else {}), "nlac/valid_forecasts": valid}

    def discrimination(self, turns: list[TurnRef]) -> dict[str, float]:
        """Return how well forecasts rank measured actions, the measured gain of refined actions
        over the actions they were made from, and the critique accuracy."""
        groups = self.probed(turns)
        within = [pair for group in groups for pair in ranked_pairs(group.drawn, self.rollouts)]
        drawn = [action for group in groups for action in group.drawn]
        gains = [(refined_gain(group), self._is_taught(group)) for group in groups if group.chain]
        return {
            "nlac/auc_within": auc(within),
            "nlac/auc_pairs": float(len(within)),
            "nlac/auc_all": auc(ranked_pairs(drawn, self.rollouts)),
            "nlac/refined_gain": mean([gain for gain, is_taught in gains if is_taught]),
            "nlac/refined_gain_all": mean([gain for gain, _ in gains]),
            **critique_accuracy(groups, self.selector, self.rollouts),
        }

    def _is_taught(self, group: Candidates) -> bool:
        return group.chain[-1].action_ids == self.selector.best_action(group)

    def probed(self, turns: list[TurnRef]) -> list[Candidates]:
        """Return the candidates of each turn with their measured success. A turn is left out if one
        of its candidates could not be measured."""
        groups = self.selector.draw(turns)
        actions = [action for group in groups for action in group.actions]
        wanted = [(action.turn, action.action_ids) for action in actions]
        rates = dict(zip(map(id, actions), probe(self.roles, wanted, self.rollouts), strict=True))
        for action in actions:
            action.success = rates[id(action)] or 0.0
        return [g for g in groups if all(rates[id(a)] is not None for a in g.actions)]


def ranked_pairs(actions: Sequence[Candidate], rollouts: int) -> list[tuple[float, float]]:
    """Return the values (of the worse action, of the better one) of every two actions that differ
    in measured success."""
    pairs = []
    for a, b in itertools.combinations(actions, 2):
        if differ(a.success, b.success, rollouts):
            pairs.append((a.value, b.value) if a.success < b.success else (b.value, a.value))
    return pairs


def auc(pairs: Sequence[tuple[float, float]]) -> float:
    """Return the share of (worse, better) pairs in the right order. Ties count half; 0.5 without
    pairs."""
    right = [1.0 if worse < better else 0.5 if worse == better else 0.0 for worse, better in pairs]
    return mean(right) if right else 0.5


def drift(context: Context, episodes: list[Episode]) -> dict[str, float]:
    """Return KL(policy || initial policy) per sampled token by the k3 estimator (Schulman 2020)."""
    chosen = evenly_spaced(episodes, DRIFT_EPISODES)
    samples = [sample for episode in chosen for sample in episode_samples(episode)]
    now = token_logprobs(context.models.forward("policy"), samples)
    initial = token_logprobs(context.models.forward("reference"), samples)
    gaps = [
        old - new
        for sample, new_row, old_row in zip(samples, now, initial, strict=True)
        for new, old, trained in zip(new_row, old_row, sample.mask, strict=True)
        if trained
    ]
    return {"policy/kl_ref": mean([math.exp(gap) - 1 - gap for gap in gaps])}


# --- critique accuracy: which part of the improvement step loses information ---


def critique_accuracy(
    groups: Sequence[Candidates], selector: ActionSelector, rollouts: int
) -> dict[str, float]:
    """Return metrics `critique/…` and `refinement/…` of measured candidates (docs/metrics.md). An
    action is faulty if it is measurably worse than the policy's other draws."""

    def is_faulty(group: Candidates, action: Candidate | None) -> bool:
        return action is not None and gap(group, action, rollouts) < 0

    faulty = [(group, is_faulty(group, group.first)) for group in groups]
    flagged = [(group.first.is_optimal is False, fault) for group, fault in faulty]
    refined = [
        (is_faulty(group, group.refined), refined_gain(group) > 0, fault)
        for group, fault in faulty
        if group.chain
    ]
    gains = target_gains(groups, selector)
    return {
        "critique/turns": float(len(groups)),
        "critique/faulty": mean([float(fault) for _, fault in faulty]),
        "critique/recall": mean([float(flag) for flag, fault in flagged if fault]),
        "critique/false_positive_rate": mean([float(flag) for flag, fault in flagged if not fault]),
        "refinement/fix_rate": mean([float(up and not bad) for bad, up, fault in refined if fault]),
        "refinement/break_rate": mean([float(bad) for bad, _, fault in refined if not fault]),
        "refinement/target_share": len(gains) / max(1, len(groups)),
        "refinement/target_gain": mean(gains),
        "refinement/target_gain_low": lower_bound(gains),
    }


def gap(group: Candidates, action: Candidate, rollouts: int) -> float:
    """Return the success of an action minus the mean of the policy's other draws, 0 if that is
    within two standard errors."""
    others = [other for other in group.drawn if other is not action]
    total = sum(other.draws for other in others)
    if not total:
        return 0.0
    shares = [other.draws / total for other in others]
    rate = sum(share * other.success for share, other in zip(shares, others, strict=True))
    spread = sum(share**2 for share in shares)
    return action.success - rate if differ(action.success, rate, rollouts, spread) else 0.0


def refined_gain(group: Candidates) -> float:
    """Return the success of the refined action minus that of the first draw, 0 without one."""
    return group.refined.success - group.first.success if group.refined else 0.0


def target_gains(groups: Sequence[Candidates], selector: ActionSelector) -> list[float]:
    """Return, for each turn with a training target, its success minus the mean of the draws."""
    gains = []
    for group in groups:
        best = group.find(selector.best_action(group) or [])
        if best is not None:
            total = sum(action.draws * action.success for action in group.drawn)
            gains.append(best.success - total / group.draws)
    return gains


def lower_bound(values: Sequence[float]) -> float:
    """Return the lower end of the mean's 95 % interval by Student's t, 0 for fewer than two
    values."""
    if len(values) < 2:
        return 0.0
    return mean(values) - student(len(values) - 1) * statistics.stdev(values) / len(values) ** 0.5


def differ(success: float, other: float, rollouts: int, spread: float = 1.0) -> bool:
    """Return whether two success rates differ by two standard errors. The first is of `rollouts`
    rollouts. The other is of as many, or a mean of such rates with squared weights that sum to
    `spread`."""
    pooled = (success + other) / 2
    error = (pooled * (1 - pooled) * (1 + spread) / rollouts) ** 0.5
    return abs(success - other) > max(STANDARD_ERRORS * error, 1e-9)


# --- metrics and notes of an update ---


def improvement_metrics(
    groups: list[Candidates], targets: list[TrainingTarget], forecasts: int
) -> dict[str, float]:
    """Return metrics of the critic and the refiner in one update."""
    chains = [group.chain for group in groups if group.chain]
    judged = [g for g in groups if g.chain or g.first.is_optimal is not None]
    changed = [chain[-1].action_ids != chain[0].action_ids for chain in chains]
    pairs = zip(changed, chains, strict=True)
    kept = [not is_changed for is_changed, chain in pairs if chain[0].is_optimal]
    taught = {target.turn for target in targets if target.weight > 0}
    return {
        "nlac/unparsed": 1 - len(judged) / len(groups),
        "nlac/valid_forecasts": mean([len(g.first.forecasts) / forecasts for g in groups]),
        "nlac/optimal_share": mean([group.first.is_optimal is True for group in judged]),
        "nlac/changed_share": mean(changed),
        "nlac/kept_when_optimal": mean(kept),
        "nlac/distilled_share": len(taught) / len(groups),
        "nlac/forecast_success": mean([group.first.value for group in groups]),
    }


def annotate(group: Candidates, selector: ActionSelector) -> None:
    """Write the critic's texts about a played action into `info["critic"]` of its turn."""
    nothing = Candidate(group.turn, [], parser=selector.roles.parser)
    chain = group.chain or [selector.shown(group, group.first), nothing]
    first, last = chain[0], chain[-1]
    group.turn.episode.turns[group.turn.turn].info["critic"] = {
        "forecasts": first.forecasts,
        "others": first.alternatives,
        "critique": first.critique or "",
        "verdict": first.is_optimal,
        "refined": selector.roles.decode(last.action_ids),
        "refined_critique": last.critique or "",
        "refined_verdict": last.is_optimal,
    }


# --- the improvement check ---


@dataclass
class ImprovementCheck:
    """Decides whether the policy may train. `gains` holds the gains of each measurement, the latest
    last."""

    settings: NLACImprovementCheckConfig
    roles: Roles
    gains: list[list[float]] = field(default_factory=list)

    def measure(self, step: int, targets: list[TrainingTarget]) -> dict[str, float]:
        """Measure a sample of the targets if the step is due. Returns metrics
        `improvement_check/…`."""
        settings, played = self.settings, 0
        if settings.every and step % settings.every == 0:
            raised = [target for target in targets if target.weight > 0]
            rng = random.Random(self.roles.seed("guard"))
            measured = rng.sample(raised, min(len(raised), settings.num_targets))
            self.gains = [*self.gains, self._gains(measured)][-settings.window :]
            played = 2 * len(measured) * settings.num_rollouts
        gain, low = self.bounds
        metrics = {"gain": gain, "low": low, "open": float(self.is_open), "episodes": float(played)}
        return {f"improvement_check/{name}": number for name, number in metrics.items()}

    @property
    def bounds(self) -> tuple[float, float]:
        """The mean gain of a target over the policy's own play, and the lower end of its 95 %
        interval (-1 for fewer than MIN_GAINS gains)."""
        gains = [gain for measurement in self.gains for gain in measurement]
        return mean(gains), lower_bound(gains) if len(gains) >= MIN_GAINS else -1.0

    @property
    def is_open(self) -> bool:
        """Whether the policy may train."""
        return self.bounds[1] > 0.0

    def _gains(self, targets: list[TrainingTarget]) -> list[float]:
        wanted = [(target.turn, target.action_ids) for target in targets]
        own_play = [(target.turn, None) for target in targets]
        rates = probe(self.roles, [*wanted, *own_play], self.settings.num_rollouts)
        pairs = zip(rates, rates[len(targets) :], strict=False)
        return [a - b for a, b in pairs if a is not None and b is not None]


# --- playing refined actions ---


@dataclass(frozen=True)
class RefinedPolicy(Generator):
    """A generator that replaces the policy's action by the one that would be distilled."""

    selector: ActionSelector
    generator: Generator

    def generate(
        self, prompts: list[Ids], seeds: list[int], sampling: Sampling, model: str = "policy"
    ) -> list[list[Completion]]:
        """Return one action of at most one turn per prompt. Log-probs of replaced actions are NaN.
        Raises GeneratorError without answers if a prompt of any role gets none."""
        try:
            return self._refined(prompts, seeds, sampling, model)
        except GeneratorError as error:  # its answers are of other prompts, or not refined
            raise GeneratorError(str(error), [None] * len(prompts)) from error

    def _refined(
        self, prompts: list[Ids], seeds: list[int], sampling: Sampling, model: str
    ) -> list[list[Completion]]:
        context = self.selector.roles.context
        replies = self.generator.generate(prompts, seeds, sampling, model)
        own = [split_into_turns(r, context.turn_delimiter, context.chat)[0] for (r, *_) in replies]
        turns = [TurnRef.from_state(ids) for ids in prompts]
        groups = self.selector.draw(turns, [completion.ids for completion in own], sampling)
        rows = []
        for completion, group in zip(own, groups, strict=True):
            ids = self.selector.best_action(group)
            if ids is not None and ids != completion.ids:
                unknown = [float("nan")] * len(ids)
                completion = replace(completion, ids=ids, logprobs=unknown, finish_reason="stop")
            rows.append([completion])
        return rows

    def fitting(self, prompts: list[Ids], model: str = "policy") -> int:
        return self.generator.fitting(prompts, model)
