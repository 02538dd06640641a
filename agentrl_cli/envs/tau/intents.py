"""What an agent's words ask of retail's scripted user: who it is, a yes, or something else.

Words are judged one sentence at a time, because what one tells is no part of what another asks.
What a proposal holds is judged in `proposals`.
"""

from __future__ import annotations

import re

IDENTITY = re.compile(
    r"\b(e-?mail|zip|postal|identi\w+|authenticat\w+|full name|your name|first and last name|"
    r"who (am i|are you|you are))\b",
    re.I,
)
ASKS = re.compile(r"\?|\b(please|provide|tell|need|may i|could you)\b", re.I)
REQUESTS = re.compile(
    r"\?|\b(please (tell|provide|repeat|give|specify|name|share|confirm)|tell me|could you|may i|"
    r"i (\w+ )?need)\b",
    re.I,
)
CONFIRM = re.compile(
    r"\b(confirm\w*|yes/no|yes or no|proceed|go ahead|(shall|should) i|"
    r"(would|do) you (like|want) me to|is (this|that|it) (right|correct|ok(ay)?))\b",
    re.I,
)
YES_NO = re.compile(r"\b(yes/no|yes or no)\b", re.I)
EXPLICIT = re.compile(  # asks for a yes whatever else the sentence holds
    r"\bdo you confirm\b|\b(could|can) you (please )?confirm"
    r"(?! (the|your|this|which|what|how|when|where|who)\b)|"
    r"\bconfirm (the|your|this) (cancel|return|exchange|modif|change|detail)",
    re.I,
)
DETAIL = re.compile(r"\bconfirm (the|your|which|what)\b", re.I)  # "please confirm the order id"
OPEN_QUESTION = re.compile(r"\b(what|which|how|when|where|who|could you|can you)\b", re.I)
DONE = re.compile(
    r"\b(done|all set)\b|\b(is|are|has|have|was|were|been|successfully|now|'ve)\b(\s\w+){0,3}?\s"
    r"(cancell?ed|returned|exchanged|modified|updated|changed|submitted|initiated|completed)\b",
    re.I,
)
REFUSED = re.compile(r"\b(cannot|can't|can not|unable|not (possible|able|allowed))\b", re.I)
ANYTHING_ELSE = re.compile(
    r"\b(anything|something|what|how) else\b|\bfurther\b|\bany other\b|\bdo next\b", re.I
)
# a line that begins as a list's does belongs to the sentence before it
SENTENCE = re.compile(r"(?<=[.!?])(?<!\s\d\.)\s+(?![\s*•-])|\n+(?!\s*([*•-]|\d+[.)]))")
ORDER_ID = re.compile(r"#W\d+")


def sentences(text: str) -> list[str]:
    """The sentences of a text, lists with the words that open them."""
    found, start = [], 0
    for gap in SENTENCE.finditer(text):
        found.append(text[start : gap.start()])
        start = gap.end()
    return [*found, text[start:]]


def asks_identity(text: str) -> bool:
    """Whether a sentence asks who the user is; one that asks for a yes does not."""
    about = [s for s in sentences(text) if IDENTITY.search(s) and ASKS.search(s)]
    return any(not asks_confirmation(sentence) for sentence in about)


def asks_confirmation(text: str) -> bool:
    """Whether a sentence asks for a yes; "please confirm the order id" asks for something else."""
    if YES_NO.search(text):
        return True
    if DETAIL.search(text) and not ORDER_ID.search(text):
        return False
    asking = [s for s in sentences(text) if CONFIRM.search(s)]
    return any(EXPLICIT.search(s) or not OPEN_QUESTION.search(s) for s in asking)


def asks_something(text: str) -> bool:
    """Whether a sentence asks the user for something other than a further wish."""
    return any(REQUESTS.search(s) and not ANYTHING_ELSE.search(s) for s in sentences(text))


def asks_for_more(text: str) -> bool:
    """Whether the user is asked for a further wish."""
    return bool(ANYTHING_ELSE.search(text))


def reports_completion(text: str) -> bool:
    """Whether a sentence that asks nothing says that the wish was fulfilled or refused."""
    statements = (sentence for sentence in sentences(text) if not REQUESTS.search(sentence))
    return any(DONE.search(sentence) or REFUSED.search(sentence) for sentence in statements)
