"""What the discriminator of inverse StepAgent reads: an action behind its state, written anew
without what only layout tells, judged at its last token. An action is a sample of its own, or all
turns of an episode are one. What is trained on them, algorithm.py says."""

from __future__ import annotations

from dataclasses import replace
from itertools import compress

from agentrl_cli.algos.base import Context
from agentrl_cli.algos.samples import append_tokens
from agentrl_cli.algos.stepagent.practice import StateAction, encode_action
from agentrl_cli.core.types import Episode, Sample
from agentrl_cli.models.model_set import ModelSet
from agentrl_cli.models.reader import logprobs_and_values


def labelled_actions(acts: list[StateAction], label: float, context: Context) -> list[Sample]:
    """One sample [state; action] each. Streams: `value_at` is 1 and `label` that number at the last
    token, 1 for the agent's actions, 0 for the expert's."""
    samples = []
    for act in acts:
        sample = Sample([], [], {"value_at": [], "label": []})
        append_tokens(sample, act.state_ids)
        _append_judged(sample, encode_action(act.action, context), label)
        samples.append(sample)
    return samples


def labelled_episodes(episodes: list[Episode], label: float, context: Context) -> list[Sample]:
    """One sample for each unbroken segment of an episode, with the streams of `labelled_actions` at
    every turn's action, in order. Earlier actions stand before a turn as they were judged, so that
    their layout tells nothing either."""
    samples: list[Sample] = []
    for episode in episodes:
        for i, turn in enumerate(episode.turns):
            if i == 0 or turn.restart:
                samples.append(Sample([], [], {"value_at": [], "label": []}))
            _append_state(samples[-1], turn.observation_ids, context.chat.closing)
            _append_judged(samples[-1], encode_action(turn.action, context), label)
    return samples


def _append_state(sample: Sample, ids: list[int], closing: int) -> None:
    """What a turn adds to its state. The closing token of an action that was played without one is
    its first, and the action as it is judged has one."""
    is_closed = bool(sample.ids) and sample.ids[-1] == closing
    append_tokens(sample, ids[1:] if is_closed and ids[:1] == [closing] else ids)


def _append_judged(sample: Sample, ids: list[int], label: float) -> None:
    append_tokens(sample, ids)
    sample.streams["value_at"][-1], sample.streams["label"][-1] = 1.0, label


def judgements(sample: Sample) -> float:
    """The unit of the discriminator's loss: what the sample's judgements count together."""
    return sum(sample.streams["value_at"])


def weighed(samples: list[Sample], weight: float) -> list[Sample]:
    """Copies of the samples in which every judgement counts so much."""
    streams_of = [
        {**s.streams, "value_at": [weight * at for at in s.streams["value_at"]]} for s in samples
    ]
    return [replace(s, streams=streams) for s, streams in zip(samples, streams_of, strict=True)]


def logits(models: ModelSet, samples: list[Sample]) -> list[float]:
    """Of D(s, a), the chance that the agent and not the expert acted, at every judgement of the
    samples, in order."""
    found: list[float] = []
    rows = logprobs_and_values(models.reader("discriminator"), samples)
    for sample, (_, values) in zip(samples, rows, strict=True):  # values: [tokens]
        found += compress(values.tolist(), sample.streams["value_at"])
    return found
