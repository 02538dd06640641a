"""Parts for the evaluation of a model on a server. Nothing is loaded and nothing can be trained.
With `eval.act=refined` the same model also plays the algorithm's roles."""

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
from agentrl_cli.training.build import validate_splits

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from agentrl_cli.models.model_set import ModelSet
    from agentrl_cli.rollout.collector import Collector
    from agentrl_cli.rollout.replay_buffer import ReplayBuffer

PATH = "endpoint"  # model.path of a model on a server


@dataclass(kw_only=True)
class Untrained(Algorithm):
    """An algorithm without weights. It can refine actions if `inner` can."""

    inner: Algorithm = field(repr=False)
    plays = False

    def models(self) -> dict[str, ModelSpec]:
        return {}

    def update(self, episodes: list[Episode], buffer: ReplayBuffer) -> Iterator[Phase]:
        """Raise UserError."""
        message = "model=endpoint cannot be trained; evaluate it with agentrl eval"
        raise UserError(message, code="not-trainable")

    def generator(self, act: str) -> Generator:
        return self.inner.generator(act)


@dataclass
class EndpointParts:
    """The attributes of `Parts` that `evaluate` needs."""

    collector: Collector
    generator: EndpointGenerator
    algo: Algorithm
    chat: MessageChat
    make_env: Any
    eval: EvalConfig
    play: Any
    seed: int


def assemble_endpoint(cfg: DictConfig) -> EndpointParts:
    """Build the parts. Raises UserError if the server or the model is missing, or if the
    environment has tools or a split without tasks."""
    config = as_dataclass(cfg.model, ModelConfig)
    request = config.request
    if not config.url or not config.name or request is None:
        remedy = "give model.url=http://HOST:PORT/v1 and model.name=NAME"
        raise UserError(f"model=endpoint needs a server and a model; {remedy}", code="no-endpoint")
    env: Env = build(cfg.env)
    client = OpenAIChat(
        model=config.name, base_url=config.url, key_variable=request.key_variable,
        temperature=1.0, max_tokens=1, timeout=request.timeout, retries=request.retries,
        cache=request.cache,
    )  # fmt: skip
    generator = EndpointGenerator(
        chat=client, workers=request.workers, roles=ROLE, end=END,
        input_price=request.input_price, output_price=request.output_price,
    )  # fmt: skip
    chat = MessageChat()
    chat.check(env.tools)
    collector: Collector = build(cfg.rollout)
    make_env = partial(copy.copy, env)
    collector.bind(
        make_env=make_env, chat=chat, generator=generator, seed=cfg.seed, policy_version=lambda: 0
    )
    settings = as_dataclass(cfg.eval, EvalConfig)
    algo: Algorithm = build(cfg.algo)
    if settings.act == "refined":
        algo.bind(_context(cfg, env, collector))
    validate_splits(settings, env)
    return EndpointParts(
        collector, generator, Untrained(inner=algo), chat, make_env, settings, collector.play,
        cfg.seed,
    )  # fmt: skip


def _context(cfg: DictConfig, env: Env, collector: Collector) -> Context:
    return Context(
        chat=collector.chat, models=cast("ModelSet", None), generator=collector.generator,
        sampling=collector.sampling, seed=cfg.seed, turn_delimiter=env.turn_delimiter,
        probe=lambda starts: collector.play(starts, collector.sampling),
        indistinguishable_tasks=lambda episode, turn: [episode.task],
    )  # fmt: skip
