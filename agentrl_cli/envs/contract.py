"""Validation of every message and step of an environment. An invalid one fails the episode, with
the messages of `check_env`."""

from __future__ import annotations

import inspect
import json
import math
import traceback
from collections.abc import Callable, Iterator
from numbers import Real
from typing import Any

from agentrl_cli.core.errors import ContractError
from agentrl_cli.core.types import ANNOTATIONS, ROLES, Message, Step, Task
from agentrl_cli.envs.base import Env

SHOWN_CHARACTERS = 200  # of an invalid value


def opening(env: Env, task: Task, seed: int) -> list[Message]:
    """Reset the environment. Returns its system message, if any, and its first messages. Raises
    ContractError if they are invalid."""
    system = env.system()
    _refuse(text_faults("system()", system), env.system)
    first = first_messages(env, task, seed)
    return [Message("system", system), *first] if system else first


def first_messages(env: Env, task: Task, seed: int) -> list[Message]:
    """Reset the environment and return its first messages. Raises ContractError if invalid."""
    first = env.reset(task, seed)
    _refuse(reset_faults(first), env.reset)
    return first


def answer(env: Env, action: str) -> Step:
    """Step the environment and return the step, its reward as a float. Raises ContractError if the
    step is invalid."""
    step = env.step(action)
    _refuse(step_faults(step), env.step)
    step.reward = float(step.reward)
    return step


def where(error: BaseException, env: Env) -> str:
    """Return `FILE:LINE` of an error, if possible in the environment's own file."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if frame.filename == _place(env.step)[0]]
    frame = (own or frames)[-1]
    return f"{frame.filename}:{frame.lineno}"


def reset_faults(messages: Any) -> Iterator[str]:
    """Yield what is wrong with the result of `reset`."""
    yield from message_faults("reset", messages)
    if messages == []:
        yield "reset returns no messages: give the agent something to answer"


def step_faults(step: Any) -> Iterator[str]:
    """Yield what is wrong with the result of `step`."""
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
    elif own := sorted(ANNOTATIONS & step.info.keys()):
        yield f"info has the keys {own}, which algorithms write: give them other names"


def message_faults(source: str, messages: Any) -> Iterator[str]:
    """Yield what is wrong with the messages from `source`."""
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
    """Yield what is wrong with the text from `source`."""
    if not isinstance(text, str) or not _is_json(text):
        yield f"{source} returns {_shown(text)}: return a string"


def _refuse(faults: Iterator[str], method: Callable[..., Any]) -> None:
    """Raise ContractError with the first fault, if any, and the place of the method."""
    fault = next(faults, None)
    if fault is not None:
        file, line = _place(method)
        raise ContractError(f"{fault} ({file}:{line})")


def _place(method: Callable[..., Any]) -> tuple[str, int]:
    """Return file and line of a method; its name and 0 if it has no code object."""
    code = getattr(inspect.unwrap(method), "__code__", None)
    return (code.co_filename, code.co_firstlineno) if code else (repr(method), 0)


def _is_finite(value: Any) -> bool:
    try:
        return isinstance(value, Real) and math.isfinite(value)
    except OverflowError:  # an integer that no float holds
        return False


def _is_json(value: Any) -> bool:
    """Return whether the value can be written as JSON in UTF-8."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except (TypeError, ValueError, RecursionError):
        return False
    return True


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}…"
