"""Play tasks with a generator: all live episodes move in lockstep, one `generate` call a turn.

Tokens stay as they were sampled. What fails in a world is recorded on its episode, never raised.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from agentrl_cli.core.errors import UserError
from agentrl_cli.core.types import Episode, Message, Step, Task, Turn, derive_seed
from agentrl_cli.envs.base import Env
from agentrl_cli.generators.base import Completion, Generator, Sampling
from agentrl_cli.rollout.chat_template import Chat

Answer = TypeVar("Answer")


@dataclass
class EpisodeStart:
    """How an episode begins. `seed` feeds the sampler and, unless `world_seed` is given, the world;
    `forced` turns are replayed on the fresh world, ids and all, before the generator takes over."""

    task: Task
    group: str
    seed: int
    id: str
    forced: list[Turn] = field(default_factory=list)
    world_seed: int | None = None


def play(
    starts: list[EpisodeStart],
    make_env: Callable[[], Env],
    chat: Chat,
    generator: Generator,
    sampling: Sampling,
    *,
    max_context: int,
    version: int = 0,
    model: str = "policy",
) -> list[Episode]:
    """One episode for each start, in order. An episode stops as done, truncated (the world's
    limit), context (`max_tokens` more would exceed `max_context`), diverged (a replayed turn was
    answered differently) or error."""
    sampling = replace(sampling, n=1)
    seats = [LiveEpisode(start, make_env(), chat, version) for start in starts]
    for seat in seats:
        seat.open()
    while True:
        for seat in seats:
            seat.check(max_context - sampling.max_tokens)
        live = [seat for seat in seats if not seat.over]
        if not live:
            return [seat.episode for seat in seats]
        prompts = [seat.state for seat in live]
        seeds = [derive_seed(seat.start.seed, len(seat.episode.turns)) for seat in live]
        answers = generator.generate(prompts, seeds, sampling, model)
        for seat, (completion,) in zip(live, answers, strict=True):
            seat.act(completion)


def probe_starts(
    episode: Episode, turn: int, action: str, action_ids: list[int], seeds: list[int]
) -> list[EpisodeStart]:
    """One start a seed: replay the episode's first `turn` turns, act, and let the policy play on.
    The world keeps the episode's seed, so that it answers as it did."""
    at = episode.turns[turn]
    forced = [
        *episode.turns[:turn],
        Turn(at.observation, action, at.observation_ids, action_ids, [0.0] * len(action_ids)),
    ]
    group = f"{episode.id}-p{turn:02d}"
    return [
        EpisodeStart(episode.task, group, seed, f"{group}-{k}", forced, world_seed=episode.seed)
        for k, seed in enumerate(seeds)
    ]


def split_into_turns(completion: Completion, delimiter: str, chat: Chat) -> list[Completion]:
    """The completion, parted behind every token that completes the text `delimiter` ("": never)."""
    ids, logprobs = list(completion.ids), list(completion.logprobs)
    ends, begin = [], 0
    if delimiter and delimiter in chat.decode(ids):
        for end in range(1, len(ids)):
            if chat.decode(ids[begin:end]).endswith(delimiter):
                ends.append(end)
                begin = end
    spans = zip([0, *ends], [*ends, len(ids)], strict=True)
    parts = [Completion(ids[a:b], logprobs[a:b], "stop") for a, b in spans]
    return [*parts[:-1], replace(parts[-1], finish=completion.finish)]


def first_turn(ids: list[int], delimiter: str, chat: Chat) -> list[int]:
    """Of a sampled reply what is one turn: up to the first text `delimiter` ("": all of it)."""
    return split_into_turns(Completion(ids, [0.0] * len(ids), "stop"), delimiter, chat)[0].ids


class LiveEpisode:
    """One episode in play: its world, what it has seen in tokens, and what it was last told."""

    def __init__(self, start: EpisodeStart, env: Env, chat: Chat, version: int) -> None:
        seed = start.seed if start.world_seed is None else start.world_seed
        self.start, self.env, self.chat = start, env, chat
        self.episode = Episode(start.id, start.task, start.group, seed, [], policy_version=version)
        self.state: list[int] = []
        self.observation: list[Message] = []
        self.delta: list[int] = []
        self.tools: list[dict[str, Any]] = []
        self.over = False
        self.began = time.perf_counter()

    def open(self) -> None:
        """Begin the world and replay what is forced."""
        first = self._world(self._reset)
        if first is None:
            return
        self.observation = first
        self.delta = self.chat.start(first, self.tools)
        self.state = list(self.delta)
        for turn in self.start.forced:
            if not self.over:
                self._replay(turn)

    def check(self, room: int) -> None:
        """End the episode where its prompt is longer than `room` tokens."""
        if not self.over and len(self.state) > room:
            self._end("context", self.observation)

    def act(self, completion: Completion) -> None:
        """Take a sampled action, cut where the world says so, and hear the world's answers."""
        for part in split_into_turns(completion, self.env.turn_delimiter, self.chat):
            if not self.over:
                action, ids, logprobs = self.chat.decode(part.ids), part.ids, part.logprobs
                seen, delta = self.observation, self.delta
                self._step(Turn(seen, action, delta, ids, logprobs, finish=part.finish), {})

    def _reset(self) -> list[Message]:
        self.tools = list(self.env.tools)
        messages = self.env.reset(self.start.task, self.episode.seed)
        system = self.env.system()
        return [Message("system", system), *messages] if system else messages

    def _replay(self, turn: Turn) -> None:
        if turn.observation != self.observation:
            self._end("diverged", self.observation)
            return
        ids, logprobs = list(turn.action_ids), list(turn.logprobs)
        past = Turn(self.observation, turn.action, self.delta, ids, logprobs, finish=turn.finish)
        self._step(past, {"forced": True})

    def _step(self, turn: Turn, info: dict[str, Any]) -> None:
        """Play a turn's action; the turn is recorded even where the world fails."""
        self.episode.turns.append(turn)
        turn.info = info
        step = self._world(lambda: self.env.step(turn.action))
        if step is None:
            return
        turn.reward, turn.done, turn.info = step.reward, step.done, {**step.info, **info}
        if step.done or step.truncated:
            self._end("done" if step.done else "truncated", step.messages)
        else:
            self._hear(step, turn.action_ids)

    def _hear(self, step: Step, action_ids: list[int]) -> None:
        last_id = action_ids[-1] if action_ids else None
        self.observation = step.messages
        self.delta = self.chat.extend(step.messages, last_id, self.tools)
        self.state = self.state + action_ids + self.delta

    def _world(self, call: Callable[[], Answer]) -> Answer | None:
        """Ask the world; any failure but the user's mistake ends the episode and is its record."""
        try:
            return call()
        except UserError:
            raise
        except Exception as error:
            self.episode.error = f"{type(error).__name__}: {error}"
            self._end("error", [])
            return None

    def _end(self, stop: str, closing: list[Message]) -> None:
        episode, self.over = self.episode, True
        episode.stop, episode.closing = stop, closing
        episode.seconds = time.perf_counter() - self.began
        try:
            self.env.close()
        except Exception as error:
            failed = f"on closing {type(error).__name__}: {error}"
            episode.error = f"{episode.error}; {failed}" if episode.error else failed
            episode.stop = "error"


def indistinguishable_tasks(
    episode: Episode, turn: int, tasks: list[Task], make_env: Callable[[], Env]
) -> list[Task]:
    """The tasks in which the episode's actions bring the same observations up to turn `turn`.

    To the agent they are one state: what an action is worth there is its mean over them. The
    episode's own task is always among them.
    """
    found = [
        task
        for task in tasks
        if task.id != episode.task.id and _same(episode, turn, task, make_env())
    ]
    return [episode.task, *found]


def _same(episode: Episode, turn: int, task: Task, env: Env) -> bool:
    first = env.reset(task, episode.seed)
    if [m for m in episode.turns[0].observation if m.role != "system"] != first:
        return False
    for past, following in zip(episode.turns[:turn], episode.turns[1 : turn + 1], strict=True):
        step = env.step(past.action)
        if step.done or step.truncated or step.messages != following.observation:
            return False
    return True
