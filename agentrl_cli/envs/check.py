"""Validation of environments against the interface in base.py. Each message ends with the remedy.

Every message and step of an environment is validated during play; an invalid one fails the episode.
`check_env` finds all faults of an environment, also unwise properties of valid steps. After the end
of an episode, `step` must raise RuntimeError or return `done` with reward 0.
"""

from __future__ import annotations

import copy
import inspect
import json
import math
import pickle
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import combinations, cycle, islice
from numbers import Real
from typing import Any

from agentrl_cli.core.errors import ContractError, UserError
from agentrl_cli.core.types import ANNOTATIONS, ROLES, Message, Step, Task
from agentrl_cli.envs.base import Env

SHOWN_CHARACTERS = 200  # of an invalid value
EnvFactory = Callable[[], Env]
NONSENSE = (
    "", "xyzzy", "{", "Action:", 'Action: {"name": 3}', "\\boxed{}", "🐟" * 300, "\0",
    "First.\n\n",
)  # fmt: skip
MAX_ACTIONS = 1000


def opening(env: Env, task: Task, seed: int) -> list[Message]:
    """Reset the environment. Returns its system message, if any, and its first messages. Raises
    ContractError if they are invalid."""
    system = env.system()
    _refuse(text_faults("system()", system), env.system)
    first = first_messages(env, task, seed)
    return [Message("system", system), *first] if system else first


def first_messages(env: Env, task: Task, seed: int) -> list[Message]:
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
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except (TypeError, ValueError, RecursionError):
        return False
    return True


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}…"


# --- check_env ------------------------------------------------------------------------------------


@dataclass
class Recording:
    """The first messages of an episode, then each action and its step."""

    first: list[Message]
    turns: list[tuple[str, Step]]


def check_env(make: EnvFactory, tasks: int = 3) -> list[str]:
    """Return all faults of the environment that `make` builds, found on `tasks` tasks."""
    found = [text for check in (_texts, _splits, _unknown_split) for text in _run(check, make)]
    if found:
        return found
    tried = make().tasks("train")[:tasks]
    for checks in STAGES:
        found = [text for task in tried for check in checks for text in _run(check, make, task)]
        if found:
            break
    return list(dict.fromkeys(found))


def _run(check: Callable[..., Iterator[str]], *arguments: Any) -> list[str]:
    found: list[str] = []
    try:
        found.extend(check(*arguments))
    except UserError:
        raise
    except Exception as error:
        what = check.__name__.strip("_").replace("_", " ")
        line = f"raised {error!r} ({_error_place(error, arguments[0])}) in the check of {what}"
        found.append(f"{line}: report trouble as an observation")
    return found


def _error_place(error: Exception, make: EnvFactory) -> str:
    with suppress(Exception):
        return where(error, make())
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{frame.filename}:{frame.lineno}"


def _texts(make: EnvFactory) -> Iterator[str]:
    env = make()
    yield from text_faults("system()", env.system())
    if not isinstance(env.tools, list) or any(not isinstance(tool, dict) for tool in env.tools):
        yield f"tools is {env.tools!r}: give a list of JSON schemas"


def _splits(make: EnvFactory) -> Iterator[str]:
    train, test = make().tasks("train"), make().tasks("test")
    try:
        val = make().tasks("val")
    except UserError:  # it is optional
        val = []
    splits = {"train": train, "val": val, "test": test}
    if not train or not test:
        yield "tasks(split) is empty for train or test: give both at least one task"
    if train != make().tasks("train"):
        yield "tasks('train') differs between two calls: fix the order and the random seed"
    for split, tasks in splits.items():
        if any(task.split != split for task in tasks):
            yield f"tasks({split!r}) holds a task of another split: set Task.split to {split!r}"
    ids = [task.id for tasks in splits.values() for task in tasks]
    if len(set(ids)) < len(ids):
        yield "two tasks have the same id: make ids unique over all splits"
    data = {
        split: {json.dumps(task.data, sort_keys=True) for task in tasks}
        for split, tasks in splits.items()
    }
    for one, other in combinations(splits, 2):
        if data[one] & data[other]:
            yield f"{one} and {other} share task data: make the splits disjoint"


def _unknown_split(make: EnvFactory) -> Iterator[str]:
    try:
        make().tasks("no-such-split")
    except UserError:
        return
    yield "tasks('no-such-split') raises no UserError: name the splits that exist"


def _contract(make: EnvFactory, task: Task) -> Iterator[str]:
    env, step = make(), None
    found = list(reset_faults(env.reset(task, 0)))
    yield from found
    for action, step in [] if found else _play(env, cycle(NONSENSE)):
        found = list(step_faults(step))
        yield from found
        if found:
            return
        yield from _step(step, bool(env.turn_delimiter) and action.endswith(env.turn_delimiter))
    if not _has_ended(step):
        yield f"the episode still runs after {MAX_ACTIONS} nonsense actions: be done at a limit"


def _step(step: Step, reply_goes_on: bool) -> Iterator[str]:
    """Yield valid but unwise properties of a step."""
    if step.done and step.truncated:
        yield "done and truncated are both true: say which one ended the episode"
    elif step.truncated and "success" in step.info:
        yield "truncated with info['success']: an end that has an outcome, as by a limit, is done"
    elif not _has_ended(step) and not step.messages and not reply_goes_on:
        yield "step returns no messages while the episode runs: give the agent an observation"


def _same_again(make: EnvFactory, task: Task) -> Iterator[str]:
    for play in (_play_nonsense, _play_expert):
        if play(make(), task) != play(make(), task):
            yield "the same task, seed and actions gave another episode: draw from that seed only"


def _after_the_end(make: EnvFactory, task: Task) -> Iterator[str]:
    for play in (_play_nonsense, _play_expert):
        env = make()
        played = play(env, task)
        if played is None or not played.turns or not _has_ended(played.turns[-1][1]):
            continue
        try:
            step = env.step(played.turns[-1][0])
        except RuntimeError:
            continue
        if step.reward or not _has_ended(step):
            yield "step after the end goes on: raise RuntimeError, or answer done with reward 0"


def _copies(make: EnvFactory, task: Task) -> Iterator[str]:
    """The loop makes one shallow copy per episode, so `reset` must create the state."""
    env = make()
    plays, other = copy.copy(env), copy.copy(env)
    first = plays.reset(task, 0)
    _play_nonsense(other, task)
    if Recording(first, list(_play(plays, cycle(NONSENSE)))) != _play_nonsense(make(), task):
        yield "two shallow copies disturb each other: create the episode's state in reset"


def _pickles(make: EnvFactory, task: Task) -> Iterator[str]:
    try:
        twin = pickle.loads(pickle.dumps(make()))
        first = twin.reset(task, 0)
        twin = pickle.loads(pickle.dumps(twin))
    except Exception as error:
        yield f"cannot be pickled ({error}): keep files, locks and lambdas off the instance"
        return
    if Recording(first, list(_play(twin, cycle(NONSENSE)))) != _play_nonsense(make(), task):
        yield "a pickled episode goes on differently: keep its whole state on the instance"


def _expert(make: EnvFactory, task: Task) -> Iterator[str]:
    played = _play_expert(make(), task)
    if played and not (played.turns and played.turns[-1][1].info.get("success")):
        yield f"the expert fails on {task.id}: mend it, or set info['success'] on the last step"


def _play_nonsense(env: Env, task: Task) -> Recording:
    return Recording(env.reset(task, 0), list(_play(env, cycle(NONSENSE))))


def _play_expert(env: Env, task: Task) -> Recording | None:
    first, actions = env.reset(task, 0), env.expert(task)
    return None if actions is None else Recording(first, list(_play(env, actions)))


def _play(env: Env, actions: Iterator[str]) -> Iterator[tuple[str, Step]]:
    """Yield actions and steps until the episode ends, at most MAX_ACTIONS."""
    for action in islice(actions, MAX_ACTIONS):
        step = env.step(action)
        yield action, step
        if _has_ended(step):
            return


def _has_ended(step: object) -> bool:
    return isinstance(step, Step) and (step.done or step.truncated)


STAGES = ((_contract,), (_same_again,), (_after_the_end, _copies, _pickles, _expert))
