"""The algorithm declares what it trains, and an episode below its group's mean is unlearnt."""

from agentrl_cli.core.types import Episode, Task, Turn
from agentrl_cli.models.specs import OptimizerSpec
from agentrl_cli.rollout.replay_buffer import ReplayBuffer

from my_method.algo import MyMethod


def made() -> MyMethod:
    return MyMethod(group_size=2, optimizer=OptimizerSpec(lr=1e-4))


def test_it_trains_the_policy_alone():
    assert list(made().models()) == ["policy"] and made().group_size == 2


def episode(reward: float) -> Episode:
    turn = Turn(observation=[], action="a", observation_ids=[2], action_ids=[3], logprobs=[-1.0])
    turn.reward = reward
    return Episode("e", Task("t", "train", {}), "group", 0, [turn])


def test_the_better_episode_is_learnt_and_the_worse_unlearnt():
    (phase,) = made().update([episode(1.0), episode(0.0)], ReplayBuffer(None, 1))
    assert [sample.mask for sample in phase.samples] == [[0, 1], [0, 1]]
    assert [sample.per_token["weight"] for sample in phase.samples] == [[0, 0.5], [0, -0.5]]
