"""The actors of `hardware.actors`: what such a process holds, and which weights it receives."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from safetensors.torch import load, save

from agentrl_cli.algos.base import PlayOnly
from agentrl_cli.config.compose import build
from agentrl_cli.core.errors import LostActor, UserError
from agentrl_cli.core.types import Episode
from agentrl_cli.generators.base import Sampling
from agentrl_cli.models.model_set import ModelSet, is_head
from agentrl_cli.rollout.actors import ActorPool, RayCluster
from agentrl_cli.rollout.play import EpisodeStart
from agentrl_cli.training.build import Parts, build_parts

if TYPE_CHECKING:
    from omegaconf import DictConfig

POLICY = "policy"


class RolloutActor:
    """Plays episodes as the run itself would, with the policy as its only model."""

    def __init__(self, cfg: DictConfig, folder: Path) -> None:
        """`folder` is the working directory of the run, to which paths may be relative."""
        if folder.is_dir():
            os.chdir(folder)
        self.parts = build_parts(cfg, None, learns=False, restored=True, algorithm=PlayOnly())
        self.version = 0
        self.parts.collector.policy_version = lambda: self.version

    def load(self, version: int, weights: bytes) -> None:
        """Use these weights, packed by `pack_policy`, from now on."""
        own = self.parts.models.weights(POLICY)
        with torch.no_grad():
            for name, weight in load(weights).items():
                own[name].copy_(weight)
        self.version = version
        self.parts.models.mark_changed(POLICY)
        self.parts.generator.mark_changed(POLICY)

    def play(
        self, starts: list[EpisodeStart], sampling: Sampling, max_failure_rate: float
    ) -> list[Episode]:
        """Return an episode for each start; caches are cleared, so any actor gives the same."""
        self.parts.generator.clear()
        return self.parts.collector.play(starts, sampling, None, max_failure_rate)


def start_actors(cfg: DictConfig, parts: Parts) -> None:
    """Start the configured actors for these parts. Raises UserError if they cannot be started."""
    if cfg.hardware.get("actors") is None:
        return
    if not parts.generator.gives_hidden_states:
        line = "hardware.actors generate with a model in memory, and hardware.generator uses"
        raise UserError(f"{line} servers; remove one of them", code="actors-with-servers")
    cluster: RayCluster = build(cfg.hardware.actors)
    uses_gpus = parts.models.device.type == "cuda" and cluster.gpus > 0
    actor_cfg = cfg.copy()
    actor_cfg.hardware.actors = None
    actor_cfg.hardware.device = "cuda" if uses_gpus else "cpu"
    cluster.connect(_other_gpus(parts.models.device) if uses_gpus else [])
    pool = ActorPool(
        cluster=cluster, make_player=partial(RolloutActor, actor_cfg, Path.cwd()),
        version=partial(parts.models.version, POLICY), pack=partial(pack_policy, parts.models),
        staleness=cluster.staleness if parts.algo.off_policy else 0, steps=cfg.steps,
        max_concurrent_episodes=parts.collector.max_concurrent_episodes,
    )  # fmt: skip
    try:
        for actor in pool.actors:
            actor.wait_until_ready()
    except BaseException as error:
        pool.close()
        if not isinstance(error, LostActor):
            raise
        remedy = "lower hardware.actors.count, cpus or gpus, or raise hardware.actors.start_timeout"
        raise UserError(f"{error}; {remedy}", code="actors-not-started") from None
    parts.collector.actors = pool


def _other_gpus(own: torch.device) -> list[str]:
    """Return the visible GPUs except the learner's `own`, or that one if it is the only one."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = named.split(",") if named else [str(i) for i in range(torch.cuda.device_count())]
    place = own.index or 0
    return [*names[:place], *names[place + 1 :]] or names


def pack_policy(models: ModelSet) -> bytes:
    """Return the policy's weights as safetensors: its adapter or all weights, no value head."""
    weights = models.weights(POLICY).items()
    return save({name: w.detach().cpu().contiguous() for name, w in weights if not is_head(name)})
