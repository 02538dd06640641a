"""The corpus of the bundled model of Twenty Questions.

It holds facts, objects that fit given answers, mediocre play, and every role of NLAC at the level
of that play. Secrets are uniform over all objects. Forecasts check a turn against the answers and
describe how games went on, critiques compare such forecasts, and a refinement is another draw of
the same player without the criticised action.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from agentrl_cli.algos.nlac.roles import fill
from agentrl_cli.core.types import Episode, Message, Task, Turn
from agentrl_cli.envs.base import Env
from agentrl_cli.envs.twentyq.env import TwentyQ, answer_sentence
from tools.tiny_models.base import (
    READ_FORECASTS,
    ROLLOUTS,
    Branch,
    Corpus,
    CritiqueExample,
    Text,
    best_of_rollouts,
    branches_of,
    rollout_line,
)
from tools.tiny_models.games import Games, Move, ending, information_sentence, write_critique
from tools.tiny_models.player import ANSWERS, Player, PlayerHabits, PlayerState

IMAGINED = 24  # games that decide a verdict


@dataclass(kw_only=True)
class TwentyQCorpus(Corpus):
    """Writes texts about the objects of `env` and games played by `habits`."""

    env: TwentyQ
    habits: PlayerHabits

    def __post_init__(self) -> None:
        super().__post_init__()
        self.player = Player(self.env.world_table, self.habits)
        self.games = Games(self.env, self.player)

    def exercises(self) -> dict[str, Callable[[random.Random], list[Turn] | Text]]:
        return {"facts": self.facts, "fits": self.fits, "wild": self.wild}

    def facts(self, rng: random.Random) -> list[Turn]:
        """Return questions about a named object with their answers."""
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
        """Return a game of informative questions with an object that fits after each answer. The
        questions are not trained."""
        secret = rng.randrange(len(self.player.object_of_guess))
        attributes = self._informative_attributes(self.env.world_table.objects[secret], rng)
        questions = iter([self.env.world_table.question(a) for a in attributes])
        return [turn for turn, _, _ in self._game(secret, lambda state: next(questions, ""), rng)]

    def wild(self, rng: random.Random) -> Text:
        """Return a game of random actions, which are not trained, each with a forecast."""
        secret = rng.randrange(len(self.player.object_of_guess))
        game = self._game(secret, lambda state: self._action_of_any_kind(state, rng), rng)
        branches = []
        for at, (_, state, action) in enumerate(game):
            forecast = self.games.imagine(state, action, self.env.max_turns - at, rng)
            branches.append(Branch(at, self.prompts.forecast, forecast))
        return Text("wild", [turn for turn, _, _ in game], branches)

    def _game(
        self, secret: int, choose: Callable[[PlayerState], str], rng: random.Random
    ) -> list[tuple[Turn, PlayerState, str]]:
        """Play a game in which `choose` acts ("": it stops) and only thoughts are trained. Return
        the turns, the states before them, and the actions."""
        env, state, found = copy.copy(self.env), self.player.start(), []
        task = Task("corpus", "train", {"object": env.world_table.objects[secret]})
        observation = [Message("system", env.system()), *env.reset(task, 0)]
        while action := choose(state):
            text = self.player.turn_text(state, action, rng)
            turn = Turn(observation, text, [], [], [], info={"action_weight": 0.0})
            found.append((turn, copy.copy(state), action))
            step = env.step(text)
            self.player.observe(state, action, self.player.answer(action, secret))
            if step.done:
                break
            observation = step.messages
        return found

    def _action_of_any_kind(self, state: PlayerState, rng: random.Random) -> str:
        if rng.random() < 0.35:
            return self.player.choose_turn(state, rng)[0]
        return self.player.any_action(state, rng)

    def _informative_attributes(self, name: str, rng: random.Random) -> list[str]:
        """Return nine attributes, half of them true of the object if it has enough: a yes is most
        informative."""
        world = self.env.world_table
        attributes = rng.sample(world.attributes, len(world.attributes))
        true = [a for a in attributes if world.answer(name, a) == "yes"][: rng.randint(2, 5)]
        chosen = true + [a for a in attributes if a not in true][: 9 - len(true)]
        rng.shuffle(chosen)
        return chosen

    def play(self, rng: random.Random, roles: Mapping[str, float]) -> Text:
        moves, end = self.games.play(rng)
        turns = [Turn(move.observation, move.turn_text, [], [], []) for move in moves]
        writers = {
            "forecast": self._forecast, "explored": self._explored_forecast,
            "backup": self._backup, "evaluate": self._evaluate, "refine": self._refine,
            "rollouts": self._refine_by_rollouts, "aggregate": self._aggregate,
        }  # fmt: skip
        said = branches_of(turns, roles, rng, lambda role, at: writers[role](moves, at, end, rng))
        return Text("play", turns, said)

    # the roles, each behind move `at` of a game that ended with `end`

    def _forecast(self, moves: list[Move], at: int, end: str, rng: random.Random) -> Branch:
        return Branch(
            at, self.prompts.forecast, self.games.describe(moves[at], end, moves[at].secret)
        )

    def _explored_forecast(
        self, moves: list[Move], at: int, end: str, rng: random.Random
    ) -> Branch:
        """Return the result of another action, played on with an object that fits. A forecast must
        depend on the action, not on the player that would choose it."""
        action, text = self._other_action(moves[at].state, rng)
        forecast = self.games.imagine(moves[at].state, action, self.env.max_turns - at, rng)
        return Branch(at, self.prompts.forecast, forecast, text)

    def _backup(self, moves: list[Move], at: int, end: str, rng: random.Random) -> Branch | None:
        """Return a forecast of this move from the response and a forecast of a next one: its own
        check, the information of the response, and the end of the latter."""
        if moves[at].is_last:
            response = moves[at].response[0].content
            forecast = self.games.describe(moves[at], end, moves[at].secret)
            return self.terminal_backup(at, response, forecast)
        following, left = moves[at + 1].state, self.env.max_turns - at - 1
        action, secret = (
            self.player.choose_turn(following, rng)[0],
            self.games.any_secret(following, rng),
        )
        later = self.games.imagine(following, action, left, rng, secret)
        prompt = fill(self.prompts.backup, response=moves[at].response[0].content, forecast=later)
        return Branch(at, prompt, self.games.describe(moves[at], _end_of(later), secret))

    def _evaluate(self, moves: list[Move], at: int, end: str, rng: random.Random) -> Branch:
        return self.critique_branch(self._critique_example(moves, at, rng), rng)

    def _refine(self, moves: list[Move], at: int, end: str, rng: random.Random) -> Branch:
        return self.refinement_branch(self._critique_example(moves, at, rng))

    def _refine_by_rollouts(
        self, moves: list[Move], at: int, end: str, rng: random.Random
    ) -> Branch:
        """Return the turn that succeeded most often in a few rollouts, or another draw of the
        player if none did."""
        state = moves[at].state
        drawn = [self.player.choose_turn(state, rng) for _ in range(ROLLOUTS)]
        ends = [self._rollout(moves, at, action, rng) for action, _ in drawn]
        turns = [text for _, text in drawn]
        lines = [rollout_line(*row) for row in zip(turns, ends, strict=True)]
        best = best_of_rollouts(turns, [e.endswith("Success.") for e in ends])
        prompt = fill(self.prompts.refine_by_rollouts, rollouts="\n".join(lines))
        return Branch(at, prompt, best or self.player.choose_turn(state, rng)[1], turns[0])

    def _rollout(self, moves: list[Move], at: int, action: str, rng: random.Random) -> str:
        imagined = self.games.imagine(moves[at].state, action, self.env.max_turns - at, rng)
        if "You" in imagined:
            return imagined
        left = self.env.max_turns - at - 1
        answer = imagined.split(". ")[2]
        return f"{answer}. {left} left. {imagined.split()[-1]}"

    def _aggregate(self, moves: list[Move], at: int, end: str, rng: random.Random) -> Branch | None:
        """Return a forecast from the ends of a few rollouts after a move."""
        if moves[at].is_last:
            return None
        following, left = moves[at + 1].state, self.env.max_turns - at - 1
        secrets = [self.games.any_secret(following, rng) for _ in range(ROLLOUTS)]
        ends = [self.games.last_words(following, left, rng, secret) for secret in secrets]
        response = moves[at].response[0].content
        prompt = fill(self.prompts.aggregate, response=response, rollouts="\n".join(ends))
        secret, end = rng.choice(list(zip(secrets, ends, strict=True)))
        return Branch(at, prompt, self.games.describe(moves[at], _end_of(end), secret))

    def other_world(self, rng: random.Random) -> Env:
        return replace(self.env, split_seed=rng.randrange(1 << 30))

    def true_forecasts(self, episode: Episode) -> list[str]:
        state, found = self.player.start(), []
        noun = self.env.world_table.nouns[str(episode.task.data["object"])]
        moves: list[tuple[PlayerState, str, str]] = []
        for i, turn in enumerate(episode.turns):
            action, response = turn.action.split("\n")[-1], episode.response(i)[0].content
            answer = response.split(".")[0].lower()
            before, state = state, copy.copy(state)
            self.player.observe(state, action, answer if answer in ANSWERS else "")
            moves.append((before, action, response))
            found.append(state.candidates)
        end = ending(episode.success, found[-1])
        texts = []
        for (before, action, response), after in zip(moves, found, strict=True):
            head = f"{noun}. {self.player.check(before, action)}"
            information = information_sentence(before.candidates, after)
            texts.append(f"{head} {response.split('.')[0]}. {information} {end}")
        return [*texts[:-1], f"{head} {response} {end.split()[-1]}"]

    def _critique_example(self, moves: list[Move], at: int, rng: random.Random) -> CritiqueExample:
        """Return the played action or, in half of all cases, another one, judged by games imagined
        from it and from a draw of the player. The verdict uses more games than the prompt shows."""
        state, left = moves[at].state, self.env.max_turns - at
        action, text = moves[at].action, moves[at].turn_text
        if rng.random() < 0.5:
            action, text = self._other_action(state, rng)
        other, _ = self.player.choose_turn(state, rng)
        sides = [
            [self.games.imagine(state, choice, left, rng) for _ in range(IMAGINED)]
            for choice in (action, other)
        ]
        critique, count = write_critique(*sides), rng.choice(READ_FORECASTS)
        refinement = text
        if critique.startswith("Optimality: No"):
            _, refinement = self.player.choose_turn(state, rng, without=(action,))
        mine, others = (texts[:count] for texts in sides)
        return CritiqueExample(at, text, mine, others, critique, refinement)

    def _other_action(self, state: PlayerState, rng: random.Random) -> tuple[str, str]:
        """Return a random action or, in half of all cases, the player's, and its whole turn."""
        if rng.random() < 0.5:
            return self.player.choose_turn(state, rng)
        action = self.player.any_action(state, rng)
        return action, self.player.turn_text(state, action, rng)


def _end_of(forecast: str) -> str:
    """Return the end of the game in a forecast, in the words of `games.ending`."""
    words = forecast.split()
    return " ".join(words[-1:] if words[-1] == "Success." else words[-2:])
