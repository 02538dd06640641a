"""Worlds at work beside each other, and few episodes in play at a time: nothing else changes."""

import random
import threading
import time
from dataclasses import dataclass, replace
from typing import ClassVar

import pytest

from agentrl_cli.core.errors import RunAborted
from agentrl_cli.core.types import Step
from agentrl_cli.generators.hf import HFGenerator
from agentrl_cli.rollout.play import MAX_ABANDONED, abandoned_threads, play
from agentrl_cli.training.loop import rollout_metrics
from tests.fakes.echo import CHAT, EchoEnv, TinyWeights, random_sampler, script
from tests.rollout.test_play import SAMPLING, starts, strip


@pytest.fixture
def sampler():
    return random_sampler()


def roll_in(make_env, begin, generator, **how):
    return play(begin, make_env, CHAT, generator, SAMPLING, max_seq_len=500, **how)


@dataclass(kw_only=True)
class Meeting(EchoEnv):
    """A world that answers only when as many others are asked as the barrier wants."""

    barrier: threading.Barrier

    def reset(self, task, seed):
        self.barrier.wait(timeout=20)
        return super().reset(task, seed)

    def step(self, action: str) -> Step:
        self.barrier.wait(timeout=20)
        return super().step(action)


@pytest.mark.parametrize("limit", [None, 60.0])
def test_workers_run_environments_at_once(limit):
    barrier, speaker = threading.Barrier(4), script(lambda prompt: "Hello.")
    met = roll_in(
        lambda: Meeting(barrier=barrier), starts(8), speaker, workers=4, env_timeout=limit
    )
    assert [episode.stop for episode in met] == ["done"] * 8


@dataclass(kw_only=True)
class Restless(EchoEnv):
    """A world that takes its time, as chance has it; it notes how many are at work, and where."""

    at_work: list[int]
    most: list[int]
    threads: dict[int, set[int]]

    def step(self, action: str) -> Step:
        self.threads.setdefault(id(self), set()).add(threading.get_ident())
        self.at_work.append(id(self))
        self.most.append(len(self.at_work))
        assert self.at_work.count(id(self)) == 1
        time.sleep(random.random() / 100)
        self.at_work.remove(id(self))
        return super().step(action)


@pytest.mark.parametrize(("workers", "limit"), [(1, 60.0), (2, None), (5, 60.0), (16, None)])
def test_episodes_do_not_depend_on_workers(sampler, workers, limit):
    most: list[int] = []
    threads: dict[int, set[int]] = {}
    made = []  # keeps the worlds, so that no two have one id

    def restless():
        made.append(Restless(at_work=at_work, most=most, threads=threads))
        return made[-1]

    at_work: list[int] = []
    alone = roll_in(EchoEnv, starts(8), sampler)
    sampler.clear()
    beside = roll_in(restless, starts(8), sampler, workers=workers, env_timeout=limit)
    for one, other in zip(alone, beside, strict=True):
        assert replace(one, seconds=0, env_seconds=0) == replace(other, seconds=0, env_seconds=0)
    assert max(most) <= workers and {len(used) for used in threads.values()} == {1}


def test_error_does_not_depend_on_workers():
    class Picky(EchoEnv):
        def step(self, action: str) -> Step:
            if self.task.data["i"] in (1, 3):
                raise KeyError(self.task.id)
            return super().step(action)

    speaker = script(lambda prompt: "Hello.")
    alone, beside = (roll_in(Picky, starts(5), speaker, workers=n) for n in (1, 5))
    assert [e.stop for e in beside] == ["done", "error", "done", "error", "done"]
    assert [e.error for e in beside] == [e.error for e in alone]
    for workers in (1, 5):
        with pytest.raises(RunAborted, match=r"^1 of 5 episodes failed"):
            roll_in(Picky, starts(5), speaker, workers=workers, max_failure_rate=0.1)


class Hanging(EchoEnv):
    """A world that hangs at its first action until it is freed."""

    freed: ClassVar[threading.Event]

    def step(self, action: str) -> Step:
        self.freed.wait()
        return super().step(action)


@pytest.fixture
def hanging():
    Hanging.freed = threading.Event()
    yield Hanging
    Hanging.freed.set()
    until(lambda: abandoned_threads() == 0)


def until(claim):
    """Wait until it holds; fail where it does not in 20 s."""
    deadline = time.monotonic() + 20
    while not claim():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_abandoned_threads_are_counted(hanging):
    played = roll_in(
        hanging, starts(6), script(lambda prompt: "Hello."), workers=3, env_timeout=0.1
    )
    assert [episode.error_kind for episode in played] == ["timeout"] * 6
    assert abandoned_threads() == rollout_metrics(played)["episodes/abandoned_threads"] == 6
    hanging.freed.set()
    until(lambda: abandoned_threads() == 0)


def test_too_many_threads_that_hang_stop_the_run(hanging):
    message = f"^{MAX_ABANDONED + 1} threads hang"
    with pytest.raises(RunAborted, match=message):
        roll_in(
            hanging, starts(MAX_ABANDONED + 1), script(lambda prompt: "Hello."), workers=20,
            env_timeout=0.1,
        )  # fmt: skip


@pytest.mark.parametrize("at_once", [1, 3, 7, 99])
def test_concurrency_limit_changes_no_episode(sampler, at_once):
    played: list[int] = []

    class Counted(HFGenerator):
        def generate(self, prompts, seeds, sampling, model="policy"):
            played.append(len(prompts))
            return super().generate(prompts, seeds, sampling, model)

    together = roll_in(EchoEnv, starts(7), sampler)
    counted = Counted(TinyWeights(), max_batch=64, cache_tokens=10_000)
    apart = roll_in(EchoEnv, starts(7), counted, max_concurrent_episodes=at_once)
    assert [strip(e) for e in apart] == [strip(e) for e in together]
    assert max(played) == min(7, at_once)


def test_an_episode_that_has_ended_leaves_its_thread():
    before, most = threading.active_count(), list[int]()

    class Watched(EchoEnv):
        def close(self) -> None:
            most.append(threading.active_count())

    roll_in(
        Watched, starts(40), script(lambda prompt: "Hello."), workers=2, max_concurrent_episodes=3
    )
    assert len(most) == 40 and max(most) < before + 20  # some are still closing


def test_failures_count_against_all_episodes():
    speaker, asked = script(lambda prompt: "Hello."), []
    with pytest.raises(RunAborted, match="3 of 10 episodes failed"):
        roll_in(
            lambda: asked.append(1) or EchoEnv(fails_at=0),
            starts(10),
            speaker,
            max_failure_rate=0.2,
            max_concurrent_episodes=2,
        )
    assert len(asked) == 4
