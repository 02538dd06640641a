"""Verifiers' side of the comparison, run by the Python of its own environment with the file of the
work as its argument; it imports nothing of agentrl.

An episode is verifiers' documented loop of several turns: the `run` of an environment holds an
`interaction` open and sends each user message. Episodes run as in its `eval`, in one process, but
nothing is written or shown. The harness calls the interception server in this process, as its
`launch` permits. The harnesses that verifiers ships start a program for each turn, which costs far
more. aiohttp is the cheapest HTTP client that verifiers installs.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import aiohttp
import verifiers.v1 as vf  # pyright: ignore[reportMissingImports]
from serve import serve
from verifiers.v1.clients import (  # pyright: ignore[reportMissingImports]
    EvalClientConfig,
    ModelContext,
)
from verifiers.v1.dialects.chat import message_to_wire  # pyright: ignore[reportMissingImports]
from verifiers.v1.runtimes import ProgramResult  # pyright: ignore[reportMissingImports]
from verifiers.v1.utils import loaders  # pyright: ignore[reportMissingImports]

__all__ = ["Dialogue", "Dialogues", "InProcess"]  # what verifiers finds by the module's name


class Said(vf.TaskData):
    """The user's messages."""

    said: list[str]


class Asked(vf.Task[Said]):
    """A task with a reward of 0."""

    @vf.reward
    async def reward(self) -> float:
        return 0.0


class Dialogues(vf.Taskset[Asked, vf.TasksetConfig]):
    """The environment's tasks, which `rollout` makes."""

    def load(self) -> Iterator[Asked]:
        return iter(())


class Dialogue(vf.SingleAgentEnv):
    """Sends each message of the user."""

    async def run(self, task: Asked, agents: Any) -> None:
        async with agents.agent.interaction(task) as interaction:
            for text in task.data.said:
                await interaction.turn(text)


class InProcess(vf.Harness[vf.HarnessConfig]):
    """Sends the whole dialogue."""

    APPENDS_SYSTEM_PROMPT = SUPPORTS_RESUME = True
    EXECUTES_CODE = NEEDS_CONTAINER = False
    client: aiohttp.ClientSession

    async def launch(
        self, ctx: Any, trace: Any, runtime: Any, endpoint: str, secret: str, mcp_urls: Any,
        data: Any,
    ) -> ProgramResult:  # fmt: skip
        first = {"role": "system", "content": data.system_prompt}
        rows = [first, *map(message_to_wire, data.prompt)]
        async with self.client.post(
            f"{endpoint}/chat/completions", json={"model": ctx.model, "messages": rows},
            headers={"Authorization": f"Bearer {secret}"}, raise_for_status=True,
        ) as answer:  # fmt: skip
            await answer.json()
        return ProgramResult(exit_code=0, stdout="", stderr="")


async def rollout(
    work: dict[str, Any], url: str, episodes: int, turns: int, live: int
) -> dict[str, float]:
    """CPU seconds of the episodes, of which so many are live at a time."""
    name = "verifiers_side"
    agent = {"harness": {"id": name}, "runtime": {"type": "subprocess"}}
    config = loaders.resolve_env_config({"taskset": {"id": name}, "agent": agent})
    env, gate = loaders.load_environment(config), asyncio.Semaphore(live)
    context = ModelContext(model="stub", client=EvalClientConfig(base_url=url))
    system, first = (message["content"] for message in work["prompts"][0])
    said = [first, *[work["reply"]] * (turns - 1)]
    tasks = [Asked(Said(idx=i, system_prompt=system, said=said)) for i in range(episodes)]
    async with aiohttp.ClientSession() as InProcess.client, env.serving():
        slots = [slot for task in tasks for slot in env.slots(task)]
        began = sum(os.times()[:4])
        played = await asyncio.gather(*(env.run_slot(slot, context, gate) for slot in slots))
        seconds = sum(os.times()[:4]) - began
    assert all(episode.ok for episode in played), played
    return {"seconds": seconds}


def main() -> None:
    """Answer."""
    work = json.loads(Path(sys.argv[1]).read_text())
    serve({
        "versions": lambda: {"verifiers": version("verifiers")},
        "rollout": lambda **options: asyncio.run(rollout(work, **options)),
    })  # fmt: skip


if __name__ == "__main__":
    from verifiers_side import main as imported  # so that verifiers finds these very classes

    imported()
