"""Demonstrations, rows of problems and replayed actions: files of JSON lines with a damaged line or
damaged bytes."""

from __future__ import annotations

import json
from pathlib import Path

from hypothesis import strategies as st

from agentrl_cli.cli.play import find_task, read_script, replay
from agentrl_cli.config.compose import build, check, compose
from agentrl_cli.envs.math.env import MathEnv
from agentrl_cli.rollout.chat_template import Chat
from agentrl_cli.rollout.demos import DemoReader, expert_lines, fingerprint, read_demos, read_lines
from stress.fuzzing.mutations import Draw, mutated_file
from stress.fuzzing.target import Target
from tests.builders.demos import COIN, GOOD, twentyq
from tests.builders.tiny_models import tiny_tokenizer

ROWS = [
    {
        "problem": "What is 1+1?",
        "level": "Level 1",
        "subject": "Algebra",
        "solution": r"It is \boxed{2}.",
    },
    {
        "problem": "Half?",
        "level": 5,
        "type": "Number",
        "solution": "",
        "answer": "1/2",
        "unique_id": "b",
    },
    {
        "problem": "Which x?",
        "solution": "First.\n\nThen.\n\n" + r"\boxed{x=\frac{3}{4}}",
        "level": 3,
    },
]
SCRIPT = ["Is it alive?", "Can it fly?", {"name": "respond"}, "Is it a cat?"]
Case = tuple[str, bytes, bool]  # the kind of file, its bytes, and whether bad lines are left out


def target(home: Path) -> Target:
    """Return the target of files of rows. Each refusal names the file."""
    env, chat = twentyq(), Chat(tiny_tokenizer())
    kinds = {
        "dialogues": _lines([{"messages": GOOD}, {"messages": GOOD, "task": "train-0"},
        {"messages": GOOD[1:3]}]),
        "episodes": "".join(f"{line.strip()}\n" for line in expert_lines("expert:3", env)).encode(),
        "rows": _lines(ROWS),
        "script": _lines(SCRIPT),
    }  # fmt: skip
    readers = {"dialogues": DemoReader(COIN, chat, 512), "episodes": DemoReader(env, chat, 512)}
    base = build(
        check(compose(["env=arithmetic"]), skip=("algo", "hardware", "model", "rollout")).env
    )
    plain = {name: value for name, value in vars(base).items() if name != "state"}

    @st.composite
    def cases(draw: Draw) -> Case:
        kind = draw(st.sampled_from(sorted(kinds)))
        return kind, draw(mutated_file(kinds[kind])), draw(st.booleans())

    def run(case: Case) -> None:
        kind, content, skip_invalid = case
        file = home / f"{kind}.jsonl"
        file.write_bytes(content)
        if kind in readers:
            fingerprint(str(file))
            read_demos(str(file), read_lines(file), readers[kind], skip_invalid=skip_invalid)
        elif kind == "script":
            replay(env, find_task(env, None), read_script(file), 0)
        else:
            _solve(MathEnv(**{**plain, "data": str(file), "split_seed": hash(content) % 2**31}))

    return Target(cases(), run, lambda case: [f"{case[0]}.jsonl"])


def _solve(env: MathEnv) -> None:
    """Play each problem of a file with its own solution."""
    for task in [*env.tasks("train"), *env.tasks("test")]:
        env.reset(task, 0)
        for action in env.expert(task):
            env.step(action)


def _lines(rows: list[object]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()
