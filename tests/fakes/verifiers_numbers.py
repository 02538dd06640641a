"""An environment as verifiers' users write them: a number to be found in a conversation; and one of
verifiers' own, a task of reasoning-gym, by the argument `gym`."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import verifiers as vf  # pyright: ignore[reportMissingImports]
from datasets import Dataset  # pyright: ignore[reportMissingImports]


class Numbers(vf.MultiTurnEnv):
    """Says higher or lower until the number of the row is found."""

    async def env_response(self, messages: Any, state: Any, **kwargs: Any) -> Any:
        said = str(messages[-1].content)
        guess = int(said) if said.isdecimal() else 0
        if guess == int(state["answer"]):
            state["found"] = True
            state["final_env_response"] = [vf.UserMessage(content="Right.")]
            return state["final_env_response"]
        word = "Higher." if guess < int(state["answer"]) else "Lower."
        return [vf.UserMessage(content=word)]


async def found(state: Any) -> float:
    return float(state.get("found", False))


LOOPS: list[asyncio.AbstractEventLoop] = []


async def share_a_pool(state: Any) -> float:
    """Fails as a pool of connections does that another event loop has opened."""
    LOOPS.append(asyncio.get_running_loop())
    if LOOPS[0] is not LOOPS[-1]:
        raise ConnectionError("Event loop is closed")
    return 0.0


def slow(state: Any) -> float:
    """Blocks its thread, as a judge does that is asked without a coroutine."""
    time.sleep(1.0)
    return 0.0


async def judged(state: Any) -> float:
    raise ConnectionError("the judge is down")


def rows(numbers: range) -> Dataset:
    return Dataset.from_list([{"question": "From 1 to 8?", "answer": str(n)} for n in numbers])


def load_environment(
    gym: str | None = None,
    evaluated: bool = False,
    tool: bool = False,
    judge: bool = False,
    shared: bool = False,
    blocks: bool = False,
    weights: tuple[float, ...] = (1.0,),
) -> vf.Environment:
    others: list[Any] = [judged] * judge + [share_a_pool] * shared + [slow] * blocks
    rubric = vf.Rubric(
        funcs=[*[found] * len(weights), *others], weights=[*weights, *[0.0] * len(others)]
    )
    if gym:
        return vf.ReasoningGymEnv(gym=gym, num_train_examples=6, num_eval_examples=3, seed=1)
    if tool:
        return vf.ToolEnv(dataset=rows(range(1, 9)), tools=[found], rubric=vf.Rubric(funcs=[found]))
    return Numbers(
        dataset=rows(range(1, 9)),
        eval_dataset=rows(range(9, 12)) if evaluated else None,
        system_prompt="Find it.",
        rubric=vf.RubricGroup([rubric]),
        max_turns=5,  # the last one is not answered
    )
