"""The improvement ledger: of measured turns, which part of the improvement lost what the critic
knows. The first figure that is out of its range names the part to mend."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from agentrl_cli.algos.nlac.choice import Candidate, Candidates, Chooser
from agentrl_cli.core.statistics import mean

STANDARD_ERRORS = 2.0  # by which two success rates count as different
TWO_SIDED_95 = 1.96  # standard errors


@dataclass(frozen=True)
class ProbedCandidates:
    """The candidates of a turn and each one's success when it was played out."""

    candidates: Candidates
    success: list[float]

    @property
    def drawn(self) -> list[tuple[Candidate, float]]:
        """The draws of the policy, with their success."""
        rows = zip(self.candidates.actions, self.success, strict=True)
        return [(action, success) for action, success in rows if action.draws]

    @property
    def mean(self) -> float:
        """The state's success: the mean over the draws."""
        total = sum(action.draws * success for action, success in self.drawn)
        return total / self.candidates.draws

    @property
    def refined(self) -> float | None:
        """The success of the refined action, where there is one."""
        refinement = self.candidates.refinement
        return None if refinement is None else self.of(refinement.last.action_ids)

    @property
    def refined_gain(self) -> float:
        """By how much the refined action succeeds more than the first draw; 0 without one."""
        return 0.0 if self.refined is None else self.refined - self.success[0]

    @property
    def flagged(self) -> bool | None:
        """Whether the critique of the first draw says that it is not optimal."""
        found = self.candidates.first.is_optimal
        return None if found is None else not found

    def gap(self, action_ids: list[int], probes: int) -> float:
        """By how much a candidate succeeds more than the policy's other draws do in the mean, with
        `probes` probes of each action; 0 where that is within two standard errors."""
        success = self.of(action_ids)
        others = [(a.draws, rate) for a, rate in self.drawn if a.action_ids != action_ids]
        total = sum(draws for draws, _ in others)
        if not total:
            return 0.0
        shares = [draws / total for draws, _ in others]
        mean_of_others = sum(share * rate for share, (_, rate) in zip(shares, others, strict=True))
        is_clear = differ(success, mean_of_others, probes, sum(share**2 for share in shares))
        return success - mean_of_others if is_clear else 0.0

    def of(self, action_ids: list[int]) -> float:
        """The success of one of the candidates."""
        actions = [action.action_ids for action in self.candidates.actions]
        return self.success[actions.index(action_ids)]


def ledger(groups: Sequence[ProbedCandidates], chooser: Chooser, probes: int) -> dict[str, float]:
    """Metrics `ledger/…`, docs/metrics.md. An action is faulty where it succeeds less often than
    the policy's other draws by two standard errors."""
    faulty = [g.gap(g.candidates.first.action_ids, probes) < 0 for g in groups]
    judged = [(g.flagged, fault) for g, fault in zip(groups, faulty, strict=True)]
    refined = [
        (g.gap(g.candidates.refinement.last.action_ids, probes) < 0, g.refined_gain, fault)
        for g, fault in zip(groups, faulty, strict=True)
        if g.candidates.refinement is not None
    ]
    gains = lesson_gains(groups, chooser)
    return {
        "ledger/turns": float(len(groups)),
        "ledger/faulty": mean([float(fault) for fault in faulty]),
        "ledger/hits": mean([float(flag is True) for flag, fault in judged if fault]),
        "ledger/false_alarms": mean(
            [float(flagged is True) for flagged, fault in judged if not fault]
        ),
        "ledger/mended": mean(
            [float(not still and gain > 0) for still, gain, fault in refined if fault]
        ),
        "ledger/spoiled": mean([float(bad) for bad, _, fault in refined if not fault]),
        "ledger/lesson_share": len(gains) / max(1, len(groups)),
        "ledger/lesson_gain": mean(gains),
        "ledger/lesson_gain_low": low_end(gains),
    }


def lesson_gains(groups: Sequence[ProbedCandidates], chooser: Chooser) -> list[float]:
    """Of each turn that is learnt from: the success of what is learnt less that of the draws."""
    best = [(group, chooser.best_action(group.candidates)) for group in groups]
    return [group.of(action) - group.mean for group, action in best if action is not None]


def low_end(values: Sequence[float]) -> float:
    """The lower end of the mean's 95 % interval; 0 for fewer than two values."""
    if len(values) < 2:
        return 0.0
    return mean(values) - TWO_SIDED_95 * statistics.stdev(values) / len(values) ** 0.5


def differ(success: float, other: float, probes: int, spread: float = 1.0) -> bool:
    """Whether two success rates differ by two standard errors: one of so many probes, the other of
    as many, or a mean of such rates whose squared weights sum to `spread`."""
    pooled = (success + other) / 2
    error = (pooled * (1 - pooled) * (1 + spread) / probes) ** 0.5
    return abs(success - other) > max(STANDARD_ERRORS * error, 1e-9)
