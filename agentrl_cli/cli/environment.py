"""Verbs that need an environment and no model of ours.

`agentrl check` tests the contract of an environment, and two agents and token limits in it.
`agentrl demos` writes expert episodes. `agentrl calibrate` compares a model that answers Twenty
Questions with the table of answers.
"""

from __future__ import annotations

import copy
import inspect
import random
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentrl_cli.config.compose import ConfigDirs, as_dataclass, build, check, compose
from agentrl_cli.config.settings import ModelConfig
from agentrl_cli.core import files
from agentrl_cli.core.errors import UserError, require_at_least
from agentrl_cli.core.terminal import echo
from agentrl_cli.core.types import Episode, Message, Task, derive_seed, evenly_spaced
from agentrl_cli.envs.base import Env, train_tasks
from agentrl_cli.envs.check import MAX_ACTIONS, check_env, splits, where
from agentrl_cli.generators.endpoint import outside_chats
from agentrl_cli.rollout.demos import expert_episodes, text_episode

if TYPE_CHECKING:
    from omegaconf import DictConfig

EPISODES = 5  # of each agent
MAX_WORDS = 6  # of a random action
OBJECTS = 8  # per attribute, if `agentrl calibrate` is called without n=
RANDOM, EXPERT = "random agent", "expert"
Record = dict[str, Any]


def check_command(overrides: list[str], config_dirs: ConfigDirs = None) -> None:
    """Print a table. Raises UserError with a line for each fault of the environment."""
    unused = ("algo", "hardware", "logger", "search", "eval", "data")
    cfg = check(compose(overrides, config_dirs), skip=unused)
    env: Env = build(cfg.env)
    contract = check_contract(env)
    for name, text in (("environment", _place(env)), ("contract", contract), *_rows(cfg, env)):
        echo(f"{name:<14} {text}")


def _rows(cfg: DictConfig, env: Env) -> Iterator[tuple[str, str]]:
    """Yield the tasks, and the results of each agent, of an environment without faults."""
    from agentrl_cli.models.load import load_tokenizer
    from agentrl_cli.rollout.chat_template import Chat

    def limited(name: str, tokens: int, key: str) -> str:
        limit = cfg.rollout[key]
        advice = f": raise it to {tokens} or more" if tokens > limit else ""
        return f"{name} {tokens:,} of rollout.{key} {limit:,}{advice}"

    yield "tasks", ", ".join(f"{len(tasks):,} {split}" for split, tasks in splits(env).items())
    chat = Chat(load_tokenizer(as_dataclass(cfg.model, ModelConfig)))
    chat.check(env.tools)
    tasks = evenly_spaced(train_tasks(env), EPISODES)
    for agent in (RANDOM, EXPERT):
        episodes = [found for task in tasks if (found := _play(env, task, agent)) is not None]
        if not episodes:
            yield agent, "the environment has none"
            continue
        won = sum(episode.success for episode in episodes)
        reward = sum(episode.reward for episode in episodes) / len(episodes)
        yield agent, f"{won} of {len(episodes)} episodes won, mean reward {reward:.2f}"
        turns = [len(episode.turns) for episode in episodes]
        fewest, most = min(turns), max(turns)
        yield "  turns", f"{fewest}" if fewest == most else f"{fewest} to {most}"
        actions, totals = [0], [0]
        for episode in episodes:
            encoded = chat.encode_turns(list(episode.turns), env.tools)
            actions += [len(turn.action_ids) for turn in encoded]
            totals.append(sum(len(t.observation_ids) + len(t.action_ids) for t in encoded))
        action = limited("longest action", max(actions), "max_new_tokens")
        yield "  tokens", f"{action}; {limited('longest episode', max(totals), 'max_seq_len')}"


def check_contract(env: Env, *, expert: bool = True) -> str:
    """Test the contract of an environment, its expert included unless `expert` is false. Returns
    whether it was tested.

    Environments that call external models are not tested. Raises UserError with a line for each
    fault and the file of the environment.
    """
    if chats := outside_chats(env):
        return f"not tested, since this would call {chats[0].name}"
    if faults := check_env(partial(copy.copy, env), expert=expert):
        raise UserError("\n".join(f"{_place(env)}: {x}" for x in faults), code="contract")
    return "kept"


def _place(env: Env) -> str:
    """Return the class of an environment and its file; a class of a notebook has none."""
    cls = type(env)
    name = f"{cls.__module__}.{cls.__qualname__}"
    try:
        return f"{name} ({inspect.getsourcefile(cls)})"
    except (OSError, TypeError):
        return name


def _play(env: Env, task: Task, agent: str) -> Episode | None:
    """Play an episode with the expert, if there is one, or with random words from all messages.

    Raises UserError with the line of the environment's file if it fails.
    """
    env, seed = copy.copy(env), derive_seed(0, "check", task.id)
    draw = random.Random(seed)

    def random_actions(seen: list[Message]) -> Iterator[str]:
        for _ in range(MAX_ACTIONS):
            words = " ".join(message.content for message in seen).split() or ["yes"]
            yield " ".join(draw.choices(words, k=draw.randint(1, MAX_WORDS)))

    def actions(seen: list[Message]) -> Iterator[str] | None:
        return random_actions(seen) if agent == RANDOM else env.expert(task)

    try:
        return text_episode(env, task, seed, task.id, actions)
    except UserError:
        raise
    except Exception as error:
        line = f"task {task.id} fails with {type(error).__name__}: {error} ({where(error, env)})"
        raise UserError(f"{line}; correct the environment", code="contract") from error


def write_demos(overrides: list[str], config_dirs: ConfigDirs = None) -> tuple[Path, int]:
    """Write `n` episodes to the file `out`. Returns the file and the number of episodes.

    Raises UserError if `n` or `out` is missing or invalid, or the environment has no expert.
    """
    given, rest = _split(overrides, "n", "out")
    if not given.get("n") or not given.get("out"):
        line = "n or out is missing; give both, for example n=128 out=demos.jsonl"
        raise UserError(line, code="missing-value")
    number, out = _number(given["n"]), Path(given["out"]).expanduser()
    cfg = _compose_environment(rest, config_dirs)
    if out.exists():
        raise UserError(f"'{out}' exists; choose another out=", code="exists")
    episodes = expert_episodes(build(cfg.env), number, cfg.seed)
    with files.explain_write_errors(out.parent, "choose another out="):
        files.write_jsonl(out, (episode.to_json() for episode in episodes))
    return out, len(episodes)


def calibration(overrides: list[str], config_dirs: ConfigDirs = None) -> Record:
    """Return the agreement of `env.llm` with the table, in total and by attribute.

    Raises UserError for other environments and without a model.
    """
    from agentrl_cli.envs.twentyq.env import ORACLE_SEED, TwentyQ
    from agentrl_cli.envs.twentyq.oracle import calibrate

    given, rest = _split(overrides, "n")
    number, cfg = _number(given.get("n", str(OBJECTS))), _compose_environment(rest, config_dirs)
    env = build(cfg.env)
    if not isinstance(env, TwentyQ):
        line = f"env '{cfg.choices.env}' has no table of answers; use env=twentyq_full"
        raise UserError(line, code="no-table")
    if (llm := env.llm) is None:
        raise UserError("env.llm.model is not set; give env.llm.model=NAME", code="no-model")

    rows = calibrate(env.world_table, lambda messages: llm(messages, ORACLE_SEED), number, cfg.seed)
    asked = sum(row.asked for row in rows)
    return {
        "questions": asked,
        "agreement": sum(row.agreed for row in rows) / asked,
        "contradicted": sum(row.contradicted for row in rows) / asked,
        "attributes": [
            {"attribute": row.attribute, "question": row.question, "asked": row.asked,
             "agreement": row.share, "contradicted": row.contradicted / row.asked}
            for row in rows
        ],
    }  # fmt: skip


def calibration_table(record: Record) -> list[str]:
    """Return the lines of a table, with the least agreement first."""
    from agentrl_cli.report.summary import table

    cells = [["question", "agrees", "contradicts", "asked"]]
    for row in record["attributes"]:
        shares = [f"{row[key]:.2f}" for key in ("agreement", "contradicted")]
        cells.append([row["question"], *shares, str(row["asked"])])
    total = f"{record['agreement']:.3f} of {record['questions']} answers agree with the table"
    return [*table(cells), f"{total}, {record['contradicted']:.3f} contradict it"]


def _split(overrides: list[str], *names: str) -> tuple[dict[str, str], list[str]]:
    """Return the values of the named overrides, and all other overrides."""
    own = [text for text in overrides if "=" in text and text.partition("=")[0] in names]
    return dict(text.split("=", 1) for text in own), [text for text in overrides if text not in own]


def _number(text: str) -> int:
    if not text.isdecimal():
        raise UserError(f"n is '{text}'; give a whole number", code="not-a-number")
    require_at_least(1, n=int(text))
    return int(text)


def _compose_environment(overrides: list[str], config_dirs: ConfigDirs) -> DictConfig:
    skip = ("algo", "hardware", "model", "rollout")
    return check(compose(overrides, config_dirs), skip=skip)
