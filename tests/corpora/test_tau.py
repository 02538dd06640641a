"""The corpus of the small shop: mediocre service in other shops, and roles that tell the truth."""

from __future__ import annotations

import random

import pytest

from agentrl_cli.algos.nlac.prompts import outcome, verdict
from agentrl_cli.config.compose import build, check, compose
from agentrl_cli.core.types import Episode
from agentrl_cli.corpora.tau import Snapshot, TauCorpus, redraw_unspoken_wish, true_forecast
from agentrl_cli.envs.tau.mini import mini_domain
from agentrl_cli.envs.tau.mini_user import MiniUser
from agentrl_cli.models.load import TINY

KINDS = ("service", "forecast", "backup", "evaluate", "refine")
LONGEST = 24  # ids of an action: rollout.max_tokens


@pytest.fixture(scope="module")
def corpus() -> TauCorpus:
    cfg = check(compose(["experiment=tau_mini_base"]))
    return build(cfg.rollout.corpus)


def draw_episodes(corpus: TauCorpus, kind: str, count: int = 30) -> list[Episode]:
    return corpus.episodes(count, {kind: 1.0}, 0)


def test_the_clerk_is_mediocre_and_breaks_each_rule(corpus: TauCorpus):
    rng = random.Random(0)
    played = [corpus.play(rng) for _ in range(200)]
    won = sum(moves[-1].step.reward for moves in played)
    assert 0.3 < won / len(played) < 0.7
    flags = [{f for m in moves for f in m.step.info if m.step.info[f] is True} for moves in played]
    assert sum("unconfirmed" in found for found in flags) > 20
    assert sum("tool_error" in found for found in flags) > 20
    asked = [any("more?" in move.action for move in moves) for moves in played]
    assert 20 < sum(asked) < 180


def test_the_same_seed_writes_the_same_texts(corpus: TauCorpus):
    mixture: dict[str, float] = {kind: 1.0 for kind in KINDS}
    assert corpus.episodes(10, mixture, 3) == corpus.episodes(10, mixture, 3)
    assert corpus.episodes(10, mixture, 3) != corpus.episodes(10, mixture, 4)


def test_no_text_is_about_the_environments_own_orders(corpus: TauCorpus):
    own = {str(order["items"]) for order in mini_domain().tables["orders"].values()}
    shown = [
        message.content
        for episode in draw_episodes(corpus, "service", 60)
        for turn in episode.turns
        for message in turn.observation
        if message.role == "tool" and ":" in message.content
    ]
    lists = {str(text.rstrip(".").split(": ")[1].split(", ")) for text in shown}
    assert len(lists) > 50 and len(lists & own) <= 1


@pytest.mark.parametrize("kind", KINDS)
def test_texts_fit_the_embedded_model(corpus: TauCorpus, kind: str):
    from transformers import PreTrainedTokenizerFast

    tokenizer = PreTrainedTokenizerFast.from_pretrained(str(TINY))
    for episode in draw_episodes(corpus, kind, 10):
        texts = [m.content for turn in episode.turns for m in turn.observation]
        actions = [turn.action for turn in episode.turns if not turn.info.get("role")]
        sizes = [len(tokenizer.encode(text)) + 2 for text in [*texts, *actions]]
        assert sum(sizes) < 700
        assert all(len(tokenizer.encode(action)) < LONGEST for action in actions)


def test_forecasts_and_backups_name_the_true_outcome(corpus: TauCorpus):
    rng = random.Random(1)
    for _ in range(40):
        moves = corpus.play(rng)
        for at in range(len(moves)):
            assert outcome(true_forecast(moves[at:])) == bool(moves[-1].step.reward)
    for kind in ("forecast", "backup"):
        texts = [episode.turns[-1].action for episode in draw_episodes(corpus, kind)]
        assert all(outcome(text) is not None for text in texts)
        assert len({outcome(text) for text in texts}) == 2


def customer(snapshot: Snapshot) -> MiniUser:
    """The customer of a conversation in progress."""
    assert snapshot.env.conversation is not None
    assert isinstance(snapshot.env.conversation.user, MiniUser)
    return snapshot.env.conversation.user


def test_what_nobody_was_told_is_imagined_anew(corpus: TauCorpus):
    rng, counts = random.Random(2), {True: 0, False: 0}
    while min(counts.values()) < 5:
        moves = corpus.play(rng)
        wishes = customer(moves[0].before).wishes
        at = next((i for i, move in enumerate(moves) if move.action.startswith("Return")), None)
        if wishes[0]["kind"] != "return" or at is None or len(wishes) > 1:
            continue
        asked = any(move.action == "Is there more?" for move in moves[:at])
        wants = [redrawn(moves[at].before, rng) for _ in range(12)]
        assert (len(set(wants)) == 1) == asked
        assert customer(moves[at].before).wishes[0]["more"] == wishes[0]["more"]
        counts[asked] += 1


def redrawn(snapshot: Snapshot, rng: random.Random) -> tuple[str, ...]:
    """What the customer wants more in another draw, which the ground truth must then hold."""
    fork = snapshot.fork()
    redraw_unspoken_wish(fork, rng)
    wish, now = customer(fork).wishes[0], fork.env.conversation
    truth = [action["kwargs"]["items"] for action in now.task["actions"]] if now else []
    assert truth in ([], [[wish["item"], *wish["more"]]])
    return tuple(wish["more"])


def test_verdicts_follow_the_forecasts_that_are_shown(corpus: TauCorpus):
    found = []
    for episode in draw_episodes(corpus, "evaluate"):
        shown = episode.turns[-1].observation[0].content
        mine, _, others = shown.partition("Forecasts of another turn:")
        worse = mine.count("Success") < others.count("Success")
        found.append(verdict(episode.turns[-1].action))
        assert found[-1] == (not worse)
    assert set(found) == {True, False}


def test_a_refinement_changes_exactly_what_was_criticised(corpus: TauCorpus):
    for episode in draw_episodes(corpus, "refine"):
        *_, judged, role = episode.turns
        kept = "Optimality: Yes" in role.observation[0].content
        assert (role.action == judged.action) == kept
