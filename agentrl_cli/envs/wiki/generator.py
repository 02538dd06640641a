"""Generate the built-in encyclopedia from a seed. No text is taken from elsewhere.

It has two parts without a link between them. The train questions are about one part and the test
questions about the other, so no page serves both.
"""

from __future__ import annotations

import random
from functools import lru_cache

from agentrl_cli.core.errors import UserError
from agentrl_cli.core.text import with_article
from agentrl_cli.core.types import derive_seed
from agentrl_cli.envs.wiki.pages import Page, encyclopedia_of, link_key
from agentrl_cli.envs.wiki.questions import make_articles, make_questions
from agentrl_cli.envs.wiki.schema import (
    ADJECTIVES,
    AUTHORS,
    BOOKS,
    FILLERS,
    GENERAL,
    NAME_ENDS,
    NAME_STARTS,
    NOUNS,
    OTHERS,
    SHARES,
    Entity,
    Part,
    Relation,
    WikiData,
    relations_of,
)

TEST_SHARE = 0.3  # of the pages
MIN_PAGES, MAX_PAGES = 40, 1000
FAMILIES = 200  # family names in `full`, which nothing else has
YEARS_PER_PERSON = 12  # between consecutive births
FIRST_YEAR = 100
WORKS = (2, 4)  # of an author
FILLER_LINES = (1, 3)  # of a page of `full`


@lru_cache(maxsize=64)
def built_in(variant: str, seed: int, pages: int, questions: tuple[int, int]) -> WikiData:
    """Return the encyclopedia `small` or `full` with about `pages` pages and the given numbers of
    train and test questions. Raises UserError for impossible numbers."""
    if not MIN_PAGES <= pages <= MAX_PAGES:
        line = f"env.pages is {pages}; give {MIN_PAGES} to {MAX_PAGES}"
        raise UserError(line, code="out-of-range")
    rng = random.Random(derive_seed("wiki", variant, seed))
    names = _Names(variant, rng)
    sizes = {"train": round(pages * (1 - TEST_SHARE)), "test": round(pages * TEST_SHARE)}
    parts = {split: _Builder(variant, names, rng).build(size) for split, size in sizes.items()}
    made = [page for part in parts.values() for page in part.pages]
    rng.shuffle(made)
    rows = {}
    for (split, part), count in zip(parts.items(), questions, strict=True):
        draw = random.Random(derive_seed("wiki", variant, seed, "questions", split))
        rows[split] = make_questions(part, variant, count, draw)
    articles = {split: make_articles(part) for split, part in parts.items()}
    library = encyclopedia_of(made, number_last=variant == "small")
    return WikiData(f"wiki-{variant}", library, rows, articles)


class _Names:
    """Draws names without repetition."""

    def __init__(self, variant: str, rng: random.Random) -> None:
        self.variant, self.rng = variant, rng
        words = [start + end for start in NAME_STARTS for end in NAME_ENDS]
        drawn = rng.sample(words, len(words))
        self.families, self.words = drawn[-FAMILIES:], iter(drawn)
        titles = [f"The {first} {second}" for first in ADJECTIVES for second in NOUNS]
        self.titles = iter(rng.sample(titles, len(titles)))

    def draw(self, kind: str) -> str:
        if self.variant == "full" and kind == "work":
            return next(self.titles)
        name = next(self.words)
        if self.variant == "small" or kind in ("town", "land"):
            return name
        if kind == "person":
            return f"{name} {self.rng.choice(self.families)}"
        return f"Battle of {name}" if kind == "battle" else f"River {name}"


class _Builder:
    """Generates one part: entities first, then facts, then pages."""

    def __init__(self, variant: str, names: _Names, rng: random.Random) -> None:
        self.variant, self.names, self.rng = variant, names, rng
        self.entities: dict[str, list[Entity]] = {}

    def build(self, pages: int) -> Part:
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
        found = [entity for group in self.entities.values() for entity in group]
        return Part(found, [self._page(entity) for entity in found])

    def _entity(self, kind: str) -> Entity:
        noun = {"person": "", "work": self.rng.choice(BOOKS)}.get(kind, kind)
        return Entity(self.names.draw(kind), kind, noun)

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
            self._set(town, land=self._any(self.entities.get("land", [])))
            self._set(town, river=self._any(self.entities.get("river", [])))

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
        """Relate a work, battle, land or river to people and towns."""
        towns, people = self.entities["town"], self.entities["person"]
        self._set(entity, town=self._any(towns))
        if entity.kind == "battle":
            victor = self.rng.choice([p for p in people if p.noun == GENERAL])
            self._set(entity, general=victor, year=victor.year + self.rng.randint(25, 45))
        if entity.kind == "land":
            self._set(entity, capital=self.rng.choice(towns), ruler=self.rng.choice(people))
        if entity.kind == "river":
            self._set(entity, land=self._any(self.entities.get("land", [])))

    def _set(self, entity: Entity, **values: Entity | list[Entity] | int | None) -> None:
        entity.set(self.variant, **values)

    def _any(self, entities: list[Entity]) -> Entity | None:
        return self.rng.choice(entities) if entities else None

    def _page(self, entity: Entity) -> Page:
        """Write the page of an entity with its lines in random order; record the line of each
        fact."""
        stated = [r for r in relations_of(self.variant, entity.kind) if r.name in entity.facts]
        lines: list[tuple[Relation | None, str]] = [(r, self._sentence(entity, r)) for r in stated]
        if self.variant == "full":
            fillers = FILLERS[entity.kind]
            count = min(len(fillers), self.rng.randint(*FILLER_LINES))
            lines += [(None, text) for text in self.rng.sample(fillers, count)]
        self.rng.shuffle(lines)
        entity.line_of = {r.name: n for n, (r, _) in enumerate(lines, start=1) if r is not None}
        names = [name for r in stated if r.to != "year" for name in entity.facts[r.name]]
        links = {link_key(name): name for name in names}
        return Page(entity.name, with_article(entity.noun), tuple(text for _, text in lines), links)

    def _sentence(self, entity: Entity, relation: Relation) -> str:
        values = entity.facts[relation.name]
        if self.variant == "small":
            return relation.plain.format(s=entity.name, v=listed(values))
        form = self.rng.choice(relation.phrases)
        values = values if relation.to == "year" else [f"[{value}]" for value in values]
        return form.format(s=entity.name, v=listed(values))


def listed(words: list[str]) -> str:
    """Return `A`, `A and B`, or `A, B and C`."""
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)
