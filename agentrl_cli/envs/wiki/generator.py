"""Generate the built-in encyclopedia and its questions from a seed.

No text is taken from elsewhere. There are two parts without a link between them. Train questions
are about one part and test questions about the other, so no page serves both. `small` states every
fact in one plain sentence of words in the bundled tokenizer. `full` adds lands, rivers, several
phrasings, and lines that answer nothing. vocabulary.yaml holds the words and the relations.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import yaml

from agentrl_cli.core.errors import UserError
from agentrl_cli.core.text import with_article
from agentrl_cli.core.types import derive_seed
from agentrl_cli.envs.wiki.pages import Page, Row, WikiData, encyclopedia_of, link_key, normalise

VOCABULARY = yaml.safe_load(Path(__file__).with_name("vocabulary.yaml").read_text("utf-8"))
AUTHORS, GENERAL = ("writer", "poet"), "general"  # professions with works and with battles
OTHERS = ("painter", "teacher", "scientist", "explorer", "architect", "composer", "ruler")
BOOKS = ("book", "novel", "poem", "play")
SHARES = {"small": {"person": 0.40, "town": 0.14, "work": 0.34, "battle": 0.12}}
SHARES["full"] = SHARES["small"] | {"work": 0.30, "land": 0.02, "river": 0.02}
TEST_SHARE = 0.3  # of the pages
FAMILIES = 200  # family names in `full`, which nothing else has
YEARS_PER_PERSON = 12  # between consecutive births
FIRST_YEAR = 100
WORKS = (2, 4)  # of an author
FILLER_LINES = (1, 3)  # of a page of `full`
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


class Relation(NamedTuple):
    """A fact on pages of kind `of`; vocabulary.yaml describes the fields."""

    name: str
    noun: str
    of: str
    to: str
    phrases: list[str]
    plain: str = ""


RELATIONS = [Relation(**row) for row in VOCABULARY["relations"]]


@dataclass(eq=False)
class Entity:
    """A person, town, work, battle, land or river. `facts` maps a relation to names or a year, and
    `line_of` maps it to the line of its page."""

    name: str
    kind: str
    noun: str
    year: int = 0
    is_woman: bool = False
    facts: dict[str, list[str]] = field(default_factory=dict)
    line_of: dict[str, int] = field(default_factory=dict)

    def stated(self, variant: str) -> list[Relation]:
        """Return the relations that its page states."""
        return [r for r in _relations(variant, self.kind) if r.name in self.facts]


def _relations(variant: str, kind: str) -> list[Relation]:
    return [r for r in RELATIONS if r.of == kind and (variant == "full" or r.plain)]


@lru_cache(maxsize=64)
def built_in(variant: str, seed: int, pages: int, questions: tuple[int, int]) -> WikiData:
    """Return the encyclopedia `small` or `full` with about `pages` pages and the given numbers of
    train and test questions. Raises UserError for impossible numbers."""
    rng = random.Random(derive_seed("wiki", variant, seed))
    builder = _Builder(variant, rng)
    sizes = {"train": round(pages * (1 - TEST_SHARE)), "test": round(pages * TEST_SHARE)}
    parts = {split: builder.build(size) for split, size in sizes.items()}
    made = [page for part in parts.values() for page in part.values()]
    rng.shuffle(made)
    rows = {}
    for (split, part), count in zip(parts.items(), questions, strict=True):
        draw = random.Random(derive_seed("wiki", variant, seed, "questions", split))
        rows[split] = _Drawing(variant, [*part], draw).questions(count)
    articles = {split: _articles(part) for split, part in parts.items()}
    library = encyclopedia_of(made, number_last=variant == "small")
    return WikiData(f"wiki-{variant}", library, rows, articles)


class _Builder:
    """Generates parts of linked entities: entities first, then facts, then pages."""

    def __init__(self, variant: str, rng: random.Random) -> None:
        self.variant, self.rng = variant, rng
        self.entities: dict[str, list[Entity]] = {}
        starts, ends, adjectives, nouns = (
            VOCABULARY[key].split() for key in ("name_starts", "name_ends", "adjectives", "nouns")
        )
        words = [start + end for start in starts for end in ends]
        words = rng.sample(words, len(words))
        self.families, self.words = words[-FAMILIES:], iter(words)
        titles = [f"The {adjective} {noun}" for adjective in adjectives for noun in nouns]
        self.titles = iter(rng.sample(titles, len(titles)))

    def build(self, pages: int) -> dict[Entity, Page]:
        """Return a part with about `pages` pages."""
        self.entities = {
            kind: [self._entity(kind) for _ in range(max(2, round(share * pages)))]
            for kind, share in SHARES[self.variant].items()
        }
        self._date_people()
        self._settle_towns()
        self._assign_works()
        for person in self.entities["person"]:
            self._relate_person(person)
        for kind in ("work", "battle", "land", "river"):
            for entity in self.entities.get(kind, ()):
                self._place(entity)
        return {e: self._page(e) for group in self.entities.values() for e in group}

    def _entity(self, kind: str) -> Entity:
        noun = {"person": "", "work": self.rng.choice(BOOKS)}.get(kind, kind)
        return Entity(self._name(kind), kind, noun)

    def _name(self, kind: str) -> str:
        if self.variant == "full" and kind == "work":
            return next(self.titles)
        name = next(self.words)
        if self.variant == "small" or kind in ("town", "land"):
            return name
        if kind == "person":
            return f"{name} {self.rng.choice(self.families)}"
        return f"Battle of {name}" if kind == "battle" else f"River {name}"

    def _date_people(self) -> None:
        """Set years of birth and professions: enough authors for the works, and two generals."""
        people = self.entities["person"]
        authors = max(1, round(len(self.entities["work"]) * 2 / sum(WORKS)))
        nouns = [self.rng.choice(AUTHORS) for _ in range(min(authors, len(people) - 2))]
        nouns += [GENERAL] * max(2, len(people) // 12)
        nouns += [self.rng.choice(OTHERS) for _ in people]
        last = FIRST_YEAR + YEARS_PER_PERSON * len(people)
        years = sorted(self.rng.sample(range(FIRST_YEAR, last), len(people)))
        nouns = self.rng.sample(nouns[: len(people)], len(people))
        for i, person in enumerate(people):
            person.noun, person.year, person.is_woman = nouns[i], years[i], self.rng.random() < 0.5

    def _settle_towns(self) -> None:
        people = self.entities["person"]
        older = people[: max(len(self.entities["town"]), len(people) // 2)]
        for town in self.entities["town"]:
            founder = self.rng.choice(older)
            self._set(town, founder=founder, year=founder.year + self.rng.randint(25, 45))
            later = [p for p in people if town.year - 40 <= p.year and p is not founder]
            self._set(town, mayor=self._any(later))
            self._set(town, land=self._any(self.entities.get("land")))
            self._set(town, river=self._any(self.entities.get("river")))

    def _assign_works(self) -> None:
        """Give each author works of different years; works without an author are dropped."""
        authors = [p for p in self.entities["person"] if p.noun in AUTHORS]
        left = self.rng.sample(authors, len(authors))
        works = list(self.entities["work"])
        while works and left:
            author, count = left.pop(), self.rng.randint(*WORKS)
            given, works = works[:count], works[count:]
            years = self.rng.sample(range(author.year + 20, author.year + 50), len(given))
            for work, year in zip(given, years, strict=True):
                self._set(work, writer=author, year=year)
            self._set(author, works=given if len(given) >= WORKS[0] else None)
        self.entities["work"] = [work for work in self.entities["work"] if work.facts]

    def _relate_person(self, person: Entity) -> None:
        people = self.entities["person"]
        elders = [p for p in people if 16 <= person.year - p.year <= 45]
        teachers = [p for p in people if 8 <= person.year - p.year <= 60]
        towns = [town for town in self.entities["town"] if town.year <= person.year + 40]
        self._set(person, year=person.year, town=self._any(towns))
        self._set(person, mother=self._any([p for p in elders if p.is_woman]))
        self._set(person, father=self._any([p for p in elders if not p.is_woman]))
        self._set(person, teacher=self._any(teachers))

    def _place(self, entity: Entity) -> None:
        towns, people = self.entities["town"], self.entities["person"]
        self._set(entity, town=self._any(towns))
        if entity.kind == "battle":
            victor = self.rng.choice([p for p in people if p.noun == GENERAL])
            self._set(entity, general=victor, year=victor.year + self.rng.randint(25, 45))
        if entity.kind == "land":
            self._set(entity, capital=self.rng.choice(towns), ruler=self.rng.choice(people))
        if entity.kind == "river":
            self._set(entity, land=self._any(self.entities.get("land")))

    def _set(self, entity: Entity, **values: Entity | list[Entity] | int | None) -> None:
        """Set facts that this variant states; None leaves a fact out."""
        known = {relation.name for relation in _relations(self.variant, entity.kind)}
        for name, value in values.items():
            if value is None or name not in known:
                continue
            if isinstance(value, int):
                entity.year = value
            found = value if isinstance(value, list) else [value]
            entity.facts[name] = [v.name if isinstance(v, Entity) else str(v) for v in found]

    def _any(self, entities: list[Entity] | None) -> Entity | None:
        return self.rng.choice(entities) if entities else None

    def _page(self, entity: Entity) -> Page:
        """Write an entity's page with its lines in random order; record the line of each fact."""
        stated = entity.stated(self.variant)
        lines: list[tuple[Relation | None, str]] = [(r, self._sentence(entity, r)) for r in stated]
        if self.variant == "full":
            fillers = VOCABULARY["fillers"][entity.kind]
            count = min(len(fillers), self.rng.randint(*FILLER_LINES))
            lines += [(None, text) for text in self.rng.sample(fillers, count)]
        self.rng.shuffle(lines)
        entity.line_of = {r.name: n for n, (r, _) in enumerate(lines, start=1) if r is not None}
        names = [name for r in stated if r.to != "year" for name in entity.facts[r.name]]
        links = {link_key(name): name for name in names}
        return Page(entity.name, with_article(entity.noun), tuple(text for _, text in lines), links)

    def _sentence(self, entity: Entity, relation: Relation) -> str:
        values, form = entity.facts[relation.name], relation.plain
        if self.variant == "full":
            form = self.rng.choice(relation.phrases)
            values = values if relation.to == "year" else [f"[{value}]" for value in values]
        *first, last = values
        listed = f"{', '.join(first)} and {last}" if first else last
        return form.format(s=entity.name, v=listed)


# --- Questions with answers and proofs, and topics to collect -------------------------------------


class Hop(NamedTuple):
    """A relation of an entity in a question."""

    entity: Entity
    relation: Relation

    @property
    def values(self) -> list[str]:
        return self.entity.facts[self.relation.name]


class _Drawing:
    """Draws questions about the entities of a part."""

    def __init__(self, variant: str, entities: list[Entity], rng: random.Random) -> None:
        self.variant, self.entities, self.rng = variant, entities, rng
        self.by_name = {entity.name: entity for entity in entities}

    def questions(self, count: int) -> list[Row]:
        """Return `count` different questions. Raises UserError if the part has fewer."""
        kinds, shares = list(KINDS), [share for share, *_ in KINDS.values()]
        rows: dict[str, Row] = {}
        repeats = 0
        while len(rows) < count and repeats < MAX_REPEATS:
            kind = self.rng.choices(kinds, shares)[0]
            draws = (self._question(kind) for _ in range(DRAWS))
            row = next((row for row in draws if row is not None), None)
            repeats += 1
            if row is not None and row["question"] not in rows:
                rows[row["question"]], repeats = row, 0
        if len(rows) < count:
            line = f"env.questions or env.test_questions is {count}: this encyclopedia has"
            line = f"{line} {len(rows)}; give fewer questions, or more env.pages"
            raise UserError(line, code="too-few-questions")
        return list(rows.values())

    def _question(self, kind: str) -> Row | None:
        """Return a question of this kind, or None if the draw fails."""
        _, fewest, most = KINDS[kind]
        hops = self.rng.randint(fewest, min(most, MAX_HOPS[self.variant]))
        if kind in ("lookup", "bridge"):
            chain = self._chain(hops, lambda relation: not relation.to.endswith("s"))
            if chain is None:
                return None
            head = "Who was" if chain[-1].relation.to == "person" else "What is"
            small, full = f"Name {self._phrase(chain)}.", f"{head} {self._phrase(chain)}?"
            return self._row(kind, small, full, chain[-1].values, chain)
        chain = self._chain(hops + 1, lambda relation: relation.name == LIST)
        if chain is None or (kind == "comparison" and len(chain[-1].values) > MAX_COMPARED):
            return None
        if kind == "comparison":
            return self._comparison(chain)
        of = self._phrase(chain).removeprefix("the ")
        small, full = f"Count the {of}.", f"How many {of.replace(' of ', ' are known of ', 1)}?"
        return self._row("count", small, full, [str(len(chain[-1].values))], chain)

    def _chain(self, hops: int, is_last: Callable[[Relation], bool]) -> list[Hop] | None:
        """Follow relations from a random entity; the last one satisfies `is_last`."""
        entity, chain = self.rng.choice(self.entities), list[Hop]()
        for left in range(hops - 1, -1, -1):
            stated = entity.stated(self.variant)
            if left:
                stated = [r for r in stated if r.to != "year" and not r.to.endswith("s")]
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
        year = next(r for r in RELATIONS if (r.of, r.to) == ("work", "year"))
        of = self._phrase(chain).removeprefix(f"the {LIST} ")
        small, full = f"Name the {order} {SINGULAR} {of}.", f"What is the {order} {SINGULAR} {of}?"
        proof = [*chain, *(Hop(work, year) for work in works)]
        return self._row("comparison", small, full, [best.name], proof)

    def _phrase(self, chain: list[Hop]) -> str:
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
        proof = [self._lines(hop) for hop in hops]
        return {"id": _slug(f"{kind} {words}"), "kind": kind, "question": text, "answers": answers,
                "proof": proof}  # fmt: skip

    def _lines(self, hop: Hop) -> list[list]:
        """Return the lines that state a fact: on its own page, and for the writer of a work also on
        the writer's page."""
        lines: list[list] = [[hop.entity.name, hop.entity.line_of[hop.relation.name]]]
        other = self.by_name.get(hop.values[0])
        if other is not None and hop.entity.name in other.facts.get(LIST, ()):
            lines.append([other.name, other.line_of[LIST]])
        return lines


def _articles(part: dict[Entity, Page]) -> list[Row]:
    """Return every topic that a few pages name, with all lines that contain the name."""
    rows: list[Row] = []
    for topic in (entity.name for entity in part):
        named = re.compile(rf"\b{re.escape(topic)}\b")
        lines = [
            [page.title, number]
            for page in part.values()
            for number, text in enumerate(page.lines, start=1)
            if named.search(text)
        ]
        fewest, most = ARTICLE_PAGES
        if fewest <= len({title for title, _ in lines}) <= most and len(lines) <= ARTICLE_LINES:
            rows.append({
                "id": _slug(f"article {topic}"), "kind": "article",
                "question": f"Collect the lines that name {topic}.", "answers": [],
                "proof": [[line] for line in lines], "topic": topic,
            })  # fmt: skip
    return rows


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
