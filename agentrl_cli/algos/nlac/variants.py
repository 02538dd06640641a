"""NLAC with one part exchanged: the ablations of arXiv 2512.04601, each a class.

Whatever a variant leaves out, the rest of the algorithm is NLAC's own. Options of NLAC (k, m,
replay, controls) need no class; conf/experiment/ has a preset for each.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from agentrl_cli.algos.base import Phase
from agentrl_cli.algos.nlac import monitor
from agentrl_cli.algos.nlac.algorithm import NLAC, Lesson
from agentrl_cli.algos.nlac.prompts import fill
from agentrl_cli.algos.nlac.roles import CritiquedAction, TurnRef
from agentrl_cli.core.errors import UserError, require_at_least
from agentrl_cli.core.types import Episode
from agentrl_cli.models.specs import ModelSpec
from agentrl_cli.rollout.play import EpisodeStart, probe_starts
from agentrl_cli.rollout.replay_buffer import ReplayBuffer


@dataclass(kw_only=True)
class NLACMonteCarlo(NLAC):
    """The successor model learns from how the episode itself ended, not from a forecast made at
    the next state: no bootstrapping, the outcome of the policy that played."""

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse_control(self, "shuffled_outcomes")

    def language_backup(
        self, places: list[TurnRef], episodes: list[Episode]
    ) -> list[list[int] | None]:
        """What the world answered and how the episode ended; None where it was cut off."""
        return [self._ending(place) for place in places]

    def _ending(self, place: TurnRef) -> list[int] | None:
        if place.episode.stop != "done":
            return None
        text = fill(self.prompts.terminal, response=place.response, outcome=end(place.episode))
        return self.context.chat.encode_action(text)


@dataclass(kw_only=True)
class NLRL(NLAC):
    """NLRL-style values (Feng et al. 2024, arXiv 2411.14251): the text of a value is drawn together
    from `rollouts` on-policy continuations of the action, by the EMA weights; no bootstrapping."""

    rollouts: int

    def __post_init__(self) -> None:
        super().__post_init__()
        require_at_least(1, rollouts=self.rollouts)
        refuse_control(self, "shuffled_outcomes")

    def language_backup(
        self, places: list[TurnRef], episodes: list[Episode]
    ) -> list[list[int] | None]:
        """One forecast of each turn, written from what came of it in fresh rollouts; None where the
        text names no outcome or was cut off."""
        played = continued(self, places, self.rollouts, [place.action for place in places])
        told = ["\n".join(map(self._told, row)) for row in transposed(played)]
        prompts = [self.backup.prompt(*pair) for pair in zip(places, told, strict=True)]
        return [self.backup.readable(y) for (y,) in self.roles.write(prompts, 1, "target")]

    def _told(self, episode: Episode) -> str:
        last = TurnRef(episode, len(episode.turns) - 1)
        return fill(self.prompts.terminal, response=last.response, outcome=end(episode))


@dataclass(kw_only=True)
class NLQL(NLAC):
    """Natural language Q-learning: no refiner; of `candidates` fresh actions the one whose critique
    is best is distilled (called optimal first, then by the share of forecast success). Each is
    judged beside the forecasts of the next one."""

    candidates: int

    def __post_init__(self) -> None:
        super().__post_init__()
        require_at_least(2, candidates=self.candidates)
        refuse_keeping(self)

    def improve(self, places: list[TurnRef]) -> tuple[list[Lesson], dict[str, float]]:
        """The best of the candidates at each place; places without a readable critique are left
        out."""
        rows = [place for place in places for _ in range(self.candidates)]
        actions = self.roles.act(rows)
        forecasts = self.roles.forecast(rows, actions, self.forecasts)
        judged = [CritiquedAction(*row) for row in zip(rows, actions, forecasts, strict=True)]
        groups = [judged[i : i + self.candidates] for i in range(0, len(rows), self.candidates)]
        for group in groups:
            for one, after in zip(group, [*group[1:], group[0]], strict=True):
                one.others = after.forecasts
        self.roles.criticise(judged)
        chains = [[group[0], best] for group in groups if (best := best_of(group)) is not None]
        kept = [chain for chain in chains if self.roles.ended(chain[-1].action)]
        lessons = [(chain[-1].place, chain[-1].action) for chain in kept]
        counts = len(lessons), len(places), self.forecasts
        return lessons, monitor.improvement(chains, *counts)

    def annotate(self, episodes: list[Episode]) -> None:
        """Forecasts and critique of every action; nothing is refined."""
        self.roles.begin("annotate", self.context.step)
        places = [TurnRef(episode, t) for episode in episodes for t in range(len(episode.turns))]
        actions = [place.action for place in places]
        beside = self.roles.forecast(places, self.roles.act(places), self.forecasts)
        for one in self.roles.judge(places, actions, beside, self.forecasts):
            monitor.note([one, replace(one, action=[], critique="")], self.roles)


@dataclass(kw_only=True)
class NLACSelfDistillation(NLAC):
    """No successor model and no critique: the refiner reads `rollouts` fresh on-policy rollouts
    from the state, the first of which begins with the action to rewrite."""

    rollouts: int

    def __post_init__(self) -> None:
        super().__post_init__()
        require_at_least(1, rollouts=self.rollouts)
        for control in ("shuffled_outcomes", "shuffled_critiques", "empty_critiques"):
            refuse_control(self, control)
        if self.advanced.role_weights == "target":
            raise UserError("algo.advanced.role_weights is target, of which there is none here")
        refuse_keeping(self)

    def models(self) -> dict[str, ModelSpec]:
        """The policy and its start."""
        return {name: spec for name, spec in super().models().items() if name != "target"}

    def update(self, episodes: list[Episode], buffer: ReplayBuffer) -> Iterator[Phase]:
        """Improvement alone."""
        self.roles.begin("nlac", self.context.step)
        keys = buffer.sample_turns(self.turns_per_update, self.roles.seed("replay"), 0.0)
        lessons, metrics = self.improve([TurnRef(buffer.episode(key), key.turn) for key in keys])
        yield self._phase("policy", self._anchored(lessons), metrics)

    def improve(self, places: list[TurnRef]) -> tuple[list[Lesson], dict[str, float]]:
        """The rewritten actions; rollouts that broke before they acted are left out."""
        played = transposed(continued(self, places, self.rollouts, None))
        known = [
            (place, rows)
            for place, row in zip(places, played, strict=True)
            if (rows := [episode for episode in row if len(episode.turns) > place.turn])
        ]
        firsts = [rows[0].turns[place.turn].action_ids for place, rows in known]
        told = ["\n".join(self._told(place, one) for one in rows) for place, rows in known]
        prompts = [
            self.context.chat.role(place.state, first, fill(self.prompts.refine, critique=text))
            for (place, _), first, text in zip(known, firsts, told, strict=True)
        ]
        refined = self.roles.refine(prompts, self.advanced.role_weights)
        pairs = list(zip([place for place, _ in known], refined, strict=True))
        lessons = [(place, ids) for place, ids in pairs if self.roles.ended(ids)]
        changed = [float(a != b) for a, b in zip(firsts, refined, strict=True)]
        metrics = {
            "nlac/changed_share": monitor.mean(changed),
            "nlac/distilled_share": len(lessons) / len(places),
        }
        return lessons, metrics

    def _told(self, place: TurnRef, episode: Episode) -> str:
        """A rollout as the refiner reads it: the action, the answer, the end."""
        said = TurnRef(episode, place.turn)
        ending = fill(self.prompts.terminal, response=said.response, outcome=end(episode))
        return f"{episode.turns[place.turn].action} {ending}"

    def annotate(self, episodes: list[Episode]) -> None:
        """There is no critic to ask."""

    def monitor(self, episodes: list[Episode]) -> dict[str, float]:
        """Drift alone: there is no critic to measure."""
        return monitor.drift(self, episodes) if self.advanced.monitored_states else {}


def end(episode: Episode) -> str:
    """How an episode ended, in the word that forecasts end with."""
    return "Success." if episode.success else "Failure."


def best_of(group: list[CritiquedAction]) -> CritiquedAction | None:
    """The action whose critique is best; the first of equals, None where none can be read."""
    readable = [one for one in group if one.optimal is not None]
    return max(readable, key=lambda one: (one.optimal is True, one.value), default=None)


def continued(
    algo: NLAC, places: list[TurnRef], count: int, actions: list[list[int]] | None
) -> list[list[Episode]]:
    """`count` fresh plays from every place by the current policy, after the given action or, where
    none are given, one of its own: count x places."""
    found = []
    for k in range(count):
        starts = [
            _start(algo, place, k, actions[i] if actions else None)
            for i, place in enumerate(places)
        ]
        found.append(algo.context.probe(starts))
    return found


def transposed(rows: list[list[Episode]]) -> list[list[Episode]]:
    """places x count of count x places."""
    return [list(row) for row in zip(*rows, strict=True)]


def refuse_control(algo: NLAC, control: str) -> None:
    """Raise UserError where a control spoils what the variant does not have."""
    if algo.advanced.control == control:
        name = type(algo).__name__
        raise UserError(f"algo.advanced.control={control} means nothing to {name}; use algo=nlac")


def refuse_keeping(algo: NLAC) -> None:
    """Raise UserError where `keep_optimal` is asked of a variant without critiques to refine by."""
    if algo.advanced.keep_optimal:
        name = type(algo).__name__
        raise UserError(f"algo.advanced.keep_optimal=true means nothing to {name}; use algo=nlac")


def _start(algo: NLAC, place: TurnRef, number: int, action: list[int] | None) -> EpisodeStart:
    episode, turn = place.episode, place.turn
    seed = algo.roles.seed("rollout", episode.id, turn, number)
    if action is not None:
        text = algo.context.chat.decode(action)
        return probe_starts(episode, turn, text, action, [seed])[0]
    forced = episode.turns[:turn]
    name = f"{episode.id}-r{turn:02d}-{number}"
    return EpisodeStart(episode.task, name, seed, name, forced, world_seed=episode.seed)
