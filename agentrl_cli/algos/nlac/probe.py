"""What an action is really worth: the world is replayed up to its turn, and the policy plays on."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import cycle

from agentrl_cli.algos.nlac.roles import Ids, Roles
from agentrl_cli.algos.samples import TurnRef
from agentrl_cli.core.errors import UserError
from agentrl_cli.core.statistics import mean
from agentrl_cli.core.types import Task
from agentrl_cli.rollout.chat_template import Chat
from agentrl_cli.rollout.play import EpisodeStart, probe_starts


class CannotReplay(UserError):
    """No probe could be played: the world answers otherwise when it is replayed."""


def probe(
    roles: Roles, wanted: Sequence[tuple[TurnRef, Ids | None]], count: int
) -> list[float | None]:
    """The success rate of each action, played out `count` times by the current policy over the
    tasks that look alike up to its state, a random choice where they are more; an action of None is
    whatever the policy does there. Actions of a turn share their probes' tasks and seeds. Probes
    that broke or were cut off say nothing; None where all of an action's did. Raises CannotReplay
    where no world could be replayed."""
    context = roles.context
    tasks = {turn: _alike(roles, turn) for turn, _ in wanted}
    starts = [
        replace(start_from(context.chat, turn, action, seed, k), task=task)
        for turn, action in wanted
        for k, (seed, task) in enumerate(zip(_seeds(roles, turn, count), cycle(tasks[turn])))
    ]
    episodes = context.probe(starts)
    replayed = [e for start, e in zip(starts, episodes, strict=True) if start.replayed]
    if replayed and all(episode.stop == "diverged" for episode in replayed):
        line = "this world answers otherwise when it is replayed, so actions cannot be probed"
        raise CannotReplay(f"{line}; set algo.guard=null")
    parts = [episodes[i : i + count] for i in range(0, len(wanted) * count, count)]
    ended = [[float(e.success) for e in part if e.stop == "done"] for part in parts]
    return [mean(row) if row else None for row in ended]


def start_from(
    chat: Chat, turn: TurnRef, action: Ids | None, seed: int, number: int
) -> EpisodeStart:
    """Replay what led to the turn, act as given or, for None, as the policy does, and play on."""
    episode = turn.episode
    if action is not None:
        text = chat.decode(action)
        return probe_starts(episode, turn.turn, text, action, [seed])[0]
    name = f"{episode.id}-r{turn.turn:02d}-{number}"
    played = episode.turns[: turn.turn]
    return EpisodeStart(
        episode.task, name, seed, name, played, world_seed=episode.seed,
        awaited=episode.turns[turn.turn].observation,
    )  # fmt: skip


def _alike(roles: Roles, turn: TurnRef) -> list[Task]:
    """The tasks that look alike up to the turn, in random order: probes, which may be fewer, favour
    none of them."""
    tasks = list(roles.context.indistinguishable_tasks(turn.episode, turn.turn))
    random.Random(roles.seed("tasks", turn.episode.id, turn.turn)).shuffle(tasks)
    return tasks


def _seeds(roles: Roles, turn: TurnRef, count: int) -> list[int]:
    return [roles.seed("probe", turn.episode.id, turn.turn, k) for k in range(count)]
