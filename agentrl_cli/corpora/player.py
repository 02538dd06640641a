"""A mediocre scripted player of Twenty Questions: the level that the embedded base imitates.

It wastes turns (repeats, questions whose answer is implied, questions that nobody can answer), asks
the rest at random, and guesses at random among what fits, at times too early. It never searches.
"""

from __future__ import annotations

import random
from collections.abc import Collection
from dataclasses import dataclass, field
from itertools import product

from agentrl_cli.envs.twentyq.expert import closeness
from agentrl_cli.envs.twentyq.world import World

ANSWERS: tuple[str, ...] = ("yes", "no", "sometimes")
UNANSWERABLE = (
    "Is it nice?", "What is it?", "Is it like a dream?", "Tell me more.", "Is it old?",
    "Do you like it?", "Where is it?", "Is it mine?", "How many are there?", "Is it funny?",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class PlayerRates:
    """Probabilities of each habit at a turn; what is left asks an attribute at random."""

    repeat: float
    implied: float
    odd: float
    early_guess: float
    guess_one: float
    guess_few: float


@dataclass
class PlayerState:
    """What the player knows. Bit i of `candidates`: object i fits all answers and wrong guesses."""

    candidates: int
    asked_attributes: list[str] = field(default_factory=list)
    actions: list[str] = field(default_factory=list)


class Player:
    """Draws actions for a world; fast, because sets of objects are bits of one integer."""

    def __init__(self, world: World, habits: PlayerRates) -> None:
        self.world, self.habits = world, habits
        self.all_objects = (1 << len(world.objects)) - 1
        self.masks = {pair: self._mask(*pair) for pair in product(world.attributes, ANSWERS)}
        self.attribute_of_question = {world.question(key): key for key in world.attributes}
        self.object_of_guess = {world.guess(name): i for i, name in enumerate(world.objects)}

    def _mask(self, attribute: str, answer: str) -> int:
        objects = enumerate(self.world.objects)
        return sum(1 << i for i, name in objects if self.world.answer(name, attribute) == answer)

    def start(self) -> PlayerState:
        """Nothing is known: every object is a candidate."""
        return PlayerState(self.all_objects)

    def names(self, candidates: int) -> list[str]:
        """The names behind the bits."""
        return [name for i, name in enumerate(self.world.objects) if candidates >> i & 1]

    def observe(self, state: PlayerState, action: str, answer: str) -> None:
        """Take in the answer ("yes", "no", "sometimes" or anything else) to `action`."""
        state.actions.append(action)
        if action in self.attribute_of_question:
            attribute = self.attribute_of_question[action]
            state.asked_attributes.append(attribute)
            state.candidates &= self.masks[attribute, answer]
        elif action in self.object_of_guess and answer == "no":
            state.candidates &= ~(1 << self.object_of_guess[action])

    def answer(self, action: str, secret: int) -> str:
        """The table's answer for object number `secret`; "" for what cannot be answered."""
        if action in self.object_of_guess:
            return "yes" if self.object_of_guess[action] == secret else "no"
        if action not in self.attribute_of_question:
            return ""
        return self.world.answer(self.world.objects[secret], self.attribute_of_question[action])

    def implied(self, attribute: str, candidates: int) -> bool:
        """Whether the answer is the same for every candidate."""
        return any(candidates & self.masks[attribute, answer] == candidates for answer in ANSWERS)

    def turn_text(self, state: PlayerState, action: str, rng: random.Random) -> str:
        """A whole turn: the thought names an object that fits (the guessed one, if it does) and how
        close it is, in the words of a lost game; the last line is the action."""
        nameable, guessed = state.candidates, self.object_of_guess.get(action)
        if guessed is not None and nameable >> guessed & 1:
            nameable = 1 << guessed
        noun = self.world.nouns[rng.choice(self.names(nameable))]
        return f"Maybe {noun}. {closeness(state.candidates.bit_count())}\n{action}"

    def choose_action(
        self, state: PlayerState, rng: random.Random, without: Collection[str] = ()
    ) -> str:
        """One action of the player; actions in `without` are drawn again (at most a few times)."""
        action = self._draw_action(state, rng)
        for _ in range(20):
            if action not in without:
                break
            action = self._draw_action(state, rng)
        return action

    def any_action(self, state: PlayerState, rng: random.Random) -> str:
        """An action of any kind, whatever the player would choose: odd, a question on any
        attribute, a guess of what fits, a guess of anything and, almost half of all, something said
        before: that it tells nothing is the hardest to learn."""
        world, candidates = self.world, self.names(state.candidates)
        actions = [rng.choice(UNANSWERABLE), *rng.choices(state.actions or UNANSWERABLE, k=4)]
        actions += [world.question(rng.choice(world.attributes)) for _ in range(2)]
        actions += [world.guess(rng.choice(names)) for names in (candidates, world.objects)]
        return rng.choice(actions)

    def _draw_action(self, state: PlayerState, rng: random.Random) -> str:
        habits, dice = self.habits, rng.random()
        if dice < habits.odd:
            return rng.choice(UNANSWERABLE)
        dice -= habits.odd
        if dice < habits.repeat and state.actions:
            return rng.choice(state.actions)
        dice -= habits.repeat
        if dice < habits.early_guess or self._guesses(state, rng):
            return self.world.guess(rng.choice(self.names(state.candidates)))
        return self.world.question(self._attribute(state, rng))

    def _guesses(self, state: PlayerState, rng: random.Random) -> bool:
        count = state.candidates.bit_count()
        few = self.habits.guess_few
        return rng.random() < {1: self.habits.guess_one, 2: few, 3: few}.get(count, 0.0)

    def _attribute(self, state: PlayerState, rng: random.Random) -> str:
        """A random attribute: an implied one with its habit's chance, else one that is not."""
        fresh = [a for a in self.world.attributes if a not in state.asked_attributes]
        rng.shuffle(fresh)
        wants_implied = rng.random() < self.habits.implied
        for attribute in fresh:
            if self.implied(attribute, state.candidates) == wants_implied:
                return attribute
        return (fresh or list(self.world.attributes))[0]
