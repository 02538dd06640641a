"""Episodes and texts to training samples: which tokens are trained and which numbers ride along."""

from __future__ import annotations

from collections.abc import Callable

from agentrl_cli.types import Episode, Sample, Turn

TurnNumbers = Callable[[int, Turn], dict[str, float]]


def episode_samples(episode: Episode, numbers: TurnNumbers) -> list[Sample]:
    """One sample for each unbroken segment of the episode; its action tokens are trained.

    `numbers(i, turn)` gives the streams of turn i, the same for all its tokens and 0 on
    observations; a stream `weight` of 0 leaves a turn untrained. Streams must have the same names
    for every turn.
    """
    samples: list[Sample] = []
    for i, turn in enumerate(episode.turns):
        if i == 0 or turn.restart:
            samples.append(Sample([], []))
        _append(samples[-1], turn, numbers(i, turn))
    return [sample for sample in samples if any(sample.mask)]


def _append(sample: Sample, turn: Turn, numbers: dict[str, float]) -> None:
    seen, acted = len(turn.observation_ids), len(turn.action_ids)
    sample.ids += turn.observation_ids + turn.action_ids
    sample.mask += [0] * seen + [int(numbers.get("weight", 1.0) > 0)] * acted
    for name, value in numbers.items():
        sample.streams.setdefault(name, []).extend([0.0] * seen + [value] * acted)


def written_sample(prompt: list[int], written: list[int]) -> Sample:
    """A prompt and the text to learn behind it: gradient only through the text's tokens."""
    return Sample(prompt + written, [0] * len(prompt) + [1] * len(written))
