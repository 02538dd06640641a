"""Text environments of verifiers (its classic kind, `load_environment`), without tools.

In verifiers an environment drives a model. Here its steps between two calls of the model run one by
one: set up, answer, check for the end, score by the rubric.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import json
import signal
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import lru_cache, wraps
from typing import Annotated, Any

from pydantic import Field

from agentrl_cli.core.errors import UserError
from agentrl_cli.core.event_loop import wait_for
from agentrl_cli.core.limits import check_limits
from agentrl_cli.core.types import ANNOTATIONS, Message, Step, Task
from agentrl_cli.envs.base import ROUNDING, Env, import_extra, require_split

SIGNALS = (signal.SIGINT, signal.SIGTERM)
REPLY_ERRORS = (ValueError, TypeError, LookupError, AttributeError, AssertionError)
REWARD_ERRORS: ContextVar[list[Exception]] = ContextVar("reward errors")  # of this episode


@dataclass(kw_only=True)
class Verifiers(Env):
    """A task is a row of the environment's data. If there is one set of rows, its last `test_tasks`
    form the test split and the `val_tasks` before them the val split."""

    name: Annotated[str | None, Field(description="Name of an installed environment.")]
    options: Annotated[dict[str, Any], Field(description="Other arguments of load_environment.")]
    instruction: Annotated[str, Field(description="System message, if the environment has none.")]
    test_tasks: Annotated[int, Field(ge=1, description="Test rows, if it has no evaluation rows.")]
    success_reward: Annotated[float, Field(description="Smallest reward of a success.")]
    val_tasks: Annotated[int, Field(ge=0, description="Val rows, before the test rows.")] = 0
    task: Task | None = field(default=None, init=False, repr=False)
    actions: list[str] = field(default_factory=list, init=False, repr=False)
    talk: Conversation | None = field(default=None, init=False, repr=False)

    __post_init__ = check_limits

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without verifiers' objects, which are replayed from the actions."""
        return {**vars(self), "talk": None, "actions": list(self.actions)}

    def system(self) -> str:
        """Return the environment's system prompt, or else the instruction."""
        return self._env().system_prompt or self.instruction

    def tasks(self, split: str) -> list[Task]:
        """Return one task per row. Raises UserError if there are too few rows for the splits."""
        require_split(split)
        sets = row_sets(self._env())
        (name, rows), *others = sets.items()
        if others and split == "test":
            name, rows = others[0]
            kept = range(len(rows))
        else:
            end = len(rows) - (0 if others else self.test_tasks)
            first = end - self.val_tasks
            if first < 1:
                sizes = f"env.test_tasks or env.val_tasks ({self.test_tasks}, {self.val_tasks})"
                line = f"'{self.name}' has {len(rows)} rows; reduce {sizes}"
                raise UserError(line, code="too-few-rows")
            kept = {
                "train": range(first), "val": range(first, end), "test": range(end, len(rows)),
            }[split]  # fmt: skip
        return [Task(f"{name}-{row}", split, {"set": name, "row": row}) for row in kept]

    def reset(self, task: Task, seed: int) -> list[Message]:
        """Set up the row and return its prompt; the seed has no effect."""
        self.close()
        self.task, self.actions = task, []
        shown = self._conversation().shown
        return [message for message in map(read, shown) if message.role != "system"]

    def step(self, action: str) -> Step:
        """Pass the agent's text on. Raises RuntimeError before `reset` and after the end."""
        talk = self._conversation()
        self.actions.append(action)
        answers = [read(message) for message in talk.answer(action)]
        if not talk.is_over():
            return Step(answers, 0.0, False, False, {})
        reward, metrics = talk.score()
        self.close()
        others = {key: value for key, value in metrics.items() if key not in ANNOTATIONS}
        info = {**others, "success": reward >= self.success_reward - ROUNDING}
        return Step(answers, reward, True, False, info)

    def close(self) -> None:
        self.talk = self.task = None

    def _conversation(self) -> Conversation:
        if self.task is None:
            raise RuntimeError("no row is open: call reset on a fresh instance")
        if self.talk is None:
            env, place = self._env(), self.task.data
            self.talk = Conversation(env, row_sets(env)[place["set"]][place["row"]])
            for action in self.actions:
                self.talk.answer(action)
        return self.talk

    def _env(self) -> Any:
        return load(self.name, json.dumps(self.options, sort_keys=True))


class Conversation:
    """An episode on a row; `shown` are the messages of the current prompt."""

    def __init__(self, env: Any, row: dict[str, Any]) -> None:
        self.env = env
        clients = importlib.import_module("verifiers.clients")
        asked = env.init_state(dict(row), clients.OpenAIChatCompletionsClient(None), "agent", {})
        self.state = _wait(asked)
        self.state = _wait(env.setup_state(self.state)) or self.state
        self.shown = self._prompt()

    def answer(self, action: str) -> list[Any]:
        said = importlib.import_module("verifiers.types").AssistantMessage(content=action)
        turn = {
            "prompt": self.shown, "completion": [said], "response": None, "tokens": None,
            "reward": None, "advantage": None, "is_truncated": False,
            "trajectory_id": self.state["trajectory_id"], "extras": {},
        }  # fmt: skip
        _wait(self.env.add_trajectory_step(self.state, turn))
        if self.is_over():
            return []
        known, self.shown = len(self.shown) + 1, self._prompt()
        return self.shown[known:]

    def is_over(self) -> bool:
        return _wait(self.env.is_completed(self.state))

    def score(self) -> tuple[float, dict[str, float]]:
        """Return the rubric's reward and metrics. Raises what a reward function raised, except for
        REPLY_ERRORS."""
        _wait(self.env.cleanup(self.state))
        try:
            with raise_reward_errors():
                _wait(self.env.rubric.score_rollout(self.state))
        finally:
            _wait(self.env.rubric.cleanup(self.state))
        metrics = self.state["metrics"] or {}
        return float(self.state["reward"]), {name: float(v) for name, v in metrics.items()}

    def _prompt(self) -> list[Any]:
        asked = _wait(self.env.get_prompt_messages(self.state))
        texts = importlib.import_module("verifiers.utils.message_utils")
        return list(texts.maybe_normalize_messages(asked, field_name="prompt_messages"))


def _wait(call: Coroutine[Any, Any, Any]) -> Any:
    return wait_for(call, loop="verifiers")


def read(message: Any) -> Message:
    """Return a message of verifiers as text, its parts joined by newlines."""
    content = message.content
    if not isinstance(content, str):
        content = "\n".join(str(getattr(part, "text", "")) for part in content or ())
    return Message(message.role, content)


def row_sets(env: Any) -> dict[str, Any]:
    """Return the data of an environment by name: `train`, `eval`, or both."""
    sets = {"train": env.build_dataset(), "eval": env.build_eval_dataset()}
    return {name: rows for name, rows in sets.items() if rows is not None}


@lru_cache(maxsize=4)
def load(name: str | None, options: str) -> Any:
    """Return an environment of verifiers. Raises UserError if verifiers or the environment is
    missing, or if it is not a conversation in text."""
    if not name:
        line = "env.name is missing; give the name of an installed verifiers environment"
        raise UserError(line, code="missing-name")
    package = import_extra("verifiers.legacy", "verifiers")  # verifiers before 0.4
    with undisturbed():
        try:
            env = package.load_environment(name, **json.loads(options))
            row_sets(env)
        except (ValueError, RuntimeError, AttributeError) as error:
            line = f"verifiers cannot load '{name}' ({error}); install it or correct env.options"
            raise UserError(line, code="unknown-environment") from None
    if not isinstance(env, package.MultiTurnEnv) or env.tool_defs or env.requires_group_rollouts:
        line = f"'{name}' has tools, scores groups, or plays on its own"
        raise UserError(f"{line}; choose an environment that converses in text", code="not-text")
    keep_reward_errors(env.rubric)
    return env


def keep_reward_errors(rubric: Any) -> None:
    """Make the reward functions of a rubric, and of those in it, also store exceptions of the
    outside, such as an unreachable judge. Verifiers counts 0 for every exception, which is right
    only for those that a reply causes (REPLY_ERRORS)."""
    rubric.funcs = [keeping_errors(function) for function in rubric.funcs]
    for part in getattr(rubric, "rubrics", ()):
        keep_reward_errors(part)


def keeping_errors(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a reward function that also stores exceptions of the outside."""

    @wraps(function)
    async def reward(*args: Any, **options: Any) -> float:
        try:
            if inspect.iscoroutinefunction(function):
                return float(await function(*args, **options))
            found = await asyncio.to_thread(function, *args, **options)  # it may block
            return float(await found if inspect.isawaitable(found) else found)
        except REPLY_ERRORS:
            raise
        except Exception as error:
            REWARD_ERRORS.get().append(error)
            raise

    return reward


@contextmanager
def raise_reward_errors() -> Iterator[None]:
    """Raise the first exception of a reward function at the end."""
    errors: list[Exception] = []
    before = REWARD_ERRORS.set(errors)
    try:
        yield
    finally:
        REWARD_ERRORS.reset(before)
    if errors:
        raise errors[0]


@contextmanager
def undisturbed() -> Iterator[None]:
    """Hide progress bars, and restore the handlers for Ctrl-C and SIGTERM that verifiers sets."""
    datasets = importlib.import_module("datasets")
    hides = datasets.are_progress_bars_disabled()
    handlers = {number: signal.getsignal(number) for number in SIGNALS}
    datasets.disable_progress_bars()
    try:
        yield
    finally:
        if not hides:
            datasets.enable_progress_bars()
        for number, handler in handlers.items():
            signal.signal(number, handler)
