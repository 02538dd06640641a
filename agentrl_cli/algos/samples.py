"""Episodes and texts to training samples: which tokens are trained and which numbers ride along."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from agentrl_cli.core.types import Episode, Sample, Turn

Streams = Mapping[str, float | list[float]]


def turn_advantage(index: int, turn: Turn) -> Streams:
    """Every token carries the advantage of its turn."""
    return {"advantage": float(turn.info["advantage"])}


def episode_samples(
    episode: Episode, streams_of: Callable[[int, Turn], Streams] = lambda index, turn: {}
) -> list[Sample]:
    """One sample for each unbroken segment of the episode; its action tokens are trained.

    `streams_of(i, turn)` gives the streams of turn i, one number for all tokens of its action or
    one for each, 0 on observations; a stream `weight` of 0 leaves a token untrained. Streams must
    have the same names for every turn.
    """
    samples: list[Sample] = []
    for i, turn in enumerate(episode.turns):
        if i == 0 or turn.restart:
            samples.append(Sample([], []))
        _append(samples[-1], turn, streams_of(i, turn))
    return [sample for sample in samples if any(sample.mask)]


def _append(sample: Sample, turn: Turn, streams: Streams) -> None:
    observed, acted = len(turn.observation_ids), len(turn.action_ids)
    sample.ids += turn.observation_ids + turn.action_ids
    rows = {k: v if isinstance(v, list) else [v] * acted for k, v in streams.items()}
    sample.mask += [0] * observed + [int(w != 0) for w in rows.get("weight", [1.0] * acted)]
    for name, row in rows.items():
        sample.streams.setdefault(name, []).extend([0.0] * observed + row)


def append_tokens(sample: Sample, ids: list[int], trained: int = 0, **numbers: float) -> None:
    """Append ids; every stream of the sample gets one number for all of them, 0 unless given."""
    sample.ids += ids
    sample.mask += [trained] * len(ids)
    for name, row in sample.streams.items():
        row += [float(numbers.get(name, 0))] * len(ids)


def completion_sample(prompt: list[int], completion: list[int]) -> Sample:
    """A prompt and the text to learn behind it: gradient only through the text's tokens."""
    return Sample(prompt + completion, [0] * len(prompt) + [1] * len(completion))


def branches_sample(prompt: list[int], completions: list[list[int]]) -> Sample:
    """A prompt and several texts to learn behind it, none of which sees another: the prompt is read
    once, and each text is a shadow (models/packed_attention.py). One alone needs to be none."""
    sample = Sample([], [], {"shadow": []})
    append_tokens(sample, prompt)
    for label, completion in enumerate(completions, 1):
        append_tokens(sample, completion, trained=1, shadow=label if len(completions) > 1 else 0)
    return sample
