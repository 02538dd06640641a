"""Where a step's episodes come from: what the loop asks of any source, and play in this process."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice

from agentrl_cli.core.activity import Activity
from agentrl_cli.core.errors import UserError, require_above, require_at_least, require_at_most
from agentrl_cli.core.types import MOST_EPISODES, Episode, Task, derive_seed
from agentrl_cli.envs.base import Env, train_tasks
from agentrl_cli.generators.base import Generator, Sampling
from agentrl_cli.rollout.actors import Actors, PlayRequest
from agentrl_cli.rollout.chat_template import Chat
from agentrl_cli.rollout.play import FAILED_LIMIT, EpisodeStart, play, refuse_failures


@dataclass(kw_only=True)
class Collector(ABC):
    """A source of episodes. Its numbers also bound every episode that is played elsewhere: an
    action has `max_new_tokens`, an episode `max_seq_len` tokens at most, and a world `env_timeout`
    seconds for an answer; `workers` worlds are at work at a time, `max_concurrent_episodes`
    episodes in
    play. None is no limit; the defaults are those of runs that were stored without these keys."""

    max_new_tokens: int
    temperature: float
    max_seq_len: int
    env_timeout: float | None = None
    env_workers: int = 1
    max_concurrent_episodes: int | None = None
    make_env: Callable[[], Env] = field(init=False, repr=False)
    chat: Chat = field(init=False, repr=False)
    generator: Generator = field(init=False, repr=False)
    policy_version: Callable[[], int] = field(init=False, repr=False)
    seed: int = field(init=False, repr=False)
    activity: Activity | None = field(default=None, init=False, repr=False)
    actors: Actors = field(init=False, repr=False)

    def __post_init__(self) -> None:
        require_at_least(1, max_tokens=self.max_new_tokens, workers=self.env_workers)
        at_once = 1 if self.max_concurrent_episodes is None else self.max_concurrent_episodes
        require_at_least(1, max_concurrent_episodes=at_once)
        require_at_least(0, temperature=self.temperature)
        require_above(0, env_timeout=1 if self.env_timeout is None else self.env_timeout)
        if self.max_new_tokens >= self.max_seq_len:
            line = (
                f"max_tokens {self.max_new_tokens} leaves no room in max_seq_len {self.max_seq_len}"
            )
            raise UserError(f"{line}; give actions fewer tokens or episodes more")

    def bind(
        self, *, make_env: Callable[[], Env], chat: Chat, generator: Generator,
        policy_version: Callable[[], int], seed: int, actors: Actors | None = None,
    ) -> None:  # fmt: skip
        """Receive the given objects before the first step; `policy_version` says how often the
        policy's weights have changed, and `actors` play (None: this process)."""
        self.make_env, self.chat, self.generator, self.seed = make_env, chat, generator, seed
        self.policy_version, self.actors = policy_version, actors or Actors()

    @property
    def sampling(self) -> Sampling:
        """How actions are sampled."""
        most, stop_ids = self.max_new_tokens, self.chat.stop_ids
        return Sampling(max_tokens=most, temperature=self.temperature, stop_ids=stop_ids)

    def play(
        self,
        starts: list[EpisodeStart],
        sampling: Sampling,
        generator: Generator | None = None,
        max_failure_rate: float = 1.0,
        make_env: Callable[[], Env] | None = None,
    ) -> list[Episode]:
        """Play these starts as everything in the run is played, another generator or another world
        where one is given; RunAborted where more than the share `max_failure_rate` of them
        fails."""
        request = self.request(starts, sampling, generator, max_failure_rate, make_env)
        return self._played(request)

    def request(
        self,
        starts: list[EpisodeStart],
        sampling: Sampling,
        generator: Generator | None = None,
        max_failure_rate: float = 1.0,
        make_env: Callable[[], Env] | None = None,
        step: int | None = None,
    ) -> PlayRequest:
        """What `play` asks the actors for."""
        player = (make_env or self.make_env, self.chat, generator or self.generator, sampling)

        def play_here(part: list[EpisodeStart]) -> list[Episode]:
            return play(
                part, *player, max_seq_len=self.max_seq_len, version=self.policy_version(),
                max_failure_rate=max_failure_rate * (len(starts) / max(1, len(part))),
                env_timeout=self.env_timeout, workers=self.env_workers,
                max_concurrent_episodes=self.max_concurrent_episodes, activity=self.activity,
            )  # fmt: skip

        is_other_generator = generator is not None and generator is not self.generator
        return PlayRequest(
            starts=starts,
            sampling=sampling,
            max_failure_rate=max_failure_rate,
            play_here=play_here,
            needs_this_process=is_other_generator or make_env is not None,
            step=step,
        )

    def _played(self, request: PlayRequest) -> list[Episode]:
        episodes = self.actors.play(request)
        refuse_failures(episodes, request.max_failure_rate)
        return episodes

    @abstractmethod
    def count(self, group_size: int) -> int:
        """How many episodes `collect` returns."""

    @abstractmethod
    def collect(self, step: int, group_size: int) -> list[Episode]:
        """The episodes of step `step`, a function of the run's seed, the step and the weights."""


@dataclass(kw_only=True)
class PlayCollector(Collector):
    """Plays `episodes_per_step` episodes a step, in groups of one task. What a step plays depends
    on the run's seed and the step only, so a resumed run goes on with the tasks that were due."""

    episodes_per_step: int

    def __post_init__(self) -> None:
        super().__post_init__()
        require_at_most(MOST_EPISODES, **{"rollout.episodes_per_step": self.episodes_per_step})

    def count(self, group_size: int) -> int:
        """Whole groups, at most `episodes_per_step` episodes. Raises UserError where none fits."""
        if group_size > self.episodes_per_step:
            line = f"rollout.episodes_per_step {self.episodes_per_step} holds no group of"
            raise UserError(f"{line} {group_size}; give at least {group_size}")
        return self.episodes_per_step // group_size * group_size

    def starts(self, step: int, group_size: int) -> list[EpisodeStart]:
        """What step `step` plays: `group_size` episodes of each of its tasks."""
        tasks, starts = train_tasks(self.make_env()), []
        groups = self.count(group_size) // group_size
        for t, task in enumerate(islice(self._stream(tasks, step * groups), groups)):
            group = f"s{step:06d}-t{t:02d}"
            for i in range(group_size):
                seed = derive_seed(self.seed, "rollout", step, t, task.id, i)
                starts.append(EpisodeStart(task, group, seed, f"{group}-g{i}"))
        return starts

    def collect(self, step: int, group_size: int) -> list[Episode]:
        """The step's episodes. RunAborted where more than a fifth of them failed."""
        self.generator.clear()
        episodes = self._played(self._step_request(step, group_size))
        if all(episode.stop == "context" and not episode.turns for episode in episodes):
            short = f"rollout.max_seq_len {self.max_seq_len} holds not even the first prompt"
            raise UserError(f"{short} and an action; give more")
        if self.actors.plays_ahead:
            self.actors.play_ahead(self._step_request(step + 1, group_size))
        return episodes

    def _step_request(self, step: int, group_size: int) -> PlayRequest:
        starts = self.starts(step, group_size)
        return self.request(starts, self.sampling, max_failure_rate=FAILED_LIMIT, step=step)

    def _stream(self, tasks: list[Task], position: int) -> Iterator[Task]:
        """From a position on, the endless stream in which each epoch shuffles all tasks."""
        epoch, passed = divmod(position, len(tasks))
        while True:
            order = list(range(len(tasks)))
            random.Random(derive_seed(self.seed, "data", epoch)).shuffle(order)
            yield from (tasks[index] for index in order[passed:])
            epoch, passed = epoch + 1, 0
