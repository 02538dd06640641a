"""What retail's scripted user does not want in a proposal: another order, act, item or payment.

Where a sentence says what the agent will do, what stands before it is not judged.
"""

from __future__ import annotations

import re

from agentrl_cli.envs.tau.instruction import Item, Request
from agentrl_cli.envs.tau.intents import CONFIRM, ORDER_ID, REFUSED, YES_NO, sentences

PAYMENTS = r"\b(?:credit_card|gift_card|paypal)_\d+"
STREETS = r"\b\d+ [a-z]+ (?:street|avenue|drive|road|lane|boulevard)\b"
FILLER = r"(?:(?:the|your|to|on|old|current|original|payment|method|card) )*"
REJECTS = rf"\b(?:instead of|rather than|not) {FILLER}"  # what follows is not proposed
MOVES_FROM = rf"\bfrom {FILLER}"
REASONS = ("no longer needed", "ordered by mistake")
OFFERS = re.compile(r"\b(i will|i'll|i am going to|i'm going to|(shall|should) i)\b", re.I)
IMPOSSIBLE = re.compile(r"\b((can|will|could) (no longer|not)|no longer be|won't|anymore)\b", re.I)
CLAUSE = re.compile(r"[.!?;]\s|\n|,|\b(?:since|because|as|but)\b")
CHANGES = r"\b(?:modif|chang|swap|updat|replac|switch)\w*\b"
SAME_CLAUSE = r"(?:(?!\b(?:items?|with|using|via|for|and)\b)[^.:;,?])*?"
OWN_WORDS = {
    "cancel": r"\bcancel",
    "return": r"\breturn",
    "exchange": r"\bexchang|\b(chang|swap|replac)",
    "modify": CHANGES,
    "payment": rf"\b(payment|pay|charge)|{PAYMENTS}",
    "address": rf"\b(address|ship|deliver to|send)|{STREETS}",
}
OTHER_WORDS = {  # stricter: words that name the act and are no detail of another
    "cancel": r"\bcancel",
    "return": r"(?<!how to )(?<!you )\breturn(s|ing)?\b(?! to| of the (money|refund))"
    r"|\bbe returned\b(?! to)",
    "exchange": r"\bexchang",
    "modify": rf"{CHANGES}[^.:;,?]*?\bitems?\b",
    "payment": rf"{CHANGES}{SAME_CLAUSE}\bpayment",
    "address": rf"{CHANGES}{SAME_CLAUSE}(?<!mail )\baddress"
    r"|\b(ship|deliver|send)(ing)?\b[^.:;,?]*?\bto \d",
}
ANY_ACT = rf"\b(cancel|return|exchang)|{CHANGES}"
# either is said of the other, where its own word is said too
INTERCHANGEABLE = {"modify", "exchange"}
REPLACEMENT = re.compile(
    r"\b(for|to|with|into)\s+(?!(the |a |your |this )?(order|payment|difference|refund|card|"
    r"credit_card|gift_card|paypal|proceed|confirm|you|your|this|be|go|do|settle|cover)\b|#)"
)


def objection(wish: Request, products: list[str], proposal: str) -> str:
    """What in a proposal is not what the user wants; "" for nothing. `products` are the names of
    all that the shop sells."""
    proposal = YES_NO.sub("", proposal)
    part, text = proposed_part(proposal), proposed_part(proposal).lower()
    if any(order != wish.order for order in ORDER_ID.findall(part) or ORDER_ID.findall(proposal)):
        return "that is not the order I mean"
    paid = text if re.search(PAYMENTS, text) else proposal.lower()
    if wish.payment and _names_other(wish.payment, PAYMENTS, paid, moves=wish.kind == "payment"):
        return "that is not the payment method I want"
    other = [reason for reason in REASONS if reason in text and reason != wish.reason]
    if wish.reason and other and wish.reason not in text:
        return "that is not my reason"
    if _names_other_act(wish.kind, text):
        return "that is not what I asked for"
    street = wish.address.get("address1", "").lower()
    if street and _names_other(street, STREETS, text, moves=True):
        return "that is not the address I want"
    named = any(contains_words(name, text) for name in products)
    return _item_objection(wish.items, products, text if named else proposal.lower())


def proposed_part(proposal: str) -> str:
    """From the first sentence that names what the agent will do; without one, the whole text."""
    parts, acts = sentences(proposal), "|".join(OWN_WORDS.values())
    for i, sentence in enumerate(parts):
        proposes = OFFERS.search(sentence) or CONFIRM.search(sentence)
        if proposes and re.search(acts, sentence.lower()):
            return "\n".join(parts[i:])
    return proposal


def contains_words(words: str, text: str) -> bool:
    """Whether a text in lower case holds the words as whole words."""
    return re.search(rf"(?<!\w){re.escape(words.lower())}(?!\w)", text) is not None


def _names_other(wanted: str, pattern: str, text: str, *, moves: bool) -> bool:
    """Whether a proposal holds something of the pattern that is not wanted, or rejects what is.
    Where the act `moves` something, what it moves from is no matter."""
    rejected = re.findall(rf"{REJECTS}({pattern})", text)
    text = re.sub(rf"{REJECTS}{pattern}", "", text)
    text = re.sub(rf"{MOVES_FROM}{pattern}", "", text) if moves else text
    return wanted in rejected or any(found != wanted for found in re.findall(pattern, text))


def _names_other_act(kind: str, text: str) -> bool:
    """Whether an act is proposed that the user did not ask for; what cannot be done is none."""
    clauses = [c for c in CLAUSE.split(text) if not REFUSED.search(c) and not IMPOSSIBLE.search(c)]
    own = any(re.search(OWN_WORDS[kind], clause) for clause in clauses)
    alike = INTERCHANGEABLE if own and kind in INTERCHANGEABLE else {kind}
    acts = [words for other, words in OTHER_WORDS.items() if other not in alike]
    return any(re.search(act, c) for c in clauses for act in (acts if own else [ANY_ACT, *acts]))


def _item_objection(wanted: tuple[Item, ...], products: list[str], text: str) -> str:
    """Items that the proposal names but nobody wants, or that it forgets while naming some; and
    options that are not those wanted."""
    named = [name for name in products if contains_words(name, text)]
    values = [v for item in wanted for v in (item.options | item.wanted).values()]
    inside = " ".join([*(item.name for item in wanted), *values]).lower()
    if wanted and any(name.lower() not in inside for name in named):
        return "I did not ask for that item"
    if named and any(item.name.lower() not in text for item in wanted):
        return "you left an item out"
    if any(_options_differ(item, products, text) for item in wanted):
        return "those are not the options I want"
    return ""


def _options_differ(item: Item, products: list[str], text: str) -> bool:
    """Whether a proposal says what an item shall become, and does not name all that is wanted."""
    if not item.wanted or not contains_words(item.name, text):
        return False
    after = _text_after(item, products, text)
    where = after if REPLACEMENT.search(after) or _mentions_options(item, after) else text
    is_named = where is after or _mentions_options(item, text)
    return is_named and not all(contains_words(value, where) for value in item.wanted.values())


def _mentions_options(item: Item, text: str) -> bool:
    return any(contains_words(word, text) for pair in item.wanted.items() for word in pair)


def _text_after(item: Item, products: list[str], text: str) -> str:
    """What stands behind an item's name, up to another product or the end of the clause."""
    own = {item.name.lower(), *map(str.lower, (item.options | item.wanted).values())}
    others = [re.escape(name.lower()) for name in products if name.lower() not in own]
    end = "|".join([rf"(?<!\w)(?:{name})(?!\w)" for name in others] + [r";|[.!?]\s|$"])
    found = re.findall(rf"(?<!\w){re.escape(item.name.lower())}(?!\w)(.*?)(?={end})", text, re.S)
    return " ".join(found)
