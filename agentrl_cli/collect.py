"""Where episodes come from: tasks of the train split, played in this process."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from agentrl_cli.chat import Chat
from agentrl_cli.envs.base import Env
from agentrl_cli.generators.base import Generator, Sampling
from agentrl_cli.rollout import Start, play
from agentrl_cli.types import Episode, Task, derive_seed

FAILED_LIMIT = 0.2  # share of a step's episodes above which the run stops


@dataclass(kw_only=True)
class PlayCollector:
    """Plays `tasks_per_step` tasks a step. What a step plays depends on the run's seed and the step
    only, so a resumed run goes on with the tasks that were due."""

    tasks_per_step: int
    max_tokens: int
    temperature: float
    max_context: int
    make_env: Callable[[], Env] = field(init=False)
    chat: Chat = field(init=False)
    generator: Generator = field(init=False)
    seed: int = field(init=False)
    tasks: list[Task] = field(init=False)

    def bind(
        self, *, make_env: Callable[[], Env], chat: Chat, generator: Generator, seed: int
    ) -> None:
        """Receive the given objects before the first step."""
        self.make_env, self.chat, self.generator, self.seed = make_env, chat, generator, seed
        self.tasks = make_env().tasks("train")

    @property
    def sampling(self) -> Sampling:
        """How actions are sampled."""
        return Sampling(
            max_tokens=self.max_tokens, temperature=self.temperature, stop_ids=self.chat.stop_ids
        )

    def starts(self, step: int, group_size: int) -> list[Start]:
        """What step `step` plays: `group_size` episodes of each of its tasks."""
        found = []
        for t in range(self.tasks_per_step):
            task, group = self._task(step * self.tasks_per_step + t), f"s{step:06d}-t{t:02d}"
            for i in range(group_size):
                seed = derive_seed(self.seed, "rollout", step, t, task.id, i)
                found.append(Start(task, group, seed, f"{group}-g{i}"))
        return found

    def collect(self, step: int, group_size: int) -> list[Episode]:
        """The step's episodes. RuntimeError where more than a fifth of them failed."""
        self.generator.clear()
        episodes = play(
            self.starts(step, group_size),
            self.make_env,
            self.chat,
            self.generator,
            self.sampling,
            max_context=self.max_context,
            version=step,
        )
        refuse_failures(episodes)
        return episodes

    def _task(self, position: int) -> Task:
        """The task at a position of the endless stream in which each epoch shuffles all tasks
        anew."""
        epoch, at = divmod(position, len(self.tasks))
        order = list(range(len(self.tasks)))
        random.Random(derive_seed(self.seed, "data", epoch)).shuffle(order)
        return self.tasks[order[at]]


def refuse_failures(episodes: list[Episode]) -> None:
    """RuntimeError with the commonest error where more than a fifth of the episodes failed."""
    errors = Counter(episode.error for episode in episodes if episode.stop == "error")
    failed = sum(errors.values())
    if failed > FAILED_LIMIT * len(episodes):
        error, times = errors.most_common(1)[0]
        raise RuntimeError(
            f"{failed} of {len(episodes)} episodes failed, {times} of them with: {error}; "
            "mend the environment before you go on"
        )
