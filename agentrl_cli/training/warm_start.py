"""Warm start of the replay buffer with the episodes of an earlier run (`data.buffer`)."""

from __future__ import annotations

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
    """Return the newest episodes of the run `data.buffer`, with new ids, or none without one.

    Their number is the algorithm's replay capacity. Raises UserError if the algorithm cannot use
    them or if they come from another environment, task, system message, model or chat template.
    """
    if data.buffer is None:
        if data.offline:
            line = "data.offline=true needs episodes to learn from; name data.buffer=RUN"
            raise UserError(line, code="offline-without-buffer")
        return []
    if not algo.replay_capacity:
        line = f"algo '{cfg.choices.algo}' does not replay episodes, so it cannot use data.buffer"
        raise UserError(f"{line}; use one that does, as nlac or archer", code="no-replay")
    if data.offline and not algo.learns_offline:
        line = f"data.offline=true, but algo '{cfg.choices.algo}' trains its policy on new episodes"
        raise UserError(f"{line}; leave data.offline out, or use nlac", code="not-offline")
    run = find_run(data.buffer, Path(cfg.runs))
    _check_source(cfg, run, chat)
    if not files.is_file(run.folder / FILE):
        line = f"run '{run.name}' has kept no episodes"
        raise UserError(f"{line}; train it with data.keep_episodes=true", code="no-episodes")
    episodes = [
        replace(episode, id=f"buffer-{episode.id}", group=f"buffer-{episode.group}")
        for episode in read_episodes(run.folder / FILE, algo.replay_capacity)
        if episode.error is None and episode.turns
    ]
    if not episodes:
        line = f"run '{run.name}' has kept no complete episode; name another data.buffer"
        raise UserError(line, code="no-episodes")
    _check_tasks(episodes, env, run)
    return episodes


def _check_source(cfg: DictConfig, run: Run, chat: Chat) -> None:
    theirs = load(run.config_file, [])
    if theirs.env["_target_"] != cfg.env["_target_"]:
        ours, other = cfg.choices.env, theirs.choices.env
        line = f"the episodes of run '{run.name}' are of env={other}, this run is of env={ours}"
        message = f"{line}; name a data.buffer of the same environment"
        raise UserError(message, code="other-environment")
    if (theirs.model.path, run.meta.get("chat_template")) != (cfg.model.path, chat.fingerprint):
        line = f"run '{run.name}' was played with {theirs.model.path}, this one is {cfg.model.path}"
        remedy = "or their templates differ; name a data.buffer of the same model"
        raise UserError(f"{line}, {remedy}", code="other-model")


def _check_tasks(episodes: list[Episode], env: Env, run: Run) -> None:
    tasks, system = {task.id: task for task in train_tasks(env)}, env.system()
    remedy = "set env as that run did, or name another data.buffer"
    for episode in episodes:
        if tasks.get(episode.task.id) != episode.task:
            line = f"task '{episode.task.id}' of run '{run.name}' is not a train task of this env"
            raise UserError(f"{line}; {remedy}", code="other-tasks")
        first = episode.turns[0].observation
        if [m.content for m in first if m.role == "system"] != ([system] if system else []):
            line = f"the episodes of run '{run.name}' begin with another system message"
            raise UserError(f"{line} than this env; {remedy}", code="other-system")
