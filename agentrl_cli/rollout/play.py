"""Plays tasks with a generator. All live episodes move in lockstep, with one `generate` call per
turn. Tokens are kept as they were sampled. A failure in an environment is recorded on its episode.

Environments block and cannot be interrupted, so their calls may run in threads with a time limit.
`concurrent.futures` has no thread that may hang: its executors wait for theirs at exit.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from collections.abc import Generator as Coroutine
from concurrent.futures import Future
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from itertools import islice
from queue import Empty, SimpleQueue
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
from agentrl_cli.envs.check import answer, opening, where
from agentrl_cli.generators.base import Completion, Generator, Sampling
from agentrl_cli.rollout.chat_template import Chat

Answer = TypeVar("Answer")
FAILED_LIMIT = 0.2  # the largest share of failed episodes in a step or an evaluation
CAUSES = {  # of failures, by the kind of error; else it is the environment
    SimulatorError.kind: "the simulator's model", GeneratorError.kind: "the generator",
    LostActor.kind: "whatever ends the actors",
}  # fmt: skip
ABANDONED = "agentrl: abandoned"  # the name of a thread that hangs
MAX_ABANDONED = 32  # threads: each keeps its environment, and a busy one slows all others


@dataclass
class EpisodeStart:
    """How an episode begins. `seed` is the sampler's and, unless `world_seed` is given, the
    environment's. `replayed` turns are played again with the same tokens, until the observation is
    `awaited` (None: any). Then the generator takes over."""

    task: Task
    group: str
    seed: int
    id: str
    replayed: list[Turn] = field(default_factory=list)
    world_seed: int | None = None
    awaited: list[Message] | None = None

    def episode(self, version: int) -> Episode:
        """Return the record of the episode, with no turns yet."""
        seed = self.seed if self.world_seed is None else self.world_seed
        return Episode(self.id, self.task, self.group, seed, [], policy_version=version)


def play(
    starts: list[EpisodeStart], make_env: Callable[[], Env], chat: Chat, generator: Generator,
    sampling: Sampling, *, max_seq_len: int, version: int = 0, max_failure_rate: float = 1.0,
    env_timeout: float | None = None, workers: int = 1, max_concurrent_episodes: int | None = None,
    activity: Activity | None = None,
) -> list[Episode]:  # fmt: skip
    """Play one episode for each start and return them in order.

    At most `max_concurrent_episodes` episodes are live (None: all), and `workers` environments run
    at a time. An episode stops as `done`; `truncated` (the environment leaves the outcome open);
    `context` (`max_tokens` more would exceed `max_seq_len` tokens); `diverged` (a replayed turn got
    another observation); or `error`, which includes a call of more than `env_timeout` seconds
    (None: no limit). Raises RunAborted as soon as a share of more than `max_failure_rate` ended
    with `error`."""
    sampling, max_state = replace(sampling, n=1), max_seq_len - sampling.max_tokens
    waiting, activity = iter(starts), activity or Activity()
    begun, live, failed = list[Episode](), list[LiveEpisode](), list[Episode]()

    def advance(turns: list[tuple[LiveEpisode, EnvCalls[None]]]) -> None:
        for (episode, _), _ in zip(turns, envs.run(turns), strict=True):
            if episode.record.stop == "error":
                failed.append(episode.record)
                check_failures(failed, max_failure_rate, len(starts))
            if episode.ended:
                envs.forget(episode)

    with closing(EnvThreads(workers, env_timeout)) as envs:
        while True:
            free = (max_concurrent_episodes or len(starts)) - len(live)
            chosen = islice(waiting, free)
            new = [LiveEpisode(start, make_env(), chat, version, max_state) for start in chosen]
            begun += [episode.record for episode in new]
            advance([(episode, episode.begin()) for episode in new])
            live = [episode for episode in live + new if not episode.ended]
            if not live and len(begun) == len(starts):
                return begun
            if not live:
                continue
            moving = live[: generator.fitting([episode.state_ids for episode in live])]
            played = sum(episode.progress()[0] for episode in live)
            planned = sum(episode.progress()[1] for episode in moving)
            activity.advance(len(begun) - len(live), len(starts), played, planned)
            prompts = [episode.state_ids for episode in moving]
            seeds = [derive_seed(e.start.seed, len(e.record.turns)) for e in moving]
            answers: list[Completion | GeneratorError]
            try:
                answers = [answer for (answer,) in generator.generate(prompts, seeds, sampling)]
            except GeneratorError as error:
                answers = [error if found is None else found[0] for found in error.answers]
            advance([(e, e.take(answer)) for e, answer in zip(moving, answers, strict=True)])
            live = [episode for episode in live if not episode.ended]
            played = sum(episode.progress()[0] for episode in live)
            activity.advance(len(begun) - len(live), len(starts), played)


def check_failures(
    episodes: list[Episode], most: float = FAILED_LIMIT, count: int | None = None
) -> None:
    """Raise RunAborted with the most frequent error if more than the share `most` of `count`
    episodes (None: of these) failed."""
    failed, count = [e for e in episodes if e.stop == "error"], count or len(episodes)
    if len(failed) > most * count:
        errors = Counter((episode.error, episode.error_kind) for episode in failed)
        (error, kind), times = errors.most_common(1)[0]
        so_far = " so far" if len(episodes) < count else ""
        line = f"{len(failed)} of {count} episodes failed{so_far}, {times} of them with: {error}"
        remedy = f"fix {CAUSES.get(kind or '', 'the environment')} first"
        if kind == ContractError.kind:
            remedy += " (agentrl check lists all faults)"
        raise RunAborted(f"{line}; {remedy}")


def probe_starts(
    episode: Episode, turn: int, action: str, action_ids: list[int], seeds: list[int]
) -> list[EpisodeStart]:
    """Return one start per seed: replay the episode's first `turn` turns, take the action, and let
    the policy continue. The environment keeps the episode's seed."""
    seen, logprobs = episode.turns[turn], [0.0] * len(action_ids)
    probed = Turn(seen.observation, action, seen.observation_ids, action_ids, logprobs)
    replayed = [*episode.turns[:turn], probed]
    group = f"{episode.id}-p{turn:02d}"
    return [
        EpisodeStart(episode.task, group, seed, f"{group}-{k}", replayed, world_seed=episode.seed)
        for k, seed in enumerate(seeds)
    ]


def split_into_turns(completion: Completion, delimiter: str, chat: Chat) -> list[Completion]:
    """Split a completion after each token that completes the text `delimiter` ("": never), except
    within the prefix that the template itself puts before an answer."""
    ids, logprobs = list(completion.ids), list(completion.logprobs)
    ends, begin = [], 0
    if delimiter and delimiter in chat.decode(ids):
        for end in range(1 + chat.prefix_length(ids), len(ids)):
            if chat.ends_with(ids[begin:end], delimiter):
                ends.append(end)
                begin = end
    spans = zip([0, *ends], [*ends, len(ids)], strict=True)
    parts = [Completion(ids[a:b], logprobs[a:b], "stop") for a, b in spans]
    return [*parts[:-1], replace(parts[-1], finish_reason=completion.finish_reason)]


def first_turn(ids: list[int], delimiter: str, chat: Chat) -> list[int]:
    """Return the tokens of a sampled reply up to its first `delimiter` ("": all)."""
    return split_into_turns(Completion(ids, [0.0] * len(ids), "stop"), delimiter, chat)[0].ids


class LiveEpisode:
    """An episode in progress: its `record`, its context `state_ids`, and the last observation with
    its tokens. It ends when the context exceeds `max_state` tokens. Its generator methods yield
    calls of the environment, which EnvThreads makes."""

    def __init__(
        self, start: EpisodeStart, env: Env, chat: Chat, version: int, max_state: int
    ) -> None:
        self.start, self.env, self.chat, self.max_state = start, env, chat, max_state
        self.record = start.episode(version)
        self.state_ids: list[int] = []
        self.observation: list[Message] = []
        self.observation_ids: list[int] = []
        self.tools: list[dict[str, Any]] = []
        self.ended = False
        self.began = time.perf_counter()

    def begin(self) -> EnvCalls[None]:
        """Reset the environment and replay the start's turns."""
        first = yield from self._call(self._reset)
        if first is None:
            return
        self.observation = first
        self.observation_ids = self.chat.start(first, self.tools)
        self.state_ids = list(self.observation_ids)
        for turn in self.start.replayed:
            if not self.ended and turn.observation != self.observation:
                yield from self._end("diverged", self.observation)
            elif not self.ended:
                ids, logprobs = list(turn.action_ids), list(turn.logprobs)
                played = Completion(ids, logprobs, turn.finish_reason)
                yield from self._step(played, turn.action, {"forced": True})
        if not self.ended and self.start.awaited not in (None, self.observation):
            yield from self._end("diverged", self.observation)
        yield from self._end_if_too_long()

    def take(self, sampled: Completion | GeneratorError) -> EnvCalls[None]:
        """Play what was sampled, turn by turn. If the environment answers a turn with a message,
        the rest is dropped: it was written without that message."""
        if isinstance(sampled, GeneratorError):
            yield from self._fail(sampled)
            return
        for part in split_into_turns(sampled, self.env.turn_delimiter, self.chat):
            yield from self._step(part, self.chat.decode(part.ids), {})
            if self.ended or self.observation:
                break
        yield from self._end_if_too_long()

    def progress(self) -> tuple[float, float]:
        """Return the estimated shares of the episode that are played, and that the next reply will
        play. Both are of the environment's `max_turns`, if it has such a setting."""
        most, turns = getattr(self.env, "__dict__", {}).get("max_turns"), len(self.record.turns)
        if not isinstance(most, int) or most < 1:
            return 0.0, float(not turns)
        return min(1.0, turns / most), 1 / most

    def _end_if_too_long(self) -> EnvCalls[None]:
        if not self.ended and len(self.state_ids) > self.max_state:
            yield from self._end("context", self.observation)

    def _reset(self) -> list[Message]:
        self.tools = list(self.env.tools)
        return opening(self.env, self.start.task, self.record.seed)

    def _step(self, played: Completion, action: str, info: dict[str, Any]) -> EnvCalls[None]:
        """Record a turn, also if the environment then fails, and play it."""
        ids, logprobs, finish = played.ids, played.logprobs, played.finish_reason
        turn = Turn(
            self.observation, action, self.observation_ids, ids, logprobs, finish_reason=finish,
            info=info,
        )  # fmt: skip
        self.record.turns.append(turn)
        step = yield from self._call(lambda: answer(self.env, action))
        if step is None:
            return
        turn.reward, turn.done, turn.info = step.reward, step.done, {**step.info, **info}
        if step.done or step.truncated:
            yield from self._end("done" if step.done else "truncated", step.messages)
            return
        self.observation = step.messages
        self.observation_ids = self.chat.extend(step.messages, ids[-1] if ids else None, self.tools)
        self.state_ids = self.state_ids + ids + self.observation_ids

    def _call(self, call: Callable[[], Answer]) -> EnvCalls[Answer | None]:
        """Return the call's value. An error ends the episode and gives None, except a UserError,
        which is raised."""
        outcome = yield call
        self.record.env_seconds += outcome.seconds
        if outcome.error is None:
            return outcome.value
        if isinstance(outcome.error, UserError) or not isinstance(outcome.error, Exception):
            raise outcome.error
        yield from self._fail(outcome.error)
        return None

    def _fail(self, error: Exception) -> EnvCalls[None]:
        """End the episode with the error, its kind, and its place in the environment's file."""
        line = f"{type(error).__name__}: {error}"
        has_place = isinstance(error, ContractError | EnvTimeout | GeneratorError)
        self.record.error = safe(line if has_place else f"{line} ({where(error, self.env)})")
        self.record.error_kind = (error if isinstance(error, EpisodeError) else EpisodeError).kind
        yield from self._end("error", [])

    def _end(self, stop: str, closing: list[Message]) -> EnvCalls[None]:
        episode, self.ended = self.record, True
        episode.stop, episode.final_observation = stop, closing
        episode.seconds = time.perf_counter() - self.began
        if episode.error_kind == EnvTimeout.kind:  # its thread is still busy
            return
        error = (yield self.env.close).error
        if isinstance(error, Exception):
            failed = f"on closing {type(error).__name__}: {error}"
            episode.error = f"{episode.error}; {failed}" if episode.error else failed
            episode.stop, episode.error_kind = "error", episode.error_kind or EpisodeError.kind
        elif error is not None:
            raise error


# --- calls of the environment -------------------------------------------------------------------


@dataclass(frozen=True)
class Outcome:
    """The value or the error of a call, and its seconds."""

    value: Any
    error: BaseException | None
    seconds: float


EnvCalls = Coroutine[Callable[[], Any], Outcome, Answer]  # yields calls, receives their outcomes


def outcome_of(call: Callable[[], Any]) -> Outcome:
    """Make the call in this thread and return its outcome; never raises."""
    began, value, error = time.perf_counter(), None, None
    try:
        value = call()
    except BaseException as raised:
        error = raised
    return Outcome(value, error, time.perf_counter() - began)


class CallThread:
    """A daemon thread that makes the calls of one episode, one after another."""

    def __init__(self) -> None:
        self._calls: SimpleQueue[tuple[Callable[[], Any], Future[Outcome]] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def submit(self, call: Callable[[], Any]) -> Future[Outcome]:
        future = Future[Outcome]()
        self._calls.put((call, future))
        return future

    def abandon(self, seconds: float) -> EnvTimeout:
        """Let the thread hang in its call and end after it. Returns the error, with the place."""
        self._thread.name = ABANDONED
        self.close()
        frame = sys._current_frames().get(self._thread.ident or 0)
        place = f"{frame.f_code.co_filename}:{frame.f_lineno}" if frame else "its thread is gone"
        line = f"no answer within {seconds:g} s ({place})"
        return EnvTimeout(f"{line}; raise rollout.env_timeout if it needs longer")

    def close(self) -> None:
        """End the thread after its last call."""
        self._calls.put(None)

    def _run(self) -> None:
        while (item := self._calls.get()) is not None:
            call, future = item
            future.set_result(outcome_of(call))


def abandoned_threads() -> int:
    """Return how many threads of this process still hang in a call that timed out."""
    return sum(thread.name == ABANDONED for thread in threading.enumerate())


class EnvThreads:
    """Makes the calls of at most `workers` episodes at a time, those of one episode in one thread.
    A call of more than `timeout` seconds ends with EnvTimeout, and its thread is abandoned. The
    episodes themselves run in the caller's thread, so results do not depend on timing."""

    def __init__(self, workers: int, timeout: float | None) -> None:
        self.workers, self.timeout = workers, timeout
        self.uses_threads = workers > 1 or timeout is not None
        self._threads: dict[LiveEpisode, CallThread] = {}

    def forget(self, episode: LiveEpisode) -> None:
        """End the thread of an episode that is over."""
        if thread := self._threads.pop(episode, None):
            thread.close()

    def close(self) -> None:
        for thread in self._threads.values():
            thread.close()

    def run(self, episodes: list[tuple[LiveEpisode, EnvCalls[None]]]) -> Iterator[None]:
        """Make the calls that each episode yields. Yields when the next episode, in order, has no
        more. Raises what an episode raises, and RunAborted if too many threads hang."""
        waiting, ended = deque(episodes), set[EnvCalls[None]]()
        pending: dict[Future[Outcome], tuple[LiveEpisode, EnvCalls[None], float]] = {}
        done = SimpleQueue[Future[Outcome]]()

        def resume(episode: LiveEpisode, calls: EnvCalls[None], outcome: Outcome | None) -> None:
            try:
                call = next(calls) if outcome is None else calls.send(outcome)
                while not self.uses_threads:
                    call = calls.send(outcome_of(call))
            except StopIteration:
                ended.add(calls)
                return
            future = self._thread(episode).submit(call)
            pending[future] = episode, calls, time.monotonic()
            future.add_done_callback(done.put)

        for _, its_calls in episodes:
            while its_calls not in ended:
                if waiting and len(pending) < self.workers:
                    resume(*waiting.popleft(), None)
                    continue
                oldest, (episode, _, since) = next(iter(pending.items()))
                left = self.timeout and max(0, since + self.timeout - time.monotonic())
                try:
                    future = done.get(timeout=left)
                    outcome = future.result()
                except Empty:
                    future, limit = oldest, self.timeout or 0.0
                    outcome = Outcome(None, self._threads[episode].abandon(limit), limit)
                    if (count := abandoned_threads()) > MAX_ABANDONED:
                        line = f"{count} threads hang in calls of the environment, the last:"
                        remedy = "fix the environment or raise rollout.env_timeout"
                        raise RunAborted(f"{line} {outcome.error}; {remedy}") from None
                if future in pending:  # else it was abandoned before
                    resume(*pending.pop(future)[:2], outcome)
            yield

    def _thread(self, episode: LiveEpisode) -> CallThread:
        if episode not in self._threads:
            try:
                self._threads[episode] = CallThread()
            except RuntimeError as error:
                line = f"cannot start thread {len(self._threads) + 1} for an environment ({error})"
                raise RunAborted(f"{line}; lower rollout.max_concurrent_episodes") from None
        return self._threads[episode]


def indistinguishable_tasks(
    episode: Episode, turn: int, tasks: list[Task], make_env: Callable[[], Env]
) -> list[Task]:
    """Return the tasks in which the episode's actions bring the same observations up to turn
    `turn`, its own task first. To the agent they are one state, so the value of an action there is
    its mean over them."""
    others = [task for task in tasks if task.id != episode.task.id]
    found = [task for task in others if _is_same(episode, turn, task, make_env())]
    return [episode.task, *found]


def _is_same(episode: Episode, turn: int, task: Task, env: Env) -> bool:
    """Return whether the observations are the same; False if the environment fails."""
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
