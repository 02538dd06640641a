"""The parts of an evaluation in which a model behind a server plays: nothing is loaded, nothing can
be trained. `eval.act=refined` lets the algorithm's roles, played by the same model, refine."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from agentrl_cli.algos.base import Algorithm, Context, Phase
from agentrl_cli.config.compose import as_dataclass, build
from agentrl_cli.config.settings import EvalConfig, ModelConfig
from agentrl_cli.core.errors import UserError
from agentrl_cli.core.types import Episode
from agentrl_cli.envs.base import Env
from agentrl_cli.generators.base import Generator
from agentrl_cli.generators.endpoint import EndpointGenerator, OpenAIChat
from agentrl_cli.models.specs import ModelSpec
from agentrl_cli.rollout.message_chat import END, ROLE, MessageChat

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from agentrl_cli.models.model_set import ModelSet
    from agentrl_cli.rollout.collector import Collector
    from agentrl_cli.rollout.replay_buffer import ReplayBuffer

PATH = "endpoint"  # model.path of a model that is asked over the network


@dataclass(kw_only=True)
class Untrained(Algorithm):
    """Plays, and refines where `inner` does; it has no weights and measures nothing."""

    inner: Algorithm = field(repr=False)
    plays = False

    def models(self) -> dict[str, ModelSpec]:
        """None."""
        return {}

    def update(self, episodes: list[Episode], buffer: ReplayBuffer) -> Iterator[Phase]:
        """Raises UserError."""
        raise UserError("model=endpoint cannot be trained; evaluate it with agentrl eval")

    def generator(self, act: str) -> Generator:
        """Return the generator of the inner algorithm."""
        return self.inner.generator(act)


@dataclass
class EndpointParts:
    """What `evaluate` needs of a run's parts, with the same names."""

    collector: Collector
    generator: EndpointGenerator
    algo: Algorithm
    chat: MessageChat
    make_env: Any
    eval: EvalConfig
    play: Any
    seed: int


def assemble_endpoint(cfg: DictConfig) -> EndpointParts:
    """Build the parts. Raises UserError where no server or model is named, or the environment has
    tools or no tasks."""
    config = as_dataclass(cfg.model, ModelConfig)
    if not config.url or not config.name or config.request is None:
        remedy = "give model.url=http://HOST:PORT/v1 and model.name=NAME"
        raise UserError(f"model=endpoint does not say which model of which server; {remedy}")
    env: Env = build(cfg.env)
    chat, generator = MessageChat(), _generator(config)
    chat.check(env.tools)
    collector: Collector = build(cfg.rollout)
    make_env = partial(copy.copy, env)
    collector.bind(
        make_env=make_env, chat=chat, generator=generator, seed=cfg.seed, policy_version=lambda: 0
    )
    settings = as_dataclass(cfg.eval, EvalConfig)
    algo: Algorithm = build(cfg.algo)
    algo = Untrained(inner=_bound(algo, cfg, collector) if settings.act == "refined" else algo)
    for split in settings.splits:
        if not env.tasks(split):
            raise UserError(f"eval.splits names '{split}', which has no tasks; name another")
    return EndpointParts(
        collector, generator, algo, chat, make_env, settings, collector.play, cfg.seed
    )


def _generator(config: ModelConfig) -> EndpointGenerator:
    request = config.request
    assert request is not None
    chat = OpenAIChat(
        model=config.name, base_url=config.url, key_variable=request.key_variable,
        temperature=1.0, max_tokens=1, timeout=request.timeout, retries=request.retries,
        cache=request.cache,
    )  # fmt: skip
    return EndpointGenerator(
        chat=chat, workers=request.workers, roles=ROLE, end=END,
        price_read=request.price_read, price_written=request.price_written,
    )  # fmt: skip


def _bound(algo: Algorithm, cfg: DictConfig, collector: Collector) -> Algorithm:
    """The algorithm with what its roles need; there are no models to train."""
    delimiter = collector.make_env().turn_delimiter
    context = Context(
        chat=collector.chat, models=cast("ModelSet", None), generator=collector.generator,
        sampling=collector.sampling, seed=cfg.seed, turn_delimiter=delimiter,
        probe=lambda starts: collector.play(starts, collector.sampling),
        indistinguishable_tasks=lambda episode, turn: [episode.task],
    )  # fmt: skip
    algo.bind(context)
    return algo
