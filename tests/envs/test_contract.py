"""Whatever a world answers at its border is an answer, or breaks its own episode by name."""
# pyright: reportIncompatibleMethodOverride=false, reportArgumentType=false, reportReturnType=false

from __future__ import annotations

import inspect
import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from agentrl_cli.core.errors import ContractError, UserError
from agentrl_cli.core.types import Episode, Message, Step, Task
from agentrl_cli.envs.check import check_env
from agentrl_cli.generators.base import Sampling
from agentrl_cli.rollout.play import EpisodeStart, indistinguishable_tasks, play
from tests.fakes.echo import CHAT, EchoEnv, script

SAMPLING = Sampling(max_tokens=8, temperature=1.0, stop_ids=CHAT.stop_ids)
HALF = "\ud800"
GOOD = Step([Message("user", "Go on.")], 0.0, False, False)


class Answers(EchoEnv):
    """Answers every action with `step`, and a reset with `first`."""

    def __init__(self, step: Any = GOOD, first: Any = None, prompt: Any = "Say.") -> None:
        super().__init__()
        self.answer, self.prompt = step, prompt
        self.first = [Message("user", "Begin.")] if first is None else first

    def system(self) -> Any:
        return self.prompt

    def tasks(self, split: str) -> list[Task]:
        if split not in ("train", "test"):
            raise UserError("no such split")
        return [replace(task, data={"of": task.id}) for task in super().tasks(split)]

    def reset(self, task: Task, seed: int) -> Any:
        self.task = task
        return self.first

    def step(self, action: str) -> Any:
        return self.answer


def played(world: EchoEnv) -> Episode:
    start = EpisodeStart(world.tasks("train")[0], "g", 0, "e")
    speaker = script(lambda prompt: "Hello.")
    (episode,) = play([start], lambda: world, CHAT, speaker, SAMPLING, max_seq_len=200)
    return episode


WRONG_STEPS = {
    "None": (None, "step returns NoneType: return a Step"),
    "text reward": (replace(GOOD, reward="1"), "reward is '1': give a finite float"),
    "no reward": (replace(GOOD, reward=None), "reward is None: give a finite float"),
    "nan": (replace(GOOD, reward=float("nan")), "reward is nan: give a finite float"),
    "infinite": (replace(GOOD, reward=float("inf")), "reward is inf: give a finite float"),
    "too large": (replace(GOOD, reward=10**400), "give a finite float"),
    "set": (replace(GOOD, info={"seen": {1}}), "info cannot be written as JSON"),
    "half in info": (replace(GOOD, info={"a": HALF}), "info cannot be written as JSON"),
    "reserved": (replace(GOOD, info={"weight": 70, "x": 1}), "info has the keys ['weight'], which"),
    "keys": (replace(GOOD, info={1: 2}), "give a dictionary with strings as keys"),
    "no info": (replace(GOOD, info=None), "info is None: give a dictionary"),
    "number for done": (replace(GOOD, done=1), "done or truncated is not a bool"),
    "text": (replace(GOOD, messages="Go on."), "step returns 'Go on.': return a list of Message"),
    "half": (replace(GOOD, messages=[Message("user", HALF)]), r"'\ud800'"),
    "forged role": (replace(GOOD, messages=[Message("<|im_end|>", "x")]), "use a role of"),
    "calls": (replace(GOOD, messages=[Message("tool", "x", ({"a": {1}},))]), "UTF-8 and JSON"),
}


@pytest.mark.parametrize("name", WRONG_STEPS)
def test_what_no_step_may_be_breaks_the_episode_and_check_env_says_the_same(name: str):
    step, sentence = WRONG_STEPS[name]
    episode = played(Answers(step))
    assert (episode.stop, episode.error_kind, episode.reward) == ("error", "contract", 0.0)
    assert episode.error is not None and sentence in episode.error
    line = inspect.getsourcelines(Answers.step)[1]
    assert f"{__file__}:{line}" in episode.error
    assert Episode.from_json(json.loads(json.dumps(episode.to_json()))) == episode
    assert any(sentence in found for found in check_env(lambda: Answers(step)))


WRONG_RESETS = {
    "nothing": (Answers(first=[]), "reset returns no messages"),
    "text": (Answers(first="Begin."), "reset returns 'Begin.': return a list of Message"),
    "half": (Answers(first=[Message("user", HALF)]), "reset returns"),
    "number": (Answers(first=[Message("user", 3)]), "content=3"),
    "long": (Answers(first="x" * 9999), "…: return a list of Message"),
    "system": (Answers(prompt=3), "system() returns 3: return a string"),
}


@pytest.mark.parametrize("name", WRONG_RESETS)
def test_what_no_reset_may_be_breaks_the_episode_and_check_env_says_the_same(name: str):
    world, sentence = WRONG_RESETS[name]
    episode = played(world)
    assert (episode.stop, episode.error_kind, episode.turns) == ("error", "contract", [])
    assert episode.error is not None and sentence in episode.error and len(episode.error) < 500
    assert any(sentence in found for found in check_env(lambda: world))


@pytest.mark.parametrize("reward", [np.float32(0.5), np.float64(0.5)])
def test_a_number_of_another_library_is_a_reward(reward: Any):
    episode = played(Answers(replace(GOOD, reward=reward, done=True)))
    assert episode.reward == 0.5 and type(episode.turns[0].reward) is float


def test_an_error_names_the_worlds_own_file_and_line():
    class Broken(EchoEnv):
        def step(self, action: str) -> Step:
            return json.loads("{")

    episode = played(Broken())
    line = inspect.getsourcelines(Broken.step)[1] + 1
    assert episode.error is not None and f"{__file__}:{line}" in episode.error
    assert "JSONDecodeError" in episode.error and episode.error_kind == "crash"


def test_a_world_that_breaks_on_the_way_is_no_other_task_to_mistake_it_for():
    class OddTasksBreak(EchoEnv):
        def step(self, action: str) -> Step:
            step = super().step(action)
            return replace(step, reward=None) if self.task.data["i"] % 2 else step

        def reset(self, task: Task, seed: int) -> list[Message]:
            return [*super().reset(task, seed)[:0], Message("user", "Begin.")]

    episode = played(OddTasksBreak())
    tasks = OddTasksBreak().tasks("train")
    found = indistinguishable_tasks(episode, 1, tasks, OddTasksBreak)
    assert [task.data["i"] for task in found] == [0, 2, 4]


def test_a_demonstration_by_an_expert_is_read_at_the_same_border():
    from agentrl_cli.rollout.expert_demos import expert_episode

    world = Answers(None)
    world.expert = lambda task: iter(["Hello."])
    with pytest.raises(ContractError, match="step returns NoneType"):
        expert_episode(world, world.tasks("train")[0], 0, "demo")
