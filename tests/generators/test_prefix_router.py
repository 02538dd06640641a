"""Prompts go to the server that has read most of them, and no server gets more than its share."""

from __future__ import annotations

from agentrl_cli.generators.prefix_router import BLOCK, PrefixRouter

SYSTEM = list(range(4 * BLOCK))


def episode(number: int, turns: int) -> list[int]:
    """A prompt of an episode: the system's, which all share, and what was said in its turns."""
    return SYSTEM + [1000 * (number + 1) + k for k in range(turns * 2 * BLOCK)]


def test_a_later_turn_goes_where_the_earlier_one_was_read():
    router = PrefixRouter(3)
    first = router.route([episode(i, 1) for i in range(6)], "policy")
    assert sorted(first) == [0, 0, 1, 1, 2, 2]
    order = [4, 1, 5, 0, 3, 2]
    assert router.route([episode(i, 2) for i in order], "policy") == [first[i] for i in order]


def test_no_server_gets_more_than_its_share_of_a_call():
    router = PrefixRouter(2)
    assert router.route([SYSTEM] * 4, "policy").count(0) == 2
    router.route([episode(0, 1)], "policy")
    chosen = router.route([[*episode(0, 2), i] for i in range(4)], "policy")
    assert sorted(chosen) == [0, 0, 1, 1]


def test_each_model_has_prefixes_of_its_own_and_all_can_be_forgotten():
    router = PrefixRouter(2)
    (first, second) = router.route([episode(0, 1), episode(1, 1)], "policy")
    assert first != second
    assert router.route([episode(1, 1)], "target") == [0]
    router.clear()
    assert router.route([episode(1, 2), episode(0, 2)], "policy") == [0, 1]


def test_one_server_reads_everything():
    assert PrefixRouter(1).route([SYSTEM, episode(3, 2)], "policy") == [0, 0]
