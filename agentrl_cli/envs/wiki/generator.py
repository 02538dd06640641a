"""Makes the built-in encyclopedia and its questions from a seed; nothing of it is anybody's text.

It has two parts without any link between them: the questions of `train` are all about the one,
those of `test` about the other, so that no page serves both. What is told is schema.py's.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
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
    Relation,
    relations_of,
)
from agentrl_cli.envs.wiki.worlds import Entity, Part, Row, WikiWorld

TEST_SHARE = 0.3  # of the pages
FEWEST_PAGES, MOST_PAGES = 40, 1000
FAMILIES = 200  # names of families in `full`, which nothing else is called
YEARS_A_PERSON = 12  # between the births of one and the next
FIRST_YEAR = 100
WORKS = (2, 4)  # of an author, fewest and most
FILLER_LINES = (1, 3)  # of a page of `full`


@lru_cache(maxsize=64)
def built_in(world: str, seed: int, pages: int, questions: tuple[int, int]) -> WikiWorld:
    """The encyclopedia `small` or `full` with about so many pages, and so many questions of train
    and of test. Raises UserError for numbers that it cannot have."""
    if not FEWEST_PAGES <= pages <= MOST_PAGES:
        raise UserError(f"env.pages is {pages}; give {FEWEST_PAGES} to {MOST_PAGES}")
    rng = random.Random(derive_seed("wiki", world, seed))
    names = _Names(rng)
    sizes = {"train": round(pages * (1 - TEST_SHARE)), "test": round(pages * TEST_SHARE)}
    parts = {split: _Builder(world, names, rng).build(size) for split, size in sizes.items()}
    made = [page for part in parts.values() for page in part.pages]
    rng.shuffle(made)
    library = encyclopedia_of(made, number_last=world == "small")
    rows: dict[str, list[Row]] = {}
    for (split, part), count in zip(parts.items(), questions, strict=True):
        draw = random.Random(derive_seed("wiki", world, seed, "questions", split))
        rows[split] = make_questions(part, world, count, draw)
    articles = {split: make_articles(part) for split, part in parts.items()}
    return WikiWorld(f"wiki-{world}", library, rows, articles)


class _Names:
    """Draws names, each once."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        words = [start + end for start in NAME_STARTS for end in NAME_ENDS]
        drawn = rng.sample(words, len(words))
        self.families, self.words = drawn[-FAMILIES:], iter(drawn)
        titles = [f"The {first} {second}" for first in ADJECTIVES for second in NOUNS]
        self.titles = iter(rng.sample(titles, len(titles)))

    def draw(self, world: str, kind: str) -> str:
        """The name of a new page."""
        if world == "full" and kind == "work":
            return next(self.titles)
        name = next(self.words)
        if world == "small" or kind in ("town", "land"):
            return name
        if kind == "person":
            return f"{name} {self.rng.choice(self.families)}"
        return f"Battle of {name}" if kind == "battle" else f"River {name}"


@dataclass
class _Builder:
    """Makes one part: entities first, then what is true of them, then its pages."""

    world: str
    names: _Names
    rng: random.Random
    entities: dict[str, list[Entity]] = field(default_factory=dict)

    def build(self, pages: int) -> Part:
        """A part with about so many pages."""
        self.entities = {
            kind: [self._entity(kind) for _ in range(max(2, round(share * pages)))]
            for kind, share in SHARES[self.world].items()
        }
        self._date_people()
        self._settle()
        self._give_works()
        for person in self.entities["person"]:
            self._relate(person)
        for kind in ("work", "battle", "land", "river"):
            for entity in self.entities.get(kind, ()):
                self._place(entity)
        found = [entity for group in self.entities.values() for entity in group]
        return Part(found, [self._page(entity) for entity in found])

    def _entity(self, kind: str) -> Entity:
        noun = {"person": "", "work": self.rng.choice(BOOKS)}.get(kind, kind)
        return Entity(self.names.draw(self.world, kind), kind, noun)

    def _date_people(self) -> None:
        """Years of birth and professions: enough authors for the works, and two generals."""
        people = self.entities["person"]
        authors = max(1, round(len(self.entities["work"]) * 2 / sum(WORKS)))
        nouns = [self.rng.choice(AUTHORS) for _ in range(min(authors, len(people) - 2))]
        nouns += [GENERAL] * max(2, len(people) // 12)
        nouns += [self.rng.choice(OTHERS) for _ in people]
        last = FIRST_YEAR + YEARS_A_PERSON * len(people)
        years = sorted(self.rng.sample(range(FIRST_YEAR, last), len(people)))
        nouns = self.rng.sample(nouns[: len(people)], len(people))
        for i, person in enumerate(people):
            person.noun, person.year, person.is_woman = nouns[i], years[i], self.rng.random() < 0.5

    def _settle(self) -> None:
        """Founders and years of towns, and who was a mayor."""
        people = self.entities["person"]
        older = people[: max(len(self.entities["town"]), len(people) // 2)]
        for town in self.entities["town"]:
            founder = self.rng.choice(older)
            town.set(self.world, founder=founder, year=founder.year + self.rng.randint(25, 45))
            later = [p for p in people if town.year - 40 <= p.year and p is not founder]
            town.set(self.world, mayor=self._any(later))
            town.set(self.world, land=self._any(self.entities.get("land", [])))
            town.set(self.world, river=self._any(self.entities.get("river", [])))

    def _give_works(self) -> None:
        """Works to authors in turn, each author's in different years."""
        authors = [p for p in self.entities["person"] if p.noun in AUTHORS]
        left = self.rng.sample(authors, len(authors))
        works = list(self.entities["work"])
        fewest, most = WORKS
        while works and left:
            author, count = left.pop(), self.rng.randint(fewest, most)
            given, works = works[:count], works[count:]
            years = self.rng.sample(range(author.year + 20, author.year + 50), len(given))
            for work, year in zip(given, years, strict=True):
                work.set(self.world, writer=author, year=year)
            author.set(self.world, works=given if len(given) >= fewest else None)
        self.entities["work"] = [work for work in self.entities["work"] if work.facts]

    def _relate(self, person: Entity) -> None:
        people = self.entities["person"]
        elders = [p for p in people if 16 <= person.year - p.year <= 45]
        taught_by = [p for p in people if 8 <= person.year - p.year <= 60]
        towns = [town for town in self.entities["town"] if town.year <= person.year + 40]
        person.set(self.world, year=person.year, town=self._any(towns))
        person.set(self.world, mother=self._any([p for p in elders if p.is_woman]))
        person.set(self.world, father=self._any([p for p in elders if not p.is_woman]))
        person.set(self.world, teacher=self._any(taught_by))

    def _place(self, entity: Entity) -> None:
        """What a work, a battle, a land or a river has to do with people and towns."""
        towns, people = self.entities["town"], self.entities["person"]
        entity.set(self.world, town=self._any(towns))
        if entity.kind == "battle":
            victor = self.rng.choice([p for p in people if p.noun == GENERAL])
            entity.set(self.world, general=victor, year=victor.year + self.rng.randint(25, 45))
        if entity.kind == "land":
            entity.set(self.world, capital=self.rng.choice(towns), ruler=self.rng.choice(people))
        if entity.kind == "river":
            entity.set(self.world, land=self._any(self.entities.get("land", [])))

    def _any(self, entities: list[Entity]) -> Entity | None:
        return self.rng.choice(entities) if entities else None

    def _page(self, entity: Entity) -> Page:
        """The page of an entity, its lines in any order; says of each fact which line tells it."""
        told = [r for r in relations_of(self.world, entity.kind) if r.name in entity.facts]
        lines: list[tuple[Relation | None, str]] = [(r, self._sentence(entity, r)) for r in told]
        if self.world == "full":
            fillers = FILLERS[entity.kind]
            count = min(len(fillers), self.rng.randint(*FILLER_LINES))
            lines += [(None, text) for text in self.rng.sample(fillers, count)]
        self.rng.shuffle(lines)
        entity.line_of = {r.name: n for n, (r, _) in enumerate(lines, start=1) if r is not None}
        names = [name for r in told if r.to != "year" for name in entity.facts[r.name]]
        links = {link_key(name): name for name in names}
        return Page(entity.name, with_article(entity.noun), tuple(text for _, text in lines), links)

    def _sentence(self, entity: Entity, relation: Relation) -> str:
        form = relation.plain if self.world == "small" else self.rng.choice(relation.phrases)
        mark: Callable[[str], str] = (
            str if self.world == "small" or relation.to == "year" else _linked
        )
        return form.format(s=entity.name, v=listed([mark(v) for v in entity.facts[relation.name]]))


def listed(words: list[str]) -> str:
    """`A`, `A and B`, `A, B and C`."""
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def _linked(name: str) -> str:
    return f"[{name}]"
