"""A model behind an OpenAI-compatible server as the one that plays: prompts become messages again,
answers come back as ids of MessageChat. There are no weights and no log-probs, so nothing can be
trained with it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from agentrl_cli.core.errors import SimulatorError, StoppedRun, UserError
from agentrl_cli.core.types import Message, derive_seed
from agentrl_cli.generators.base import Completion, Generator, Sampling
from agentrl_cli.generators.endpoint import Answer, OpenAIChat

BYTES = 256  # ids below are bytes of a text
NAN = float("nan")


@dataclass(kw_only=True)
class EndpointGenerator(Generator):
    """`chat` asks the server, `workers` requests in the air at a time. `roles` names the role that
    an id begins; the id `end` ends a message. Tokens are counted as the server tells them, costs by
    prices of a million (None: not counted)."""

    chat: OpenAIChat
    workers: int
    roles: dict[int, str]
    end: int
    price_read: float | None = None
    price_written: float | None = None
    tokens_read: int = field(default=0, init=False)
    tokens_written: int = field(default=0, init=False)

    def generate(
        self, prompts: list[list[int]], seeds: list[int], sampling: Sampling, model: str = "policy"
    ) -> list[list[Completion]]:
        """Completions whose log-probs are NaN. Raises StoppedRun where the server gives no answer
        after all attempts, UserError where it has no such model."""
        pairs = list(zip(prompts, seeds, strict=True))
        calls = [(ids, derive_seed(seed, j)) for ids, seed in pairs for j in range(sampling.n)]

        def ask(call: tuple[list[int], int]) -> Answer:
            messages = messages_of(call[0], self.roles, self.end)
            return self.chat.ask(messages, call[1], sampling.temperature, sampling.max_tokens)

        with ThreadPoolExecutor(self.workers) as pool:
            try:
                answers = list(pool.map(ask, calls))
            except SimulatorError as error:
                pool.shutdown(cancel_futures=True)
                kept = self.chat.cache
                again = f"answers so far are in {kept}: repeat the command" if kept else (
                    "see that the server runs, and keep answers with model.request.cache=FILE"
                )  # fmt: skip
                raise StoppedRun(f"{error}; {again}") from error
        self.tokens_read += sum(answer.read for answer in answers)
        self.tokens_written += sum(answer.written for answer in answers)
        found = iter(map(self._completion, answers))
        return [[next(found) for _ in range(sampling.n)] for _ in prompts]

    def load(self, model: str, version: int, path: Path | None = None) -> None:
        """Raises UserError: the server's weights are its own."""
        raise UserError("model=endpoint cannot be trained; evaluate it with agentrl eval")

    def usage(self) -> dict[str, float]:
        """Tokens that were read and written since the beginning, and what they cost."""
        found = {
            "endpoint/tokens_read": float(self.tokens_read),
            "endpoint/tokens_written": float(self.tokens_written),
        }
        if self.price_read is None and self.price_written is None:
            return found
        read, written = (price or 0.0 for price in (self.price_read, self.price_written))
        cost = (self.tokens_read * read + self.tokens_written * written) / 1e6
        return found | {"endpoint/cost": cost}

    def _completion(self, answer: Answer) -> Completion:
        ids = list(answer.text.encode("utf-8", "replace"))
        ids += [self.end] if answer.finish == "stop" else []
        return Completion(ids, [NAN] * len(ids), answer.finish)


def messages_of(ids: list[int], roles: dict[int, str], end: int) -> list[Message]:
    """The messages that ids are, the beginning of the answer that is asked for left out."""
    messages: list[Message] = []
    role, text = "", bytearray()
    for i in [*ids, end]:
        if i < BYTES:
            text.append(i)
            continue
        if role and (i == end or text):
            messages.append(Message(role, text.decode("utf-8", "replace")))
        role, text = roles.get(i, ""), bytearray()
    is_open = bool(messages) and messages[-1].role == "assistant" and not messages[-1].content
    return messages[:-1] if is_open else messages
