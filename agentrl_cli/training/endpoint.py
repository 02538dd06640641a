"""Parts for the evaluation of a model on a server. Nothing is loaded and nothing can be trained.
With `eval.act=refined` the same model also plays the algorithm's roles."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from agentrl_cli.algos.base import Algorithm, Context, PlayOnly
from agentrl_cli.config.compose import as_dataclass, build
from agentrl_cli.config.settings import EvalConfig, ModelConfig
from agentrl_cli.core.activity import Activity
from agentrl_cli.core.errors import UserError
from agentrl_cli.core.types import ROLES, Message
from agentrl_cli.envs.base import Env
from agentrl_cli.generators.base import Generator
from agentrl_cli.generators.endpoint import BYTES, EndpointGenerator, OpenAIChat
from agentrl_cli.rollout.chat_template import Chat, Ids, Tools
from agentrl_cli.training.build import Parts, validate_splits

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from agentrl_cli.rollout.collector import Collector

PATH = "endpoint"  # model.path of a model on a server
BEGIN = {role: BYTES + number for number, role in enumerate(ROLES)}
ROLE = {mark: role for role, mark in BEGIN.items()}
END = BYTES + len(ROLES)


class MessageChat(Chat):
    """Messages as token ids without a tokenizer: each byte of a text is an id, and further ids
    begin and end messages. A generator can decode them without loss."""

    has_later_system_turns = True  # pyright: ignore[reportAssignmentType]
    fingerprint = "messages"  # pyright: ignore[reportAssignmentType]

    def __init__(self) -> None:
        self.answer_prefix, self.end_of_turn, self.stop_ids = "", END, (END,)

    def start(self, messages: Sequence[Message], tools: Tools = ()) -> Ids:
        return [*_ids(messages), BEGIN["assistant"]]

    def extend(self, messages: Sequence[Message], last_id: int | None, tools: Tools = ()) -> Ids:
        if not messages:
            return []
        end = [] if last_id == END else [END]
        return [*end, *_ids(messages), BEGIN["assistant"]]

    def encode_action(self, text: str) -> Ids:
        return [*text.encode("utf-8", "replace"), END]

    def encode_raw(self, text: str) -> Ids:
        line = "model=endpoint takes messages only; use an algorithm without raw prompts"
        raise UserError(line, code="unsupported-model")

    def decode(self, ids: Sequence[int]) -> str:
        return self.text_of(ids)

    def text_of(self, ids: Sequence[int], *, special: bool = True) -> str:
        return bytes(i for i in ids if i < BYTES).decode("utf-8", "replace")

    def check(self, tools: Tools = ()) -> None:
        """Raise UserError if there are tools."""
        if tools:
            line = "model=endpoint plays in text, and this environment has tools for a template"
            raise UserError(f"{line}; set env.actions=react", code="unsupported-model")


def _ids(messages: Sequence[Message]) -> Ids:
    ids: Ids = []
    for message in messages:
        calls = str(list(message.tool_calls)) if message.tool_calls else ""
        text = f"{message.content}{calls}".encode("utf-8", "replace")
        ids += [BEGIN[message.role], *text, END]
    return ids


@dataclass(kw_only=True)
class Untrained(PlayOnly):
    """The model alone, which can refine its actions if `inner` can."""

    inner: Algorithm = field(repr=False)

    def generator(self, act: str) -> Generator:
        return self.inner.generator(act)


def assemble_endpoint(cfg: DictConfig) -> Parts:
    """Build the parts that `evaluate` needs. Raises UserError if the server or the model is
    missing, or if the environment has tools or a split without tasks."""
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
    collector.activity = generator.activity = activity = Activity()
    settings = as_dataclass(cfg.eval, EvalConfig)
    algo: Algorithm = build(cfg.algo)
    absent: Any = None  # what only training needs
    context = Context(
        chat=chat, models=absent, generator=generator, sampling=collector.sampling, seed=cfg.seed,
        turn_delimiter=env.turn_delimiter,
        indistinguishable_tasks=lambda episode, turn: [episode.task],
        probe=lambda starts: collector.play(starts, collector.sampling),
    )  # fmt: skip
    if settings.act == "refined":
        algo.bind(context)
    validate_splits(settings, env)
    return Parts(
        collector=collector, models=absent, generator=generator, algo=Untrained(inner=algo),
        learner=absent, buffer=absent, chat=chat, make_env=make_env, eval=settings,
        context=context, data=absent, activity=activity,
    )  # fmt: skip
