"""Questions about the built-in encyclopedia, with their answers and the lines that prove them, and
topics whose lines are to be collected."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from agentrl_cli.core.errors import UserError
from agentrl_cli.envs.wiki.answers import normalise
from agentrl_cli.envs.wiki.pages import Page
from agentrl_cli.envs.wiki.schema import Relation, relations_of
from agentrl_cli.envs.wiki.worlds import Entity, Part, Row

KINDS = {  # each kind with its share, the fewest and the most links to follow
    "lookup": (0.24, 1, 1), "bridge": (0.50, 2, 4), "comparison": (0.16, 0, 1),
    "count": (0.10, 0, 1),
}  # fmt: skip
MOST_HOPS = {"small": 3, "full": 4}  # of a bridge
LIST, SINGULAR = "works", "work"  # what is compared and counted
ORDERS = {"first": min, "last": max}
MOST_COMPARED = 3
DRAWS = 60  # of a question of one kind, most of which lead nowhere
MISSES = 300  # questions in a row that were known, until an encyclopedia has no more of them
ARTICLE_PAGES, ARTICLE_LINES = (2, 4), 8  # pages that name a topic, and lines at most


@dataclass(frozen=True)
class Hop:
    """A relation of an entity that a question asks for."""

    entity: Entity
    relation: Relation

    @property
    def values(self) -> list[str]:
        """What its page tells."""
        return self.entity.facts[self.relation.name]


@dataclass(frozen=True)
class _Drawing:
    """Draws questions about one part."""

    world: str
    part: Part
    by_name: dict[str, Entity]
    rng: random.Random

    def question(self, kind: str) -> Row | None:
        """A question of this kind, or None where the dice lead nowhere."""
        fewest, most = KINDS[kind][1:]
        hops = self.rng.randint(fewest, min(most, MOST_HOPS[self.world]))
        if kind in ("lookup", "bridge"):
            chain = self.chain(hops, lambda relation: not relation.several)
            return None if chain is None else self._asked(chain, kind)
        chain = self.chain(hops + 1, lambda relation: relation.name == LIST)
        if chain is None or (kind == "comparison" and len(chain[-1].values) > MOST_COMPARED):
            return None
        return self._counted(chain) if kind == "count" else self._compared(chain)

    def chain(self, hops: int, is_last: Callable[[Relation], bool]) -> list[Hop] | None:
        """So many relations from entity to entity, the last one of this sort."""
        entity, chain = self.rng.choice(self.part.entities), list[Hop]()
        for left in range(hops - 1, -1, -1):
            told = [r for r in relations_of(self.world, entity.kind) if r.name in entity.facts]
            told = [r for r in told if (not r.several and r.to != "year" if left else is_last(r))]
            if not told:
                return None
            chain.append(Hop(entity, self.rng.choice(told)))
            entity = self.by_name.get(chain[-1].values[0], entity)
        return chain

    def _asked(self, chain: list[Hop], kind: str) -> Row | None:
        head = "Who was" if chain[-1].relation.to == "person" else "What is"
        small, full = f"Name {self.phrase(chain)}.", f"{head} {self.phrase(chain)}?"
        return self._row(kind, small if self.world == "small" else full, chain[-1].values, chain)

    def _compared(self, chain: list[Hop]) -> Row | None:
        works = [self.by_name[name] for name in chain[-1].values]
        order = self.rng.choice(sorted(ORDERS))
        best = ORDERS[order](works, key=lambda work: work.year)
        year = next(r for r in relations_of(self.world, "work") if r.to == "year")
        of = self.phrase(chain).removeprefix(f"the {LIST} ")
        small, full = f"Name the {order} {SINGULAR} {of}.", f"What is the {order} {SINGULAR} {of}?"
        proved_by = [*chain, *(Hop(work, year) for work in works)]
        text = small if self.world == "small" else full
        return self._row("comparison", text, [best.name], proved_by)

    def _counted(self, chain: list[Hop]) -> Row | None:
        of = self.phrase(chain).removeprefix("the ")
        small, full = f"Count the {of}.", f"How many {of.replace(' of ', ' are known of ', 1)}?"
        count = [str(len(chain[-1].values))]
        return self._row("count", small if self.world == "small" else full, count, chain)

    def phrase(self, chain: Sequence[Hop]) -> str:
        """`the mother of the founder of Belford`."""
        names = [h.relation.name if self.world == "small" else h.relation.noun for h in chain]
        return " of ".join([*(f"the {name}" for name in reversed(names)), chain[0].entity.name])

    def _row(self, kind: str, text: str, answers: list[str], hops: list[Hop]) -> Row | None:
        """The task; None where the question names its own answer."""
        if any(f" {normalise(answer)} " in f" {normalise(text)} " for answer in answers):
            return None
        words = re.sub(r"^\w+ (is the|was the|many|the) ", "", text.rstrip(".?"))
        name = re.sub(r"[^a-z0-9]+", "-", f"{kind} {words}".lower()).strip("-")
        proof = [[list(line) for line in self._lines(hop)] for hop in hops]
        return {"id": name, "kind": kind, "question": text, "answers": answers, "proof": proof}

    def _lines(self, hop: Hop) -> list[tuple[str, int]]:
        """The lines that tell this: of its own page, and for a work's writer that of the writer."""
        lines = [(hop.entity.name, hop.entity.line_of[hop.relation.name])]
        other = self.by_name.get(hop.values[0])
        if other is not None and hop.entity.name in other.facts.get(LIST, ()):
            lines.append((other.name, other.line_of[LIST]))
        return lines


def make_questions(part: Part, world: str, count: int, rng: random.Random) -> list[Row]:
    """So many different questions about a part. Raises UserError where it has not as many."""
    drawing = _Drawing(world, part, {e.name: e for e in part.entities}, rng)
    kinds, shares = list(KINDS), [share for share, *_ in KINDS.values()]
    rows: dict[str, Row] = {}
    misses = 0
    while len(rows) < count and misses < MISSES:
        kind = rng.choices(kinds, shares)[0]
        draws = (drawing.question(kind) for _ in range(DRAWS))
        row = next((row for row in draws if row is not None), None)
        misses += 1
        if row is not None and row["question"] not in rows:
            rows[row["question"]], misses = row, 0
    if len(rows) < count:
        found = f"env.questions or env.test_questions is {count}: this encyclopedia has"
        raise UserError(f"{found} {len(rows)}; give fewer, or more env.pages")
    return list(rows.values())


def make_articles(part: Part) -> list[Row]:
    """Every topic of a part that a few pages name: the lines with its name, wherever they stand."""
    return [row for entity in part.entities if (row := _article(entity.name, part.pages))]


def _article(topic: str, pages: Sequence[Page]) -> Row | None:
    named = re.compile(rf"\b{re.escape(topic)}\b")
    lines = [
        [page.title, number]
        for page in pages
        for number, text in enumerate(page.lines, start=1)
        if named.search(text)
    ]
    fewest, most = ARTICLE_PAGES
    if not fewest <= len({title for title, _ in lines}) <= most or len(lines) > ARTICLE_LINES:
        return None
    name = re.sub(r"[^a-z0-9]+", "-", f"article {topic}".lower())
    question = f"Collect the lines that name {topic}."
    proof = [[line] for line in lines]
    return {"id": name, "kind": "article", "question": question, "answers": [], "proof": proof,
            "topic": topic}  # fmt: skip
