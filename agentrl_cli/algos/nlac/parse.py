"""Parse the texts of the roles: the outcome of a forecast and the verdict of a critique.

The strict parser accepts exactly the form that the bundled models learned. The lenient parser
accepts the ways in which other models write it. Both return None for an ambiguous text and never
repair one. `role_reports` counts how much of each role's text can be parsed.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from agentrl_cli.core.errors import UserError
from agentrl_cli.core.text import without_thinking

STRICT_VERDICT = re.compile(r"\s*Optimality:\s*(Yes|No)\b")
STRICT_OUTCOME = re.compile(r"\b(Success|Failure)\W*\Z")

PARSED_CHARACTERS = 2000  # at each end of a text
MARKUP = re.compile(r"[*_`#>|~]+")
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
LINKED_OUTCOME = re.compile(  # states how the episode ends, not only mentions the word
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
DENIED = re.compile(rf"\b(?:cannot|fails?\s+to)\b|{NEGATION.pattern}")
BEFORE_OUTCOME = {  # words between a negation and the outcome that it denies
    "a", "an", "as", "be", "been", "conversation", "count", "counted", "end", "ends", "episode",
    "eventual", "finish", "game", "going", "in", "it", "likely", "outcome", "overall", "result",
    "seen", "that", "the", "this", "to", "will", "with",
}  # fmt: skip
# a sentence with one outcome and one of these words may mean the other outcome, or neither
HEDGE = re.compile(
    r"\b(?:if|unless|whether|or|either|both|may|might|could|can|would|should|depends?|perhaps|maybe|"
    r"possibly|unclear|uncertain|chances?|risks?|avoid\w*|without|instead|rather|than|no|hardly|"
    r"prevent\w*|despite|between|but|however|although|though|hopes?|versus|vs)\b"
)
TAKEN_BACK = re.compile(r"\b(?:if|unless|but|however|although|though|except|only)\b")


@dataclass(frozen=True)
class Parser:
    """`outcome` returns True for a forecast of success and False for one of failure. `verdict`
    returns True for a critique that calls its action optimal, else False. Both return None for a
    text that cannot be parsed."""

    outcome: Callable[[str], bool | None]
    verdict: Callable[[str], bool | None]


def strict_outcome(forecast: str) -> bool | None:
    """Return the outcome if the forecast ends with the word Success or Failure."""
    found = STRICT_OUTCOME.search(forecast)
    return None if found is None else found[1] == "Success"


def strict_verdict(critique: str) -> bool | None:
    """Return the verdict if the critique starts with `Optimality: Yes` or `Optimality: No`."""
    found = STRICT_VERDICT.match(critique)
    return None if found is None else found[1] == "Yes"


def lenient_outcome(forecast: str) -> bool | None:
    """Return the outcome after a label (`Outcome: failure`) or in a sentence of one word, else the
    only one named in the last or first sentence. Return None if two differ."""
    text = plain(forecast)
    sentences = [one for one in SENTENCE_END.split(text) if re.search(r"\w", one)]
    stated = {(m["word"] == "success") != bool(m["no"]) for m in STATED_OUTCOME.finditer(text)}
    bare = [BARE_OUTCOME.fullmatch(one) for one in sentences]
    stated |= {match[1] == "success" for match in bare if match}
    if stated or not sentences:
        return _single(stated)
    named = (_named_outcome(sentences[-1]), _named_outcome(sentences[0]))
    return _single({one for one in named if one is not None})


def lenient_verdict(critique: str) -> bool | None:
    """Return the verdict after a label (`**Optimality:** No`), else the verdict of the first
    sentence (`Yes, …`, `… was not optimal`). Return None if two differ."""
    text = plain(critique)
    if STATED_VERDICT.search(text):
        return _single({m["word"] in ("yes", "optimal") for m in ANY_VERDICT.finditer(text)})
    first = next((one for one in SENTENCE_END.split(text) if re.search(r"\w", one)), "")
    opened = YES_OR_NO.match(first)
    said = {opened[1] == "yes"} if opened else set[bool]()
    return _single(said | _judged(re.split(r"\b(?:because|since|as)\b", first)[0], opened))


def stated_outcome(forecast: str) -> bool | None:
    """Return the outcome of a stored forecast by the strict parser, else by the lenient one."""
    found = strict_outcome(forecast)
    return lenient_outcome(forecast) if found is None else found


def plain(text: str) -> str:
    """Return the text in lower case without thinking and Markdown, and only both ends of a long
    text. Unfinished thinking is removed to the end."""
    text = without_thinking(text).lower().replace("\u2019", "'")
    if len(text) > 2 * PARSED_CHARACTERS:
        text = f"{text[:PARSED_CHARACTERS]}\n{text[-PARSED_CHARACTERS:]}"
    return "\n".join(line.strip() for line in MARKUP.sub("", text).strip().splitlines())


def _named_outcome(sentence: str) -> bool | None:
    """Return the only outcome that a sentence names, inverted by a `not` that denies it.
    Return None if it names none or both, hedges, or says `not` of anything else."""
    found, linked = set(NAMED_OUTCOME.findall(sentence)), LINKED_OUTCOME.search(sentence)
    if linked is None or len(found) != 1 or HEDGE.search(sentence):
        return None
    negations = list(DENIED.finditer(sentence))
    if not negations:
        return linked[1] == "success"
    between = sentence[negations[0].end() : linked.start(1)].split()
    is_before = negations[0].start() < linked.start(1)
    if len(negations) > 1 or not is_before or not BEFORE_OUTCOME.issuperset(between):
        return None
    return linked[1] != "success"


def _judged(clause: str, opened: re.Match[str] | None) -> set[bool]:
    """Return the verdicts of a clause: both if it says yes and then takes it back or hedges."""
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


def _single(found: set[bool]) -> bool | None:
    return found.pop() if len(found) == 1 else None


PARSERS = {
    "strict": Parser(strict_outcome, strict_verdict),
    "lenient": Parser(lenient_outcome, lenient_verdict),
}

# --- how much of each role's text can be parsed ---

SHOWN_CHARACTERS = 160  # of a sample text
FORMS = {
    "evaluate": "start with Optimality: Yes. or Optimality: No.",
    "refine": "are one complete action",
}


@dataclass(frozen=True)
class RoleText:
    """A text that a role wrote; `is_complete` is false if the token limit cut it."""

    role: str
    text: str
    is_complete: bool

    def meaning(self, parser: Parser) -> str | None:
        """Return the parsed text in words, None if it cannot be parsed."""
        if self.role == "refine":
            return "an action" if self.is_complete and self.text.strip() else None
        if self.role == "evaluate":
            found, words = parser.verdict(self.text), ("Optimality: No", "Optimality: Yes")
        elif self.role == "forecast" or self.is_complete:  # a training target must be complete
            found, words = parser.outcome(self.text), ("Failure", "Success")
        else:
            return None
        return None if found is None else words[found]


@dataclass(frozen=True)
class RoleReport:
    """The texts that one role wrote and the meaning of each."""

    role: str
    texts: list[RoleText]
    meanings: list[str | None]

    @property
    def share(self) -> float:
        """The share of texts that can be parsed."""
        return 1 - self.meanings.count(None) / len(self.texts)

    @property
    def line(self) -> str:
        """The report in one line, with a sample and the setting to change."""
        count, failed, role = len(self.texts), self.meanings.count(None), self.role
        shown = self.meanings.index(None) if failed else 0
        sample, meaning = " ".join(self.texts[shown].text.split()), self.meanings[shown]
        line = f"{count - failed} of {count} texts can be parsed; "
        line += f"parsed as {meaning}" if meaning else "not parsable"
        line += f": {sample[:SHOWN_CHARACTERS]!r}"
        if not failed:
            return line
        cut = sum(not text.is_complete for text in self.texts)
        if cut > failed / 2:
            limit = "rollout.max_new_tokens" if role == "refine" else "algo.advanced.role_tokens"
            return f"{line}; {cut} were cut by the token limit: raise {limit}"
        form = FORMS.get(role, "end with the one word Success. or Failure.")
        return f"{line}; change the prompt of this role in algo.prompts so that answers {form}"


def role_reports(texts: list[RoleText], parser: Parser) -> list[RoleReport]:
    """Return one report per role, in the order in which they first wrote."""
    by_role: dict[str, list[RoleText]] = {}
    for text in texts:
        by_role.setdefault(text.role, []).append(text)
    return [RoleReport(k, row, [x.meaning(parser) for x in row]) for k, row in by_role.items()]


def require_parsable(reports: list[RoleReport], least: float) -> None:
    """Raise UserError with one line per role of which less than the share `least` is parsable."""
    name = f"algo.min_parse_rate is {least}"
    lines = [f"{name}, but of role '{r.role}' only {r.line}" for r in reports if r.share < least]
    if lines:
        raise UserError("\n".join(lines), code="unparsable-role")
