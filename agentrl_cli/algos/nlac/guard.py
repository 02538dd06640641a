"""Do no harm: the policy learns only while what it would learn is shown to be better than what it
plays. The world is replayed for that, so these probes are episodes and count as such."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from agentrl_cli.algos.nlac.choice import Lesson
from agentrl_cli.algos.nlac.ledger import low_end
from agentrl_cli.algos.nlac.probe import probe
from agentrl_cli.algos.nlac.roles import Roles
from agentrl_cli.core.errors import require_at_least
from agentrl_cli.core.statistics import mean

FEWEST_LESSONS = 8  # of which the guard believes a mean


@dataclass(frozen=True, kw_only=True)
class GuardSettings:
    """Every `every` updates (None: never) `lessons` of the update's lessons are measured, each
    action and the policy's own play from its state by `probes` episodes; the last `memory`
    measurements count."""

    every: int | None
    lessons: int
    probes: int
    memory: int

    def __post_init__(self) -> None:
        require_at_least(1, every=1 if self.every is None else self.every)
        require_at_least(1, probes=self.probes, memory=self.memory)
        require_at_least(FEWEST_LESSONS, lessons=self.lessons)


@dataclass
class Guard:
    """Measures lessons and says whether the policy may learn: `gains` are those of each
    measurement, the newest last."""

    settings: GuardSettings
    roles: Roles
    gains: list[list[float]] = field(default_factory=list)

    def check(self, step: int, lessons: list[Lesson]) -> dict[str, float]:
        """Measure where it is due; metrics `guard/…`."""
        played = 0
        if self.settings.every and step % self.settings.every == 0:
            kept = [lesson for lesson in lessons if lesson.weight > 0]
            rng = random.Random(self.roles.seed("guard"))
            measured = rng.sample(kept, min(len(kept), self.settings.lessons))
            self.gains = [*self.gains, self._gains(measured)][-self.settings.memory :]
            played = 2 * len(measured) * self.settings.probes
        gain, low = self.bounds
        metrics = {"gain": gain, "low": low, "open": float(self.is_open)}
        return {f"guard/{k}": v for k, v in metrics.items()} | {"guard/episodes": float(played)}

    @property
    def bounds(self) -> tuple[float, float]:
        """The mean gain in success of a lesson over the policy's own play, and the lower end of its
        95 % interval; -1 before FEWEST_LESSONS were measured, of which an interval says little."""
        gains = [gain for measurement in self.gains for gain in measurement]
        return mean(gains), low_end(gains) if len(gains) >= FEWEST_LESSONS else -1.0

    @property
    def is_open(self) -> bool:
        """Whether the policy may learn."""
        return self.bounds[1] > 0.0

    def _gains(self, lessons: list[Lesson]) -> list[float]:
        wanted = [(lesson.turn, lesson.action_ids) for lesson in lessons]
        own = [(lesson.turn, None) for lesson in lessons]
        found = probe(self.roles, [*wanted, *own], self.settings.probes)
        pairs = zip(found, found[len(lessons) :], strict=False)
        return [a - b for a, b in pairs if a is not None and b is not None]
