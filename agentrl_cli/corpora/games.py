"""Games of the mediocre player, played and imagined, and what can honestly be said of them."""

from __future__ import annotations

import copy
import random
from collections import Counter
from dataclasses import dataclass

from agentrl_cli.core.types import Message, Task
from agentrl_cli.corpora.player import Notes, Player
from agentrl_cli.envs.twentyq.env import TwentyQ, closeness

WORTH = {"Success.": 3, "Close.": 2, "Near.": 1}  # how good an end is; Far: 0


@dataclass(frozen=True)
class Move:
    """One move of a game: the player's notes before it, and what came of it.

    `action` is the question or guess alone, `said` the whole turn, `after` what fits afterwards.
    """

    notes: Notes
    observation: list[Message]
    action: str
    said: str
    response: list[Message]
    after: int
    over: bool


@dataclass(frozen=True)
class Games:
    """Plays the environment's game as `player` would."""

    env: TwentyQ
    player: Player

    def play(self, rng: random.Random) -> tuple[list[Move], str]:
        """One game with a random secret, and how it ended."""
        env, notes, moves = copy.copy(self.env), self.player.start(), []
        secret = rng.randrange(len(self.player.named))
        name = env.world_table.objects[secret]
        observation = env.reset(Task("corpus", "train", {"object": name}), 0)
        observation = [Message("system", env.system()), *observation]
        over = False
        while not over:
            before, action = copy.deepcopy(notes), self.player.act(notes, rng)
            said = self.player.say(notes, action, rng)
            step = env.step(said)
            self.player.see(notes, action, self.player.answer(action, secret))
            over = step.done
            moves.append(Move(before, observation, action, said, step.messages, notes.fits, over))
            observation = step.messages
        return moves, ending(bool(step.info["success"]), notes.fits)

    def describe(self, move: Move, end: str) -> str:
        """A forecast that came true: the response, what it told, how the game ended."""
        response = move.response[0].content
        if move.over:
            return f"{response} {end.split()[-1]}"
        return f"{response.split('.')[0]}. {told(move.notes.fits, move.after)} {end}"

    def imagine(self, notes: Notes, action: str, left: int, rng: random.Random) -> str:
        """Play `action` and go on as the player would, with any secret that fits: a forecast."""
        player, notes = self.player, copy.deepcopy(notes)
        secret = player.named[self.env.world_table.guess(rng.choice(player.objects(notes.fits)))]
        before, answer = notes.fits, player.answer(action, secret)
        player.see(notes, action, answer)
        after, success, turn = notes.fits, player.named.get(action) == secret, 1
        over = success or left == 1
        while not success and turn < left:
            action, turn = player.act(notes, rng), turn + 1
            player.see(notes, action, player.answer(action, secret))
            success = player.named.get(action) == secret
        end = ending(success, notes.fits)
        if over:
            name = self.env.world_table.objects[secret]
            farewell = self.env.farewell(answer, success, name, notes.fits.bit_count())
            return f"{farewell} {end.split()[-1]}"
        head = f"{answer.capitalize()}." if answer else "I cannot answer that."
        return f"{head} {told(before, after)} {end}"


def ending(success: bool, fits: int) -> str:
    """How a game ended, in the words that the environment uses of a lost one."""
    return "Success." if success else f"{closeness(fits.bit_count())} Failure."


def told(before: int, after: int) -> str:
    """How much an answer told, by the share of fitting objects that it left."""
    share = after.bit_count() / before.bit_count()
    for bound, word in ((0.45, "much"), (0.75, "some"), (0.999, "little")):
        if share <= bound:
            return f"It tells {word}."
    return "It tells nothing."


def verdict(mine: list[str], others: list[str]) -> str:
    """The critique that the ends bear out: optimal unless the other turn ends better on average."""
    mean, other = (sum(map(worth, texts)) / len(texts) for texts in (mine, others))
    amounts = Counter(
        word for text in mine for word in ("much", "some", "little", "nothing") if word in text
    )
    why = f"It tells {amounts.most_common(1)[0][0]} and" if amounts else "It"
    if mean >= other:
        return f"Optimality: Yes. {why} ends as well as another turn."
    return f"Optimality: No. {why} ends worse than another turn."


def worth(forecast: str) -> int:
    """How good the end is that a forecast names."""
    return next((points for word, points in WORTH.items() if word in forecast), 0)
