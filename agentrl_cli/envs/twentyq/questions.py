"""Parses a player's text: a question about an attribute, a guess of one object, or neither.

`parse` reads the table's own wording. The whole last line must be the question or guess, so naming
many objects, or one in passing, never wins.

`read_freely` parses questions as real models write them: numbered, in bold, after thinking, with
chatter. The text must contain one question or guess. In a plain form it must equal one of the
table's questions or a synonym, so that every answer is true. Questions that the table cannot answer
are distinguished from text that is not a question.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import lru_cache
from pathlib import Path

import yaml

from agentrl_cli.core.text import without_thinking
from agentrl_cli.envs.twentyq.world import World

MAX_LENGTH = 200
ACTION = re.compile(r"^[ \t]*action[ \t]*:(.*)$", re.IGNORECASE | re.MULTILINE)
GUESS_PHRASES = re.compile(
    r"(?:(?:i guess|my guess is)(?: that)?(?: it is| its)?|is it|it is|its|could it be|are they"
    r"|is (?:the|your|this)(?: hidden| secret)? (?:object|answer|word|thing)) (.+)"
)
DETERMINERS = re.compile(r"^(?:(?:a|an|the|some) )?(?:(?:pair|piece) of )?(?:a |an |the )?")
ARTICLES = re.compile(r"\b(?:a|an|the|some) ")
COLOURS = ("orange",)  # "is it orange?" asks for the colour, "is it an orange?" guesses
WORDINGS = yaml.safe_load(Path(__file__).with_name("wordings.yaml").read_text(encoding="utf-8"))

# of real models
MAX_TEXT = 8000  # characters at the end of a turn that are parsed
NEAR = 3  # attributes that are suggested if none matches
MARKUP = re.compile(r"[*_`#>~]+")
SENTENCE_END = re.compile(r"(?<=[?!])\s+|(?<=[a-z\")]\.)\s+|\n+")
LABEL = re.compile(
    r"^\W*(?:(?:my |the |next |final |first )*"
    r"(?:(?P<guess>guess)\b|(?:question|action)\b|q(?=\s?\d))"
    r"\s*(?:#|no\.?)?\s*\d*"
    r"(?:\s*(?:/|of)\s*\d+)?\s*[:.)\-\u2013\u2014]+|\d{1,2}\s*[.:)])\s*",
    re.IGNORECASE,
)
LEAD_IN = re.compile(
    r"^(?:(?:ok(?:ay)?|so|well|hmm+|great|got it|alright|all right|now|then|and|next|good|thanks?)"
    r"\b[\s,.!:-]*|(?:let me|i'?ll|i will|i'?d like to|i want to) ask[\s,:]*|"
    r"my (?:next |first |final )?question (?:is|would be)[\s,:]*)+",
    re.IGNORECASE,
)
TO_THE_HOST = re.compile(
    r"^\W*(?:would you|do you want|shall i|should i|shall we|are you|am i|"
    r"is that (?:right|correct)|"
    r"can i|may i|can you (?:give|tell|play)|could you|ready|what|which|how|who|where|why|when)\b",
    re.IGNORECASE,
)
GUESS = re.compile(
    r"^(?:i(?:'m| am)? (?:think|guess|believe|say|bet|guessing)(?: that)? |"
    r"(?:is )?my (?:final |best )?guess (?:is|would be)?:? ?(?:that )?|(?:final )?guess[: ]+|"
    r"the (?:answer|object) is )(?:it(?: i|')?s |you(?:'re| are) thinking of )?(?P<name>.+)$"
)
EXAMPLES = re.compile(
    r"\s*\((?:like|such as|e\.?g|for example|for instance|i\.?e)\b[^()]*\)"
    r"|,? such as [^?]*|, like [^?]*|, for example[^?]*",
    re.IGNORECASE,
)
NOUN = r"(?:object|item|thing|entity|answer|word|secret|mystery)"
SUBJECT = re.compile(
    rf"\b(?:the|this|that|your|my)(?: (?:hidden|secret|mystery))* {NOUN}"
    r"(?: (?:that )?you(?:'re| are| have)? (?:thinking of|in mind|have in mind|chose|picked))?\b"
)
ADVERBS = re.compile(
    r"\b(?:typically|usually|commonly|generally|often|primarily|mainly|mostly|normally|currently|"
    r"considered(?: to be)?|classified as|categorized as|(?:a |an )?(?:type|kind|sort|form) of) "
)
COMMON_FORMS = [(re.compile(pattern), to) for pattern, to in WORDINGS["common_forms"]]
FORMS = [(re.compile(pattern), to) for pattern, to in WORDINGS["forms"]] + COMMON_FORMS
STOP_WORDS = frozenset(WORDINGS["stop_words"].split())


@dataclass(frozen=True)
class Question:
    """A question about an attribute. The answer to a negated one is inverted."""

    attribute: str
    negated: bool


@dataclass(frozen=True)
class Guess:
    """A guess of one object."""

    object: str


@dataclass(frozen=True)
class Unanswerable:
    """A question without an attribute, and the most similar canonical questions."""

    text: str
    near: tuple[str, ...]


def parse(text: str, world: World) -> Question | Guess | None:
    """Return the question or guess in the text; None for anything else."""
    words = normalise(action_text(text))
    if words is None:
        return None
    question = _questions(world).get(ARTICLES.sub("", words))
    return question or _guess(words, world)


def action_text(text: str) -> str:
    """Return the text after the last `Action:` that starts a line, else the last line."""
    actions = ACTION.findall(text)
    return actions[-1] if actions else text.strip().rpartition("\n")[2]


def normalise(text: str) -> str | None:
    """Return lower case without hyphens, quotes and end marks; None if empty or too long."""
    text = text.strip()
    if not 0 < len(text) <= MAX_LENGTH:
        return None
    words = re.sub(r"[\s_\u2010-\u2013-]+", " ", text.lower())
    words = re.sub(r"['’\"“”*`]", "", words).strip(" ?!.")
    return words or None


def _guess(words: str, world: World) -> Guess | None:
    match = GUESS_PHRASES.fullmatch(words)
    if match is None or match[1] in COLOURS:
        return None
    name = _names(world).get(_name_key(match[1]))
    return Guess(name) if name else None


def _name_key(words: str) -> str:
    """Return a name without determiner and spaces: "a hot-dog" and "hotdog" are equal."""
    return DETERMINERS.sub("", words).replace(" ", "")


@lru_cache(maxsize=16)
def _questions(world: World) -> dict[str, Question]:
    found = {}
    for attribute in world.attributes:
        for text, negated in world.phrasings(attribute):
            words = ARTICLES.sub("", normalise(text) or "")
            found[words] = Question(attribute, negated)
    return found


@lru_cache(maxsize=16)
def _names(world: World) -> dict[str, str]:
    """Return the object of each form of a name. An object's own name takes precedence."""
    forms = [(name, form) for name in world.objects for form in (name, world.nouns[name])]
    for name in world.objects:
        written = [name, *world.variants[name]]
        forms += [(name, form) for form in written]
        forms += [(name, form) for text in written for form in _plural_and_singular(text)]
    found: dict[str, str] = {}
    for name, form in forms:
        found.setdefault(_name_key(normalise(form) or ""), name)
    return found


def _plural_and_singular(name: str) -> list[str]:
    """Return plurals of the name, and its singular if it looks like a plural."""
    head, _, last = name.rpartition(" ")
    plurals = [WORDINGS["plurals"][last]] if last in WORDINGS["plurals"] else []
    plurals.append(last + "es" if re.search(r"(s|x|z|ch|sh|o)$", last) else last + "s")
    if re.search(r"[^aeiou]y$", last):
        plurals.append(last[:-1] + "ies")
    if re.search(r"[^su]s$", last):
        plurals.append(last[:-1])
    return [f"{head} {plural}".strip() for plural in plurals]


# --- Questions of real models ---------------------------------------------------------------------


def read_freely(text: str, world: World) -> Question | Guess | Unanswerable | None:
    """Return the only question or guess in the text; None if there is none or more than one."""
    text = without_thinking(text)
    if exact := parse(text, world):
        return exact
    asked = question_text(text)
    if asked is None:
        return None
    return _parse_sentence(asked, world) or Unanswerable(asked, nearest(asked, world))


def question_text(text: str) -> str | None:
    """Return the question or guess of a text, without label and markup: the last labelled one, else
    the only one; None if there is none or more than one."""
    plain = MARKUP.sub("", without_thinking(text)[-MAX_TEXT:])
    sentences = [one.strip() for one in SENTENCE_END.split(plain) if one.strip()]
    labelled = [body for one in sentences if (body := _labelled(one))]
    if labelled:
        body = labelled[-1]
        return None if normalise(body) is None or TO_THE_HOST.match(body) else body
    asked = {body for one in sentences if _asks(body := LEAD_IN.sub("", one))}
    return asked.pop() if len(asked) == 1 else None


def nearest(asked: str, world: World) -> tuple[str, ...]:
    """Return the canonical questions of the NEAR attributes that share the most words with a
    question, the most similar first."""
    form = plain_form(asked)
    words, scores = _content(form), dict[str, tuple[int, float]]()
    for text, question in _plain_questions(world).items():
        score = len(words & _content(text)), SequenceMatcher(None, form, text).ratio()
        scores[question.attribute] = max(scores.get(question.attribute, score), score)
    ranked = sorted(scores, key=lambda attribute: scores[attribute], reverse=True)
    return tuple(world.question(attribute) for attribute in ranked[:NEAR])


def plain_form(text: str) -> str:
    """Return a question in the form for comparison, without articles, adverbs and examples: `Is the
    object something that is typically found in a home?` as `is it found in home`."""
    words = normalise(EXAMPLES.sub("", text.replace("\u2019", "'"))) or ""
    words = SUBJECT.sub("it", " ".join(words.split()))
    words = ADVERBS.sub("", words)
    for pattern, to in FORMS:
        words = pattern.sub(to, words)
    return ARTICLES.sub("", ADVERBS.sub("", words)).strip(" ,.;:")


def _parse_sentence(asked: str, world: World) -> Question | Guess | None:
    if question := _plain_questions(world).get(plain_form(asked)):
        return question
    words = " ".join((normalise(EXAMPLES.sub("", asked)) or "").split())
    named = GUESS.match(words)
    form = f"is it {named['name']}" if named else SUBJECT.sub("it", words)
    for pattern, to in COMMON_FORMS:
        form = pattern.sub(to, form)
    found = parse(ADVERBS.sub("", form), world)
    return found if isinstance(found, Guess) else None


@lru_cache(maxsize=16)
def _plain_questions(world: World) -> dict[str, Question]:
    """Return the meaning of the plain form of each question and synonym."""
    found: dict[str, Question] = {}
    for attribute in world.attributes:
        for text, negated in world.phrasings(attribute):
            found.setdefault(plain_form(text), Question(attribute, negated))
    for line in Path(__file__).with_name("synonyms.txt").read_text(encoding="utf-8").splitlines():
        key, *texts = (part.strip() for part in line.split("|"))
        if texts and key.lstrip("-") in world.attributes:
            question = Question(key.lstrip("-"), key.startswith("-"))
            found |= {plain_form(t): question for t in texts if plain_form(t) not in found}
    return found


def _asks(sentence: str) -> bool:
    words = normalise(sentence)
    if words is None or TO_THE_HOST.match(sentence):
        return False
    return sentence.rstrip("\"') ").endswith("?") or GUESS.match(words) is not None


def _labelled(sentence: str) -> str:
    """Return the text after a label; "" without a label."""
    label = LABEL.match(sentence)
    body = LEAD_IN.sub("", sentence[label.end() :]) if label else ""
    names = label is not None and label["guess"] and body and not GUESS.match(body.lower())
    return f"My guess is {body}" if names and not body.endswith("?") else body


def _content(text: str) -> set[str]:
    return {word.rstrip("s") for word in re.findall(r"[a-z]+", text.lower())} - STOP_WORDS
