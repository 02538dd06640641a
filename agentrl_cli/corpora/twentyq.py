"""The corpus behind the embedded model of Twenty Questions, drawn afresh for every step.

It holds facts of the world, objects that fit what was answered, mediocre play, and every role of
NLAC at the level of that play. Secrets are uniform over all objects. No text shows an expert's
question: forecasts tell how really played games went on, critiques compare such forecasts, and a
refinement is another draw of the same player that only avoids the very turn that was criticised.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from agentrl_cli.algos.nlac.prompts import fill
from agentrl_cli.core.types import Message, Turn
from agentrl_cli.corpora.base import UNTRAINED, Corpus, CritiqueExample, Writer, role_turns
from agentrl_cli.corpora.games import Games, Move, information_sentence, write_critique
from agentrl_cli.corpora.player import Player, PlayerRates, PlayerState
from agentrl_cli.envs.twentyq.env import TwentyQ, answer_sentence

GAMES_PER_FORECAST = 3  # times as many games as a critique reads decide its verdict


@dataclass(kw_only=True)
class TwentyQCorpus(Corpus):
    """Writes texts about the objects of `env` and games played by `habits`."""

    env: TwentyQ
    habits: PlayerRates

    def __post_init__(self) -> None:
        super().__post_init__()
        self.player = Player(self.env.world_table, self.habits)
        self.games = Games(self.env, self.player)

    def writers(self) -> dict[str, Writer]:
        """Facts, games, and the four roles."""
        return {
            "facts": self.facts, "fits": self.fits, "answers": self.answers, "game": self.game,
            "forecast": self.forecast, "backup": self.backup,
            "evaluate": self.evaluate, "refine": self.refine,
        }  # fmt: skip

    def facts(self, rng: random.Random) -> list[Turn]:
        """Questions about a named object and their answers."""
        world, secret = self.env.world_table, rng.randrange(len(self.player.object_of_guess))
        fact = world.guess(world.objects[secret]).replace("Is it", "It is").replace("?", ".")
        turns = []
        for attribute in rng.sample(world.attributes, 10):
            question = world.question(attribute)
            answer = answer_sentence(self.player.answer(question, secret))
            turns.append(Turn([Message("user", question)], answer, [], [], []))
        first = Message("user", f"{fact} {turns[0].observation[0].content}")
        turns[0].observation = [Message("system", "Answer the questions."), first]
        return turns

    def fits(self, rng: random.Random) -> list[Turn]:
        """After every answer, any one of the objects that fit all answers so far."""
        world, secret = self.env.world_table, rng.randrange(len(self.player.object_of_guess))
        state, turns = self.player.start(), []
        observation = [Message("system", "Name what fits."), Message("user", "Ask.")]
        for attribute in self._informative_attributes(world.objects[secret], rng):
            question = world.question(attribute)
            text = self.player.turn_text(state, question, rng)
            turns.append(Turn(observation, text, [], [], []))
            answer = self.player.answer(question, secret)
            self.player.observe(state, question, answer)
            observation = [Message("user", answer_sentence(answer))]
        return turns

    def answers(self, rng: random.Random) -> list[Turn]:
        """A game from the other side: to every action its answer and how much that tells."""
        secret = rng.randrange(len(self.player.object_of_guess))
        state, turns = self.player.start(), []
        for _ in range(self.env.turns):
            action, before = self._action_of_any_kind(state, rng), state.candidates
            answer = self.player.answer(action, secret)
            self.player.observe(state, action, answer)
            text = f"{answer_sentence(answer)} {information_sentence(before, state.candidates)}"
            turns += role_turns([], action, text)
        turns[0].observation.insert(0, Message("system", "Say what each answer tells."))
        return turns

    def _action_of_any_kind(self, state: PlayerState, rng: random.Random) -> str:
        if rng.random() < 0.35:
            return self.player.choose_action(state, rng)
        return self.player.any_action(state, rng)

    def _informative_attributes(self, name: str, rng: random.Random) -> list[str]:
        """Nine attributes, half of them true of the object if it has so many: a yes tells most."""
        world = self.env.world_table
        attributes = rng.sample(world.attributes, len(world.attributes))
        true = [a for a in attributes if world.answer(name, a) == "yes"][: rng.randint(2, 5)]
        chosen = true + [a for a in attributes if a not in true][: 9 - len(true)]
        rng.shuffle(chosen)
        return chosen

    def game(self, rng: random.Random) -> list[Turn]:
        """A whole game."""
        return _as_turns(self.games.play(rng)[0])

    def forecast(self, rng: random.Random) -> list[Turn]:
        """What a move led to: as it was played, or another one played on with what fits."""
        moves, end = self.games.play(rng)
        at = rng.randrange(len(moves))
        action = self._played_or_explored(moves[at], rng)
        forecast = self.games.describe(moves[at], end)
        if action != moves[at].action:
            forecast = self.games.imagine(moves[at].state, action, self.env.turns - at, rng)
        turns = self._turns_up_to(moves, at, action, rng)
        return role_turns(turns, self.prompts.forecast, forecast)

    def backup(self, rng: random.Random) -> list[Turn]:
        """The response seen and a forecast from the next move make a forecast of this one."""
        moves, end = self.games.play(rng)
        while len(moves) < 2:
            moves, end = self.games.play(rng)
        at = rng.randrange(len(moves) - 1)
        forecast, later = (self.games.describe(move, end) for move in moves[at : at + 2])
        response = moves[at].response[0].content
        prompt = fill(self.prompts.backup, response=response, forecast=later)
        return role_turns(_as_turns(moves[: at + 1]), prompt, forecast)

    def critique_example(self, rng: random.Random) -> CritiqueExample:
        """A move judged by the games imagined from it and from another one. The verdict rests on
        more games than the prompt shows, so that what an end leaves to chance is read from what the
        answers tell. A refinement only avoids the very action that was criticised."""
        moves, _ = self.games.play(rng)
        at = rng.randrange(len(moves))
        state = moves[at].state
        action = self._played_or_explored(moves[at], rng)
        other = self.player.choose_action(state, rng, without=(action,))
        mine, others = (self._imagined(moves, at, choice, rng) for choice in (action, other))
        prompt, critique = self.evaluation_prompt(mine, others), write_critique(mine, others)
        turns = self._turns_up_to(moves, at, action, rng)
        refinement = turns[-1].action
        if critique.startswith("Optimality: No"):
            refined = self.player.choose_action(state, rng, without=(action,))
            refinement = self.player.turn_text(state, refined, rng)
        return CritiqueExample(turns, prompt, critique, refinement)

    def _imagined(self, moves: list[Move], at: int, action: str, rng: random.Random) -> list[str]:
        """Forecasts of `action` at move `at`, as many as decide a verdict."""
        count, turns_left = GAMES_PER_FORECAST * self.forecasts, self.env.turns - at
        return [self.games.imagine(moves[at].state, action, turns_left, rng) for _ in range(count)]

    def _played_or_explored(self, move: Move, rng: random.Random) -> str:
        """The played action or, as often, one of any kind: what a forecast says must follow from
        the action and not from who would choose it."""
        return move.action if rng.random() < 0.5 else self.player.any_action(move.state, rng)

    def _turns_up_to(
        self, moves: list[Move], at: int, action: str, rng: random.Random
    ) -> list[Turn]:
        """The game up to move `at` with `action` in its place; another action than was played is
        seen but not taught."""
        turns = _as_turns(moves[: at + 1])
        if action != moves[at].action:
            turns[-1].action = self.player.turn_text(moves[at].state, action, rng)
            turns[-1].info = dict(UNTRAINED)
        return turns


def _as_turns(moves: list[Move]) -> list[Turn]:
    return [Turn(move.observation, move.turn_text, [], [], []) for move in moves]
