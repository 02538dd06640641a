"""Verifiers' side of the comparison, run by the Python of its own environment with the work file as
its argument. It imports nothing of agentrl.

An episode is the documented multi-turn loop of verifiers: the `run` of an environment opens an
`interaction` and sends each user message. Episodes run as in its `eval`, in one process, but
nothing is written or shown. The harness calls the interception server in this process, as its
`launch` permits. The built-in harnesses start a program for each turn, which costs much more.
aiohttp is the cheapest HTTP client that verifiers installs.
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

import aiohttp  # pyright: ignore[reportMissingImports]
import verifiers.v1 as vf  # pyright: ignore[reportMissingImports]
from serve import serve
from verifiers.v1.dialects.chat import message_to_wire  # pyright: ignore[reportMissingImports]

NAME = Path(__file__).stem  # by which verifiers finds the classes below
__all__ = ["Dialogue", "Dialogues", "InProcess"]


class Said(vf.TaskData):
    """The user's messages."""

    said: list[str]


class Dialogues(vf.Taskset[vf.Task[Said], vf.TasksetConfig]):
    """The tasks, which `rollout` makes."""

    def load(self) -> Iterator[vf.Task[Said]]:
        return iter(())


class Dialogue(vf.SingleAgentEnv):
    """Sends each message of the user."""

    async def run(self, task: vf.Task[Said], agents: Any) -> None:
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
    ) -> vf.ProgramResult:  # fmt: skip
        first = {"role": "system", "content": data.system_prompt}
        rows = [first, *map(message_to_wire, data.prompt)]
        async with self.client.post(
            f"{endpoint}/chat/completions", json={"model": ctx.model, "messages": rows},
            headers={"Authorization": f"Bearer {secret}"}, raise_for_status=True,
        ) as answer:  # fmt: skip
            await answer.json()
        return vf.ProgramResult(exit_code=0, stdout="", stderr="")


async def rollout(
    work: dict[str, Any], url: str, episodes: int, turns: int, live: int
) -> dict[str, float]:
    """CPU seconds of the episodes, of which so many are live at a time."""
    agent = {"harness": {"id": NAME}, "runtime": {"type": "subprocess"}}
    config = vf.resolve_env_config({"taskset": {"id": NAME}, "agent": agent})
    env, gate = vf.load_environment(config), asyncio.Semaphore(live)
    context = vf.ModelContext(model="stub", client=vf.EvalClientConfig(base_url=url))
    system, first = (message["content"] for message in work["prompts"][0])
    said = [first, *[work["reply"]] * (turns - 1)]
    tasks = [vf.Task(Said(idx=i, system_prompt=system, said=said)) for i in range(episodes)]
    async with aiohttp.ClientSession() as InProcess.client, env.serving():
        slots = [slot for task in tasks for slot in env.slots(task)]
        began = sum(os.times()[:4])
        played = await asyncio.gather(*(env.run_slot(slot, context, gate) for slot in slots))
        seconds = sum(os.times()[:4]) - began
    assert all(episode.ok for episode in played), played
    return {"seconds": seconds}


if __name__ == "__main__":
    from verifiers_side import rollout as play  # of the module that verifiers imports too

    work = json.loads(Path(sys.argv[1]).read_text())
    serve({
        "versions": lambda: {"verifiers": version("verifiers")},
        "rollout": lambda **options: asyncio.run(play(work, **options)),
    })  # fmt: skip
