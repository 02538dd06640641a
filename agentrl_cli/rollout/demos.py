"""Demonstrations: episodes of an expert or dialogues of a user, one JSON line each.

A line is an episode in our own format, or a dialogue `{"messages": [{"role", "content"}, ...]}`
that may name its `task`. Both are text. The model's chat encodes them, so one file serves every
model. Lines are untrusted until they are checked here.
"""

from __future__ import annotations

import copy
import hashlib
import json
import random
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard

from agentrl_cli.core import files
from agentrl_cli.core.errors import UserError
from agentrl_cli.core.terminal import echo, echo_progress
from agentrl_cli.core.types import ROLES, Episode, Message, Task, Turn, derive_seed
from agentrl_cli.envs.base import Env, train_tasks
from agentrl_cli.envs.check import answer, opening, preamble

if TYPE_CHECKING:
    from agentrl_cli.rollout.chat_template import Chat

TextAgent = Callable[[list[Message]], Iterator[str] | None]
EXPERT_PREFIX = "expert:"  # data.demos=expert:N records N episodes of the expert
NAMED_LINES = 10  # maximum of invalid lines in an error
REMEDY = "correct it, or skip such lines with data.skip_invalid=true"


class InvalidDemo(Exception):
    """The reason why a line is not a demonstration."""


def fingerprint(file: str | None) -> str | None:
    """Return 16 hex digits of a file's bytes, or None without a file."""
    if file is None or not files.is_file(Path(file)):
        return None
    return hashlib.blake2b(Path(file).read_bytes(), digest_size=8).hexdigest()


def read_lines(file: Path) -> list[str]:
    """Return the lines of a file without trailing blank ones. Raises UserError if all are blank."""
    try:
        if file.exists() and not file.is_file():  # a device may never end
            raise OSError(0, "not a file")
        lines = file.read_text(encoding="utf-8-sig").rstrip().split("\n")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8"
        line = f"demonstrations '{file}' cannot be read ({reason})"
        raise UserError(f"{line}; check data.demos", code="unreadable-demos") from None
    if lines == [""]:
        line = f"demonstrations '{file}' are empty; write some with agentrl demos"
        raise UserError(line, code="empty-demos")
    return lines


def read_demos(
    source: str, lines: list[str], reader: DemoReader, *, skip_invalid: bool
) -> list[Episode]:
    """Return the demonstrations with token ids. Raises UserError with number and reason of each
    invalid line. With `skip_invalid` these are reported on stderr and skipped, unless all are
    invalid. Blank lines are skipped."""
    good: list[Episode] = []
    bad: list[str] = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            good.append(reader.read(line, number))
        except InvalidDemo as reason:
            bad.append(f"{source} line {number}: {reason}")
        echo_progress("demonstrations read", number, len(lines))
    named = bad[:NAMED_LINES]
    if len(bad) > NAMED_LINES:
        named.append(f"{len(bad) - NAMED_LINES} lines more")
    if bad and not (skip_invalid and good):
        raise UserError("\n".join(f"{text}; {REMEDY}" for text in named), code="invalid-demos")
    for text in named:
        echo(f"left out: {text}", err=True)
    return good


class DemoReader:
    """Parses lines as demonstrations of one environment for one model. Other instructions of the
    environment are replaced by those that it has now, so that one file serves every model."""

    def __init__(self, env: Env, chat: Chat, max_seq_len: int) -> None:
        self.chat, self.max_seq_len = chat, max_seq_len
        self.tools, self.preamble = env.tools, preamble(env)
        known = [preamble(other) for other in with_all_instructions(env)]
        known += [[m for m in messages if m.role == "system"] for messages in known]
        self.known_preambles = sorted(known, key=len, reverse=True)
        self.train_tasks = {task.id: task for task in env.tasks("train")}
        self.held_out = {task.id: "test" for task in env.tasks("test")}
        with suppress(UserError):  # the split is optional
            self.held_out |= {task.id: "val" for task in env.tasks("val")}

    def read(self, line: str, number: int) -> Episode:
        """Return the demonstration of a line. Raises InvalidDemo with the reason."""
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            raise InvalidDemo("it is not JSON") from None
        if isinstance(row, dict) and "turns" in row:
            episode = self._from_episode(row)
        elif isinstance(row, dict) and "messages" in row:
            episode = self._from_dialogue(row, f"line-{number:06d}")
        else:
            raise InvalidDemo('it has neither "messages" nor "turns"')
        self._check(episode)
        try:
            self.chat.encode_turns(episode.turns, self.tools)
        except UserError as error:
            raise InvalidDemo(str(error)) from None
        length = 0
        for turn_number, turn in enumerate(episode.turns, start=1):
            length += len(turn.observation_ids) + len(turn.action_ids)
            if length > self.max_seq_len:
                limit = f"rollout.max_seq_len {self.max_seq_len}"
                raise InvalidDemo(f"action {turn_number} ends at token {length}, past {limit}")
        return episode

    def _from_episode(self, row: dict[str, Any]) -> Episode:
        """Return the texts of an episode in our own format; its other fields are not trusted."""
        try:
            episode = Episode.from_json(row)
        except (KeyError, TypeError, AttributeError) as error:
            raise InvalidDemo(f"it is not an episode ({error})") from None
        if episode.error:
            raise InvalidDemo(f"its episode failed ({episode.error})")
        turns = [
            Turn(turn.observation, turn.action, [], [], [],
                 info={"success": turn.info.get("success") is True})
            for turn in episode.turns
        ]  # fmt: skip
        if turns:
            turns[0].observation = self._with_preamble(turns[0].observation)
        return replace(episode, task=self._task(episode.task.id), turns=turns)

    def _with_preamble(self, messages: list[Message]) -> list[Message]:
        """Replace a preamble of the environment by that of its present instructions."""
        for known in self.known_preambles:
            if messages[: len(known)] == known:
                return [*self.preamble, *messages[len(known) :]]
        return messages

    def _preamble_length(self, messages: list[Message]) -> int:
        """Return the length of the preamble that messages begin with; 0 if it is another."""
        count = len(self.preamble)
        return count if messages[:count] == self.preamble else 0

    def _from_dialogue(self, row: dict[str, Any], name: str) -> Episode:
        """Return a dialogue as a successful episode."""
        rows = row["messages"]
        if not isinstance(rows, list) or not all(isinstance(message, dict) for message in rows):
            raise InvalidDemo("its messages are not a list of objects")
        messages = [_message(message) for message in rows]
        if messages and messages[0].role != "system":
            messages = [*self.preamble, *messages]
        messages = self._with_preamble(messages)
        count = self._preamble_length(messages)
        turns: list[Turn] = []
        observation = messages[:count]
        for message in messages[count:]:
            if message.role != "assistant":
                observation.append(message)
                continue
            if not observation:
                raise InvalidDemo("two actions follow each other, or one comes first")
            turns.append(Turn(observation, message.content, [], [], []))
            observation = []
        task = self._task(row["task"]) if "task" in row else Task(name, "train", {})
        if turns:
            turns[-1].info, turns[-1].done = {"success": True}, True
        return Episode(name, task, name, 0, turns, final_observation=observation)

    def _task(self, name: object) -> Task:
        """Return the train task of that name. Raises InvalidDemo for any other."""
        task_id = name if isinstance(name, str) else ""
        if task_id in self.held_out:
            raise InvalidDemo(f"its task {name!r} is of the {self.held_out[task_id]} split")
        if task_id not in self.train_tasks:
            raise InvalidDemo(f"its task {name!r} is of another environment")
        return self.train_tasks[task_id]

    def _check(self, episode: Episode) -> None:
        """Raise InvalidDemo for another system message, and for an episode without text, known
        roles, or an action in each turn."""
        if not episode.turns:
            raise InvalidDemo("it has no action")
        first = episode.turns[0].observation
        count = self._preamble_length(first)
        for number, turn in enumerate(episode.turns, start=1):
            if not _is_text(turn.action) or not turn.action.strip():
                raise InvalidDemo(f"it has no action in turn {number}")
            for message in turn.observation[count if number == 1 else 0 :]:
                _message({"role": message.role, "content": message.content})
                if message.role == "assistant" or (message.role == "system" and number > 1):
                    raise InvalidDemo(f"a message of {message.role} stands in observation {number}")
        roles = [message.role for message in first[count:]]
        if all(role == "system" for role in roles):
            raise InvalidDemo("nothing was observed before its first action")
        if count < len(self.preamble) or "system" in roles:
            raise InvalidDemo("its system message is that of another environment")


def with_all_instructions(env: Env) -> list[Env]:
    """Return the environment with each of its instructions."""
    if not is_dataclass(env) or all(field.name != "instructions" for field in fields(env)):
        return [env]
    return [replace(env, **{"instructions": kind}) for kind in ("short", "full")]


def _message(row: dict[str, Any]) -> Message:
    role, content = row.get("role"), row.get("content")
    if role not in ROLES:
        raise InvalidDemo(f"unknown role {role!r}: there is {', '.join(ROLES)}")
    if row.get("tool_calls") or row.get("function_call"):
        line = f"a message of {role} calls tools beside its text: write calls in the text"
        raise InvalidDemo(line)
    if not _is_text(content):
        raise InvalidDemo(f"a message of {role} has no text")
    return Message(role, content)


def _is_text(value: Any) -> TypeGuard[str]:
    """Return whether it is a string without lone surrogates, which JSON can contain."""
    return isinstance(value, str) and value == value.encode("utf-8", "ignore").decode()


# --- the environment's expert ---------------------------------------------------------------------


def expert_lines(source: str, env: Env) -> list[str]:
    """Return the lines of `agentrl demos seed=0` for a source `expert:N`, the same in every run.
    Raises UserError for an invalid N, or if the expert fails."""
    count = source.removeprefix(EXPERT_PREFIX)
    if not count.isdecimal() or int(count) < 1:
        remedy = f"give a file, or {EXPERT_PREFIX}128 for 128 episodes"
        raise UserError(f"data.demos is '{source}'; {remedy}", code="invalid-demos-source")
    episodes = expert_episodes(env, int(count), seed=0)
    return [files.json_line(episode.to_json()) for episode in episodes]


def expert_episodes(env: Env, count: int, seed: int) -> list[Episode]:
    """Return `count` successful episodes of the expert on train tasks, each task once per epoch.

    Lost and failed episodes are skipped. Raises UserError for more than max(10, count / 10) of
    them, or without tasks or an expert.
    """
    tasks, won, lost, broken = train_tasks(env), [], 0, ""
    while len(won) < count:
        number = len(won) + lost
        epoch, position = divmod(number, len(tasks))
        order = random.Random(derive_seed(seed, "demos", epoch)).sample(tasks, len(tasks))
        episode, episode_seed = None, derive_seed(seed, "demos", number)
        try:
            episode = expert_episode(
                copy.copy(env), order[position], episode_seed, f"demo-{number:06d}"
            )
        except UserError:
            raise
        except Exception as error:  # a failed episode counts as lost
            broken = f", the last that broke with {type(error).__name__}: {error}"
        if episode is not None and episode.success:
            won.append(episode)
            echo_progress("episodes of the expert", len(won), count)
        else:
            lost += 1
        if lost > max(10, count // 10):
            line = f"the expert lost {lost} of {number + 1} episodes{broken}"
            raise UserError(f"{line}; correct it first", code="expert-lost")
    return won


def expert_episode(env: Env, task: Task, seed: int, name: str) -> Episode:
    """Play one episode as text. Raises UserError if the environment has no expert."""
    episode = text_episode(env, task, seed, name, lambda seen: env.expert(task))
    if episode is None:
        line = "the environment has no expert; add one, or use demonstrations of your own"
        raise UserError(line, code="no-expert")
    return episode


def text_episode(env: Env, task: Task, seed: int, name: str, agent: TextAgent) -> Episode | None:
    """Play one episode of an agent as text, without token ids and privileged info; return None if
    the agent has no actions. The agent receives the list of all messages, which grows."""
    with closing(env):
        observation = opening(env, task, seed)
        seen, turns, ended, stop = list(observation), [], False, "truncated"
        actions = agent(seen)
        if actions is None:
            return None
        while not ended and (action := next(actions, None)) is not None:
            step = answer(env, action)
            info = {key: value for key, value in step.info.items() if key != "privileged"}
            turns.append(Turn(observation, action, [], [], [], step.reward, step.done, info=info))
            observation, ended = step.messages, step.done or step.truncated
            seen += observation
            stop = "done" if step.done else "truncated"
    return Episode(name, task, name, seed, turns, stop=stop, final_observation=observation)
