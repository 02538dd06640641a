"""A mediocre scripted player of Twenty Questions, which the bundled model imitates.

Each turn it picks an object that fits all answers, and asks about one of its attributes. Some
objects lead to a mistake, mostly the same one: a question without an answer, a repeated or implied
question, or an early guess. It never searches.
"""

from __future__ import annotations

import random
from collections.abc import Collection
from dataclasses import dataclass
from itertools import product

from agentrl_cli.core.types import derive_seed
from agentrl_cli.envs.twentyq.env import closeness
from agentrl_cli.envs.twentyq.world import World

ANSWERS: tuple[str, ...] = ("yes", "no", "sometimes")
UNANSWERABLE = (
    "Is it nice?", "What is it?", "Is it like a dream?", "Tell me more.", "Is it old?",
    "Do you like it?", "Where is it?", "Is it mine?", "How many are there?", "Is it funny?",
)  # fmt: skip
FAULTS = ("odd", "repeat", "implied", "early_guess")
HASH_RANGE = 2**63


@dataclass(frozen=True, kw_only=True)
class PlayerHabits:
    """`prone` is the share of objects that lead to a mistake: then it occurs with probability
    `often`, otherwise with `seldom`, but never in two turns in a row. Each suggested attribute is
    asked with probability `first` before the next one. A guess has probability `guess_one` if one
    object fits, and `guess_few` if at most three fit."""

    prone: float
    often: float
    seldom: float
    first: float
    guess_one: float
    guess_few: float


@dataclass
class PlayerState:
    """The player's knowledge. Bit i of `candidates`: object i fits all answers and wrong guesses;
    `wasted`: the last action gave no information."""

    candidates: int
    asked_attributes: frozenset[str] = frozenset()
    actions: tuple[str, ...] = ()
    wasted: bool = False


class Player:
    """Draws actions for a world; fast, because sets of objects are bits of one integer."""

    def __init__(self, world: World, habits: PlayerHabits) -> None:
        self.world, self.habits = world, habits
        self.all_objects = (1 << len(world.objects)) - 1
        self.masks = {pair: self._mask(*pair) for pair in product(world.attributes, ANSWERS)}
        self.attribute_of_question = {world.question(key): key for key in world.attributes}
        self.object_of_guess = {world.guess(name): i for i, name in enumerate(world.objects)}
        self.associations = [self._associated(i) for i in range(len(world.objects))]
        self.faults = [self._fault(i) for i in range(len(world.objects))]

    def _mask(self, attribute: str, answer: str) -> int:
        objects = enumerate(self.world.objects)
        return sum(1 << i for i, name in objects if self.world.answer(name, attribute) == answer)

    def _associated(self, number: int) -> list[str]:
        """Return the attributes in the order in which an object suggests them, true ones first."""
        world, name = self.world, self.world.objects[number]
        order = random.Random(derive_seed("player", "mind", name))
        attributes = order.sample(world.attributes, len(world.attributes))
        return sorted(attributes, key=lambda a: world.answer(name, a) == "no")

    def _fault(self, number: int) -> str:
        """Return the player's mistake at an object, or "" if there is hardly one."""
        name = self.world.objects[number]
        if derive_seed("player", "prone", name) / HASH_RANGE >= self.habits.prone:
            return ""
        return FAULTS[derive_seed("player", "fault", name) % len(FAULTS)]

    def start(self) -> PlayerState:
        return PlayerState(self.all_objects)

    def names(self, candidates: int) -> list[str]:
        return [name for i, name in enumerate(self.world.objects) if candidates >> i & 1]

    def observe(self, state: PlayerState, action: str, answer: str) -> None:
        """Update the state with the answer ("yes", "no", "sometimes" or another text) to
        `action`."""
        before = state.candidates
        state.actions += (action,)
        if action in self.attribute_of_question:
            attribute = self.attribute_of_question[action]
            state.asked_attributes |= {attribute}
            state.candidates &= self.masks[attribute, answer]
        elif action in self.object_of_guess and answer == "no":
            state.candidates &= ~(1 << self.object_of_guess[action])
        state.wasted = state.candidates == before

    def answer(self, action: str, secret: int) -> str:
        """Return the table's answer for object number `secret`, or "" if there is none."""
        if action in self.object_of_guess:
            return "yes" if self.object_of_guess[action] == secret else "no"
        if action not in self.attribute_of_question:
            return ""
        return self.world.answer(self.world.objects[secret], self.attribute_of_question[action])

    def implied(self, attribute: str, candidates: int) -> bool:
        """Return whether the answer is the same for every candidate."""
        masks = self.masks
        return any(candidates & ~masks[attribute, answer] == 0 for answer in ANSWERS)

    def choose_turn(
        self, state: PlayerState, rng: random.Random, without: Collection[str] = ()
    ) -> tuple[str, str]:
        """Return an action of the player and the whole turn. Actions in `without` are drawn again,
        at most a few times."""
        for _ in range(20):
            number = _any_bit(state.candidates, rng)
            action = self._draw_action(state, number, rng)
            if action not in without:
                break
        return action, self._turn_text(state, number, action)

    def turn_text(self, state: PlayerState, action: str, rng: random.Random) -> str:
        """Return the whole turn of an action. The thought names the guessed object if it fits,
        otherwise any that does."""
        return self._turn_text(state, _any_bit(state.candidates, rng), action)

    def _turn_text(self, state: PlayerState, number: int, action: str) -> str:
        """Return a thought with an object that fits and how close the game is, and the action on
        the last line."""
        guessed = self.object_of_guess.get(action)
        if guessed is not None and state.candidates >> guessed & 1:
            number = guessed
        noun = self.world.nouns[self.world.objects[number]]
        return f"Maybe {noun}. {closeness(state.candidates.bit_count())}\n{action}"

    def any_action(self, state: PlayerState, rng: random.Random) -> str:
        """Return an action of any kind: odd, a question on any attribute, a guess that fits, any
        guess or, in almost half of all cases, a repetition, because that one is hardest to
        recognise."""
        world, candidates = self.world, self.names(state.candidates)
        actions = [rng.choice(UNANSWERABLE), *rng.choices(state.actions or UNANSWERABLE, k=3)]
        actions += [world.question(rng.choice(world.attributes)) for _ in range(3)]
        actions += [world.guess(rng.choice(names)) for names in (candidates, world.objects)]
        return rng.choice(actions)

    def check(self, state: PlayerState, action: str) -> str:
        """Return a comment on an action before it is answered."""
        if action in state.actions:
            return "Asked before."
        if (guessed := self.object_of_guess.get(action)) is not None:
            return "It may be." if state.candidates >> guessed & 1 else "Ruled out."
        if (attribute := self.attribute_of_question.get(action)) is None:
            return "Unclear."
        return "Known." if self.implied(attribute, state.candidates) else "New."

    def _draw_action(self, state: PlayerState, number: int, rng: random.Random) -> str:
        habits, fault = self.habits, self.faults[number]
        chances = {1: habits.guess_one, 2: habits.guess_few, 3: habits.guess_few}
        if rng.random() < chances.get(state.candidates.bit_count(), 0):
            return self.world.guess(self.world.objects[number])
        chance = 0.0 if state.wasted else habits.often if fault else habits.seldom
        if rng.random() < chance:
            return self._go_astray(state, number, fault or rng.choice(FAULTS), rng)
        return self._associate(state, number, False, rng)

    def _go_astray(self, state: PlayerState, number: int, fault: str, rng: random.Random) -> str:
        if fault == "odd" or (fault == "repeat" and not state.actions):
            return UNANSWERABLE[number % len(UNANSWERABLE)]
        if fault == "repeat":
            return state.actions[-1]
        if fault == "early_guess":
            return self.world.guess(self.world.objects[number])
        return self._associate(state, number, True, rng)

    def _associate(self, state: PlayerState, number: int, implied: bool, rng: random.Random) -> str:
        """Return a question that the object suggests, or a guess of the object if there is none."""
        found = ""
        for attribute in self.associations[number]:
            asked = attribute in state.asked_attributes
            if not asked and self.implied(attribute, state.candidates) == implied:
                found = self.world.question(attribute)
                if rng.random() < self.habits.first:
                    break
        return found or self.world.guess(self.world.objects[number])


def _any_bit(candidates: int, rng: random.Random) -> int:
    for _ in range(rng.randrange(candidates.bit_count())):
        candidates &= candidates - 1
    return (candidates & -candidates).bit_length() - 1
