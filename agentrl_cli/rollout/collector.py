"""Sources of episodes: the interface that the training loop uses, and who plays them."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count, islice
from typing import Annotated, Any

from pydantic import Field

from agentrl_cli.core.activity import Activity
from agentrl_cli.core.errors import UserError
from agentrl_cli.core.types import MOST_EPISODES, Episode, Task, derive_seed
from agentrl_cli.envs.base import Env, train_tasks
from agentrl_cli.generators.base import Generator, Sampling
from agentrl_cli.rollout.chat_template import Chat
from agentrl_cli.rollout.play import FAILED_LIMIT, EpisodeStart, check_failures, play


@dataclass(frozen=True)
class PlayRequest:
    """Episodes to play.

    `play_here` plays any of them in this process. `needs_this_process` is set if the environment or
    the generator is not the run's. `step` is the step whose training episodes these are; None: an
    evaluation.
    """

    starts: list[EpisodeStart]
    sampling: Sampling
    max_failure_rate: float
    play_here: Callable[[list[EpisodeStart]], list[Episode]]
    needs_this_process: bool
    step: int | None


class Actors:
    """This process, which plays every episode when it is requested. Subclasses use others."""

    plays_ahead = False  # whether `play_ahead` does anything

    def play(self, request: PlayRequest) -> list[Episode]:
        return request.play_here(request.starts)

    def play_ahead(self, request: PlayRequest) -> None:
        """Begin to play the episodes that will be requested next."""

    def metrics(self) -> dict[str, float]:
        return {}

    def state(self) -> dict[str, Any]:
        """Return JSON values for a checkpoint."""
        return {}

    def load(self, state: dict[str, Any]) -> None:
        """Restore a `state`. Episodes that were played ahead by others are played again."""

    def close(self) -> None:
        """End the processes that were started for this run."""


@dataclass(kw_only=True)
class Collector(ABC):
    """A source of episodes. Its limits, described at `play`, also hold for episodes that are played
    elsewhere. None means no limit. The defaults are those of runs stored without these keys."""

    max_new_tokens: Annotated[int, Field(ge=1, description="Most new tokens per action.")]
    temperature: Annotated[float, Field(ge=0, description="Sampling temperature of training.")]
    max_seq_len: Annotated[int, Field(description="Most tokens per episode, prompts included.")]
    env_timeout: Annotated[
        float | None, Field(gt=0, description="Seconds for one call of an environment; null: any.")
    ] = None
    env_workers: Annotated[
        int, Field(ge=1, description="Environments that run at a time, each in a thread.")
    ] = 1
    max_concurrent_episodes: Annotated[
        int | None, Field(ge=1, description="Live episodes, also in evaluations; null: all.")
    ] = None
    make_env: Callable[[], Env] = field(init=False, repr=False)
    chat: Chat = field(init=False, repr=False)
    generator: Generator = field(init=False, repr=False)
    policy_version: Callable[[], int] = field(init=False, repr=False)
    seed: int = field(init=False, repr=False)
    activity: Activity | None = field(default=None, init=False, repr=False)
    actors: Actors = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if self.max_new_tokens >= self.max_seq_len:
            line = f"rollout.max_new_tokens {self.max_new_tokens} leaves no room in"
            line += f" rollout.max_seq_len {self.max_seq_len}; lower the former or raise the latter"
            raise UserError(line, code="no-room")

    def bind(
        self, *, make_env: Callable[[], Env], chat: Chat, generator: Generator,
        policy_version: Callable[[], int], seed: int, actors: Actors | None = None,
    ) -> None:  # fmt: skip
        """Set the run's objects before the first step. `policy_version` returns how often the
        policy's weights have changed; `actors` play the episodes (None: this process)."""
        self.make_env, self.chat, self.generator, self.seed = make_env, chat, generator, seed
        self.policy_version, self.actors = policy_version, actors or Actors()

    @property
    def sampling(self) -> Sampling:
        """The sampling parameters of actions."""
        stops = self.chat.stop_ids
        return Sampling(
            max_tokens=self.max_new_tokens, temperature=self.temperature, stop_ids=stops
        )

    def play(
        self, starts: list[EpisodeStart], sampling: Sampling, generator: Generator | None = None,
        max_failure_rate: float = 1.0, make_env: Callable[[], Env] | None = None,
    ) -> list[Episode]:  # fmt: skip
        """Play these starts with the run's limits, and with another generator or environment if
        given. Raises RunAborted if more than the share `max_failure_rate` of them fails."""
        return self._played(self.request(starts, sampling, generator, max_failure_rate, make_env))

    def request(
        self, starts: list[EpisodeStart], sampling: Sampling, generator: Generator | None = None,
        max_failure_rate: float = 1.0, make_env: Callable[[], Env] | None = None,
        step: int | None = None,
    ) -> PlayRequest:  # fmt: skip
        """Return the request of `play` to the actors."""
        player = (make_env or self.make_env, self.chat, generator or self.generator, sampling)

        def play_here(part: list[EpisodeStart]) -> list[Episode]:
            return play(
                part, *player, max_seq_len=self.max_seq_len, version=self.policy_version(),
                max_failure_rate=max_failure_rate * (len(starts) / max(1, len(part))),
                env_timeout=self.env_timeout, workers=self.env_workers,
                max_concurrent_episodes=self.max_concurrent_episodes, activity=self.activity,
            )  # fmt: skip

        is_other_generator = generator is not None and generator is not self.generator
        is_other = is_other_generator or make_env is not None
        return PlayRequest(starts, sampling, max_failure_rate, play_here, is_other, step)

    def _played(self, request: PlayRequest) -> list[Episode]:
        episodes = self.actors.play(request)
        check_failures(episodes, request.max_failure_rate)
        return episodes

    @abstractmethod
    def count(self, group_size: int) -> int:
        """Return how many episodes `collect` returns."""

    @abstractmethod
    def collect(self, step: int, group_size: int) -> list[Episode]:
        """Return the episodes of a step, a function of the run's seed, the step and the weights."""


@dataclass(kw_only=True)
class PlayCollector(Collector):
    """Plays `episodes_per_step` episodes per step, in groups of one task. The tasks depend on the
    run's seed and the step only, so a resumed run continues with the right ones."""

    episodes_per_step: Annotated[
        int, Field(ge=1, le=MOST_EPISODES, description="Episodes per step, in whole groups.")
    ]

    def count(self, group_size: int) -> int:
        """Return the size of all whole groups. Raises UserError if not even one fits."""
        if group_size > self.episodes_per_step:
            line = f"rollout.episodes_per_step {self.episodes_per_step} is less than a group of"
            raise UserError(f"{line} {group_size}; raise it", code="group-too-large")
        return self.episodes_per_step // group_size * group_size

    def starts(self, step: int, group_size: int) -> list[EpisodeStart]:
        """Return the starts of a step: `group_size` episodes of each of its tasks."""
        tasks, starts = train_tasks(self.make_env()), []
        groups = self.count(group_size) // group_size
        epoch, passed = divmod(step * groups, len(tasks))
        stream = (task for number in count(epoch) for task in self._shuffled(tasks, number))
        for t, task in enumerate(islice(stream, passed, passed + groups)):
            group = f"s{step:06d}-t{t:02d}"
            for i in range(group_size):
                seed = derive_seed(self.seed, "rollout", step, t, task.id, i)
                starts.append(EpisodeStart(task, group, seed, f"{group}-g{i}"))
        return starts

    def _shuffled(self, tasks: list[Task], epoch: int) -> list[Task]:
        order = list(tasks)
        random.Random(derive_seed(self.seed, "data", epoch)).shuffle(order)
        return order

    def collect(self, step: int, group_size: int) -> list[Episode]:
        """Play the step. Raises RunAborted if more than a fifth of its episodes failed."""
        episodes = self._played(self._step_request(step, group_size))
        if all(episode.stop == "context" and not episode.turns for episode in episodes):
            short = f"rollout.max_seq_len {self.max_seq_len} is too short for the first prompt"
            raise UserError(f"{short} and an action; raise it", code="no-room")
        if self.actors.plays_ahead:
            self.actors.play_ahead(self._step_request(step + 1, group_size))
        return episodes

    def _step_request(self, step: int, group_size: int) -> PlayRequest:
        starts = self.starts(step, group_size)
        return self.request(starts, self.sampling, max_failure_rate=FAILED_LIMIT, step=step)
