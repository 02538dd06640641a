"""The world keeps the contract."""

from agentrl_cli.envs import check_env

from guess_it.env import GuessIt


def test_there_is_nothing_to_mend():
    assert check_env(lambda: GuessIt(largest=20, turns=6)) == []
