"""The tokens of an action with the log-probs that they were sampled with, as texts. A run keeps
ids, so its model's tokenizer spells them; nothing of the model itself is loaded."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from agentrl_cli.core.errors import UserError
from agentrl_cli.core.types import Turn
from agentrl_cli.report.records import Record

FILE = "tokenizer.json"
TINY = Path(__file__).parent.parent / "models" / "tiny"  # of the embedded model
LIMITS = (0.9, 0.5, 0.1, 0.01)  # of probability, between the shades
Spell = Callable[[list[int]], str]


@dataclass(frozen=True)
class Token:
    """A sampled token: its text, its log-prob, and its shade from 0, nearly certain, to 4, a
    surprise."""

    text: str
    logprob: float

    @property
    def shade(self) -> int:
        """How improbable it was."""
        return sum(self.logprob < math.log(limit) for limit in LIMITS)


def speller(record: Record) -> Spell:
    """What turns ids of a run into text. Raises UserError where its tokenizer is not here."""
    from tokenizers import Tokenizer

    model = record.config.get("model") or {}
    file = find_tokenizer(str(model.get("path") if isinstance(model, dict) else model))
    if file is None:
        remedy = "report it where its model lies, or without --logprobs"
        raise UserError(f"run '{record.name}': the tokenizer of its model is not here; {remedy}")
    tokenizer = Tokenizer.from_file(str(file))
    return lambda ids: str(tokenizer.decode(ids, skip_special_tokens=False))


def find_tokenizer(path: str) -> Path | None:
    """The tokenizer's file of the embedded model, of a folder, or of a name that was downloaded
    before; None where there is none on this machine."""
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    folder = TINY if path == "tiny" else Path(path)
    if (folder / FILE).is_file():
        return folder / FILE
    try:
        found = try_to_load_from_cache(path, FILE)
    except HFValidationError:  # no name that a model could have
        return None
    return Path(found) if isinstance(found, str) else None


def tokens(turn: Turn, spell: Spell) -> list[Token]:
    """The action's tokens; none where its log-probs were not kept."""
    if len(turn.logprobs) != len(turn.action_ids):
        return []
    pairs = zip(turn.action_ids, turn.logprobs, strict=True)
    return [Token(spell([id]), logprob) for id, logprob in pairs]
