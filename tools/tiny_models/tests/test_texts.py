"""The texts of every corpus are those that the shipped weights were trained on."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest

from tools.tiny_models.base import Text
from tools.tiny_models.tests.corpus_builder import ROLES, WORLDS, corpus_of

DIGESTS = {
    "math": "e524f8005eb44c11",
    "twentyq": "d9421d8f52aaa420",
    "tau_mini": "bc4015389d721993",
    "wiki": "f972dbb7af9c4207",
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
