"""How a forecast's outcome and a critique's verdict are read: by the very form that the embedded
models were taught, or tolerantly, as real models write. Nothing is composed or repaired, and what
is ambiguous is unreadable (None)."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from agentrl_cli.core.thinking import without_thinking

Reader = Callable[[str], bool | None]

EXACT_VERDICT = re.compile(r"\s*Optimality:\s*(Yes|No)\b")
EXACT_OUTCOME = re.compile(r"\b(Success|Failure)\W*\Z")

READ_CHARACTERS = 2000  # of each end of a text: where a role's answer says what it has to say
MARKUP = re.compile(r"[*_`#>|~]+")
# a sentence ends with its line too
SENTENCE_END = re.compile(r"(?<=[.!?])[\"')\]}]*\s+|\n+")
VERB = r"(?:\s+(?:is|was|will|would|be|an?|most|likely|probably|clearly|then|thus)\b){0,6}"
LABEL_END = r"[\s\"':=\u2013\u2014-]*"
ENDS = r"(?=[\"')\]}]*\s*(?:[.,;:!)\]}\u2013\u2014-]|\bbecause\b|\bsince\b|\bas\b|$))"
STATED_OUTCOME = re.compile(
    rf"\b(?:outcome|result|prediction|forecast|verdict|ending)\b[\"']?{VERB}{LABEL_END}"
    rf"(?:\b(?P<no>not)\s+)?\b(?:an?\s+)?(?P<word>success|failure)\b{ENDS}",
    re.MULTILINE,
)
BARE_OUTCOME = re.compile(r"\W*(success|failure)\W*")
NAMED_OUTCOME = re.compile(r"\b(success|failure)\b")
LINKED_OUTCOME = re.compile(  # a sentence that says how it ends, not one that merely has the word
    r"(?:[,;:\u2013\u2014-]|\b(?:in|with|as|is|was|be|an?))\s+(?:eventual\s+|overall\s+)?"
    r"(success|failure)\b"
)
LABELLED_VERDICT = (
    rf"\b(?:optimality|optimal|verdict)\b[\"']?(?:\s+is)?{LABEL_END}"
    rf"\b(?P<word>yes|no|not\s+optimal|sub-?optimal|optimal)\b{ENDS}"
)
STATED_VERDICT = re.compile(rf"(?:^|(?<=[.!?])\s)\W*{LABELLED_VERDICT}", re.MULTILINE)
ANY_VERDICT = re.compile(LABELLED_VERDICT, re.MULTILINE)
YES_OR_NO = re.compile(rf"\W*(yes|no)\b{ENDS}")
BEST = r"(?:the\s+)?(?:very\s+)?(?:optimal|best)\b(?!\s+(?:to|way)\b)"
IS_BEST = re.compile(rf"\b(?:is|was)\s+(?:indeed\s+|clearly\s+|already\s+|an?\s+)*{BEST}")
IS_NOT_BEST = re.compile(
    rf"\b(?:not|never|n't|isn't|wasn't)\s+(?:\w+ly\s+|quite\s+|an?\s+)*{BEST}|\bsub-?optimal\b"
)
NEGATION = re.compile(r"\b(?:not|never|unlikely)\b|n't\b")
# words with which a sentence that names one outcome may mean the other, or neither
HEDGE = re.compile(
    r"\b(?:if|unless|whether|or|either|both|may|might|could|can|would|should|depends?|perhaps|maybe|"
    r"possibly|unclear|uncertain|chances?|risks?|avoid\w*|without|instead|rather|than|no|hardly|"
    r"prevent\w*|despite|between|but|however|although|though|hopes?|versus|vs)\b"
)
TAKEN_BACK = re.compile(r"\b(?:if|unless|but|however|although|though|except|only)\b")


@dataclass(frozen=True)
class Reading:
    """How both are read: Success (True) or Failure (False) of a forecast, Yes (True) or No (False)
    of a critique, None where it cannot be told."""

    outcome: Reader
    verdict: Reader


def exact_outcome(forecast: str) -> bool | None:
    """The outcome that a forecast ends with: Success (True), Failure (False), or None."""
    found = EXACT_OUTCOME.search(forecast)
    return None if found is None else found[1] == "Success"


def exact_verdict(critique: str) -> bool | None:
    """Whether a critique opens with `Optimality: Yes` or `Optimality: No`; None for neither."""
    found = EXACT_VERDICT.match(critique)
    return None if found is None else found[1] == "Yes"


def stated_outcome(forecast: str) -> bool | None:
    """The outcome of a stored forecast whose run could read it, in either way."""
    found = exact_outcome(forecast)
    return tolerant_outcome(forecast) if found is None else found


def tolerant_outcome(forecast: str) -> bool | None:
    """The outcome that a forecast states: after a label (`Outcome: failure`), as a sentence of one
    word, or as the only one that its last or first sentence names. None where two differ."""
    text = plain(forecast)
    sentences = [one for one in SENTENCE_END.split(text) if re.search(r"\w", one)]
    stated = {(m["word"] == "success") != bool(m["no"]) for m in STATED_OUTCOME.finditer(text)}
    bare = [BARE_OUTCOME.fullmatch(one) for one in sentences]
    stated |= {match[1] == "success" for match in bare if match}
    if stated or not sentences:
        return _agreed(stated)
    named = (_named_outcome(sentences[-1]), _named_outcome(sentences[0]))
    return _agreed({one for one in named if one is not None})


def tolerant_verdict(critique: str) -> bool | None:
    """The verdict that a critique states: after a label (`**Optimality:** No`), or with which its
    first sentence begins, or which that states (`… was not optimal`). None where two differ."""
    text = plain(critique)
    if STATED_VERDICT.search(text):
        return _agreed({m["word"] in ("yes", "optimal") for m in ANY_VERDICT.finditer(text)})
    first = next((one for one in SENTENCE_END.split(text) if re.search(r"\w", one)), "")
    opened = YES_OR_NO.match(first)
    said = {opened[1] == "yes"} if opened else set[bool]()
    return _agreed(said | _judged(re.split(r"\b(?:because|since|as)\b", first)[0], opened))


def plain(text: str) -> str:
    """The text in lower case without thinking and Markdown; thinking that does not end is all. Of a
    long text its beginning and its end."""
    text = without_thinking(text).lower().replace("\u2019", "'")
    if len(text) > 2 * READ_CHARACTERS:
        text = f"{text[:READ_CHARACTERS]}\n{text[-READ_CHARACTERS:]}"
    return "\n".join(line.strip() for line in MARKUP.sub("", text).strip().splitlines())


def _named_outcome(sentence: str) -> bool | None:
    """The one outcome that a sentence names, turned round by a `not` before it; None where it
    names none or both, or hedges."""
    found, linked = set(NAMED_OUTCOME.findall(sentence)), LINKED_OUTCOME.search(sentence)
    if linked is None or len(found) != 1 or HEDGE.search(sentence):
        return None
    negations = NEGATION.findall(sentence)
    if len(negations) > 1 or NEGATION.search(sentence, linked.end()):
        return None
    return (linked[1] == "success") != bool(negations)


def _judged(clause: str, opened: re.Match[str] | None) -> set[bool]:
    """What a clause says of the turn; both where it says yes and takes it back or hedges."""
    if IS_NOT_BEST.search(clause):
        return {False}
    best, begin = IS_BEST.search(clause), opened.end() if opened else 0
    before = clause[begin : best.start() if best else None]
    after = clause[best.end() :] if best else ""
    if opened and opened[1] == "no" and best is None:
        return set()
    if HEDGE.search(before) or NEGATION.search(clause) or TAKEN_BACK.search(after):
        return {True, False}
    return {True} if best else set()


def _agreed(found: set[bool]) -> bool | None:
    return found.pop() if len(found) == 1 else None


READINGS = {
    "exact": Reading(exact_outcome, exact_verdict),
    "tolerant": Reading(tolerant_outcome, tolerant_verdict),
}
ReadingName = Literal["exact", "tolerant"]
