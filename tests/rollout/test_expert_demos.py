"""An expert's episodes: which tasks, in how many voices, knowing only what was answered."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator

import pytest

from agentrl_cli.core import files
from agentrl_cli.core.errors import UserError
from agentrl_cli.core.types import Episode, Message, Step, Task
from agentrl_cli.envs.twentyq.questions import Guess, Question, parse
from agentrl_cli.rollout.expert_demos import expert_episodes, expert_lines
from tests.builders.demos import COIN, twentyq
from tests.fakes.coin import CoinEnv

# the expert's episodes


def test_a_world_that_breaks_costs_an_episode_and_is_closed():
    open_worlds: list[str] = []
    closed: list[CoinEnv] = []

    class Shaky(CoinEnv):
        def expert(self, task: Task) -> Iterator[str]:
            return iter(["even"] * self.turns)

        def step(self, action: str) -> Step:
            if len(open_worlds) % 3 == 1:
                raise ValueError("boom")
            return super().step(action)

        def reset(self, task: Task, seed: int) -> list[Message]:
            open_worlds.append(task.id)
            return super().reset(task, seed)

        def close(self) -> None:
            closed.append(self)

    assert len(expert_episodes(Shaky(turns=2), 4, seed=0)) == 4
    assert len(closed) == len(open_worlds) > 4

    class Broken(Shaky):
        def step(self, action: str) -> Step:
            raise ValueError("boom")

    line = r"the expert lost 11 of 11 episodes, the last that broke with ValueError: boom; mend it"
    with pytest.raises(UserError, match=line):
        expert_episodes(Broken(turns=2), 4, seed=0)


@pytest.fixture(scope="module")
def shown() -> list[Episode]:
    return expert_episodes(twentyq(), 70, seed=0)


def test_the_expert_shows_train_tasks_only_each_once_before_any_comes_again(shown: list[Episode]):
    train = {task.id for task in twentyq().tasks("train")}
    counts = Counter(episode.task.id for episode in shown)
    assert {e.task.split for e in shown} == {"train"} and counts.keys() == train
    assert set(counts.values()) == {1, 2}
    assert all(e.success and e.stop == "done" and e.turns[-1].done for e in shown)


def test_the_same_seed_shows_the_same_and_another_one_other_games(shown: list[Episode]):
    again, other = expert_episodes(twentyq(), 70, seed=0), expert_episodes(twentyq(), 70, seed=1)
    assert [e.to_json() for e in again] == [e.to_json() for e in shown]
    assert [e.task.id for e in other] != [e.task.id for e in shown]


def test_one_game_is_shown_in_many_ways():
    env = twentyq(test_objects=95)
    ways = {tuple(turn.action for turn in e.turns) for e in expert_episodes(env, 8, seed=0)}
    assert len(ways) == 8


def test_an_experts_turn_is_a_thought_that_fits_and_an_action_that_the_world_understands(
    shown: list[Episode],
):
    env = twentyq()
    nouns = {env.world_table.nouns[name] for name in env.world_table.objects}
    for turn in (turn for episode in shown for turn in episode.turns):
        thought, action = turn.action.split("\n")
        assert thought.startswith("Maybe ") and thought[6:].split(".")[0] in nouns
        assert isinstance(parse(turn.action, env.world_table), Question | Guess), action
        assert not turn.info.get("invalid") and not turn.info["repeated"]


def test_the_expert_knows_only_what_was_answered():
    """Two secrets with equal answers so far bring equal turns: thoughts do not give it away."""
    env, histories = twentyq(), {}
    tasks = [Task(name, "train", {"object": name}) for name in env.world_table.objects]
    for task in tasks:
        env.reset(task, 5)
        heard: tuple[str, ...] = ()
        for action in env.expert(task):
            assert histories.setdefault(heard, action) == action
            heard = (*heard, action, env.step(action).messages[0].content)
    assert len(histories) > 120  # states that 96 games pass through


def test_a_thought_names_the_secret_no_more_often_than_chance():
    env, named, chance = twentyq(), 0, 0.0
    for episode in expert_episodes(env, 200, seed=3):
        secret = env.world_table.nouns[episode.task.data["object"]]
        env.reset(episode.task, 0)
        for turn in episode.turns[:-2]:
            named += f"Maybe {secret}." in turn.action
            chance += 1 / len(env.game.candidates if env.game else ())
            env.step(turn.action)
    assert named == pytest.approx(chance, abs=4 * chance**0.5)


def test_what_is_privileged_is_not_written(shown: list[Episode]):
    assert "privileged" not in json.dumps([turn.info for e in shown for turn in e.turns])


def test_demonstrations_may_be_asked_of_the_expert_instead_of_a_file(shown: list[Episode]):
    lines = expert_lines("expert:3", twentyq())
    assert lines == [files.json_line(episode.to_json()) for episode in shown[:3]]
    for wrong in ("expert:", "expert:0", "expert:-1", "expert:two"):
        with pytest.raises(UserError, match=f"data.demos is '{wrong}'; give a file, or expert:128"):
            expert_lines(wrong, twentyq())


def test_an_environment_without_an_expert_is_named():
    with pytest.raises(UserError, match="has no expert; give it one, or demonstrations of your"):
        expert_episodes(COIN, 1, seed=0)


class Loser(CoinEnv):
    """Its expert always says something of odd length."""

    def expert(self, task: Task):
        return iter(["Odd"] * 2)


def test_an_expert_that_loses_is_stopped():
    with pytest.raises(UserError, match="the expert lost 11 of 11 episodes; mend it first"):
        expert_episodes(Loser(turns=2), 5, seed=0)
