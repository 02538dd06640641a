"""Scores of answers and saved lines: normalised exact match, proof, and F1."""

from __future__ import annotations

import re
import string
from collections.abc import Collection, Iterable, Sequence

from agentrl_cli.envs.wiki.pages import Line

ARTICLES = re.compile(r"\b(a|an|the)\b")
PUNCTUATION = str.maketrans("", "", string.punctuation)
MAX_SAVED = 2  # lines that may be saved per step of a proof

Proof = Sequence[Collection[Line]]  # for each step the lines that prove it; one of them suffices


def normalise(text: str) -> str:
    """Remove case, punctuation, articles and extra spaces, as SQuAD and HotpotQA do to compare
    answers (Rajpurkar et al. 2016)."""
    return " ".join(ARTICLES.sub(" ", text.lower().translate(PUNCTUATION)).split())


def is_right(answer: str, answers: Iterable[str]) -> bool:
    """Return whether the answer equals one of `answers` after `normalise`, or exactly."""
    known = list(answers)
    normalised = normalise(answer)
    is_equal = bool(normalised) and normalised in map(normalise, known)
    return is_equal or answer.strip() in known


def proves(saved: Collection[Line], proof: Proof) -> bool:
    """Return whether the saved lines hold one for every step of the proof, and are at most twice as
    many as its steps, so that saving everything does not count."""
    return len(saved) <= MAX_SAVED * len(proof) and all(set(step) & set(saved) for step in proof)


def f1(saved: Collection[Line], proof: Proof) -> float:
    """Return the harmonic mean of precision (share of saved lines in the proof) and recall (share
    of steps with a saved line); 1 if nothing is to be saved and nothing is."""
    wanted = {line for step in proof for line in step}
    if not proof or not saved:
        return float(not proof and not saved)
    precision = sum(line in wanted for line in saved) / len(saved)
    recall = sum(bool(set(step) & set(saved)) for step in proof) / len(proof)
    return 2 * precision * recall / (precision + recall) if precision + recall else 0.0
