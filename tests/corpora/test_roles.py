"""What the roles of the corpus say follows from what was played and from what they were shown."""

from __future__ import annotations

import copy
import random
import re
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pytest

from agentrl_cli.algos.nlac.prompts import outcome, verdict
from agentrl_cli.corpora.games import Games
from agentrl_cli.corpora.player import UNANSWERABLE, PlayerState
from agentrl_cli.corpora.twentyq import GAMES_PER_FORECAST, TwentyQCorpus
from agentrl_cli.envs.twentyq.expert import closeness, entropy
from tests.builders.corpus import draw_episodes, fitting, last_line, player_state_after


def test_a_forecast_says_what_really_came_and_how_the_game_really_ended(corpus: TwentyQCorpus):
    explored = 0
    for seed in range(60):
        moves, end = corpus.games.play(random.Random(seed))
        *game, asked = corpus.forecast(random.Random(seed))
        move, written = moves[len(game) - 1], asked.action
        assert asked.observation[0].content == corpus.prompts.forecast
        if last_line(game[-1]) != move.action:
            explored += 1
            assert outcome(written) is not None
        else:
            head = move.response[0].content
            assert written.startswith(head if move.is_last else head.split(".")[0] + ".")
            assert written.endswith(end)
    assert 15 < explored < 45


def test_a_forecast_of_another_action_answers_that_action(corpus: TwentyQCorpus):
    kinds = Counter()
    for episode in draw_episodes(corpus, "forecast", 150):
        *game, written = episode.turns
        head, fits = written.action.split(".")[0].lower(), fitting(game, corpus)
        answers = {
            corpus.player.answer(last_line(game[-1]), corpus.env.world_table.objects.index(name))
            for name in fits
        }
        assert (head if head in ("yes", "no", "sometimes") else "") in answers
        kinds[head] += 1
    assert min(kinds[head] for head in ("yes", "no", "i cannot answer that")) > 10


def test_a_backup_reads_the_response_and_a_true_forecast_and_writes_a_true_one(
    corpus: TwentyQCorpus,
):
    found = 0
    for seed in range(60):
        moves, end = corpus.games.play(random.Random(seed))
        if len(moves) < 2:
            continue  # such a game is played again, so the seed tells another one
        *turns, last = corpus.backup(random.Random(seed))
        at, prompt = len(turns) - 1, last.observation[0].content
        assert [turn.action for turn in turns] == [move.turn_text for move in moves[: at + 1]]
        assert f"The response was: {moves[at].response[0].content}\n" in prompt
        assert f"A forecast from there: {corpus.games.describe(moves[at + 1], end)}\n" in prompt
        assert last.action == corpus.games.describe(moves[at], end)
        assert outcome(last.action) is ("You win." in moves[-1].response[0].content)
        found += 1
    assert found > 40


ENDS = {"Success.": 3, "Close. Failure.": 2, "Near. Failure.": 1, "Far. Failure.": 0}


@dataclass(frozen=True)
class Noted(Games):
    """Games that keep every forecast which they imagined."""

    texts: list[str] = field(default_factory=list)

    def imagine(self, *args: Any) -> str:
        self.texts.append(super().imagine(*args))
        return self.texts[-1]


def judgements(corpus: TwentyQCorpus, count: int) -> list[tuple[str, str, list[str], list[str]]]:
    """The evaluator's prompt, its critique, and all games that were played for it: of the turn, of
    the other turn."""
    watched, found = copy.copy(corpus), []
    for seed in range(count):
        watched.games = Noted(corpus.env, corpus.player)
        last = watched.evaluate(random.Random(seed))[-1]
        texts = watched.games.texts
        half = len(texts) // 2
        found.append((last.observation[0].content, last.action, texts[:half], texts[half:]))
    return found


def test_a_verdict_follows_from_the_worths_of_the_ends_of_all_games_played_for_it(
    corpus: TwentyQCorpus,
):
    verdicts, ties = Counter(), 0
    for prompt, written, *groups in judgements(corpus, 150):
        shown = [line for line in prompt.splitlines() if outcome(line) is not None]
        assert shown == [text for group in groups for text in group[: corpus.forecasts]]
        mine, others = (
            [points for text in group for end, points in ENDS.items() if text.endswith(end)]
            for group in groups
        )
        assert len(mine) == len(others) == GAMES_PER_FORECAST * corpus.forecasts
        how = "as well as" if sum(mine) >= sum(others) else "worse than"
        assert written.endswith(f" ends {how} another turn.")
        assert verdict(written) is (sum(mine) >= sum(others))
        verdicts[sum(mine) >= sum(others)] += 1
        ties += sum(mine) == sum(others)
    assert min(verdicts.values()) > 20 and ties > 0


def test_a_verdict_says_what_most_games_of_the_turn_told(corpus: TwentyQCorpus):
    said = Counter()
    for _, written, mine, _ in judgements(corpus, 150):
        counts = Counter(re.findall(r"It tells (\w+)\.", "\n".join(mine)))
        word = re.findall(r"It tells (\w+) and", written)
        assert counts[word[0]] == max(counts.values()) if word else not counts
        said.update(word or ["the end"])
    assert set(said) == {"much", "some", "little", "nothing", "the end"}


def refinements(
    corpus: TwentyQCorpus, count: int
) -> list[tuple[PlayerState, str, str, bool | None]]:
    """Notes before the criticised turn, its question, the refined one, and the verdict."""
    found = []
    for episode in draw_episodes(corpus, "refine", count):
        *played, last = episode.turns
        critique = last.observation[0].content.removeprefix("Critique: ")
        row = (
            player_state_after(played, corpus),
            last_line(played[-1]),
            last_line(last),
            verdict(critique),
        )
        found.append(row)
    return found


def test_a_turn_found_optimal_stays_and_a_criticised_one_never_does(corpus: TwentyQCorpus):
    kept = [(a == b, optimal) for _, a, b, optimal in refinements(corpus, 300)]
    assert set(kept) == {(True, True), (False, False)}
    assert min(Counter(kept).values()) > 30


def test_a_turn_found_optimal_keeps_its_thought_and_a_new_one_thinks_of_what_fits(
    corpus: TwentyQCorpus,
):
    nouns = corpus.env.world_table.nouns
    for episode in draw_episodes(corpus, "refine", 150):
        *played, last = episode.turns
        if "Optimality: Yes" in last.observation[0].content:
            assert last.action == played[-1].action
        thought, fits = last.action.split("\n")[0], fitting(played, corpus)
        assert thought in {f"Maybe {nouns[name]}. {closeness(len(fits))}" for name in fits}


def test_a_refinement_is_another_draw_of_the_mediocre_player(corpus: TwentyQCorpus):
    rng, rows = random.Random(0), [row for row in refinements(corpus, 1500) if row[3] is False]
    refined = [action_features(corpus, state, action) for state, _, action, _ in rows]
    again = [
        action_features(corpus, state, corpus.player.choose_action(state, rng, without=(old,)))
        for state, old, _, _ in rows
        for _ in range(4)
    ]
    assert len(rows) > 200
    for habit in ("odd", "repeated", "guess", "bits"):
        mine, players = ([row[habit] for row in group] for group in (refined, again))
        mean = sum(players) / len(players)
        spread = (sum((x - mean) ** 2 for x in players) / len(players) / len(mine)) ** 0.5
        assert sum(mine) / len(mine) == pytest.approx(mean, abs=4 * spread), habit
    assert sum(row["odd"] for row in refined) > 0 < sum(row["repeated"] for row in refined)


def action_features(corpus: TwentyQCorpus, state: PlayerState, action: str) -> dict[str, float]:
    """What an action is: odd, repeated, a guess; and the bits that its answer tells."""
    world, player = corpus.env.world_table, corpus.player
    attribute = player.attribute_of_question.get(action)
    fits = tuple(player.names(state.candidates))
    return {
        "odd": float(action in UNANSWERABLE),
        "repeated": float(action in state.actions),
        "guess": float(action in player.object_of_guess),
        "bits": entropy(world, fits, attribute) if attribute else 0.0,
    }
