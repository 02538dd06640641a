"""The corpus of the small shop: mediocre service in other shops, and roles that tell the truth."""

from __future__ import annotations

import random
import re

import pytest

from agentrl_cli.envs.tau.mini import mini_domain
from agentrl_cli.envs.tau.tools import Tables
from tools.tiny_models.played import Transition
from tools.tiny_models.tau import TauCorpus
from tools.tiny_models.tests.corpus_builder import seeds, tau_corpus

pytestmark = pytest.mark.slow  # of tools that are rarely used

SHOWN = re.compile(r"The \w+ is in (\d+), (pending|delivered)\.")


@pytest.fixture(scope="module")
def corpus() -> TauCorpus:
    return tau_corpus()


@pytest.fixture(scope="module")
def conversations(corpus: TauCorpus) -> list[list[Transition]]:
    return [corpus.episode(rng) for rng in seeds(160)]


# the clerk


def test_no_text_is_about_the_environments_own_orders(conversations: list[list[Transition]]):
    def orders(tables: Tables) -> set[tuple[str, ...]]:
        return {(n, order["status"], *order["items"]) for n, order in tables["orders"].items()}

    own = orders(mini_domain().tables) | orders(mini_domain("val").tables)
    shops = [moves[0].before.env.domain_data.tables for moves in conversations]
    told = [move.step.messages[-1].content for moves in conversations for move in moves]
    assert sum(bool(SHOWN.match(text)) for text in told) > 100
    assert not own & set().union(*map(orders, shops))


def test_a_text_is_what_the_shop_answered(corpus: TauCorpus):
    for seed in range(30):
        played, text = corpus.episode(random.Random(seed)), corpus.text("play", {}, seed)
        assert text.turns[0].observation[0].content == corpus.env.system()
        assert [turn.action for turn in text.turns] == [move.action for move in played]
        for turn, move in zip(text.turns[1:], played, strict=False):
            assert turn.observation == move.step.messages
        assert played[-1].step.done and not any(move.step.done for move in played[:-1])


# roles


WON, LOST = "zip 12. Right. Yes. Success.", "zip 12. Right. Yes. Failure."
