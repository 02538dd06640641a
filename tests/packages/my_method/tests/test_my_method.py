"""The algorithm declares what it trains."""

from agentrl_cli.models.specs import OptimizerSpec

from my_method.algo import MyMethod


def test_it_trains_the_policy_alone():
    algo = MyMethod(episodes_per_group=4, optimizer=OptimizerSpec(lr=1e-4))
    assert list(algo.models()) == ["policy"] and algo.group_size == 4
