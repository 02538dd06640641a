"""Games of the mediocre player, played and imagined, and what can honestly be said of them."""

from __future__ import annotations

import copy
import random
from collections import Counter
from dataclasses import dataclass

from agentrl_cli.core.types import Message, Task
from agentrl_cli.corpora.player import Player, PlayerState
from agentrl_cli.envs.twentyq.env import TwentyQ, answer_sentence
from agentrl_cli.envs.twentyq.expert import closeness

END_POINTS = {"Success.": 3, "Close.": 2, "Near.": 1}  # how good an end is; Far: 0


@dataclass(frozen=True)
class Move:
    """One move of a game: the player's state before it, and what came of it.

    `action` is the question or guess alone, `turn_text` the whole turn; `candidates_after` are the
    objects that fit afterwards, as in `PlayerState`.
    """

    state: PlayerState
    observation: list[Message]
    action: str
    turn_text: str
    response: list[Message]
    candidates_after: int
    is_last: bool


@dataclass(frozen=True)
class Games:
    """Plays the environment's game as `player` would."""

    env: TwentyQ
    player: Player

    def play(self, rng: random.Random) -> tuple[list[Move], str]:
        """One game with a random secret, and how it ended."""
        env, state, moves = copy.copy(self.env), self.player.start(), []
        secret = rng.randrange(len(self.player.object_of_guess))
        name = env.world_table.objects[secret]
        observation = env.reset(Task("corpus", "train", {"object": name}), 0)
        observation = [Message("system", env.system()), *observation]
        while True:
            before, action = copy.deepcopy(state), self.player.choose_action(state, rng)
            text = self.player.turn_text(state, action, rng)
            step = env.step(text)
            self.player.observe(state, action, self.player.answer(action, secret))
            after = state.candidates
            moves.append(Move(before, observation, action, text, step.messages, after, step.done))
            if step.done:
                return moves, ending(bool(step.info["success"]), after)
            observation = step.messages

    def describe(self, move: Move, end: str) -> str:
        """A forecast that came true: the response, how much it told, how the game ended."""
        response = move.response[0].content
        if move.is_last:
            return f"{response} {end.split()[-1]}"
        information = information_sentence(move.state.candidates, move.candidates_after)
        return f"{response.split('.')[0]}. {information} {end}"

    def imagine(self, state: PlayerState, action: str, turns_left: int, rng: random.Random) -> str:
        """Play `action` and go on as the player would, with any secret that fits: a forecast."""
        player, world, state = self.player, self.env.world_table, copy.deepcopy(state)
        name = rng.choice(player.names(state.candidates))
        secret = player.object_of_guess[world.guess(name)]
        before, answer = state.candidates, player.answer(action, secret)
        player.observe(state, action, answer)
        after, success, turn = state.candidates, player.object_of_guess.get(action) == secret, 1
        is_last = success or turns_left == 1
        while not success and turn < turns_left:
            action, turn = player.choose_action(state, rng), turn + 1
            player.observe(state, action, player.answer(action, secret))
            success = player.object_of_guess.get(action) == secret
        end = ending(success, state.candidates)
        if is_last:
            farewell = self.env.farewell_text(answer, success, name, state.candidates.bit_count())
            return f"{farewell} {end.split()[-1]}"
        return f"{answer_sentence(answer)} {information_sentence(before, after)} {end}"


def ending(success: bool, candidates: int) -> str:
    """How a game ended, in the words that the environment uses of a lost one."""
    return "Success." if success else f"{closeness(candidates.bit_count())} Failure."


def information_sentence(before: int, after: int) -> str:
    """How much an answer told, by the share of the candidates that it left."""
    share = after.bit_count() / before.bit_count()
    for bound, word in ((0.45, "much"), (0.75, "some"), (0.999, "little")):
        if share <= bound:
            return f"It tells {word}."
    return "It tells nothing."


def write_critique(mine: list[str], others: list[str]) -> str:
    """The critique that the ends bear out: optimal unless the other turn ends better on average."""
    mean, other = (sum(map(end_points, texts)) / len(texts) for texts in (mine, others))
    words = ("much", "some", "little", "nothing")
    amounts = Counter(word for text in mine for word in words if word in text)
    why = f"It tells {amounts.most_common(1)[0][0]} and" if amounts else "It"
    if mean >= other:
        return f"Optimality: Yes. {why} ends as well as another turn."
    return f"Optimality: No. {why} ends worse than another turn."


def end_points(forecast: str) -> int:
    """How good the end is that a forecast names."""
    return next((points for word, points in END_POINTS.items() if word in forecast), 0)
