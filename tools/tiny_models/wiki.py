"""The corpus of the bundled model of the wiki: mediocre search, and NLAC's roles.

Every text has a different encyclopedia, so no page and no question of the environment occurs.
Forecasts check an action and describe how searches went on, critiques compare such forecasts, and a
refinement is another draw of the same reader.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from agentrl_cli.core.types import Episode, Message, Turn
from agentrl_cli.envs.base import Env
from agentrl_cli.envs.wiki.browser import parse
from agentrl_cli.envs.wiki.env import Wiki
from tools.tiny_models.base import Branch, Text
from tools.tiny_models.played import (
    FAILURE,
    SUCCESS,
    PlayedCorpus,
    Transition,
    outcome,
    response,
    turns_of,
    untaught,
    verdict,
)
from tools.tiny_models.reader import (
    RULES,
    Reader,
    ReaderHabits,
    ReaderState,
    ask,
    check,
    observe,
    recall,
    to_save,
)

PAGES, QUESTIONS = 60, 4  # of the encyclopedia of a text
OWN_QUESTIONS = 40  # of one in which the model plays
FIRST_OTHER_WORLD = 1 << 40  # seeds from here on are no user's
RECALLED = 16  # relations of pages that a text of facts asks for


@dataclass
class Snapshot:
    """A search before an action: the environment, the reader's state, the last observation."""

    env: Wiki
    state: ReaderState
    observation: list[Message]

    def fork(self) -> Snapshot:
        env, search = copy.copy(self.env), self.env.search
        assert search is not None
        views, saved = search.browser.views.copy(), search.browser.saved.copy()
        browser = replace(search.browser, views=views, saved=saved)
        env.search = replace(search, browser=browser, done_before=search.done_before.copy())
        return Snapshot(env, self.state.copy(), self.observation)


@dataclass(kw_only=True)
class WikiCorpus(PlayedCorpus[Snapshot]):
    """Writes searches of a reader with `habits` in encyclopedias like that of `env`."""

    env: Wiki
    habits: ReaderHabits

    def __post_init__(self) -> None:
        super().__post_init__()
        self.reader = Reader(self.habits)

    def exercises(self) -> dict[str, Callable[[random.Random], list[Turn] | Text]]:
        return {"facts": self.facts, "wild": self.wild}

    def facts(self, rng: random.Random) -> Text:
        """Return a walk along links, which is not trained, and questions about its pages."""
        now, played = self.start(rng), list[Transition[Snapshot]]()
        while len(now.state.facts) < 4 and len(played) < self.env.max_turns - 2:
            leads_to = now.state.views[-1].leads_to if now.state.views else ()
            choices = [title for title in leads_to if title not in now.state.facts]
            name = rng.choice(choices or [now.state.entity, *now.state.facts])
            action = f"OPEN {name}" if choices else f"SEARCH {name}"
            played.append(self.act(now, action, now.fork()))
        told = [(t, f) for t, facts in now.state.facts.items() for f in facts]
        branches = [
            Branch(len(played) - 1, f"The {f.relation} of {t}?", recall(to_save(t, f)))
            for t, f in rng.sample(told, min(RECALLED, len(told)))
        ]
        return Text("facts", untaught(turns_of(played)), branches)

    def wander(self, rng: random.Random) -> list[Transition[Snapshot]]:
        """Return a search of random actions mixed with the reader's; an answer mostly comes
        late."""
        now, played = self.start(rng), list[Transition[Snapshot]]()
        while not played or not played[-1].is_last:
            any_kind = rng.random() < 0.4
            action = (
                self.reader.any_action(now.state, rng) if any_kind else self.fresh_action(now, rng)
            )
            if parse(action).verb == "submit" and rng.random() < 0.7:
                action = self.reader.any_action(now.state, rng)
            played.append(self.act(now, action, now.fork()))
        return played

    def other_world(self, rng: random.Random) -> Env:
        return self._other_wiki(rng, OWN_QUESTIONS)

    def _other_wiki(self, rng: random.Random, questions: int) -> Wiki:
        seed = FIRST_OTHER_WORLD + rng.randrange(FIRST_OTHER_WORLD)
        return replace(
            self.env, world_seed=seed, pages=PAGES, questions=questions, test_questions=1
        )

    def start(self, rng: random.Random) -> Snapshot:
        env, state = self._other_wiki(rng, QUESTIONS), ReaderState()
        observation = env.reset(rng.choice(env.tasks("train")), 0)
        ask(state, observation[0].content)
        return Snapshot(env, state, observation)

    def act(self, now: Snapshot, action: str, before: Snapshot) -> Transition[Snapshot]:
        step = now.env.step(action)
        observe(now.state, action, step.messages[-1].content)
        now.observation = step.messages
        return Transition(before, action, step)

    def true_forecasts(self, episode: Episode) -> list[str]:
        state, checks = ReaderState(), list[str]()
        ask(state, episode.turns[0].observation[-1].content)
        responses = [episode.response(i)[-1].content for i in range(len(episode.turns))]
        for turn, seen in zip(episode.turns, responses, strict=True):
            checks.append(check(state, turn.action))
            observe(state, turn.action, seen)
        end = SUCCESS if episode.success else FAILURE
        later = f"{worth(responses[-1])} {end}"
        texts = [
            f"{checked} {first_sentence(seen)} {later}"
            for checked, seen in zip(checks[:-1], responses[:-1], strict=True)
        ]
        return [*texts, f"{checks[-1]} {responses[-1]} {end}"]

    def choose_action(self, now: Snapshot, rng: random.Random) -> str:
        return self.reader.choose_action(now.state, rng)

    def fresh_action(self, before: Snapshot, rng: random.Random) -> str:
        state = before.state.copy()
        state.mistakes.clear()
        return self.reader.choose_action(state, rng)

    def any_action(self, before: Snapshot, rng: random.Random) -> str:
        return self.reader.any_action(before.state, rng)

    def redraw_unknown(self, now: Snapshot, rng: random.Random) -> None:
        now.state.mistakes.clear()

    def true_forecast(self, played: list[Transition[Snapshot]]) -> str:
        first, last = played[0], played[-1]
        checked = check(first.before.state, first.action)
        if first.is_last:
            return f"{checked} {response(first)} {outcome(played)}"
        return f"{checked} {self.told(first)} {worth(response(last))} {outcome(played)}"

    def critique(self, mine: Sequence[str], others: Sequence[str]) -> str:
        return verdict(mine, others, RULES)

    def told(self, played: Transition[Snapshot]) -> str:
        return first_sentence(response(played))


def worth(farewell: str) -> str:
    """Return the last message of a search without the answer in it."""
    right = "Right." if "Right." in farewell else "Wrong."
    return f"{right} {'Not proved.' if 'Not proved.' in farewell else 'Proved.'}"


def first_sentence(text: str) -> str:
    """Return the first sentence of the browser's response, which names the opened or saved part."""
    return f"{text.splitlines()[0].split('. ')[0].removesuffix('.')}."
