"""Games of the mediocre player, played and imagined, and texts that are true of them."""

from __future__ import annotations

import copy
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from agentrl_cli.core.types import Message, Task
from agentrl_cli.envs.twentyq.env import TwentyQ, answer_sentence, closeness
from tools.tiny_models.player import Player, PlayerState

WASTEFUL = ("Asked before.", "Ruled out.", "Unclear.", "Known.")  # checks of what tells nothing
END_POINTS = {"Success.": 3, "Close.": 2, "Near.": 1}  # how good an end is; Far: 0
CLEARLY_WORSE = 0.35  # mean points that differ by less count as equal in a verdict


@dataclass(frozen=True)
class Move:
    """A move of a game: the player's state before it, and its result.

    `action` is the question or guess, `turn_text` the whole turn; `candidates_after` are the
    objects that fit afterwards, as in `PlayerState`; `secret` is the hidden object.
    """

    state: PlayerState
    observation: list[Message]
    action: str
    turn_text: str
    response: list[Message]
    candidates_after: int
    is_last: bool
    secret: str


@dataclass(frozen=True)
class Games:
    """Plays the environment's game as `player`."""

    env: TwentyQ
    player: Player

    def play(self, rng: random.Random) -> tuple[list[Move], str]:
        """Play one game with a random secret; return the moves and the end."""
        env, state, moves = copy.copy(self.env), self.player.start(), []
        secret = rng.randrange(len(self.player.object_of_guess))
        name = env.world_table.objects[secret]
        observation = env.reset(Task("corpus", "train", {"object": name}), 0)
        observation = [Message("system", env.system()), *observation]
        while True:
            before, (action, text) = copy.copy(state), self.player.choose_turn(state, rng)
            step = env.step(text)
            self.player.observe(state, action, self.player.answer(action, secret))
            after = state.candidates
            told = (step.messages, after, step.done, name)
            moves.append(Move(before, observation, action, text, *told))
            if step.done:
                return moves, ending(bool(step.info["success"]), after)
            observation = step.messages

    def describe(self, move: Move, end: str, secret: str) -> str:
        """Return a forecast that came true: a possible object, a check of the action, the answer,
        its information, and the end of the game. The object is first, so that the answer can be
        looked up."""
        response = move.response[0].content
        checked = self.player.check(move.state, move.action)
        noun = self.env.world_table.nouns[secret]
        if move.is_last:
            return f"{noun}. {checked} {response} {end.split()[-1]}"
        information = information_sentence(move.state.candidates, move.candidates_after)
        return f"{noun}. {checked} {response.split('.')[0]}. {information} {end}"

    def any_secret(self, state: PlayerState, rng: random.Random) -> str:
        """Return a random object that fits the answers."""
        return rng.choice(self.player.names(state.candidates))

    def imagine(
        self, state: PlayerState, action: str, turns_left: int, rng: random.Random, name: str = ""
    ) -> str:
        """Play `action` and continue as the player with the secret `name` ("": a random one that
        fits). Return a forecast."""
        player, world, before = self.player, self.env.world_table, state
        state = copy.copy(state)
        name = name or self.any_secret(state, rng)
        secret = player.object_of_guess[world.guess(name)]
        answer = player.answer(action, secret)
        player.observe(state, action, answer)
        after, success, turn = state.candidates, player.object_of_guess.get(action) == secret, 1
        is_last = success or turns_left == 1
        while not success and turn < turns_left:
            turn += 1
            following, _ = player.choose_turn(state, rng)
            player.observe(state, following, player.answer(following, secret))
            success = player.object_of_guess.get(following) == secret
        end = ending(success, state.candidates)
        if is_last:
            farewell = self.env.farewell_text(answer, success, name, state.candidates.bit_count())
            return f"{farewell} {end.split()[-1]}"
        information = information_sentence(before.candidates, after)
        checked = player.check(before, action)
        return f"{world.nouns[name]}. {checked} {answer_sentence(answer)} {information} {end}"

    def last_words(self, state: PlayerState, turns_left: int, rng: random.Random, name: str) -> str:
        """Return the environment's last message of a continued game with the secret `name`, and the
        outcome."""
        player, world, state = self.player, self.env.world_table, copy.copy(state)
        secret = player.object_of_guess[world.guess(name)]
        for _ in range(turns_left):
            action, _ = player.choose_turn(state, rng)
            answer, success = player.answer(action, secret), False
            player.observe(state, action, answer)
            if success := player.object_of_guess.get(action) == secret:
                break
        farewell = self.env.farewell_text(answer, success, name, state.candidates.bit_count())
        return f"{farewell} {ending(success, state.candidates).split()[-1]}"


def ending(success: bool, candidates: int) -> str:
    """Return the end of a game, in the environment's words for a lost one."""
    return "Success." if success else f"{closeness(candidates.bit_count())} Failure."


def information_sentence(before: int, after: int) -> str:
    """Return the sentence for how much an answer reduced the objects that fit."""
    share = after.bit_count() / before.bit_count()
    if share >= 1.0:
        return "It tells nothing."
    return f"It tells {'little' if share > 0.67 else 'some' if share > 0.34 else 'much'}."


def write_critique(mine: Sequence[str], others: Sequence[str]) -> str:
    """Return the critique that follows from forecasts: not optimal if most of them call the action
    uninformative, or if the other action ends clearly better."""
    checks = Counter(check for text in mine for check in WASTEFUL if f". {check}" in text)
    if checks and checks.most_common(1)[0][1] * 2 > len(mine):
        return f"Optimality: No. {checks.most_common(1)[0][0]}"
    points, other = (sum(map(end_points, texts)) / len(texts) for texts in (mine, others))
    if points < other - CLEARLY_WORSE:
        return "Optimality: No. It ends worse than another turn."
    return "Optimality: Yes. It ends as well as another turn."


def end_points(forecast: str) -> int:
    """Return how good the end in a forecast is."""
    return next((points for word, points in END_POINTS.items() if word in forecast), 0)
