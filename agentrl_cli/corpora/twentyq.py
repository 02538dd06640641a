"""The corpus behind the embedded model of Twenty Questions, drawn afresh for every step.

It holds facts of the world, objects that fit what was answered, mediocre play, and every role of
NLAC at the level of that play. Secrets are uniform over all objects. No text shows an expert's
question: forecasts tell how really played episodes went on, verdicts compare such forecasts, and a
refinement is another draw of the same player that only avoids the very turn that was criticised.
"""

from __future__ import annotations

import copy
import random
from collections import Counter
from dataclasses import dataclass

from agentrl_cli.algos.language import fill
from agentrl_cli.algos.nlac import NLAC
from agentrl_cli.corpora.player import Habits, Notes, Player
from agentrl_cli.envs.twentyq.env import TwentyQ
from agentrl_cli.types import Episode, Message, Task, Turn, derive_seed

UNTRAINED = {"weight": 0.0}


@dataclass(frozen=True)
class Move:
    """One move of a game: the player's notes before it, and what came of it."""

    notes: Notes
    observation: list[Message]
    action: str
    response: list[Message]
    after: int
    over: bool
    success: bool


@dataclass(kw_only=True)
class TwentyQCorpus:
    """Writes texts of any kind; the prompts of the roles, and how many forecasts a critique reads,
    are those of `nlac`."""

    env: TwentyQ
    habits: Habits
    nlac: NLAC
    guess_weight: float

    def __post_init__(self) -> None:
        self.player = Player(self.env.world_table, self.habits)
        self.prompts, self.forecasts = self.nlac.prompts, self.nlac.forecasts

    def episodes(self, count: int, mixture: dict[str, float], seed: int) -> list[Episode]:
        """`count` scripted episodes without token ids, of the kinds in proportion to `mixture`."""
        rng = random.Random(seed)
        kinds = rng.choices(list(mixture), list(mixture.values()), k=count)
        return [self._episode(kind, derive_seed(seed, i)) for i, kind in enumerate(kinds)]

    def _episode(self, kind: str, seed: int) -> Episode:
        rng = random.Random(seed)
        writers = {
            "facts": self.facts, "fits": self.fits, "game": self.game,
            "forecast": self.forecast, "backup": self.backup,
            "evaluate": self.evaluate, "refine": self.refine,
        }  # fmt: skip
        task = Task(f"corpus-{kind}", "train", {"kind": kind})
        return Episode(f"{kind}-{seed}", task, kind, seed, writers[kind](rng))

    # facts of the world

    def facts(self, rng: random.Random) -> list[Turn]:
        """Questions about a named object and their answers."""
        world, secret = self.env.world_table, rng.randrange(len(self.player.named))
        named = world.guess(world.objects[secret]).replace("Is it", "It is").replace("?", ".")
        turns = []
        for attribute in rng.sample(world.attributes, 10):
            question = world.question(attribute)
            answer = self.player.answer(question, secret).capitalize() + "."
            turns.append(Turn([Message("user", question)], answer, [], [], []))
        opening = [Message("system", "Answer the questions."), Message("user", named)]
        turns[0].observation = [
            opening[0],
            Message("user", f"{named} {turns[0].observation[0].content}"),
        ]
        return turns

    def fits(self, rng: random.Random) -> list[Turn]:
        """After every answer, any one of the objects that fit all answers so far."""
        world, secret = self.env.world_table, rng.randrange(len(self.player.named))
        notes, turns = self.player.start(), []
        said = [Message("system", "Name what fits."), Message("user", "Ask.")]
        for attribute in self._telling(world.objects[secret], rng):
            question = world.question(attribute)
            answer = self.player.answer(question, secret)
            self.player.see(notes, question, answer)
            turns.append(Turn(said, question, [], [], [], info=UNTRAINED))
            guess = world.guess(rng.choice(self.player.objects(notes.fits)))
            info = {"weight": self.guess_weight}
            reply = [Message("user", answer.capitalize() + ".")]
            turns.append(Turn(reply, guess, [], [], [], info=info))
            said = [Message("user", "Go on.")]
        return turns

    def _telling(self, name: str, rng: random.Random) -> list[str]:
        """Nine attributes, half of them true of the object if it has so many: a yes tells most."""
        attributes = rng.sample(
            self.env.world_table.attributes, len(self.env.world_table.attributes)
        )
        true = [a for a in attributes if self.env.world_table.answer(name, a) == "yes"][
            : rng.randint(2, 5)
        ]
        chosen = true + [a for a in attributes if a not in true][: 9 - len(true)]
        rng.shuffle(chosen)
        return chosen

    # mediocre play

    def play(self, rng: random.Random) -> list[Move]:
        """One game of the mediocre player."""
        env, notes, moves = copy.copy(self.env), self.player.start(), []
        secret = rng.randrange(len(self.player.named))
        name = env.world_table.objects[secret]
        observation = env.reset(Task("corpus", "train", {"object": name}), 0)
        observation = [Message("system", env.system()), *observation]
        over = False
        while not over:
            before = copy.deepcopy(notes)
            action = self.player.act(notes, rng)
            step = env.step(action)
            self.player.see(notes, action, self.player.answer(action, secret))
            over, success = step.done, bool(step.info.get("success"))
            move = Move(before, observation, action, step.messages, notes.fits, over, success)
            moves.append(move)
            observation = step.messages
        return moves

    def game(self, rng: random.Random) -> list[Turn]:
        """A whole game."""
        return self._turns(self.play(rng))

    def _turns(self, moves: list[Move]) -> list[Turn]:
        return [
            Turn(
                move.observation,
                move.action,
                [],
                [],
                [],
                info={"weight": self._weight(move.action)},
            )
            for move in moves
        ]

    def _weight(self, action: str) -> float:
        return self.guess_weight if action in self.player.named else 1.0

    # roles

    def _cut(self, rng: random.Random) -> tuple[list[Move], int]:
        moves = self.play(rng)
        return moves, rng.randrange(len(moves))

    def _role(self, turns: list[Turn], prompt: str, written: str) -> list[Turn]:
        """What was played, the role's prompt behind it, and what the role writes."""
        return [*turns, Turn([Message("user", prompt)], written, [], [], [])]

    def _ending_in(self, moves: list[Move], at: int, action: str) -> list[Turn]:
        """The game up to move `at` with `action` in its place; another action than was played is
        seen but not taught."""
        turns = self._turns(moves[: at + 1])
        if action != moves[at].action:
            turns[-1].action, turns[-1].info = action, dict(UNTRAINED)
        return turns

    def explored(self, move: Move, rng: random.Random) -> str:
        """The played action or, as often, one of any kind: what a forecast says must follow from
        the action and not from who would choose it."""
        return move.action if rng.random() < 0.5 else self.player.any_action(move.notes, rng)

    def describe(self, move: Move, success: bool) -> str:
        """A forecast that came true: the response, what it told, how the game ended."""
        outcome = "Success." if success else "Failure."
        response = move.response[0].content
        if move.over:
            return f"{response} {outcome}"
        answer = response.split(".")[0] + "."
        return f"{answer} {_told(move.notes.fits, move.after)} {outcome}"

    def forecast(self, rng: random.Random) -> list[Turn]:
        """What a move led to: as it was played, or another one played on with what fits."""
        moves, at = self._cut(rng)
        action = self.explored(moves[at], rng)
        written = self.describe(moves[at], moves[-1].success)
        if action != moves[at].action:
            written = self.imagine(moves[at].notes, action, self.env.turns - at, rng)
        turns = self._ending_in(moves, at, action)
        return self._role(turns, self.prompts.forecast, written)

    def backup(self, rng: random.Random) -> list[Turn]:
        """The response seen and a forecast from the next move make a forecast of this one."""
        moves = self.play(rng)
        while len(moves) < 2:
            moves = self.play(rng)
        at = rng.randrange(len(moves) - 1)
        success = moves[-1].success
        prompt = fill(
            self.prompts.backup,
            response=moves[at].response[0].content,
            forecast=self.describe(moves[at + 1], success),
        )
        return self._role(self._turns(moves[: at + 1]), prompt, self.describe(moves[at], success))

    def evaluate(self, rng: random.Random) -> list[Turn]:
        """Forecasts of a move and of another one, and the verdict that their outcomes bear out."""
        turns, _, prompt, critique = self._judged(rng)
        return self._role(turns, prompt, critique)

    def refine(self, rng: random.Random) -> list[Turn]:
        """A critique, and the same turn where it was found optimal, else another draw of the
        player."""
        turns, notes, _, critique = self._judged(rng)
        action = turns[-1].action
        if critique.startswith("Optimality: No"):
            action = self.player.act(notes, rng, without=(action,))
        turns = self._role(turns, fill(self.prompts.refine, critique=critique), action)
        turns[-1].info = {"weight": self._weight(action)}
        return turns

    def _judged(self, rng: random.Random) -> tuple[list[Turn], Notes, str, str]:
        """A game up to a move, the notes before it, the evaluator's prompt and its critique."""
        moves, at = self._cut(rng)
        notes, left, action = moves[at].notes, self.env.turns - at, self.explored(moves[at], rng)
        other = self.player.act(notes, rng, without=(action,))
        mine = [self.imagine(notes, action, left, rng) for _ in range(self.forecasts)]
        others = [self.imagine(notes, other, left, rng) for _ in range(self.forecasts)]
        prompt = fill(self.prompts.evaluate, forecasts="\n".join(mine), others="\n".join(others))
        return self._ending_in(moves, at, action), notes, prompt, verdict(mine, others)

    def imagine(self, notes: Notes, action: str, left: int, rng: random.Random) -> str:
        """Play `action` and go on as the player would, with any secret that fits: a forecast."""
        notes = copy.deepcopy(notes)
        secret = self.player.named[
            self.env.world_table.guess(rng.choice(self.player.objects(notes.fits)))
        ]
        first = None
        for turn in range(left):
            before = notes.fits
            answer = self.player.answer(action, secret)
            self.player.see(notes, action, answer)
            success = self.player.named.get(action) == secret
            over = success or turn == left - 1
            first = first or (before, notes.fits, answer, over)
            if over:
                return self._imagined(first, success, secret)
            action = self.player.act(notes, rng)
        raise ValueError(f"no turns left to imagine: {left}")

    def _imagined(self, first: tuple[int, int, str, bool], success: bool, secret: int) -> str:
        before, after, answer, over = first
        outcome = "Success." if success else "Failure."
        if over:
            name = self.env.world_table.objects[secret]
            return f"{self.env.farewell(answer, success, name)} {outcome}"
        head = f"{answer.capitalize()}." if answer else "I cannot answer that."
        return f"{head} {_told(before, after)} {outcome}"


def _told(before: int, after: int) -> str:
    """How much an answer told, by the share of fitting objects that it left."""
    share = after.bit_count() / before.bit_count()
    for bound, word in ((0.45, "much"), (0.75, "some"), (0.999, "little")):
        if share <= bound:
            return f"It tells {word}."
    return "It tells nothing."


def verdict(mine: list[str], others: list[str]) -> str:
    """The critique that the outcomes bear out: optimal unless the other succeeds more often."""
    success, other = (sum(text.endswith("Success.") for text in texts) for texts in (mine, others))
    told = Counter(
        word for text in mine for word in ("much", "some", "little", "nothing") if word in text
    )
    why = f"It tells {told.most_common(1)[0][0]} and" if told else "It"
    if success >= other:
        return f"Optimality: Yes. {why} succeeds as often as another turn."
    return f"Optimality: No. {why} succeeds less often than another turn."
