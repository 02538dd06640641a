"""Play tasks with a generator: all live episodes move in lockstep, one `generate` call a turn.
Tokens stay as they were sampled. What fails in a world is recorded on its episode, never raised."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from agentrl_cli.core.errors import UserError
from agentrl_cli.core.types import Episode, Message, Task, Turn, derive_seed
from agentrl_cli.envs.base import Env
from agentrl_cli.generators.base import Completion, Generator, Sampling
from agentrl_cli.rollout.chat_template import Chat

Answer = TypeVar("Answer")


@dataclass
class EpisodeStart:
    """How an episode begins. `seed` feeds the sampler and, unless `world_seed` is given, the world;
    `replayed` turns are played again on the fresh world, ids and all, before the generator takes
    over."""

    task: Task
    group: str
    seed: int
    id: str
    replayed: list[Turn] = field(default_factory=list)
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
    """One episode for each start, in order. An episode stops as done, truncated (the world says
    that its outcome is unknown), context (`max_tokens` more would exceed `max_context`), diverged
    (a replayed turn was answered differently) or error."""
    sampling = replace(sampling, n=1)
    begun = [LiveEpisode(start, make_env(), chat, version) for start in starts]
    for episode in begun:
        episode.begin()
    while True:
        for episode in begun:
            episode.end_if_longer_than(max_context - sampling.max_tokens)
        live = [episode for episode in begun if not episode.ended]
        if not live:
            return [episode.record for episode in begun]
        prompts = [episode.state_ids for episode in live]
        seeds = [derive_seed(episode.start.seed, len(episode.record.turns)) for episode in live]
        answers = generator.generate(prompts, seeds, sampling, model)
        for episode, (completion,) in zip(live, answers, strict=True):
            episode.act(completion)


def probe_starts(
    episode: Episode, turn: int, action: str, action_ids: list[int], seeds: list[int]
) -> list[EpisodeStart]:
    """One start a seed: replay the episode's first `turn` turns, act, and let the policy play on.
    The world keeps the episode's seed, so that it answers as it did."""
    seen, logprobs = episode.turns[turn], [0.0] * len(action_ids)
    probed = Turn(seen.observation, action, seen.observation_ids, action_ids, logprobs)
    replayed = [*episode.turns[:turn], probed]
    group = f"{episode.id}-p{turn:02d}"
    return [
        EpisodeStart(episode.task, group, seed, f"{group}-{k}", replayed, world_seed=episode.seed)
        for k, seed in enumerate(seeds)
    ]


def split_into_turns(completion: Completion, delimiter: str, chat: Chat) -> list[Completion]:
    """The completion, cut behind every token that completes the text `delimiter` ("": never)."""
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
    """One episode in play: its `record` so far, the ids of its whole context, and the last
    observation, of which `observation_ids` are what it added to the context."""

    def __init__(self, start: EpisodeStart, env: Env, chat: Chat, version: int) -> None:
        seed = start.seed if start.world_seed is None else start.world_seed
        self.start, self.env, self.chat = start, env, chat
        self.record = Episode(start.id, start.task, start.group, seed, [], policy_version=version)
        self.state_ids: list[int] = []
        self.observation: list[Message] = []
        self.observation_ids: list[int] = []
        self.tools: list[dict[str, Any]] = []
        self.ended = False
        self.began = time.perf_counter()

    def begin(self) -> None:
        """Reset the world and replay the turns that the start gives."""
        first = self._ask_world(self._reset)
        if first is None:
            return
        self.observation = first
        self.observation_ids = self.chat.start(first, self.tools)
        self.state_ids = list(self.observation_ids)
        for turn in self.start.replayed:
            if not self.ended:
                self._replay(turn)

    def end_if_longer_than(self, most: int) -> None:
        """End the episode where its context has more than `most` tokens."""
        if not self.ended and len(self.state_ids) > most:
            self._end("context", self.observation)

    def act(self, completion: Completion) -> None:
        """Take a sampled action, cut where the world says so, and observe the world's answers."""
        for part in split_into_turns(completion, self.env.turn_delimiter, self.chat):
            if not self.ended:
                action = self.chat.decode(part.ids)
                self._step(self._turn(action, part.ids, part.logprobs, part.finish), {})

    def _reset(self) -> list[Message]:
        self.tools = list(self.env.tools)
        messages = self.env.reset(self.start.task, self.record.seed)
        system = self.env.system()
        return [Message("system", system), *messages] if system else messages

    def _replay(self, turn: Turn) -> None:
        if turn.observation != self.observation:
            self._end("diverged", self.observation)
            return
        ids, logprobs = list(turn.action_ids), list(turn.logprobs)
        self._step(self._turn(turn.action, ids, logprobs, turn.finish), {"forced": True})

    def _turn(self, action: str, ids: list[int], logprobs: list[float], finish: str) -> Turn:
        """The action as the answer to the last observation."""
        seen, seen_ids = self.observation, self.observation_ids
        return Turn(seen, action, seen_ids, ids, logprobs, finish=finish)

    def _step(self, turn: Turn, info: dict[str, Any]) -> None:
        """Play a turn's action; the turn is recorded even where the world fails."""
        self.record.turns.append(turn)
        turn.info = info
        step = self._ask_world(lambda: self.env.step(turn.action))
        if step is None:
            return
        turn.reward, turn.done, turn.info = step.reward, step.done, {**step.info, **info}
        if step.done or step.truncated:
            self._end("done" if step.done else "truncated", step.messages)
            return
        last_id = turn.action_ids[-1] if turn.action_ids else None
        self.observation = step.messages
        self.observation_ids = self.chat.extend(step.messages, last_id, self.tools)
        self.state_ids = self.state_ids + turn.action_ids + self.observation_ids

    def _ask_world(self, call: Callable[[], Answer]) -> Answer | None:
        """What the call returns; any failure but the user's mistake ends the episode, is noted on
        its record, and gives None. Its seconds count as the world's."""
        began = time.perf_counter()
        try:
            return call()
        except UserError:
            raise
        except Exception as error:
            self.record.error = f"{type(error).__name__}: {error}"
            self._end("error", [])
            return None
        finally:
            self.record.env_seconds += time.perf_counter() - began

    def _end(self, stop: str, closing: list[Message]) -> None:
        episode, self.ended = self.record, True
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
    """The tasks in which the episode's actions bring the same observations up to turn `turn`. To
    the agent they are one state: what an action is worth there is its mean over them. The episode's
    own task is always among them."""
    others = [task for task in tasks if task.id != episode.task.id]
    found = [task for task in others if _same(episode, turn, task, make_env())]
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
