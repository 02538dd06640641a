"""Play tasks with a generator: all live episodes move in lockstep, one `generate` call a turn.
Tokens stay as they were sampled. What fails in a world is recorded on its episode, never raised."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, TypeVar

from agentrl_cli.core.activity import Activity
from agentrl_cli.core.errors import (
    ContractError,
    EnvTimeout,
    EpisodeError,
    GeneratorError,
    LostActor,
    RunAborted,
    SimulatorError,
    UserError,
)
from agentrl_cli.core.terminal import safe
from agentrl_cli.core.types import Episode, Message, Task, Turn, derive_seed
from agentrl_cli.envs.base import Env
from agentrl_cli.envs.contract import answer, opening, where
from agentrl_cli.generators.base import Completion, Generator, Sampling
from agentrl_cli.rollout.chat_template import Chat
from agentrl_cli.rollout.env_threads import EnvCalls, EnvThreads

Answer = TypeVar("Answer")
FAILED_LIMIT = 0.2  # share of the episodes of a step or an evaluation above which the run stops
TO_MEND = {  # by what broke; the environment where it is not here
    SimulatorError.kind: "the model that it asks", GeneratorError.kind: "what generates",
    LostActor.kind: "what ends the actors",
}  # fmt: skip


@dataclass
class EpisodeStart:
    """How an episode begins. `seed` feeds the sampler and, unless `world_seed` is given, the world;
    `replayed` turns are played again on the fresh world, ids and all, before the generator takes
    over, in front of the observation that is `awaited` (None: of any)."""

    task: Task
    group: str
    seed: int
    id: str
    replayed: list[Turn] = field(default_factory=list)
    world_seed: int | None = None
    awaited: list[Message] | None = None


def play(
    starts: list[EpisodeStart],
    make_env: Callable[[], Env],
    chat: Chat,
    generator: Generator,
    sampling: Sampling,
    *,
    max_seq_len: int,
    version: int = 0,
    model: str = "policy",
    max_failure_rate: float = 1.0,
    env_timeout: float | None = None,
    workers: int = 1,
    max_concurrent_episodes: int | None = None,
    activity: Activity | None = None,
) -> list[Episode]:
    """One episode for each start, in order; `max_concurrent_episodes` in play at a time (None:
    all), the
    worlds of `workers` of them at work. An episode stops as done, truncated (the world says that
    its outcome is unknown), context (`max_tokens` more would exceed `max_seq_len`), diverged (a
    replayed turn was answered differently) or error, also where an answer takes the world longer
    than `env_timeout` seconds (None: no limit). RunAborted as soon as more than the share
    `max_failure_rate` of all episodes has ended so. `activity` is told how many have ended."""
    sampling, most = replace(sampling, n=1), max_seq_len - sampling.max_tokens
    waiting, activity = iter(starts), activity or Activity()
    begun, live, failed = list[Episode](), list[LiveEpisode](), list[Episode]()

    def play_on(turns: list[tuple[LiveEpisode, EnvCalls[None]]]) -> None:
        for (episode, _), _ in zip(turns, envs.run(turns), strict=True):
            if episode.record.stop == "error":
                failed.append(episode.record)
                refuse_failures(failed, max_failure_rate, len(starts))
            if episode.ended:
                envs.forget(episode)

    with EnvThreads(workers, env_timeout) as envs:
        while True:
            free = (max_concurrent_episodes or len(starts)) - len(live)
            new = [LiveEpisode(s, make_env(), chat, version, most) for s in islice(waiting, free)]
            begun += [episode.record for episode in new]
            play_on([(episode, episode.begin()) for episode in new])
            live = [episode for episode in live + new if not episode.ended]
            if not live and len(begun) == len(starts):
                return begun
            if not live:
                continue
            moving = live[: generator.fitting([episode.state_ids for episode in live], model)]
            answers = _answers(generator, moving, sampling, model)
            play_on([(e, e.take(answer)) for e, answer in zip(moving, answers, strict=True)])
            live = [episode for episode in live if not episode.ended]
            activity.advance(len(begun) - len(live), len(starts))


def _answers(
    generator: Generator, episodes: list[LiveEpisode], sampling: Sampling, model: str
) -> list[Completion | GeneratorError]:
    """One answer in each episode, or why there is none."""
    prompts = [episode.state_ids for episode in episodes]
    seeds = [derive_seed(e.start.seed, len(e.record.turns)) for e in episodes]
    try:
        return [answer for (answer,) in generator.generate(prompts, seeds, sampling, model)]
    except GeneratorError as error:
        return [error if answer is None else answer[0] for answer in error.answers]


def refuse_failures(
    episodes: list[Episode], most: float = FAILED_LIMIT, count: int | None = None
) -> None:
    """RunAborted with the commonest error where more than the share `most` of all episodes failed,
    of which there are `count` (None: these are all)."""
    failed, count = [e for e in episodes if e.stop == "error"], count or len(episodes)
    if len(failed) > most * count:
        errors = Counter((episode.error, episode.error_kind) for episode in failed)
        (error, kind), times = errors.most_common(1)[0]
        line = f"{len(failed)} of {count} episodes failed, {times} of them with: {error}"
        what = TO_MEND.get(kind or "", "the environment")
        raise RunAborted(f"{line}; mend {what} before you go on")


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
    """The completion, cut behind every token that completes the text `delimiter` ("": never) and
    not within what the template itself puts before an answer."""
    ids, logprobs = list(completion.ids), list(completion.logprobs)
    ends, begin = [], 0
    if delimiter and delimiter in chat.decode(ids):
        for end in range(1 + chat.prefix_length(ids), len(ids)):
            if chat.ends_with(ids[begin:end], delimiter):
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
    observation, of which `observation_ids` are what it added to the context. Its methods yield the
    calls of its world, for EnvThreads to make."""

    def __init__(
        self, start: EpisodeStart, env: Env, chat: Chat, version: int, most_ids: int
    ) -> None:
        """The episode ends where its context has more than `most_ids` tokens."""
        seed = start.seed if start.world_seed is None else start.world_seed
        self.start, self.env, self.chat, self.most_ids = start, env, chat, most_ids
        self.record = Episode(start.id, start.task, start.group, seed, [], policy_version=version)
        self.state_ids: list[int] = []
        self.observation: list[Message] = []
        self.observation_ids: list[int] = []
        self.tools: list[dict[str, Any]] = []
        self.ended = False
        self.began = time.perf_counter()

    def begin(self) -> EnvCalls[None]:
        """Reset the world and replay the turns that the start gives."""
        first = yield from self._ask_world(self._reset)
        if first is None:
            return
        self.observation = first
        self.observation_ids = self.chat.start(first, self.tools)
        self.state_ids = list(self.observation_ids)
        for turn in self.start.replayed:
            if not self.ended:
                yield from self._replay(turn)
        if not self.ended and self.start.awaited not in (None, self.observation):
            yield from self._end("diverged", self.observation)
        yield from self._end_if_too_long()

    def take(self, answer: Completion | GeneratorError) -> EnvCalls[None]:
        """Act as sampled, or end as failed where nothing was sampled."""
        if isinstance(answer, GeneratorError):
            self._fail(answer)
            yield from self._end("error", [])
        else:
            yield from self.act(answer)

    def act(self, completion: Completion) -> EnvCalls[None]:
        """Take a sampled action, cut where the world says so, and observe the world's answers. What
        was written behind a part that is answered with a message is dropped: it did not know it."""
        for part in split_into_turns(completion, self.env.turn_delimiter, self.chat):
            action = self.chat.decode(part.ids)
            yield from self._step(self._turn(action, part.ids, part.logprobs, part.finish), {})
            if self.ended or self.observation:
                break
        yield from self._end_if_too_long()

    def _end_if_too_long(self) -> EnvCalls[None]:
        if not self.ended and len(self.state_ids) > self.most_ids:
            yield from self._end("context", self.observation)

    def _reset(self) -> list[Message]:
        self.tools = list(self.env.tools)
        return opening(self.env, self.start.task, self.record.seed)

    def _replay(self, turn: Turn) -> EnvCalls[None]:
        if turn.observation != self.observation:
            yield from self._end("diverged", self.observation)
            return
        ids, logprobs = list(turn.action_ids), list(turn.logprobs)
        again = self._turn(turn.action, ids, logprobs, turn.finish)
        yield from self._step(again, {"forced": True})

    def _turn(self, action: str, ids: list[int], logprobs: list[float], finish: str) -> Turn:
        """The action as the answer to the last observation."""
        seen, seen_ids = self.observation, self.observation_ids
        return Turn(seen, action, seen_ids, ids, logprobs, finish=finish)

    def _step(self, turn: Turn, info: dict[str, Any]) -> EnvCalls[None]:
        """Play a turn's action; the turn is recorded even where the world fails."""
        self.record.turns.append(turn)
        turn.info = info
        step = yield from self._ask_world(lambda: answer(self.env, turn.action))
        if step is None:
            return
        turn.reward, turn.done, turn.info = step.reward, step.done, {**step.info, **info}
        if step.done or step.truncated:
            yield from self._end("done" if step.done else "truncated", step.messages)
            return
        last_id = turn.action_ids[-1] if turn.action_ids else None
        self.observation = step.messages
        self.observation_ids = self.chat.extend(step.messages, last_id, self.tools)
        self.state_ids = self.state_ids + turn.action_ids + self.observation_ids

    def _ask_world(self, call: Callable[[], Answer]) -> EnvCalls[Answer | None]:
        """What the call returns; any failure but the user's mistake ends the episode, is noted on
        its record, and gives None. Its seconds count as the world's."""
        outcome = yield call
        self.record.env_seconds += outcome.seconds
        if outcome.error is None:
            return outcome.value
        if isinstance(outcome.error, UserError) or not isinstance(outcome.error, Exception):
            raise outcome.error
        self._fail(outcome.error)
        yield from self._end("error", [])
        return None

    def _fail(self, error: Exception) -> None:
        """Note on the record what broke, of which kind, and where in the world's own file."""
        line = f"{type(error).__name__}: {error}"
        has_place = isinstance(error, ContractError | EnvTimeout | GeneratorError)
        self.record.error = safe(line if has_place else f"{line} ({where(error, self.env)})")
        is_known = isinstance(error, EpisodeError)
        self.record.error_kind = error.kind if is_known else EpisodeError.kind

    def _end(self, stop: str, closing: list[Message]) -> EnvCalls[None]:
        episode, self.ended = self.record, True
        episode.stop, episode.closing = stop, closing
        episode.seconds = time.perf_counter() - self.began
        if episode.error_kind == EnvTimeout.kind:  # it is at work still
            return
        error = (yield self.env.close).error
        if isinstance(error, Exception):
            failed = f"on closing {type(error).__name__}: {error}"
            episode.error = f"{episode.error}; {failed}" if episode.error else failed
            episode.stop, episode.error_kind = "error", episode.error_kind or EpisodeError.kind
        elif error is not None:
            raise error


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
    """Whether the observations are the same; a world that breaks on the way is another."""
    try:
        if opening(env, task, episode.seed) != episode.turns[0].observation:
            return False
        for past, following in zip(episode.turns[:turn], episode.turns[1 : turn + 1], strict=True):
            step = answer(env, past.action)
            if step.done or step.truncated or step.messages != following.observation:
                return False
    except UserError:
        raise
    except Exception:
        return False
    finally:
        with suppress(Exception):
            env.close()
    return True
