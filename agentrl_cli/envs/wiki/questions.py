"""Questions about the built-in encyclopedia with answers and proofs, and topics to collect."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from agentrl_cli.core.errors import UserError
from agentrl_cli.envs.wiki.answers import normalise
from agentrl_cli.envs.wiki.schema import Entity, Part, Relation, Row, relations_of

KINDS = {  # share, minimum and maximum number of links to follow
    "lookup": (0.24, 1, 1), "bridge": (0.50, 2, 4), "comparison": (0.16, 0, 1),
    "count": (0.10, 0, 1),
}  # fmt: skip
MAX_HOPS = {"small": 3, "full": 4}  # of a bridge
LIST, SINGULAR = "works", "work"  # the relation that is compared and counted
ORDERS = {"first": min, "last": max}
MAX_COMPARED = 3
DRAWS = 60  # attempts for one question, most of which fail
MAX_REPEATS = 300  # consecutive known questions after which an encyclopedia counts as exhausted
ARTICLE_PAGES, ARTICLE_LINES = (2, 4), 8  # pages that name a topic, and the maximum of lines


@dataclass(frozen=True)
class Hop:
    """A relation of an entity in a question."""

    entity: Entity
    relation: Relation

    @property
    def values(self) -> list[str]:
        """The values on the entity's page."""
        return self.entity.facts[self.relation.name]


@dataclass(frozen=True)
class _Drawing:
    """Draws questions about one part."""

    variant: str
    part: Part
    by_name: dict[str, Entity]
    rng: random.Random

    def question(self, kind: str) -> Row | None:
        """Return a question of this kind, or None if the draw fails."""
        _, fewest, most = KINDS[kind]
        hops = self.rng.randint(fewest, min(most, MAX_HOPS[self.variant]))
        if kind in ("lookup", "bridge"):
            chain = self._chain(hops, lambda relation: not relation.several)
            if chain is None:
                return None
            head = "Who was" if chain[-1].relation.to == "person" else "What is"
            small, full = f"Name {self._phrase(chain)}.", f"{head} {self._phrase(chain)}?"
            return self._row(kind, small, full, chain[-1].values, chain)
        chain = self._chain(hops + 1, lambda relation: relation.name == LIST)
        if chain is None or (kind == "comparison" and len(chain[-1].values) > MAX_COMPARED):
            return None
        return self._count(chain) if kind == "count" else self._comparison(chain)

    def _chain(self, hops: int, is_last: Callable[[Relation], bool]) -> list[Hop] | None:
        """Follow relations from a random entity; the last one satisfies `is_last`."""
        entity, chain = self.rng.choice(self.part.entities), list[Hop]()
        for left in range(hops - 1, -1, -1):
            stated = [r for r in relations_of(self.variant, entity.kind) if r.name in entity.facts]
            if left:
                stated = [r for r in stated if not r.several and r.to != "year"]
            else:
                stated = [r for r in stated if is_last(r)]
            if not stated:
                return None
            chain.append(Hop(entity, self.rng.choice(stated)))
            entity = self.by_name.get(chain[-1].values[0], entity)
        return chain

    def _comparison(self, chain: list[Hop]) -> Row | None:
        works = [self.by_name[name] for name in chain[-1].values]
        order = self.rng.choice(sorted(ORDERS))
        best = ORDERS[order](works, key=lambda work: work.year)
        year = next(r for r in relations_of(self.variant, "work") if r.to == "year")
        of = self._phrase(chain).removeprefix(f"the {LIST} ")
        small, full = f"Name the {order} {SINGULAR} {of}.", f"What is the {order} {SINGULAR} {of}?"
        proof = [*chain, *(Hop(work, year) for work in works)]
        return self._row("comparison", small, full, [best.name], proof)

    def _count(self, chain: list[Hop]) -> Row | None:
        of = self._phrase(chain).removeprefix("the ")
        small, full = f"Count the {of}.", f"How many {of.replace(' of ', ' are known of ', 1)}?"
        return self._row("count", small, full, [str(len(chain[-1].values))], chain)

    def _phrase(self, chain: Sequence[Hop]) -> str:
        """Return `the mother of the founder of Belford`."""
        small = self.variant == "small"
        names = [hop.relation.name if small else hop.relation.noun for hop in chain]
        return " of ".join([*(f"the {name}" for name in reversed(names)), chain[0].entity.name])

    def _row(
        self, kind: str, small: str, full: str, answers: list[str], hops: list[Hop]
    ) -> Row | None:
        """Return the task, or None if the question names its own answer."""
        text = small if self.variant == "small" else full
        if any(f" {normalise(answer)} " in f" {normalise(text)} " for answer in answers):
            return None
        words = re.sub(r"^\w+ (is the|was the|many|the) ", "", text.rstrip(".?"))
        name = re.sub(r"[^a-z0-9]+", "-", f"{kind} {words}".lower()).strip("-")
        proof = [[list(line) for line in self._lines(hop)] for hop in hops]
        return {"id": name, "kind": kind, "question": text, "answers": answers, "proof": proof}

    def _lines(self, hop: Hop) -> list[tuple[str, int]]:
        """Return the lines that state a fact: on its own page, and for the writer of a work also on
        the writer's page."""
        lines = [(hop.entity.name, hop.entity.line_of[hop.relation.name])]
        other = self.by_name.get(hop.values[0])
        if other is not None and hop.entity.name in other.facts.get(LIST, ()):
            lines.append((other.name, other.line_of[LIST]))
        return lines


def make_questions(part: Part, variant: str, count: int, rng: random.Random) -> list[Row]:
    """Return `count` different questions about a part. Raises UserError if it has fewer."""
    drawing = _Drawing(variant, part, {e.name: e for e in part.entities}, rng)
    kinds, shares = list(KINDS), [share for share, *_ in KINDS.values()]
    rows: dict[str, Row] = {}
    repeats = 0
    while len(rows) < count and repeats < MAX_REPEATS:
        kind = rng.choices(kinds, shares)[0]
        draws = (drawing.question(kind) for _ in range(DRAWS))
        row = next((row for row in draws if row is not None), None)
        repeats += 1
        if row is not None and row["question"] not in rows:
            rows[row["question"]], repeats = row, 0
    if len(rows) < count:
        line = f"env.questions or env.test_questions is {count}: this encyclopedia has"
        line = f"{line} {len(rows)}; give fewer questions, or more env.pages"
        raise UserError(line, code="too-few-questions")
    return list(rows.values())


def make_articles(part: Part) -> list[Row]:
    """Return every topic that a few pages name, with all lines that contain the name."""
    return [row for entity in part.entities if (row := _article(entity.name, part))]


def _article(topic: str, part: Part) -> Row | None:
    named = re.compile(rf"\b{re.escape(topic)}\b")
    lines = [
        [page.title, number]
        for page in part.pages
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
