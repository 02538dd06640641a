"""A mediocre scripted reader of the small encyclopedia, which the bundled model imitates.

It has the observations of an agent only. Its mistakes are habits that depend on the question and
the kind of page, so most mistakes repeat.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from agentrl_cli.envs.wiki.browser import line_numbers, parse
from agentrl_cli.envs.wiki.generator import LIST, ORDERS
from tools.tiny_models.base import Habits

QUESTION = re.compile(r"(Name|Count) the (.+) of (\w+)\.")
HEADING = re.compile(r"(\w+), an? (\w+)\.")
RESULTS = re.compile(r"\d+ pages?[.,]")
FACT = re.compile(r"The (\w+) (?:is|are) (.+) \((\d+)\)\.")
RULES = (
    "Not done.", "Not that line.", "Not that page.", "Not there.", "Save the line first.", "Known.",
    "Not the answer.", "Answer now.", "Unclear.",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class ReaderHabits(Habits):
    """The reader's mistakes: it does not save a line (`unsaved`), takes a neighbouring line
    (`neighbour`), answers before the last page (`stop`), visits another page first (`astray`),
    compares only two (`skip`), counts one too few (`miscount`)."""

    player = "reader"


@dataclass(frozen=True)
class Fact:
    """The content of a line of a page."""

    relation: str
    line: int
    values: tuple[str, ...]

    @property
    def text(self) -> str:
        *first, last = self.values
        return f"{', '.join(first)} and {last}" if first else last


@dataclass(frozen=True)
class View:
    """The open page ("": results), and the titles of its links."""

    title: str
    leads_to: tuple[str, ...]


@dataclass
class ReaderState:
    """The question and the observations. `order` is first, last, count, or "" for a plain question;
    `chain` are the relations to follow from `entity`, the nearest first. `mistakes` are drawn once
    each."""

    entity: str = ""
    order: str = ""
    chain: tuple[str, ...] = ()
    nouns: dict[str, str] = field(default_factory=dict)
    facts: dict[str, tuple[Fact, ...]] = field(default_factory=dict)
    views: list[View] = field(default_factory=list)
    saved: set[tuple[str, int]] = field(default_factory=set)
    tried: set[tuple[str, str]] = field(default_factory=set)
    mistakes: dict[tuple[str, ...], bool] = field(default_factory=dict)

    def copy(self) -> ReaderState:
        copied = (self.nouns.copy(), self.facts.copy(), self.views.copy(), self.saved.copy())
        more = (self.tried.copy(), self.mistakes.copy())
        return ReaderState(self.entity, self.order, self.chain, *copied, *more)

    @property
    def open(self) -> str:
        return self.views[-1].title if self.views else ""

    def told(self, title: str, relation: str) -> Fact | None:
        return next((f for f in self.facts.get(title, ()) if f.relation == relation), None)

    def leads_to(self, title: str) -> bool:
        """Return whether the page can be opened from the open one."""
        return bool(self.views) and title in self.views[-1].leads_to


@dataclass(frozen=True)
class Goal:
    """The next goal: `open` a page for a relation, `save` the line with it, or `submit` the value.
    `compared` are the years of works."""

    kind: str
    title: str = ""
    relation: str = ""
    line: int = 0
    value: str = ""
    compared: tuple[tuple[str, int], ...] = ()


def ask(state: ReaderState, question: str) -> None:
    asked = QUESTION.match(question)
    if asked is None:
        return
    chain = [name.removeprefix("the ") for name in asked[2].split(" of ")]
    first, _, noun = chain[0].partition(" ")
    state.order = "count" if asked[1] == "Count" else first if noun else ""
    chain[0] = LIST if state.order else chain[0]
    state.entity, state.chain = asked[3], tuple(reversed(chain))


def observe(state: ReaderState, action: str, shown: str) -> None:
    """Update the state with an action and the browser's response."""
    read = parse(action)
    rows = [row for row in shown.split("\n") if not row.endswith(" left.") or ":" in row]
    page = HEADING.match(rows[0]) if rows else None
    state.tried.add((read.verb, read.argument))
    if read.verb == "save" and shown.startswith("Saved") and not shown.startswith("Saved before"):
        state.saved |= {(state.open, number) for number in line_numbers(read.argument)}
    elif read.verb == "back" and len(state.views) > 1:
        state.views.pop()
    elif read.verb == "open" and page:
        facts = tuple(Fact(f[1], int(f[3]), _values(f[2])) for f in map(FACT.match, rows) if f)
        state.facts[page[1]], state.nouns[page[1]] = facts, page[2]
        names = tuple(value for fact in facts for value in fact.values if not value.isdigit())
        state.views.append(View(page[1], names))
    elif read.verb in ("search", "open") and (RESULTS.match(shown) or read.verb == "search"):
        titles = tuple(found[1] for row in rows[1:] if (found := HEADING.match(row)))
        if read.verb == "open" and state.views:
            state.views.pop()
        state.views.append(View("", titles))


def _values(text: str) -> tuple[str, ...]:
    return tuple(re.split(r", | and ", text))


@dataclass(frozen=True)
class Reader:
    """Acts by its habits; without any it makes no mistake."""

    habits: ReaderHabits | None = None

    def goal(self, state: ReaderState, rng: random.Random) -> Goal:
        """Return the reader's goal: save lines of the open page, read on, return for lines that
        were not saved, or answer."""
        taken, end = self._walk(state, rng)
        unsaved = [
            Goal("save" if state.open == title else "open", title, f.relation, f.line, f.text)
            for title, f in taken
            if (title, f.line) not in state.saved and not self._forgets(state, title, f, rng)
        ]
        here = [goal for goal in unsaved if goal.kind == "save"]
        if here or (unsaved and end.kind == "submit"):
            return (here or unsaved)[0]
        return end

    def _walk(self, state: ReaderState, rng: random.Random) -> tuple[list[tuple[str, Fact]], Goal]:
        """Return the lines that lead to the answer so far, each with its page, and the next page or
        the answer."""
        title, taken = state.entity, list[tuple[str, Fact]]()
        for i, relation in enumerate(state.chain):
            if title not in state.facts:
                return taken, Goal("open", title, relation)
            fact = self._look(state, title, relation, rng)
            if fact is None:  # where it went astray there is no such line
                return taken, Goal("submit", value=title)
            taken.append((title, fact))
            if i + 1 == len(state.chain):
                break
            title = fact.values[0]
            if self._errs(state, rng, "stop", state.chain[i + 1], relation):
                return taken, Goal("submit", value=title)
        values = taken[-1][1].values
        if state.order in ORDERS:
            return self._compare(state, values, taken, rng)
        if state.order == "count":
            less = self._errs(state, rng, "miscount", str(len(values)))
            return taken, Goal("submit", value=str(len(values) - less))
        return taken, Goal("submit", value=values[0])

    def _compare(
        self, state: ReaderState, works: Sequence[str], taken: list[tuple[str, Fact]],
        rng: random.Random,
    ) -> tuple[list[tuple[str, Fact]], Goal]:  # fmt: skip
        """Return the lines with years, and the next work to read or the answer."""
        if self._errs(state, rng, "skip", state.order, str(len(works))):
            works = works[:-1]
        years: dict[str, int] = {}
        for work in works:
            fact = state.told(work, "year")
            if fact is None:
                return taken, Goal("open", work, "year")
            taken.append((work, fact))
            years[work] = int(fact.values[0])
        best = ORDERS[state.order](works, key=years.__getitem__)
        return taken, Goal("submit", value=best, compared=tuple(years.items()))

    def _look(
        self, state: ReaderState, title: str, relation: str, rng: random.Random
    ) -> Fact | None:
        """Return the right line or, by mistake, the next one with a name in it."""
        fact = state.told(title, relation)
        if fact is None or relation == LIST or title not in state.nouns:
            return fact
        if not self._errs(state, rng, "neighbour", relation, state.nouns[title]):
            return fact
        facts = state.facts[title]
        others = [*facts[fact.line :], *facts[: fact.line - 1]]
        named = [f for f in others if f.relation != LIST and not f.values[0].isdigit()]
        return named[0] if named else fact

    def _forgets(self, state: ReaderState, title: str, fact: Fact, rng: random.Random) -> bool:
        return self._errs(state, rng, "unsaved", fact.relation, state.nouns.get(title, ""))

    def _errs(self, state: ReaderState, rng: random.Random, mistake: str, *occasion: str) -> bool:
        """Return whether it makes this mistake, drawn once per question."""
        if self.habits is None:
            return False
        key = (mistake, *occasion)
        if key not in state.mistakes:
            state.mistakes[key] = rng.random() < self.habits.chance(mistake, *occasion)
        return state.mistakes[key]

    def choose_action(self, state: ReaderState, rng: random.Random) -> str:
        """Return the next action after a line of facts: a small model finds a name or a number only
        if it may first recite the line that holds it."""
        goal = self.goal(state, rng)
        action = right_actions(state, goal)[0]
        if goal.kind == "open" and ("search", goal.relation) not in state.tried:
            if self._errs(state, rng, "astray", goal.relation, goal.title[:2]):
                action = f"SEARCH {goal.relation}"
        return f"{compared(goal.compared)}{recall(goal)}\n{action}"

    def any_action(self, state: ReaderState, rng: random.Random) -> str:
        """Return an action of any kind after any line."""
        shown = list(state.views[-1].leads_to) if state.views else []
        names = [*shown, state.entity, *state.facts]
        values = [v for facts in state.facts.values() for fact in facts for v in fact.values]
        name, relation = rng.choice(names), rng.choice(state.chain or ("year",))
        lines = len(state.facts.get(state.open, ()))
        line = rng.randint(1, max(1, lines))
        action = rng.choice((
            f"OPEN {name}", f"OPEN {name}", f"SAVE {line}", f"SAVE {line}", f"SEARCH {name}",
            f"SEARCH {relation}", "BACK", f"FIND {relation}",
            f"SUBMIT {rng.choice([*values, name])}",
        ))  # fmt: skip
        read = [to_save(title, fact) for title, facts in state.facts.items() for fact in facts]
        return f"{recall(rng.choice([due(state), Goal('open', name, relation), *read]))}\n{action}"


def right_actions(state: ReaderState, goal: Goal) -> list[str]:
    """Return the actions that reach a goal, the shortest way first."""
    if goal.kind == "submit":
        return [f"SUBMIT {goal.value}"]
    if goal.kind == "save":
        return [f"SAVE {goal.line}"]
    if state.leads_to(goal.title):
        return [f"OPEN {goal.title}"]
    below = state.views[-2] if len(state.views) > 1 else None
    is_below = below is not None and goal.title in (below.title, *below.leads_to)
    return [*["BACK"] * is_below, f"SEARCH {goal.title}"]


def due(state: ReaderState) -> Goal:
    """Return the goal that follows from question and observations."""
    return Reader().goal(state, random.Random(0))


def check(state: ReaderState, action: str) -> str:
    """Return the goal that follows from the observations, and the rule that the action breaks. A
    small model detects a mistake only if it may recall the facts first."""
    return f"{recall(due(state))} {broken_rule(state, action)}"


def recall(goal: Goal) -> str:
    """Return the facts that the goal depends on: the answer, the line with its number if it was
    seen, or the search. They are in the order of the page, so that they can be copied."""
    if goal.kind == "submit":
        return f"It is {goal.value}."
    if not goal.line:
        return f"Look for the {goal.relation} of {goal.title}."
    verb = "are" if goal.relation == LIST else "is"
    return f"The {goal.relation} {verb} {goal.value} ({goal.line})."


def compared(years: Sequence[tuple[str, int]]) -> str:
    """Return the years of works in a sentence, "" if there are none."""
    return f"Of {', '.join(f'{work} {year}' for work, year in years)}. " if years else ""


def to_save(title: str, fact: Fact) -> Goal:
    """Return the action that saves the line of a fact."""
    return Goal("save", title, fact.relation, fact.line, fact.text)


def broken_rule(state: ReaderState, action: str) -> str:
    """Return the rule that an action breaks after these observations, or `Right.`."""
    goal, read = due(state), parse(action)
    if any(parse(right) == read for right in right_actions(state, goal)):
        return "Right."
    if not read.verb:
        return "Unclear."
    if read.verb == "submit":
        return "Not the answer." if goal.kind == "submit" else "Not done."
    if read.verb == "save":
        if saves_needed(state, line_numbers(read.argument)):
            return "Right."
        saved = {(state.open, number) for number in line_numbers(read.argument)} <= state.saved
        return "Known." if saved and state.open else "Not that line."
    if goal.kind != "open":
        return "Save the line first." if goal.kind == "save" else "Answer now."
    return "Not that page." if read.verb == "open" else "Not there."


def saves_needed(state: ReaderState, lines: Sequence[int]) -> bool:
    """Return whether saving these lines of the open page saves the evidence and no more."""
    taken, _ = Reader()._walk(state, random.Random(0))
    needed = {(title, fact.line) for title, fact in taken}
    new = {(state.open, line) for line in lines} - state.saved
    return bool(new) and new <= needed
