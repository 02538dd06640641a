"""What a world of pages consists of: its encyclopedia, its questions and articles by split, and the
entities that the built-in ones are made of."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from agentrl_cli.envs.wiki.pages import Encyclopedia, Page
from agentrl_cli.envs.wiki.schema import relations_of

Row = dict[str, Any]
"""A question or an article as task data: `id`, `kind`, `question`, `answers` (the first one is
shown), and `proof`: of each step a list of lines [title, number], any one of which proves it."""


@dataclass(frozen=True, eq=False)
class WikiWorld:
    """Compared by identity; one for each setting in a process."""

    name: str
    encyclopedia: Encyclopedia
    questions: dict[str, list[Row]]
    articles: dict[str, list[Row]]

    def only_test_as(self, split: str) -> WikiWorld:
        """The tasks of `test` alone, as those of another split."""
        questions, articles = ({split: rows["test"]} for rows in (self.questions, self.articles))
        return WikiWorld(f"{self.name}-{split}", self.encyclopedia, questions, articles)


@dataclass(eq=False)
class Entity:
    """A person, a town, a work, a battle, a land or a river. `facts` has names or a year by the
    relation's name, `line_of` the line of its page that tells it."""

    name: str
    kind: str
    noun: str
    year: int = 0
    is_woman: bool = False
    facts: dict[str, list[str]] = field(default_factory=dict)
    line_of: dict[str, int] = field(default_factory=dict)

    def set(self, world: str, **values: Entity | list[Entity] | int | None) -> None:
        """What is true of it, where this world tells such things; None: nothing is."""
        told = {relation.name for relation in relations_of(world, self.kind)}
        for name, value in values.items():
            if value is None or name not in told:
                continue
            if isinstance(value, int):
                self.year = value
            found = value if isinstance(value, list) else [value]
            self.facts[name] = [v.name if isinstance(v, Entity) else str(v) for v in found]


@dataclass(frozen=True, eq=False)
class Part:
    """Entities that are linked among themselves alone, and their pages."""

    entities: list[Entity]
    pages: list[Page]
