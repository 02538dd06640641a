"""What a step plays depends on the seed and the step only; failures stop the run."""

import pytest

from agentrl_cli.core.errors import RunAborted
from agentrl_cli.core.types import Episode
from agentrl_cli.rollout.collector import PlayCollector
from agentrl_cli.rollout.play import check_failures
from tests.builders.errors import user_error
from tests.fakes.echo import CHAT, EchoEnv, random_sampler, script


@pytest.fixture
def sampler():
    return random_sampler()


def collector(episodes_per_step, generator, **world):
    made = PlayCollector(
        episodes_per_step=episodes_per_step, max_new_tokens=8, temperature=1.0, max_seq_len=500
    )
    made.bind(
        make_env=lambda: EchoEnv(**world), chat=CHAT, generator=generator, seed=3,
        policy_version=lambda: 41,
    )  # fmt: skip
    return made


def test_every_task_is_visited_before_any_is_repeated():
    generator = script(lambda prompt: "Hello.")
    for size in (1, 2, 3, 7):
        made = collector(size, generator)
        seen = [start.task.id for step in range(10) for start in made.starts(step, 1)]
        for epoch in range(len(seen) // 5):
            assert len(set(seen[5 * epoch : 5 * epoch + 5])) == 5
        assert seen[:5] != seen[5:10]


def test_step_depends_on_seed_and_number(sampler):
    first = collector(4, sampler).collect(3, 2)
    other = collector(4, sampler)
    other.collect(0, 2)
    again = other.collect(3, 2)
    assert [e.turns for e in again] == [e.turns for e in first]


def test_groups_share_a_task_with_unique_seeds(sampler):
    episodes = collector(21, sampler).collect(12, 3)
    assert len({e.id for e in episodes}) == len({e.seed for e in episodes}) == 21
    assert episodes[10].id == "s000012-t03-g1" and episodes[10].group == "s000012-t03"
    groups = {e.group: e.task.id for e in episodes}
    assert all(groups[e.group] == e.task.id and e.policy_version == 41 for e in episodes)


def test_too_many_failures_stop_a_step():
    with pytest.raises(RunAborted, match=r"1 of 2 episodes failed so far, 1 .* broken at 1"):
        collector(2, script(lambda prompt: "Hello."), fails_at=1).collect(0, 1)
    task = EchoEnv().tasks("train")[0]
    fine = Episode("a", task, "g", 0, [])
    broken = Episode("b", task, "g", 0, [], stop="error", error="why")
    check_failures([fine] * 4 + [broken])
    with pytest.raises(RunAborted, match="why"):
        check_failures([fine] * 3 + [broken])


def test_group_larger_than_a_step_is_refused():
    with user_error("group-too-large", 2, 3):
        collector(2, script(lambda prompt: "Hello.")).collect(0, 3)
    assert collector(8, script(lambda prompt: "Hello.")).count(3) == 6
