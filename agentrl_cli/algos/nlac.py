"""NLAC: natural language actor-critic (arXiv 2512.04601).

One model plays five roles. The successor role forecasts in words how an episode goes on after an
action and is trained off-policy by a language Bellman backup; the evaluator turns forecasts into a
critique; the refiner rewrites the action by it; the rewritten action is distilled into the plain
policy. No policy gradient. Our choices where the paper is silent: the evaluator may also read
forecasts of another action of the same state (`compare`), the policy stays frozen for the first
`warmup` steps, and a gate drops refinements that their own critique does not call optimal.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Literal

from torch import Tensor

from agentrl_cli.algos import watch
from agentrl_cli.algos.base import Algorithm, Context, ModelSpec, OptimizerSpec, Phase
from agentrl_cli.algos.language import Prompts, fill, outcome
from agentrl_cli.algos.roles import Judged, Place, Roles
from agentrl_cli.algos.samples import written_sample
from agentrl_cli.buffer import ReplayBuffer
from agentrl_cli.errors import UserError, at_least
from agentrl_cli.losses import kl_to_reference, nll
from agentrl_cli.models.policy import Batch, Outputs, score
from agentrl_cli.types import Episode, Sample

SCORED_AT_ONCE = 16384
Lesson = tuple[Place, list[int]]


@dataclass(frozen=True, kw_only=True)
class Advanced:
    """Rarely changed. `writer` names the weights that write critiques and refinements: nothing
    trains these roles, so the live policy forgets them and its start (reference) does not.
    `control` spoils one part on purpose: what NLAC gains over it is that part's work.
    `watched_states`, `watched_actions` and `probes` size the measurements at evaluation."""

    first_action: Literal["fresh", "stored"]
    writer: Literal["policy", "target", "reference"]
    control: Literal["none", "shuffled_outcomes", "shuffled_critiques", "empty_critiques"]
    role_tokens: int
    role_temperature: float
    tokens_per_step: int
    watched_states: int
    watched_actions: int
    probes: int

    def __post_init__(self) -> None:
        at_least(1, role_tokens=self.role_tokens, watched_actions=self.watched_actions)
        at_least(1, probes=self.probes)
        at_least(0, role_temperature=self.role_temperature, watched_states=self.watched_states)


@dataclass(kw_only=True)
class NLAC(Algorithm):
    """`forecasts` is the paper's k, `rounds` its m; `ema` is the share that the target keeps."""

    turns_per_update: int
    forecasts: int
    rounds: int
    compare: bool
    gate: bool
    ema: float
    priority: float
    kl: float
    warmup: int
    replay: int
    optimizer: OptimizerSpec
    advanced: Advanced
    prompts: Prompts
    roles: Roles = field(init=False, repr=False)

    def __post_init__(self) -> None:
        at_least(1, turns_per_update=self.turns_per_update, replay=self.replay)
        at_least(1, forecasts=self.forecasts, rounds=self.rounds)
        at_least(0, ema=self.ema, priority=self.priority, kl=self.kl, warmup=self.warmup)
        if self.ema > 1:
            raise UserError(f"ema is {self.ema}: a share is at most 1")

    @property
    def capacity(self) -> int:
        """Episodes kept for replay."""
        return self.replay

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
            context, self.prompts, advanced.role_tokens, advanced.role_temperature, advanced.writer
        )

    def update(self, episodes: list[Episode], buffer: ReplayBuffer) -> Iterator[Phase]:
        """Policy evaluation by the language Bellman backup, then improvement by refinement."""
        self.roles.begin("nlac", self.context.step)
        keys = buffer.sample_turns(self.turns_per_update, self.roles.seed("replay"), self.priority)
        places = [Place(buffer.episode(key), key.turn) for key in keys]

        targets = self.language_backup(places, buffer.episodes())
        told = [row for row in zip(keys, places, targets, strict=True) if row[2]]
        samples = [self._successor(place, y) for _, place, y in told if y]
        if self.priority:
            buffer.set_priorities([key for key, _, _ in told], self._losses(samples))
        untold = 1 - len(samples) / len(places)
        yield self._phase("successor", samples, {"nlac/unparsed_targets": untold})
        self._move_target()

        if self.context.step >= self.warmup:
            lessons, metrics = self.improve(places)
            yield self._phase("policy", self._anchored(lessons), metrics)

    # policy evaluation

    def language_backup(
        self, places: list[Place], episodes: list[Episode]
    ) -> list[list[int] | None]:
        """Targets y ~ Backup(s, a, s', d') with d' ~ M(s', a') and a' ~ policy(s'), M and Backup by
        the EMA weights; at an episode's end its true outcome. None where a text names no
        outcome."""
        targets = [self._terminal(place, episodes) if place.last else None for place in places]
        going = [i for i, place in enumerate(places) if not place.last]
        successors = [Place(places[i].episode, places[i].turn + 1) for i in going]
        forecasts = self.roles.forecast(successors, self.roles.act(successors), 1, "target")
        foretold = [(i, texts[0]) for i, texts in zip(going, forecasts, strict=True) if texts]
        prompts = [self._backup_prompt(places[i], text) for i, text in foretold]
        for (i, _), (y,) in zip(foretold, self.roles.write(prompts, 1, "target"), strict=True):
            targets[i] = y if outcome(self.roles.read(y)) is not None else None
        return targets

    def _backup_prompt(self, place: Place, forecast: str) -> list[int]:
        instruction, response = self.prompts.backup, place.response
        return self.roles.prompt(
            place, place.action, instruction, response=response, forecast=forecast
        )

    def _terminal(self, place: Place, episodes: list[Episode]) -> list[int] | None:
        """The true end of an episode as a forecast; nothing for an episode that was cut off."""
        episode = place.episode
        if self.advanced.control == "shuffled_outcomes":
            episode = random.Random(self.roles.seed("shuffle", episode.id)).choice(episodes)
        if episode.stop != "done":
            return None
        said = Place(episode, len(episode.turns) - 1).response
        end = "Success." if episode.success else "Failure."
        text = fill(self.prompts.terminal, response=said, outcome=end)
        return self.context.chat.encode_action(text)

    def _successor(self, place: Place, target: list[int]) -> Sample:
        """L1: the target's tokens behind the forecast prompt."""
        return written_sample(self.roles.prompt(place, place.action, self.prompts.forecast), target)

    def _losses(self, samples: list[Sample]) -> list[float]:
        """The mean loss per token of each target: its turn's priority in the replay."""
        rows = score(self.context.models.module("policy"), samples, SCORED_AT_ONCE)
        return [-sum(row) / sum(s.mask) for row, s in zip(rows, samples, strict=True)]

    def _move_target(self) -> None:
        models = self.context.models
        models.ema_update("target", "policy", self.ema)
        self.context.generator.load("target", models.version("target"))

    # policy improvement

    def improve(self, places: list[Place]) -> tuple[list[Lesson], dict[str, float]]:
        """The actions to distil, refined by `rounds` critiques and passed by the gate; monitors."""
        fresh = self.advanced.first_action == "fresh"
        first = self.roles.act(places) if fresh else [place.action for place in places]
        chains = self.refine(places, first)
        lessons = [(chain[0].place, chain[-1].action) for chain in chains if self._passes(chain)]
        return lessons, watch.improvement(chains, len(lessons), len(places))

    def refine(self, places: list[Place], actions: list[list[int]]) -> list[list[Judged]]:
        """For each place the chain a1, …, a(m+1); all but the last are judged, the last too under
        the gate. Places where a critique could not be read are left out."""
        beside: list[list[str]] = [[] for _ in places]
        if self.compare:
            beside = self.roles.forecast(places, self.roles.act(places), self.forecasts)
        chains = [[one] for one in self._judge(places, actions, beside)]
        prompts = [place.state for place in places]
        for i in range(self.rounds):
            prompts = [
                self.context.chat.role(
                    ids, chain[-1].action, fill(self.prompts.refine, critique=chain[-1].critique)
                )
                for ids, chain in zip(prompts, chains, strict=True)
            ]
            refined = [ids for (ids,) in self.roles.write(prompts, 1, self.advanced.writer)]
            steps = self._follow(chains, refined, beside, self.gate or i + 1 < self.rounds)
            chains = [[*chain, step] for chain, step in zip(chains, steps, strict=True)]
        return [chain for chain in chains if self._readable(chain)]

    def _follow(
        self,
        chains: list[list[Judged]],
        refined: list[list[int]],
        beside: list[list[str]],
        judges: bool,
    ) -> list[Judged]:
        """The next link of each chain; an action that the refiner kept keeps its critique too."""
        steps = [
            chain[-1] if chain[-1].action == ids else Judged(chain[0].place, ids)
            for chain, ids in zip(chains, refined, strict=True)
        ]
        new = [i for i, step in enumerate(steps) if judges and step is not chains[i][-1]]
        if new:
            places, actions = [steps[i].place for i in new], [steps[i].action for i in new]
            judged = self._judge(places, actions, [beside[i] for i in new])
            for i, one in zip(new, judged, strict=True):
                steps[i] = one
        return steps

    def _judge(
        self, places: list[Place], actions: list[list[int]], beside: list[list[str]]
    ) -> list[Judged]:
        """Judge, and spoil the critiques where a control says so."""
        judged = self.roles.judge(places, actions, beside, self.forecasts)
        critiques = [one.critique for one in judged]
        if self.advanced.control == "shuffled_critiques":
            random.Random(self.roles.seed("critiques")).shuffle(critiques)
        if self.advanced.control == "empty_critiques":
            critiques = [""] * len(judged)
        return [replace(one, critique=text) for one, text in zip(judged, critiques, strict=True)]

    def _readable(self, chain: list[Judged]) -> bool:
        asked = chain if self.gate else chain[:-1]
        empty = self.advanced.control == "empty_critiques"
        return empty or all(one.optimal is not None for one in asked)

    def _passes(self, chain: list[Judged]) -> bool:
        """Whether to distil: a whole turn that, under the gate, its own critique calls optimal."""
        whole = bool(chain[-1].action) and chain[-1].action[-1] in self.context.chat.stop_ids
        ungated = not self.gate or self.advanced.control == "empty_critiques"
        return whole and (ungated or chain[-1].optimal is True)

    def _anchored(self, lessons: list[Lesson]) -> list[Sample]:
        """L2: the refined action behind the plain prompt; the start's log-probs for the anchor."""
        samples = [written_sample(place.state, action) for place, action in lessons]
        if self.kl:
            rows = score(self.context.models.module("reference"), samples, SCORED_AT_ONCE)
            for sample, row in zip(samples, rows, strict=True):
                sample.streams["reference_logprob"] = row
        return samples

    def distil(self, outputs: Outputs, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """The likelihood of the refined actions, and `kl` times the divergence from the start."""
        loss, metrics = nll(outputs, batch)
        if not self.kl:
            return loss, metrics
        anchor, more = kl_to_reference(outputs, batch)
        return loss + self.kl * anchor, metrics | more

    def _phase(self, name: str, samples: list[Sample], metrics: dict[str, float]) -> Phase:
        loss = self.distil if name == "policy" else nll
        size = self.advanced.tokens_per_step
        return Phase(name, samples, loss, tokens_per_step=size, metrics=metrics)

    # what a reader sees

    def annotate(self, episodes: list[Episode]) -> None:
        """Write forecasts, critique and refined action into `info["critic"]` of every turn."""
        self.roles.begin("annotate", self.context.step)
        places = [Place(episode, t) for episode in episodes for t in range(len(episode.turns))]
        for chain in self.refine(places, [place.action for place in places]):
            watch.note(chain, self.roles)

    def monitor(self, episodes: list[Episode]) -> dict[str, float]:
        """Calibration and within-state discrimination of forecasts, gain of refining, drift."""
        self.roles.begin("watch")
        return watch.critic(self, episodes)
