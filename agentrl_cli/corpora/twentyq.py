"""The corpus behind the embedded model of Twenty Questions, drawn afresh for every step.

It holds facts of the world, objects that fit what was answered, mediocre play, and every role of
NLAC at the level of that play. Secrets are uniform over all objects. No text shows an expert's
question: forecasts tell how really played games went on, verdicts compare such forecasts, and a
refinement is another draw of the same player that only avoids the very turn that was criticised.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

from agentrl_cli.algos.nlac.algorithm import NLAC
from agentrl_cli.algos.nlac.prompts import fill
from agentrl_cli.core.types import Episode, Message, Task, Turn
from agentrl_cli.corpora.base import Corpus
from agentrl_cli.corpora.games import Games, Move, told, verdict
from agentrl_cli.corpora.player import Habits, Notes, Player
from agentrl_cli.envs.twentyq.env import TwentyQ

UNTRAINED = {"weight": 0.0}
PLAYED_OUT = 3  # times as many games as a critique reads decide its verdict


@dataclass(kw_only=True)
class TwentyQCorpus(Corpus):
    """Writes texts of any kind; the prompts of the roles, and how many forecasts a critique reads,
    are those of `nlac`."""

    env: TwentyQ
    habits: Habits
    nlac: NLAC

    def __post_init__(self) -> None:
        self.player = Player(self.env.world_table, self.habits)
        self.games = Games(self.env, self.player)
        self.prompts, self.forecasts = self.nlac.prompts, self.nlac.forecasts

    def _episode(self, kind: str, seed: int) -> Episode:
        rng = random.Random(seed)
        writers = {
            "facts": self.facts, "fits": self.fits, "answers": self.answers, "game": self.game,
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
            turns.append(Turn(said, self.player.say(notes, question, rng), [], [], []))
            answer = self.player.answer(question, secret)
            self.player.see(notes, question, answer)
            said = [Message("user", answer.capitalize() + ".")]
        return turns

    def answers(self, rng: random.Random) -> list[Turn]:
        """A game from the other side: to every action its answer and how much that tells."""
        secret, notes, turns = rng.randrange(len(self.player.named)), self.player.start(), []
        told_of = [Message("system", "Say what each answer tells.")]
        for _ in range(self.env.turns):
            action, before = self._any(notes, rng), notes.fits
            answer = self.player.answer(action, secret)
            self.player.see(notes, action, answer)
            head = f"{answer.capitalize()}." if answer else "I cannot answer that."
            said = f"{head} {told(before, notes.fits)}"
            asked = [*told_of, Message("user", action)]
            turns.append(Turn(asked, said, [], [], [], info={"role": True}))
            told_of = []
        return turns

    def _any(self, notes: Notes, rng: random.Random) -> str:
        act = self.player.act if rng.random() < 0.35 else self.player.any_action
        return act(notes, rng)

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

    def game(self, rng: random.Random) -> list[Turn]:
        """A whole game."""
        return self._turns(self.games.play(rng)[0])

    def _turns(self, moves: list[Move]) -> list[Turn]:
        return [Turn(move.observation, move.said, [], [], []) for move in moves]

    # roles

    def forecast(self, rng: random.Random) -> list[Turn]:
        """What a move led to: as it was played, or another one played on with what fits."""
        moves, end = self.games.play(rng)
        at = rng.randrange(len(moves))
        action = self._explored(moves[at], rng)
        written = self.games.describe(moves[at], end)
        if action != moves[at].action:
            written = self.games.imagine(moves[at].notes, action, self.env.turns - at, rng)
        turns = self._ending_in(moves, at, action, rng)
        return self._role(turns, self.prompts.forecast, written)

    def backup(self, rng: random.Random) -> list[Turn]:
        """The response seen and a forecast from the next move make a forecast of this one."""
        moves, end = self.games.play(rng)
        while len(moves) < 2:
            moves, end = self.games.play(rng)
        at = rng.randrange(len(moves) - 1)
        prompt = fill(
            self.prompts.backup,
            response=moves[at].response[0].content,
            forecast=self.games.describe(moves[at + 1], end),
        )
        written = self.games.describe(moves[at], end)
        return self._role(self._turns(moves[: at + 1]), prompt, written)

    def evaluate(self, rng: random.Random) -> list[Turn]:
        """Forecasts of a move and of another one, and the verdict that their ends bear out."""
        turns, _, prompt, critique = self._judged(rng)
        return self._role(turns, prompt, critique)

    def refine(self, rng: random.Random) -> list[Turn]:
        """A critique, and the same turn where it was found optimal, else another draw of the
        player."""
        turns, move, _, critique = self._judged(rng)
        written = turns[-1].action
        if critique.startswith("Optimality: No"):
            action = self.player.act(move.notes, rng, without=(move.action,))
            written = self.player.say(move.notes, action, rng)
        return self._role(turns, fill(self.prompts.refine, critique=critique), written)

    def _judged(self, rng: random.Random) -> tuple[list[Turn], Move, str, str]:
        """A game up to a move, that move, the evaluator's prompt and its critique. The verdict
        rests on more games than the prompt shows, so that what an end leaves to chance is read from
        what the answers tell."""
        moves, _ = self.games.play(rng)
        at = rng.randrange(len(moves))
        notes, left = moves[at].notes, self.env.turns - at
        action = self._explored(moves[at], rng)
        other = self.player.act(notes, rng, without=(action,))
        mine, others = (
            [self.games.imagine(notes, one, left, rng) for _ in range(PLAYED_OUT * self.forecasts)]
            for one in (action, other)
        )
        shown = {"forecasts": mine[: self.forecasts], "others": others[: self.forecasts]}
        texts = {name: "\n".join(rows) for name, rows in shown.items()}
        prompt = fill(self.prompts.evaluate, **texts)
        judged = replace(moves[at], action=action)
        return self._ending_in(moves, at, action, rng), judged, prompt, verdict(mine, others)

    def _explored(self, move: Move, rng: random.Random) -> str:
        """The played action or, as often, one of any kind: what a forecast says must follow from
        the action and not from who would choose it."""
        return move.action if rng.random() < 0.5 else self.player.any_action(move.notes, rng)

    def _ending_in(self, moves: list[Move], at: int, action: str, rng: random.Random) -> list[Turn]:
        """The game up to move `at` with `action` in its place; another action than was played is
        seen but not taught."""
        turns = self._turns(moves[: at + 1])
        if action != moves[at].action:
            turns[-1].action = self.player.say(moves[at].notes, action, rng)
            turns[-1].info = dict(UNTRAINED)
        return turns

    def _role(self, turns: list[Turn], prompt: str, written: str) -> list[Turn]:
        """What was played, the role's prompt behind it, and what the role writes."""
        return [*turns, Turn([Message("user", prompt)], written, [], [], [], info={"role": True})]
