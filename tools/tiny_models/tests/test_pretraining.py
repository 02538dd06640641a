"""Pretraining: a packed text trains each branch as if it stood alone, in float32 or bfloat16."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from agentrl_cli.core.errors import UserError
from agentrl_cli.core.types import Episode, Sample, Task, Turn
from agentrl_cli.models.forward import ModelForward, Passes, collate, forward, token_logprobs
from tests.builders.packed_rows import LAYOUTS, model_of
from tools.tiny_models.pretraining import branched_sample

pytestmark = pytest.mark.slow  # of tools that are rarely used

EXACT = 1e-5


def ids(count: int, begin: int) -> list[int]:
    return [2 + (7 * (begin + i)) % 77 for i in range(count)]


def branch(place: str, prompt: int, answer: int, begin: int, weight: float = 2.0) -> dict[str, Any]:
    prompt_ids, answer_ids = ids(prompt, begin), ids(answer, begin + 40)
    return {"place": place, "prompt_ids": prompt_ids, "answer_ids": answer_ids, "weight": weight}


def text() -> Episode:
    """Three turns, the second a thought that was not answered, with branches of both places."""
    sizes = [(6, 4), (0, 3), (5, 2)]
    found = [
        [branch("before", 3, 2, 1), branch("behind", 2, 3, 2), branch("before", 4, 1, 3)],
        [branch("behind", 3, 2, 4, 0.0), branch("behind", 2, 2, 5)],
        [branch("before", 1, 4, 6), branch("behind", 5, 2, 7)],
    ]
    turns = []
    for i, ((seen, acted), said) in enumerate(zip(sizes, found, strict=True)):
        info = {"branches": said, "weight": [float(i != 1)] * acted}
        turns.append(Turn([], "", ids(seen, 10 * i), ids(acted, 10 * i + 5), [], info=info))
    return Episode("e", Task("t", "train", {}), "play", 0, turns)


def alone(episode: Episode) -> list[Sample]:
    """Every branch behind what was played, in the order in which it is packed."""
    samples, past = [], []
    for turn in episode.turns:
        for place in ("before", "behind"):
            past = past + (turn.observation_ids if place == "before" else turn.action_ids)
            for b in turn.info["branches"]:
                if b["place"] == place:
                    answer = b["answer_ids"]
                    mask = [0] * len(past + b["prompt_ids"]) + [int(b["weight"] > 0)] * len(answer)
                    samples.append(Sample(past + b["prompt_ids"] + answer, mask))
    return samples


def played(episode: Episode) -> Sample:
    """The text without its branches."""
    sample = Sample([], [])
    for turn in episode.turns:
        sample.ids += turn.observation_ids + turn.action_ids
        sample.mask += [0] * len(turn.observation_ids) + [int(w > 0) for w in turn.info["weight"]]
    return sample


def trained(logprobs: list[float], mask: list[int]) -> list[float]:
    return [lp for lp, m in zip(logprobs, mask, strict=True) if m]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_packed_branches_equal_single_samples(layout: str):
    """So a branch sees neither other branches nor what came later, and nothing sees it."""
    packed, plain = branched_sample(text()), [played(text()), *alone(text())]
    model = model_of("qwen2", layout)
    (found,) = token_logprobs(ModelForward(model), [packed])
    expected = token_logprobs(ModelForward(model), plain)
    labels = packed.per_token["branch"]
    for label, (sample, logprobs) in enumerate(zip(plain, expected, strict=True)):
        mine = [(lp, m) for lp, m, k in zip(found, packed.mask, labels, strict=True) if k == label]
        packed_row = trained([lp for lp, _ in mine], [m for _, m in mine])
        assert packed_row == pytest.approx(trained(logprobs, sample.mask), abs=EXACT), label
    assert len(plain) == 8 and sum(map(bool, found)) == sum(sum(s.mask) for s in plain) > 15


def test_branches_have_positions_and_weights():
    sample = branched_sample(text())
    rows = list(
        zip(sample.per_token["branch"], sample.mask, sample.per_token["weight"], strict=True)
    )
    first = [(0, 0, 0.0)] * 6  # the observation
    first += [(1, 0, 0.0)] * 3 + [(1, 1, 2.0)] * 2  # another action's branches come before
    first += [(2, 0, 0.0)] * 4 + [(2, 1, 2.0)] * 1
    first += [(0, 1, 1.0)] * 4  # the action
    first += [(3, 0, 0.0)] * 2 + [(3, 1, 2.0)] * 3  # its own behind it
    second = [(0, 0, 0.0)] * 3  # neither this thought nor what weighs nothing is trained
    second += [(4, 0, 0.0)] * 3 + [(4, 0, 0.0)] * 2
    assert rows[: len(first + second)] == first + second


def test_packed_gradient_is_sum_of_parts():
    packed, plain = branched_sample(text()), [played(text()), *alone(text())]
    gradients = []
    for samples in ([packed], plain):
        model = model_of("llama")
        (-forward(model, collate(samples)).logprobs.sum()).backward()
        gradients.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
    for mine, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(mine, theirs, atol=2e-4, rtol=1e-3)


def test_packed_texts_are_close_in_mixed_precision():
    packed, model = branched_sample(text()), model_of("qwen2")
    (exact,) = token_logprobs(ModelForward(model), [packed])
    (coarse,) = token_logprobs(ModelForward(model, passes=Passes(torch.bfloat16)), [packed])
    assert coarse != exact and coarse == pytest.approx(exact, abs=0.3)


def test_played_episodes_are_refused():
    episode = Episode("e", Task("t", "train", {}), "g", 0, [Turn([], "Yes.", [], [], [])])
    with pytest.raises(UserError) as error:
        branched_sample(episode)
    assert error.value.code == "needs-corpus"
