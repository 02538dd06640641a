"""The texts of every corpus are those that the shipped weights were trained on."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest

from tools.tiny_models.base import Text
from tools.tiny_models.tests.corpus_builder import ROLES, WORLDS, corpus_of

pytestmark = pytest.mark.slow  # of tools that are rarely used

DIGESTS = {
    "math": "cfc49fb44e5c7d35",
    "twentyq": "68562134fc671206",
    "tau_mini": "45fce776406c7d93",
    "wiki": "57a52286cc390282",
}


def content(text: Text) -> list[Any]:
    turns = [([m.content for m in t.observation], t.action, t.info) for t in text.turns]
    branches = [(b.turn, b.prompt, b.answer, b.action) for b in text.branches]
    return [text.kind, turns, branches]


def digest(env: str) -> str:
    corpus = corpus_of(env)
    kinds = dict.fromkeys([*corpus.exercises(), "play"], 1.0)
    texts = corpus.texts(40, kinds, dict.fromkeys(ROLES, 0.4), seed=1)
    found = json.dumps([content(text) for text in texts], sort_keys=True)
    return hashlib.sha256(found.encode()).hexdigest()[:16]


@pytest.mark.parametrize("env", WORLDS)
def test_texts_are_unchanged(env: str):
    assert digest(env) == DIGESTS[env]
