"""Warm starts: an algorithm that replays begins with the episodes of an earlier run, which
`data.buffer` names, alone or mixed with fresh ones. Which episodes fit is checked here; what is
learnt from them is the algorithm's."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from agentrl_cli.algos.base import Algorithm
from agentrl_cli.config.compose import load
from agentrl_cli.config.settings import DataConfig
from agentrl_cli.core import files
from agentrl_cli.core.errors import UserError
from agentrl_cli.core.types import Episode
from agentrl_cli.envs.base import Env, train_tasks
from agentrl_cli.rollout.chat_template import Chat
from agentrl_cli.rollout.replay_buffer import read_episodes
from agentrl_cli.runs.find import find_run
from agentrl_cli.runs.run import Run

if TYPE_CHECKING:
    from omegaconf import DictConfig

FILE = "buffer.jsonl"


def earlier_episodes(
    cfg: DictConfig, data: DataConfig, chat: Chat, algo: Algorithm, env: Env
) -> list[Episode]:
    """The newest episodes of the run that `data.buffer` names, as many as the algorithm replays,
    under ids of their own; none where it names none. Raises UserError where the algorithm does not
    replay, or not without fresh episodes where these are to be all, or the run has no episodes or
    some of another world, task, instruction, model or chat template."""
    if data.buffer is None:
        if data.offline:
            raise UserError("data.offline=true has nothing to learn from; name data.buffer=RUN")
        return []
    if not algo.replay_capacity:
        line = f"algo '{cfg.choices.algo}' does not replay, so data.buffer means nothing to it"
        raise UserError(f"{line}; use one that does, as nlac or archer")
    if data.offline and not algo.learns_offline:
        line = f"data.offline=true, but algo '{cfg.choices.algo}' trains its policy on fresh play"
        raise UserError(f"{line}; leave data.offline out, or use nlac")
    run = find_run(data.buffer, Path(cfg.runs))
    _refuse_other_source(cfg, run, chat)
    if not files.is_file(run.folder / FILE):
        line = f"run '{run.name}' has kept no episodes"
        raise UserError(f"{line}; train it with data.keep_episodes=true")
    episodes = list(_usable(read_episodes(run.folder / FILE, algo.replay_capacity)))
    if not episodes:
        raise UserError(f"run '{run.name}' has kept no whole episode; name another data.buffer")
    _refuse_other_tasks(episodes, env, run)
    return episodes


def _refuse_other_source(cfg: DictConfig, run: Run, chat: Chat) -> None:
    """Raise UserError where the run's episodes are not of this world, or their ids not of this
    model's tokenizer and template."""
    theirs = load(run.config_file, [])
    if theirs.env["_target_"] != cfg.env["_target_"]:
        ours, other = cfg.choices.env, theirs.choices.env
        line = f"the episodes of run '{run.name}' are of env={other}, this run is of env={ours}"
        raise UserError(f"{line}; name a data.buffer of the same world")
    if (theirs.model.path, run.meta.get("chat_template")) != (cfg.model.path, chat.fingerprint):
        line = f"run '{run.name}' was played with {theirs.model.path}, this one is {cfg.model.path}"
        raise UserError(f"{line}, or their templates differ; name a data.buffer of the same model")


def _refuse_other_tasks(episodes: list[Episode], env: Env, run: Run) -> None:
    """Raise UserError where an episode's task is not one that this run may train on, or its player
    was instructed otherwise."""
    tasks, system = {task.id: task for task in train_tasks(env)}, env.system()
    remedy = "set env as that run did, or name another data.buffer"
    for episode in episodes:
        if tasks.get(episode.task.id) != episode.task:
            line = f"task '{episode.task.id}' of run '{run.name}' is no train task of this env"
            raise UserError(f"{line}; {remedy}")
        first = episode.turns[0].observation
        if [m.content for m in first if m.role == "system"] != ([system] if system else []):
            line = f"the episodes of run '{run.name}' begin with another system message"
            raise UserError(f"{line} than this env; {remedy}")


def _usable(episodes: list[Episode]) -> Iterator[Episode]:
    """Those that did not break, under ids that no fresh episode has."""
    for episode in episodes:
        if episode.error is None and episode.turns:
            yield replace(episode, id=f"buffer-{episode.id}", group=f"buffer-{episode.group}")
