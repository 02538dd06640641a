"""Actors play what one process would, never with weights that are too old."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import pytest

from agentrl_cli.core.errors import RunAborted, UserError
from agentrl_cli.core.types import Episode
from agentrl_cli.generators.base import Sampling
from agentrl_cli.rollout.actors import ActorPool
from agentrl_cli.rollout.collector import PlayCollector
from agentrl_cli.rollout.play import EpisodeStart, play
from tests.fakes.echo import CHAT, EchoEnv, script
from tests.fakes.thread_cluster import ThreadCluster

SPEAKER = script(lambda prompt: f"Hello {len(prompt) % 5}.")


class EchoPlayer:
    """Plays as `play` does and reports the version of its weights."""

    def __init__(self, world: dict[str, Any]) -> None:
        self.make_env, self.version = partial(EchoEnv, **world), -1

    def load(self, version: int, weights: bytes) -> None:
        assert weights == f"weights {version}".encode()
        self.version = version

    def play(
        self, starts: list[EpisodeStart], sampling: Sampling, max_failure_rate: float
    ) -> list[Episode]:
        limits: dict[str, Any] = {"max_seq_len": 500, "version": self.version}
        player = (self.make_env, CHAT, SPEAKER, sampling)
        return play(starts, *player, max_failure_rate=max_failure_rate, **limits)


class Learner:
    """A policy with a version that tests change."""

    version = 0


@pytest.fixture
def learner() -> Learner:
    return Learner()


def made(
    learner: Learner, *, count: int = 2, staleness: int = 0, steps: int = 9, world: Any = None,
    episodes: int = 10, **more: Any,
) -> tuple[PlayCollector, ActorPool, ThreadCluster]:  # fmt: skip
    """A collector with episodes from a pool."""
    cluster, world = ThreadCluster(count=count, gpus=0, staleness=staleness), world or {}
    pool = ActorPool(
        cluster=cluster, make_player=partial(EchoPlayer, world), staleness=staleness, steps=steps,
        version=lambda: learner.version, pack=lambda: f"weights {learner.version}".encode(), **more,
    )  # fmt: skip
    collector = alone(learner, episodes, world)
    collector.actors = pool
    return collector, pool, cluster


def alone(learner: Learner, episodes: int = 10, world: Any = None) -> PlayCollector:
    collector = PlayCollector(
        episodes_per_step=episodes, max_new_tokens=8, temperature=1.0, max_seq_len=500
    )
    collector.bind(
        make_env=partial(EchoEnv, **(world or {})), chat=CHAT, generator=SPEAKER, seed=3,
        policy_version=lambda: learner.version,
    )  # fmt: skip
    return collector


def untimed(episodes: list[Episode]) -> list[dict[str, Any]]:
    return [e.to_json() | {"seconds": 0.0, "env_seconds": 0.0} for e in episodes]


@pytest.mark.parametrize("count", [1, 2, 3, 16])
def test_actors_play_what_one_process_plays(learner: Learner, count: int):
    collector, pool, cluster = made(learner, count=count)
    whole = alone(learner)
    for step in range(3):
        learner.version = step
        assert untimed(collector.collect(step, 2)) == untimed(whole.collect(step, 2))
    starts, sampling = whole.starts(7, 1), whole.sampling
    assert untimed(collector.play(starts, sampling)) == untimed(whole.play(starts, sampling))
    assert cluster.shared == [b"weights 0", b"weights 1", b"weights 2"]
    pool.close()
    pool.close()
    assert cluster.is_closed


def test_other_environments_are_played_in_this_process(learner: Learner):
    collector, pool, _ = made(learner)
    starts, sampling = collector.starts(0, 1), collector.sampling
    brief = collector.play(starts, sampling, make_env=partial(EchoEnv, turns=1))
    other = collector.play(starts, sampling, script(lambda prompt: "stop"))
    own = collector.play(starts, sampling, SPEAKER)
    assert [len(found[0].turns) for found in (brief, other, own)] == [1, 1, 3]
    assert brief[0].turns[0].action == "Hello 4." and other[0].turns[0].action == "stop"
    assert pool.weights is not None


def test_lost_actor_costs_its_part_and_is_replaced(learner: Learner):
    collector, _, cluster = made(learner, count=2, max_concurrent_episodes=2)
    lost = collector.starts(0, 1)[4].id
    cluster.loses = lambda part: part.starts[0].id == lost
    found, whole = collector.collect(0, 1), alone(learner).collect(0, 1)
    assert [e.id for e in found] == [e.id for e in whole]
    assert [i for i, e in enumerate(found) if e.error] == [4, 5]
    failed = found[4]
    assert failed.stop == "error" and failed.error_kind == "actor" and not failed.turns
    kept = [i for i in range(10) if i not in (4, 5)]
    assert untimed([found[i] for i in kept]) == untimed([whole[i] for i in kept])
    assert cluster.launched == 3 and collector.actors.metrics()["actors/lost"] == 1
    assert untimed(collector.collect(1, 1)) == untimed(alone(learner).collect(1, 1))
    assert collector.actors.metrics()["actors/lost"] == 0


def test_too_many_lost_episodes_stop_the_run(learner: Learner):
    collector, _, cluster = made(learner)
    cluster.loses = lambda part: part.starts[0].id.startswith("s000001-t00")
    collector.collect(0, 1)
    with pytest.raises(RunAborted, match=r"5 of 10 .*LostActor"):
        collector.collect(1, 1)
    assert untimed(collector.collect(2, 1)) == untimed(alone(learner).collect(2, 1))


def test_environment_errors_in_actors_stop_the_run(learner: Learner):
    collector, _, _ = made(learner, world={"fails_at": 1})
    with pytest.raises(RunAborted, match="broken at 1"):
        collector.collect(0, 1)
    collector, _, _ = made(learner, world={"fails_at": 1, "error": UserError})
    with pytest.raises(UserError, match="broken at 1"):
        collector.collect(0, 1)


def versions(collector: PlayCollector, step: int) -> set[int]:
    return {episode.policy_version for episode in collector.collect(step, 1)}


def test_next_step_is_played_with_older_weights(learner: Learner):
    collector, pool, _ = made(learner, staleness=2, steps=3)
    whole = alone(learner)
    assert versions(collector, 0) == {0}
    learner.version = 2
    found = collector.collect(1, 1)
    ages = pool.metrics()
    assert (ages["actors/staleness"], ages["actors/staleness_max"]) == (2, 2)
    assert 0 <= ages["actors/idle"] <= 1 and ages["actors/played_again"] == 0
    learner.version = 0
    assert untimed(found) == untimed(whole.collect(1, 1))
    learner.version = 3
    assert versions(collector, 2) == {2}
    assert pool.ahead is None  # there is no step 3


def test_too_old_episodes_are_played_again(learner: Learner):
    collector, pool, _ = made(learner, staleness=1)
    assert versions(collector, 0) == {0}
    learner.version = 2
    assert versions(collector, 1) == {2}
    found = pool.metrics()
    assert found["actors/played_again"] == 10 and found["actors/staleness_max"] == 0
    assert pool.ahead is None  # the last update changed more than is allowed
    learner.version = 3
    assert versions(collector, 2) == {3}
    assert pool.ahead is not None
    learner.version = 4
    assert versions(collector, 3) == {3}


def test_episodes_ahead_survive_a_checkpoint(learner: Learner):
    collector, pool, _ = made(learner, staleness=1)
    collector.collect(0, 1)
    learner.version = 1
    state = json.loads(json.dumps(pool.state()))
    resumed, other, cluster = made(learner, staleness=1)
    other.load(state)
    assert untimed(resumed.collect(1, 1)) == untimed(collector.collect(1, 1))
    assert cluster.shared == [b"weights 1"]  # for step 2 alone
    assert json.loads(json.dumps(untimed(other.ahead.episodes() if other.ahead else []))) == (
        json.loads(json.dumps(untimed(pool.ahead.episodes() if pool.ahead else [])))
    )


def test_losses_ahead_count_in_their_step(learner: Learner):
    collector, pool, cluster = made(learner, staleness=1)
    cluster.loses = lambda part: part.starts[0].id.startswith("s000001-t05")
    collector.collect(0, 1)
    assert pool.ahead is not None
    pool.state()  # waits
    pool.metrics()
    with pytest.raises(RunAborted, match="5 of 10"):
        collector.collect(1, 1)
