"""Episodes of the expert: their tasks and seeds, and experts that fail, lose or leak."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator

import pytest

from agentrl_cli.core import files
from agentrl_cli.core.errors import UserError
from agentrl_cli.core.types import Episode, Message, Step, Task
from agentrl_cli.rollout.demos import expert_episodes, expert_lines
from tests.builders.demos import COIN, twentyq
from tests.fakes.coin import CoinEnv


def test_failing_environment_is_closed_and_counted():
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

    with pytest.raises(UserError, match=r"11 of 11.*ValueError: boom") as error:
        expert_episodes(Broken(turns=2), 4, seed=0)
    assert error.value.code == "expert-lost"


@pytest.fixture(scope="module")
def shown() -> list[Episode]:
    return expert_episodes(twentyq(), 70, seed=0)


def test_every_train_task_comes_once_per_epoch(shown: list[Episode]):
    train = {task.id for task in twentyq().tasks("train")}
    counts = Counter(episode.task.id for episode in shown)
    assert {e.task.split for e in shown} == {"train"} and counts.keys() == train
    assert set(counts.values()) == {1, 2}
    assert all(e.success and e.stop == "done" and e.turns[-1].done for e in shown)


def test_seed_determines_the_episodes(shown: list[Episode]):
    again, other = expert_episodes(twentyq(), 70, seed=0), expert_episodes(twentyq(), 70, seed=1)
    assert [e.to_json() for e in again] == [e.to_json() for e in shown]
    assert [e.task.id for e in other] != [e.task.id for e in shown]


def test_thoughts_name_the_secret_by_chance():
    env, named, chance = twentyq(), 0, 0.0
    for episode in expert_episodes(env, 200, seed=3):
        secret = env.world_table.nouns[episode.task.data["object"]]
        env.reset(episode.task, 0)
        for turn in episode.turns[:-2]:
            named += f"Maybe {secret}." in turn.action
            chance += 1 / len(env.game.candidates if env.game else ())
            env.step(turn.action)
    assert named == pytest.approx(chance, abs=4 * chance**0.5)


def test_privileged_info_is_not_written(shown: list[Episode]):
    assert "privileged" not in json.dumps([turn.info for e in shown for turn in e.turns])


def test_expert_source_replaces_a_file(shown: list[Episode]):
    lines = expert_lines("expert:3", twentyq())
    assert lines == [files.json_line(episode.to_json()) for episode in shown[:3]]
    for wrong in ("expert:", "expert:0", "expert:-1", "expert:two"):
        with pytest.raises(UserError) as error:
            expert_lines(wrong, twentyq())
        assert error.value.code == "invalid-demos-source" and f"'{wrong}'" in str(error.value)


def test_missing_expert_is_refused():
    with pytest.raises(UserError) as error:
        expert_episodes(COIN, 1, seed=0)
    assert error.value.code == "no-expert"
