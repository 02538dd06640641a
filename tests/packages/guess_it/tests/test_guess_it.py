"""The environment keeps the contract."""

from agentrl_cli.envs import check_env

from guess_it.env import GuessIt


def test_environment_keeps_the_contract():
    assert check_env(lambda: GuessIt(largest=20, max_turns=6)) == []
