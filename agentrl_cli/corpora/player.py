"""A mediocre scripted player of Twenty Questions: the level that the embedded base imitates.

It wastes turns (repeats, questions whose answer is implied, questions that nobody can answer), asks
the rest at random, and guesses at random among what fits, at times too early. It never searches.
"""

from __future__ import annotations

import random
from collections.abc import Collection
from dataclasses import dataclass, field

from agentrl_cli.envs.twentyq.env import closeness
from agentrl_cli.envs.twentyq.world import World

ODD = (
    "Is it nice?", "What is it?", "Is it like a dream?", "Tell me more.", "Is it old?",
    "Do you like it?", "Where is it?", "Is it mine?", "How many are there?", "Is it funny?",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Habits:
    """Chances of each habit at a turn; what is left asks an attribute at random."""

    repeat: float
    implied: float
    odd: float
    early_guess: float
    guess_one: float
    guess_few: float


@dataclass
class Notes:
    """What the player knows; bit i of `fits`: object i fits all answers and wrong guesses."""

    fits: int
    asked: list[str] = field(default_factory=list)
    said: list[str] = field(default_factory=list)


class Player:
    """Draws actions for a world; fast, because sets of objects are bits of one integer."""

    def __init__(self, world: World, habits: Habits) -> None:
        self.world, self.habits = world, habits
        self.everything = (1 << len(world.objects)) - 1
        self.cells = {
            (attribute, answer): self._bits(attribute, answer)
            for attribute in world.attributes
            for answer in ("yes", "no", "sometimes")
        }

        self.meaning = {world.question(attribute): attribute for attribute in world.attributes}
        self.named = {world.guess(name): i for i, name in enumerate(world.objects)}

    def _bits(self, attribute: str, answer: str) -> int:
        objects = enumerate(self.world.objects)
        return sum(1 << i for i, name in objects if self.world.answer(name, attribute) == answer)

    def start(self) -> Notes:
        """An empty notebook: every object fits."""
        return Notes(self.everything)

    def objects(self, fits: int) -> list[str]:
        """The names behind the bits."""
        return [name for i, name in enumerate(self.world.objects) if fits >> i & 1]

    def see(self, notes: Notes, action: str, answer: str) -> None:
        """Write the answer ("yes", "no", "sometimes" or anything else) to `action` into the
        notebook."""
        notes.said.append(action)
        if action in self.meaning:
            attribute = self.meaning[action]
            notes.asked.append(attribute)
            notes.fits &= self.cells[attribute, answer]
        elif action in self.named and answer == "no":
            notes.fits &= ~(1 << self.named[action])

    def answer(self, action: str, secret: int) -> str:
        """The table's answer for object number `secret`; "" for what cannot be answered."""
        if action in self.named:
            return "yes" if self.named[action] == secret else "no"
        if action not in self.meaning:
            return ""
        return self.world.answer(self.world.objects[secret], self.meaning[action])

    def implied(self, attribute: str, fits: int) -> bool:
        """Whether every object that fits has the same answer."""
        return any(
            fits & self.cells[attribute, answer] == fits for answer in ("yes", "no", "sometimes")
        )

    def say(self, notes: Notes, action: str, rng: random.Random) -> str:
        """A whole turn: the thought names an object that fits (the guessed one, if it does) and how
        close it is, in the words of a lost game; the last line is the action."""
        fits, guessed = notes.fits, self.named.get(action)
        if guessed is not None and fits >> guessed & 1:
            fits = 1 << guessed
        noun = self.world.nouns[rng.choice(self.objects(fits))]
        return f"Maybe {noun}. {closeness(notes.fits.bit_count())}\n{action}"

    def act(self, notes: Notes, rng: random.Random, without: Collection[str] = ()) -> str:
        """One action of the player; actions in `without` are drawn again (at most a few times)."""
        action = self._draw(notes, rng)
        for _ in range(20):
            if action not in without:
                break
            action = self._draw(notes, rng)
        return action

    def any_action(self, notes: Notes, rng: random.Random) -> str:
        """An action of any kind, whatever the player would choose: odd, a question on any
        attribute, a guess of what fits, a guess of anything and, almost half of all, something said
        before: that it tells nothing is the hardest to learn."""
        world, fits = self.world, self.objects(notes.fits)
        return rng.choice(
            [
                rng.choice(ODD),
                *rng.choices(notes.said or ODD, k=4),
                world.question(rng.choice(world.attributes)),
                world.question(rng.choice(world.attributes)),
                world.guess(rng.choice(fits)),
                world.guess(rng.choice(world.objects)),
            ]
        )

    def _draw(self, notes: Notes, rng: random.Random) -> str:
        habits, dice = self.habits, rng.random()
        if dice < habits.odd:
            return rng.choice(ODD)
        dice -= habits.odd
        if dice < habits.repeat and notes.said:
            return rng.choice(notes.said)
        dice -= habits.repeat
        if dice < habits.early_guess:
            return self.world.guess(rng.choice(self.objects(notes.fits)))
        if self._guesses(notes, rng):
            return self.world.guess(rng.choice(self.objects(notes.fits)))
        return self.world.question(self._attribute(notes, rng))

    def _guesses(self, notes: Notes, rng: random.Random) -> bool:
        count = notes.fits.bit_count()
        chance = {
            0: 0.0,
            1: self.habits.guess_one,
            2: self.habits.guess_few,
            3: self.habits.guess_few,
        }
        return rng.random() < chance.get(count, 0.0)

    def _attribute(self, notes: Notes, rng: random.Random) -> str:
        """A random attribute: an implied one with its habit's chance, else one that still tells."""
        fresh = [a for a in self.world.attributes if a not in notes.asked]
        rng.shuffle(fresh)
        wanted = rng.random() < self.habits.implied
        for attribute in fresh:
            if self.implied(attribute, notes.fits) == wanted:
                return attribute
        return (fresh or list(self.world.attributes))[0]
