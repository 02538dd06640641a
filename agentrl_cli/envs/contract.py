"""What a world may answer. Every answer is read here, once, before anything is made of it; what no
world may answer breaks the episode. `check_env` says the same sentences."""

from __future__ import annotations

import inspect
import json
import math
import traceback
from collections.abc import Callable, Iterator
from numbers import Real
from typing import Any

from agentrl_cli.core.errors import ContractError
from agentrl_cli.core.types import ROLES, Message, Step, Task
from agentrl_cli.envs.base import Env

RESERVED = {  # what algorithms and play note on a turn, beside what its world told
    "weight", "branches", "value", "advantage", "td_error", "critic", "thoughts", "forced",
}  # fmt: skip
SHOWN_CHARACTERS = 200  # of a wrong answer


def opening(env: Env, task: Task, seed: int) -> list[Message]:
    """The world's system message, if it has any, and its first messages. ContractError where it
    gives anything else."""
    system = env.system()
    _refuse(text_faults("system()", system), env.system)
    first = first_messages(env, task, seed)
    return [Message("system", system), *first] if system else first


def first_messages(env: Env, task: Task, seed: int) -> list[Message]:
    """Reset the world: its first messages. ContractError where it gives anything else."""
    first = env.reset(task, seed)
    _refuse(reset_faults(first), env.reset)
    return first


def answer(env: Env, action: str) -> Step:
    """The world's answer to an action, its reward as a float. ContractError where it is none."""
    step = env.step(action)
    _refuse(step_faults(step), env.step)
    step.reward = float(step.reward)
    return step


def where(error: BaseException, env: Env) -> str:
    """`FILE:LINE` of an error: the innermost of the world's own file, else the innermost."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if frame.filename == _place(env.step)[0]]
    frame = (own or frames)[-1]
    return f"{frame.filename}:{frame.lineno}"


def reset_faults(messages: Any) -> Iterator[str]:
    """What is wrong with what `reset` returned."""
    yield from message_faults("reset", messages)
    if messages == []:
        yield "reset returns no messages: give the agent something to answer"


def step_faults(step: Any) -> Iterator[str]:
    """What is wrong with what `step` returned."""
    if not isinstance(step, Step):
        yield f"step returns {type(step).__name__}: return a Step"
        return
    yield from message_faults("step", step.messages)
    if not _is_finite(step.reward):
        yield f"reward is {_shown(step.reward)}: give a finite float"
    if type(step.done) is not bool or type(step.truncated) is not bool:
        yield "done or truncated is not a bool: give True or False"
    if not isinstance(step.info, dict) or not all(isinstance(key, str) for key in step.info):
        yield f"info is {_shown(step.info)}: give a dictionary with strings as keys"
    elif not _is_json(step.info):
        yield f"info cannot be written as JSON: keep plain values in {sorted(step.info)}"
    elif own := sorted(RESERVED & step.info.keys()):
        yield f"info has the keys {own}, which algorithms write: give them other names"


def message_faults(source: str, messages: Any) -> Iterator[str]:
    """What is wrong with the messages that `source` returned."""
    if not isinstance(messages, list) or any(not isinstance(m, Message) for m in messages):
        yield f"{source} returns {_shown(messages)}: return a list of Message"
        return
    for message in messages:
        if message.role not in ROLES or not isinstance(message.content, str):
            yield f"{source} returns {_shown(message)}: use a role of {ROLES} and a string"
        elif not _is_json([message.content, *message.tool_calls]):
            line = f"{source} returns {_shown(message)}, which cannot be written as UTF-8 and JSON"
            yield f"{line}: replace half characters (surrogates) and objects"


def text_faults(source: str, text: Any) -> Iterator[str]:
    """What is wrong with a text that `source` returned."""
    if not isinstance(text, str) or not _is_json(text):
        yield f"{source} returns {_shown(text)}: return a string"


def _refuse(faults: Iterator[str], method: Callable[..., Any]) -> None:
    """ContractError with the first fault and the place of the method that answered so."""
    fault = next(faults, None)
    if fault is not None:
        file, line = _place(method)
        raise ContractError(f"{fault} ({file}:{line})")


def _place(method: Callable[..., Any]) -> tuple[str, int]:
    """File and line of a method; of one that Python did not compile its name and 0."""
    code = getattr(inspect.unwrap(method), "__code__", None)
    return (code.co_filename, code.co_firstlineno) if code else (repr(method), 0)


def _is_finite(value: Any) -> bool:
    try:
        return isinstance(value, Real) and math.isfinite(value)
    except OverflowError:  # an integer that no float holds
        return False


def _is_json(value: Any) -> bool:
    """Whether it can be written as JSON in UTF-8."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except (TypeError, ValueError, RecursionError):
        return False
    return True


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}…"
