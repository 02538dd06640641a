"""What a submitted answer and saved lines are worth: normalised exact match, proof, and F1."""

from __future__ import annotations

import re
import string
from collections.abc import Collection, Iterable, Sequence

from agentrl_cli.envs.wiki.pages import Line

ARTICLES = re.compile(r"\b(a|an|the)\b")
PUNCTUATION = str.maketrans("", "", string.punctuation)
SPARE = 2  # lines that may be saved for each that proves something

Proof = Sequence[Collection[Line]]  # of each step the lines that prove it, any one of them


def normalise(text: str) -> str:
    """An answer without case, punctuation, articles and spare spaces, as SQuAD and HotpotQA compare
    answers (Rajpurkar et al. 2016)."""
    return " ".join(ARTICLES.sub(" ", text.lower().translate(PUNCTUATION)).split())


def is_right(answer: str, answers: Iterable[str]) -> bool:
    """Whether an answer is one of the right ones but for what `normalise` leaves out; where that is
    all of it, to the letter."""
    known = list(answers)
    given = normalise(answer)
    return (bool(given) and given in map(normalise, known)) or answer.strip() in known


def proves(saved: Collection[Line], proof: Proof) -> bool:
    """Whether the saved lines hold one for every step of the proof, and are at most twice as many
    as its steps: whoever saves everything has read nothing."""
    return len(saved) <= SPARE * len(proof) and all(set(step) & set(saved) for step in proof)


def f1(saved: Collection[Line], proof: Proof) -> float:
    """The harmonic mean of the share of saved lines that are in the proof and the share of its
    steps that have a saved line; 1 where nothing is to be saved and nothing is."""
    wanted = {line for step in proof for line in step}
    if not proof or not saved:
        return float(not proof and not saved)
    precision = sum(line in wanted for line in saved) / len(saved)
    recall = sum(bool(set(step) & set(saved)) for step in proof) / len(proof)
    return 2 * precision * recall / (precision + recall) if precision + recall else 0.0
