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
from itertools import combinations, cycle, islice
from numbers import Real
from typing import Any

from agentrl_cli.core.errors import ContractError, UserError
from agentrl_cli.core.types import ANNOTATIONS, ROLES, Message, Step, Task
from agentrl_cli.envs.base import Env

SHOWN_CHARACTERS = 200  # of an invalid value
MakeEnv = Callable[[], Env]
NONSENSE = (
    "", "xyzzy", "{", "Action:", 'Action: {"name": 3}', "\\boxed{}", "🐟" * 300, "\0",
    "First.\n\n",
)  # fmt: skip
MAX_ACTIONS = 1000


def opening(env: Env, task: Task, seed: int) -> list[Message]:
    """Reset the environment. Returns its preamble and its first messages. Raises ContractError if
    they are invalid."""
    return [*preamble(env), *first_messages(env, task, seed)]


def preamble(env: Env) -> list[Message]:
    """Return the system message, if any, and the example. Raises ContractError if they are
    invalid."""
    system, example = env.system(), env.example()
    _refuse(system_faults(system), env.system)
    _refuse(example_faults(example), env.example)
    return [Message("system", system), *example] if system else example


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


# Each function yields what is wrong with a result of the environment.


def system_faults(text: Any) -> Iterator[str]:
    if not isinstance(text, str) or not _is_json(text):
        yield f"system() returns {_shown(text)}: return a string"


def example_faults(messages: Any) -> Iterator[str]:
    yield from message_faults("example", messages)
    if messages and messages[-1].role != "assistant":
        yield f"example() ends with {_shown(messages[-1])}: end with a message of the assistant"


def reset_faults(messages: Any) -> Iterator[str]:
    yield from message_faults("reset", messages)
    if messages == []:
        yield "reset returns no messages: give the agent something to answer"


def step_faults(step: Any) -> Iterator[str]:
    if not isinstance(step, Step):
        yield f"step returns {type(step).__name__}: return a Step"
        return
    yield from message_faults("step", step.messages)
    if not _is_finite(step.reward):
        yield f"reward is {_shown(step.reward)}: give a finite float"
    for name, value in (("done", step.done), ("truncated", step.truncated)):
        if type(value) is not bool:
            kind = f"{type(value).__module__}.{type(value).__name__}".removeprefix("builtins.")
            yield f"{name} is of type {kind}: give True or False, as with bool(...)"
    if not isinstance(step.info, dict) or not all(isinstance(key, str) for key in step.info):
        yield f"info is {_shown(step.info)}: give a dictionary with strings as keys"
    elif not _is_json(step.info):
        yield f"info cannot be written as JSON: keep plain values in {sorted(step.info)}"
    elif own := sorted(ANNOTATIONS & step.info.keys()):
        yield f"info has the keys {own}, which algorithms write: give them other names"
    elif type(success := step.info.get("success", False)) is not bool:
        yield f"info['success'] is {_shown(success)}: give True or False"


def message_faults(source: str, messages: Any) -> Iterator[str]:
    if not isinstance(messages, list) or any(not isinstance(m, Message) for m in messages):
        yield f"{source} returns {_shown(messages)}: return a list of Message"
        return
    for message in messages:
        if message.role not in ROLES or not isinstance(message.content, str):
            yield f"{source} returns {_shown(message)}: use a role of {ROLES} and a string"
        elif not _is_json([message.content, *message.tool_calls]):
            line = f"{source} returns {_shown(message)}, which cannot be written as UTF-8 and JSON"
            yield f"{line}: replace half characters (surrogates) and objects"


def tasks_fault(split: str, tasks: Any) -> str:
    """Return what is wrong with the type of the tasks of a split, or ""."""
    if isinstance(tasks, list) and all(isinstance(task, Task) for task in tasks):
        return ""
    return f"tasks({split!r}) returns {_shown(tasks)}: return a list of Task"


def _refuse(faults: Iterator[str], method: Callable[..., Any]) -> None:
    """Raise ContractError with the first fault, if any, and the place of the method."""
    for fault in faults:
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
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError):
        return False
    return True


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}…"


def check_env(make: MakeEnv, tasks: int = 3, *, expert: bool = True) -> list[str]:
    """Return all faults of the environment that `make` builds, found on `tasks` tasks. Whether it
    repeats, can be copied and has an expert who wins is checked if nothing else is wrong. `expert`
    says whether its expert must win."""
    env, found = make(), dict[str, None]()

    def run(check: Callable[..., Iterator[str]], *arguments: Task) -> None:
        try:
            for fault in check(make, *arguments):
                found[fault] = None
        except UserError:
            raise
        except Exception as error:
            frames = traceback.extract_tb(error.__traceback__)
            in_step = any(frame.name == "step" for frame in frames)
            remedy = "answer any action with an observation" if in_step else "correct it"
            found[f"raised {error!r} ({where(error, env)}): {remedy}"] = None

    run(_texts)
    run(_splits)
    last = (_after_the_end, _copies, *([_expert] if expert else []))
    for checks in ((_contract,), (_same_again,), last):
        if found and _contract not in checks:
            break
        for task in _playable(make)[:tasks]:
            for check in checks:
                run(check, task)
    return list(found)


def _playable(make: MakeEnv) -> list[Task]:
    """Return the train tasks; none if `_splits` has found that there are no valid ones."""
    with suppress(Exception):
        found: Any = make().tasks("train")
        return [] if tasks_fault("train", found) else found
    return []


def _texts(make: MakeEnv) -> Iterator[str]:
    env = make()
    yield from system_faults(env.system())
    yield from example_faults(env.example())
    if not isinstance(env.tools, list) or any(not isinstance(tool, dict) for tool in env.tools):
        yield f"tools is {env.tools!r}: give a list of JSON schemas"


def splits(env: Env) -> dict[str, list[Task]]:
    """Return the tasks of each split: train, val if there is one, test."""
    found = {"train": env.tasks("train")}
    with suppress(UserError):  # it is optional
        found["val"] = env.tasks("val")
    return found | {"test": env.tasks("test")}


def _splits(make: MakeEnv) -> Iterator[str]:
    train, test = make().tasks("train"), make().tasks("test")
    for split, tasks in (("train", train), ("test", test)):
        if fault := tasks_fault(split, tasks):
            yield fault
            return
    known = splits(make())
    try:
        make().tasks("no-such-split")
        yield "tasks('no-such-split') raises no UserError: name the splits that exist"
        known.pop("val", None)  # it may not be meant as one
    except UserError:
        pass
    if not train or not test:
        yield "tasks(split) is empty for train or test: give both at least one task"
    if train != make().tasks("train"):
        yield "tasks('train') differs between two calls: fix the order and the random seed"
    for split, tasks in known.items():
        if any(task.split != split for task in tasks):
            yield f"tasks({split!r}) holds a task of another split: set Task.split to {split!r}"
    ids = [task.id for tasks in known.values() for task in tasks]
    if len(set(ids)) < len(ids):
        yield "two tasks have the same id: make ids unique over all splits"
    data = {
        split: {json.dumps(task.data, sort_keys=True) for task in tasks}
        for split, tasks in known.items()
    }
    for one, other in combinations(known, 2):
        if data[one] & data[other]:
            yield f"{one} and {other} share task data: make the splits disjoint"


def _contract(make: MakeEnv, task: Task) -> Iterator[str]:
    """Yield invalid values, and valid but unwise steps."""
    env, step = make(), None
    if found := list(reset_faults(env.reset(task, 0))):
        yield from found
        return
    for action, step in _turns(env, cycle(NONSENSE)):
        if found := list(step_faults(step)):
            yield from found
            return
        reply_goes_on = env.turn_delimiter and action.endswith(env.turn_delimiter)
        if step.done and step.truncated:
            yield "done and truncated are both true: say which one ended the episode"
        elif step.truncated and "success" in step.info:
            yield "truncated with info['success']: an end with an outcome, as by a limit, is done"
        elif not _has_ended(step) and not step.messages and not reply_goes_on:
            yield "step returns no messages while the episode runs: give the agent an observation"
    if step is not None and step.done and "success" not in step.info:
        yield "the last info has no 'success': give True or False"
    if not _has_ended(step):
        yield f"the episode still runs after {MAX_ACTIONS} nonsense actions: be done at a limit"


def _same_again(make: MakeEnv, task: Task) -> Iterator[str]:
    for play in (_play_nonsense, _play_expert):
        if play(make(), task) != play(make(), task):
            yield "the same task, seed and actions gave another episode: draw from that seed only"


def _after_the_end(make: MakeEnv, task: Task) -> Iterator[str]:
    for play in (_play_nonsense, _play_expert):
        env = make()
        _, *turns = play(env, task)
        if not turns or not _has_ended(turns[-1][1]):
            continue
        try:
            step = env.step(turns[-1][0])
        except RuntimeError:
            continue
        if step.reward or not _has_ended(step):
            yield "step after the end goes on: raise RuntimeError, or answer done with reward 0"


def _copies(make: MakeEnv, task: Task) -> Iterator[str]:
    """The loop makes one shallow copy per episode, so `reset` must create the state."""
    env, expected = make(), _play_nonsense(make(), task)
    plays, other = copy.copy(env), copy.copy(env)
    first = plays.reset(task, 0)
    _play_nonsense(other, task)
    if [first, *_turns(plays, cycle(NONSENSE))] != expected:
        yield "two shallow copies disturb each other: create the episode's state in reset"
    try:
        twin = pickle.loads(pickle.dumps(make()))
        first = twin.reset(task, 0)
        twin = pickle.loads(pickle.dumps(twin))
    except Exception as error:
        yield f"cannot be pickled ({error}): keep files, locks and lambdas off the instance"
        return
    if [first, *_turns(twin, cycle(NONSENSE))] != expected:
        yield "a pickled episode goes on differently: keep its whole state on the instance"


def _expert(make: MakeEnv, task: Task) -> Iterator[str]:
    first, *turns = _play_expert(make(), task)
    if first is not None and not (turns and turns[-1][1].info.get("success")):
        line = f"the expert fails on {task.id}: mend it, set info['success'] on the last step"
        yield f"{line}, or allow more turns"


def _play_nonsense(env: Env, task: Task) -> list[Any]:
    """Return the first messages of an episode, then each action and its step."""
    return [env.reset(task, 0), *_turns(env, cycle(NONSENSE))]


def _play_expert(env: Env, task: Task) -> list[Any]:
    """Return an episode of the expert; [None] without an expert."""
    first, actions = env.reset(task, 0), env.expert(task)
    return [None] if actions is None else [first, *_turns(env, actions)]


def _turns(env: Env, actions: Iterator[str]) -> Iterator[tuple[str, Step]]:
    """Yield actions and steps until the episode ends, at most MAX_ACTIONS."""
    for action in islice(actions, MAX_ACTIONS):
        step = env.step(action)
        yield action, step
        if _has_ended(step):
            return


def _has_ended(step: object) -> bool:
    return isinstance(step, Step) and (step.done or step.truncated)
