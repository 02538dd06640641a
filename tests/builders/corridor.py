"""Worlds in which NLAC's actions are really probed, and a corridor where one action is right."""

from __future__ import annotations

import copy

from agentrl_cli.algos.nlac.algorithm import NLAC
from agentrl_cli.core.types import Episode
from agentrl_cli.envs.base import Env
from agentrl_cli.generators.base import Generator
from agentrl_cli.models.model_set import ModelSet
from agentrl_cli.rollout.play import EpisodeStart, indistinguishable_tasks, play
from tests.builders.nlac import CHAT, SAMPLING, Troupe, asked, bound, troupe
from tests.fakes.tabular import GO, JUMP, CorridorEnv

PATH = CorridorEnv(jump=(0.0, 1.0), last=0.0)  # jumping loses at once, going on and jumping wins
RIGHT = {JUMP: "Failure.", GO: "Success."}


def rolled(env: Env, generator: Generator, starts: list[EpisodeStart]) -> list[Episode]:
    return play(starts, lambda: copy.copy(env), CHAT, generator, SAMPLING, max_seq_len=2000)


def watching(algo: NLAC, env: Env, generator: Generator, models: ModelSet) -> NLAC:
    bound(algo, generator, models)
    algo.context.probe = lambda starts: rolled(env, generator, starts)
    tasks = env.tasks("train")
    algo.context.indistinguishable_tasks = lambda played, turn: indistinguishable_tasks(
        played, turn, tasks, lambda: copy.copy(env)
    )
    algo.roles.begin_stream("watch")
    return algo


def walker(first: str | list[str], forecasts: dict[str, str], refine: str = GO) -> Troupe:
    """Acts as told in room 0 and jumps in room 1; forecasts by the action."""
    firsts = [first] if isinstance(first, str) else first

    def act(text: str, draw) -> str:
        return draw.choice(firsts) if "Room 0." in asked(text) else JUMP

    def forecast(text: str, draw: object) -> str:
        return next(said for action, said in forecasts.items() if f"{action}<|im_end|>" in text)

    return troupe(act=act, forecast=forecast, evaluate="Optimality: No. So.", refine=refine)


def walks(generator: Troupe, count: int) -> list[Episode]:
    task = PATH.tasks("train")[0]
    starts = [EpisodeStart(task, "g", seed, f"e{seed}") for seed in range(count)]
    return rolled(PATH, generator, starts)
