"""Reading the texts of the corpus, for tests: what was asked in them, and what then fitted."""

from __future__ import annotations

import itertools

from agentrl_cli.core.types import Episode, Turn
from agentrl_cli.corpora.player import PlayerState
from agentrl_cli.corpora.twentyq import TwentyQCorpus
from agentrl_cli.envs.twentyq.questions import Guess, Question, parse

EXPLORING = ("forecast", "evaluate", "refine")
ROLES = ("forecast", "backup", "evaluate", "refine")
KINDS = ("facts", "answers", "fits", "game", *ROLES)


def draw_episodes(corpus: TwentyQCorpus, kind: str, count: int, seed: int = 0) -> list[Episode]:
    """Texts of one kind."""
    return corpus.episodes(count, {kind: 1.0}, seed)


def player_state_after(turns: list[Turn], corpus: TwentyQCorpus) -> PlayerState:
    """The player's state after these turns, each of which must have been answered."""
    state = corpus.player.start()
    for turn, following in itertools.pairwise(turns):
        answer = following.observation[0].content.split(".")[0].lower()
        corpus.player.observe(state, last_line(turn), answer)
    return state


def last_line(turn: Turn) -> str:
    """The question or guess of a turn."""
    return turn.action.split("\n")[-1]


def fitting(turns: list[Turn], corpus: TwentyQCorpus) -> set[str]:
    """What fits before the last of these turns, by the environment's reading of those before."""
    world, known, wrong = corpus.env.world_table, [], set()
    for turn, following in itertools.pairwise(turns):
        asked = parse(turn.action, world)
        answer = following.observation[0].content.split(".")[0].lower()
        if isinstance(asked, Question):
            known.append((asked.attribute, answer))
        elif isinstance(asked, Guess):
            wrong.add(asked.object)
    return set(world.matching(known)) - wrong
