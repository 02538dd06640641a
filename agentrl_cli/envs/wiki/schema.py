"""The vocabulary of the built-in encyclopedia, and the data that its pages are made from.

`small` states every fact in one plain sentence of words in the embedded tokenizer. `full` adds
lands, rivers, several phrasings, and lines that answer nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from agentrl_cli.envs.wiki.pages import Encyclopedia, Page

VARIANTS = ("small", "full")
NAME_STARTS = (
    "Al Bar Bel Bor Cal Cor Dal Dor El Fen Gal Har Il Jor Kel Lan Lor Mar Mel Mor Nor Or Pel Quin "
    "Ral Ros Sal Sel Tal Tor Ul Val Ver Wil Yar Zan"
).split()
NAME_ENDS = (
    "a an ar as en er ia ick in is o on or us by dale den fell field ford gate holm low mere more "
    "port sen stead ton vale wick wood worth"
).split()
ADJECTIVES = (
    "Silent Golden Broken Hidden Burning Distant Frozen Hollow Last Lonely Pale Restless Scarlet "
    "Seventh Sleeping Sunken Tall Wandering White Young"
).split()
NOUNS = (
    "Bridge Castle Crow Garden Harbour Island Lake Lantern Mirror Mountain Orchard Pilgrim River "
    "Rose Ship Shore Storm Tower Valley Winter"
).split()
AUTHORS, GENERAL = ("writer", "poet"), "general"  # professions with works and with battles
OTHERS = ("painter", "teacher", "scientist", "explorer", "architect", "composer", "ruler")
BOOKS = ("book", "novel", "poem", "play")
SHARES = {"small": {"person": 0.40, "town": 0.14, "work": 0.34, "battle": 0.12}}
SHARES["full"] = SHARES["small"] | {"work": 0.30, "land": 0.02, "river": 0.02}


@dataclass(frozen=True)
class Relation:
    """A fact on pages of kind `of`: `name` in questions of `small`, `noun` in questions of `full`.

    `to` is the kind of the value, or year; a plural has several values. `plain` is the sentence of
    `small` ("" if it is absent there) and `phrases` are the sentences of `full`, with {s} for the
    page's title and {v} for the value.
    """

    name: str
    noun: str
    of: str
    to: str
    plain: str
    phrases: tuple[str, ...]

    @property
    def several(self) -> bool:
        """Whether there are several values."""
        return self.to.endswith("s")


RELATIONS = (
    Relation("town", "home town", "person", "town", "The town is {v}.",
             ("{s} lived in {v}.", "{v} was the home of {s}.", "Most of that life passed in {v}.")),
    Relation("mother", "mother", "person", "person", "The mother is {v}.",
             ("The mother of {s} was {v}.", "{v} was the mother of {s}.")),
    Relation("father", "father", "person", "person", "",
             ("The father of {s} was {v}.", "{v} was the father of {s}.")),
    Relation("teacher", "teacher", "person", "person", "The teacher is {v}.",
             ("{s} studied under {v}.", "{v} taught {s}.", "The teacher of {s} was {v}.")),
    Relation("year", "year of birth", "person", "year", "The year is {v}.",
             ("{s} was born in the year {v}.", "Born in {v}.")),
    Relation("works", "works", "person", "works", "The works are {v}.",
             ("{s} wrote {v}.", "The known works are {v}.")),
    Relation("founder", "founder", "town", "person", "The founder is {v}.",
             ("{v} founded {s}.", "{s} was founded by {v}.")),
    Relation("mayor", "mayor", "town", "person", "The mayor is {v}.",
             ("{v} was mayor of {s} for many years.", "The best known mayor was {v}.")),
    Relation("year", "founding year", "town", "year", "The year is {v}.",
             ("{s} was founded in the year {v}.", "The town charter is of the year {v}.")),
    Relation("land", "country", "town", "land", "", ("{s} lies in {v}.", "It belongs to {v}.")),
    Relation("river", "river", "town", "river", "",
             ("The {v} flows through {s}.", "{s} stands on the banks of the {v}.")),
    Relation("writer", "writer", "work", "person", "The writer is {v}.",
             ("{s} was written by {v}.", "{v} is the writer of {s}.")),
    Relation("year", "year of publication", "work", "year", "The year is {v}.",
             ("{s} was published in the year {v}.", "It was first printed in {v}.")),
    Relation("town", "setting", "work", "town", "The town is {v}.",
             ("{s} is set in {v}.", "Its story takes place in {v}.")),
    Relation("town", "site", "battle", "town", "The town is {v}.",
             ("{s} was fought near {v}.", "It began at the gates of {v}.")),
    Relation("general", "victor", "battle", "person", "The general is {v}.",
             ("{v} won {s}.", "The victor was {v}.")),
    Relation("year", "year", "battle", "year", "The year is {v}.",
             ("{s} was fought in the year {v}.", "It took place in {v}.")),
    Relation("capital", "capital", "land", "town", "", ("The capital of {s} is {v}.",)),
    Relation("ruler", "ruler", "land", "person", "", ("{v} ruled {s}.", "It was ruled by {v}.")),
    Relation("land", "country", "river", "land", "", ("{s} rises in {v}.",)),
    Relation("town", "mouth", "river", "town", "", ("{s} meets the sea at {v}.",)),
)  # fmt: skip
FILLERS = {
    "person": ("Little is known of the early years.", "Several portraits survive.",
               "A street is named in memory of this life.", "Letters to friends fill two volumes.",
               "Contemporaries praised a dry sense of humour.", "The later years were quiet ones."),
    "town": ("The market is held on every fifth day.", "The old walls still stand in part.",
             "Its bakers are known for a dark bread.", "A fire destroyed the archive.",
             "Visitors come for the autumn fair.", "The bridge has seven arches."),
    "work": ("Critics were divided at first.", "Two early copies survive.",
             "It has been translated many times.", "The ending was changed in later editions."),
    "battle": ("Accounts of the losses differ.", "Heavy rain decided the second day.",
               "A stone marks the field.", "Songs about it are still sung."),
    "land": ("Most of it is hilly.", "Its flag shows a heron."),
    "river": ("It freezes in hard winters.", "Barges carry salt and timber on it."),
}  # fmt: skip


def relations_of(variant: str, kind: str) -> list[Relation]:
    """Return the relations of a kind of page."""
    return [r for r in RELATIONS if r.of == kind and (variant == "full" or r.plain)]


Row = dict[str, Any]
"""Task data of a question or an article: `id`, `kind`, `question`, `answers` (the first is shown),
and `proof`: for each step a list of lines [title, number], any one of which proves it."""


@dataclass(frozen=True, eq=False)
class WikiData:
    """An encyclopedia with its questions and articles by split, compared by identity."""

    name: str
    encyclopedia: Encyclopedia
    questions: dict[str, list[Row]]
    articles: dict[str, list[Row]]

    def test_as(self, split: str) -> WikiData:
        """Return only the test tasks, as the tasks of another split."""
        questions, articles = ({split: rows["test"]} for rows in (self.questions, self.articles))
        return WikiData(f"{self.name}-{split}", self.encyclopedia, questions, articles)


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

    def set(self, variant: str, **values: Entity | list[Entity] | int | None) -> None:
        """Set facts that this variant states; None leaves a fact out."""
        stated = {relation.name for relation in relations_of(variant, self.kind)}
        for name, value in values.items():
            if value is None or name not in stated:
                continue
            if isinstance(value, int):
                self.year = value
            found = value if isinstance(value, list) else [value]
            self.facts[name] = [v.name if isinstance(v, Entity) else str(v) for v in found]


@dataclass(frozen=True, eq=False)
class Part:
    """Entities that are linked only among themselves, and their pages."""

    entities: list[Entity]
    pages: list[Page]
