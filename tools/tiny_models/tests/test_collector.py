"""The collector: what is taught of a text and with which weight, stages, the model's own play, and
that all of it fits the models."""

from __future__ import annotations

import copy
import json
import random
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from agentrl_cli.algos.nlac.parse import strict_outcome
from agentrl_cli.config.compose import compose
from agentrl_cli.core.types import Episode, derive_seed
from agentrl_cli.generators.base import Completion, Generator, Sampling
from agentrl_cli.models.load import TINY
from agentrl_cli.rollout.chat_template import Chat
from tools.tiny_models.base import Corpus, Text
from tools.tiny_models.collector import CorpusCollector, Stage
from tools.tiny_models.pretraining import branched_sample
from tools.tiny_models.tests.corpus_builder import (
    ROLES,
    WORLDS,
    corpus_of,
    last_line,
    math_corpus,
    tiny_chat,
    twentyq_corpus,
)

pytestmark = pytest.mark.slow  # of tools that are rarely used

EVERYTHING = dict.fromkeys(ROLES, 0.4)
TEXTS = 5
STAGE = Stage(until=9, mixture={}, roles={}, own_play=0, thought_weight=1.0, role_weight=1.0)


@dataclass
class Speaker(Generator):
    """Says the given lines one after another."""

    chat: Chat
    lines: list[str]
    calls: list[list[list[int]]] = field(default_factory=list)

    def generate(
        self, prompts: list[list[int]], seeds: list[int], sampling: Sampling, model: str = "policy"
    ) -> list[list[Completion]]:
        line = self.lines[len(self.calls) % len(self.lines)]
        self.calls.append(prompts)
        ids = self.chat.encode_action(line)
        return [[Completion(ids, [0.0] * len(ids), "stop")] for _ in prompts]


@pytest.fixture(params=WORLDS)
def world(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def chat() -> Chat:
    return tiny_chat()


def stage_of(kind: str, **changes: Any) -> Stage:
    """Texts of one kind."""
    return replace(STAGE, mixture={kind: 1.0}, **changes)


def collector(corpus: Corpus, *stages: Stage, lines: list[str] | None = None) -> CorpusCollector:
    made = CorpusCollector(
        corpus=corpus,
        stages=list(stages),
        texts_per_step=TEXTS,
        max_new_tokens=24,
        temperature=1.0,
        max_seq_len=512,
    )
    env, chat = corpus.env, tiny_chat()  # pyright: ignore[reportAttributeAccessIssue]
    speaker = Speaker(chat, lines or [""])
    made.bind(
        make_env=lambda: copy.copy(env), chat=chat, generator=speaker, seed=3,
        policy_version=lambda: 0,
    )  # fmt: skip
    return made


def texts_of_step(made: CorpusCollector, stage: Stage, step: int) -> list[Text]:
    """The texts that the step encodes."""
    seed = derive_seed(3, "corpus", step)
    return made.corpus.texts(TEXTS, stage.mixture, stage.roles, seed)


def branches(episodes: list[Episode]) -> list[dict[str, Any]]:
    return [b for e in episodes for turn in e.turns for b in turn.info["branches"]]


def kinds() -> list[tuple[str, str]]:
    return [(world, kind) for world in WORLDS for kind in [*corpus_of(world).exercises(), "play"]]


# stages


def test_collector_follows_its_stages():
    corpus = twentyq_corpus()
    made = collector(corpus, stage_of("facts", until=2), stage_of("fits", until=4))
    steps = [made.collect(step, 1) for step in range(6)]
    assert [{e.group for e in step} for step in steps] == [{"facts"}] * 2 + [{"fits"}] * 4
    assert made.collect(3, 1) == steps[3] != steps[4]
    assert made.count(4) == TEXTS == len(steps[0])


def test_weights_are_those_of_the_stage():
    stages = [
        stage_of("play", until=1, thought_weight=4.0),
        stage_of("play", until=2, thought_weight=2.0),
        stage_of("play", until=3, thought_weight=5.0, role_weight=7.0, roles={"forecast": 1.0}),
    ]
    made = collector(twentyq_corpus(), *stages)
    weights, roles = [], []
    for step in range(4):
        episodes = made.collect(step, 1)
        weights.append({w for e in episodes for turn in e.turns for w in turn.info["weight"]})
        roles.append({branch["weight"] for branch in branches(episodes)})
    assert weights == [{4.0, 1.0}, {2.0, 1.0}, {5.0, 1.0}, {5.0, 1.0}]
    assert roles == [set(), set(), {7.0}, {7.0}]


# weights


@pytest.mark.parametrize("kind", ["fits", "wild", "play"])
def test_weights_of_thoughts_and_actions(chat: Chat, kind: str):
    stage = stage_of(kind, thought_weight=4.0)
    for episode in collector(twentyq_corpus(), stage).collect(0, 1):
        for turn in episode.turns:
            rows = list(zip(turn.action_ids, turn.info["weight"], strict=True))
            acting = 1.0 if kind == "play" else 0.0
            assert chat.decode([i for i, w in rows if w == 4.0]) == turn.action.removesuffix(
                last_line(turn)
            )
            assert chat.decode([i for i, w in rows if w == acting]) == last_line(turn)


@pytest.mark.parametrize("kind", ["claims", "checks"])
def test_judged_text_is_not_trained(kind: str):
    stage = stage_of(kind, thought_weight=4.0, role_weight=3.0)
    for episode in collector(math_corpus(), stage).collect(0, 1):
        for judged, checked in zip(episode.turns[::2], episode.turns[1::2], strict=True):
            assert set(judged.info["weight"]) == {0.0} and set(checked.info["weight"]) == {3.0}


# branches


def test_branch_trains_only_its_answer(world: str, chat: Chat):
    stage = stage_of("play", roles=EVERYTHING, role_weight=3.0)
    made, count = collector(corpus_of(world), stage), 0
    episodes, texts = made.collect(0, 1), texts_of_step(made, stage, 0)
    for episode, text in zip(episodes, texts, strict=True):
        for i, turn in enumerate(episode.turns):
            written = [branch for branch in text.branches if branch.turn == i]
            for branch, found in zip(written, turn.info["branches"], strict=True):
                read, delimiter = chat.text_of(found["prompt_ids"]), made.turn_delimiter
                assert found["place"] == ("behind" if branch.action is None else "before")
                action, goes_on = (
                    branch.action or "",
                    (branch.action or turn.action).endswith("\n\n"),
                )
                closing = "<|end|>" if branch.action is not None or (delimiter and goes_on) else ""
                assert read == f"{action}{closing}<|user|>{branch.prompt}<|end|><|assistant|>"
                assert chat.text_of(found["answer_ids"]) == f"{branch.answer}<|end|>"
                assert found["weight"] == 3.0
                count += 1
    assert count > 20


def test_packed_text_has_every_token_once(world: str, chat: Chat):
    stage = stage_of("play", roles=EVERYTHING, thought_weight=2.0, role_weight=3.0)
    for episode in collector(corpus_of(world), stage).collect(0, 1):
        sample = branched_sample(episode)
        labels, weights = sample.per_token["branch"], sample.per_token["weight"]
        rows = list(zip(sample.ids, labels, weights, strict=True))
        plain = [i for turn in episode.turns for i in [*turn.observation_ids, *turn.action_ids]]
        assert [i for i, label, _ in rows if label == 0] == plain
        assert sample.mask == [int(weight > 0) for weight in weights]
        inside = {label: [row for row in rows if row[1] == label] for label in set(labels) - {0.0}}
        assert len(inside) == len(branches([episode]))
        said = {chat.text_of([i for i, _, w in part if w == 3.0]) for part in inside.values()}
        assert said == {chat.text_of(b["answer_ids"]) for b in branches([episode])}


# the model's own play

LINES = ["Maybe a cat. Far.\nIs it alive?", "Maybe a dog. Far.\nIs it nice?", "Is it a cat?"]


def test_own_play_trains_only_forecasts():
    corpus, roles = twentyq_corpus(), {"forecast": 0.0}
    stage = stage_of("facts", own_play=3, role_weight=5.0, roles=roles)
    made = collector(corpus, stage, lines=LINES)
    episodes = made.collect(0, 1)
    own = [episode for episode in episodes if episode.group == "own_play"]
    assert len(own) == 3 and len(episodes) == TEXTS + 3
    for episode in own:
        assert len(episode.turns) == corpus.env.max_turns
        assert {w for turn in episode.turns for w in turn.info["weight"]} == {0.0}
        for i, turn in enumerate(episode.turns):
            forecast, *backups = turn.info["branches"]
            assert turn.action == LINES[i % 3]
            answer = made.chat.decode(forecast["answer_ids"])
            assert strict_outcome(answer) is False and len(backups) == 1
            for branch in (forecast, *backups):
                assert branch["place"] == "behind" and branch["weight"] == 5.0
                assert branch["answer_ids"] == forecast["answer_ids"]
            later = "Failure."  # the true outcome, which the backup of the last turn reads
            if i < len(episode.turns) - 1:
                later = made.chat.decode(episode.turns[i + 1].info["branches"][0]["answer_ids"])
            assert later in made.chat.text_of(backups[0]["prompt_ids"])
            said = episode.turns[i + 1].observation[-1].content if i < 11 else "You lose."
            assert said.split(".")[0] in answer


def test_own_play_draws_new_tasks():
    corpus = twentyq_corpus()
    made = collector(corpus, stage_of("facts", own_play=40), lines=["Is it alive?"])
    for step, rng in ((0, random.Random(1)), (1, random.Random(2))):
        played = made._play(40, step, step)
        assert len(played) == 40 and len({e.task.id for e in played}) > 20
        assert {e.task.split for e in played} == {"train"}
        assert corpus.other_world(rng) != corpus.env
    hidden = {e.task.data["object"] for step in range(6) for e in made._play(40, step, step)}
    tested = {task.data["object"] for task in corpus.env.tasks("test")}
    assert len(hidden & tested) > len(tested) / 2
    made.max_seq_len = 90
    assert made._play(4, 0, 0) == [] == made._play(0, 0, 0)


# what fits


def test_texts_fit_context_and_token_limits(world: str, chat: Chat):
    reach = json.loads((TINY / "config.json").read_text())["max_position_embeddings"]
    play, advanced = compose([f"env={world}"]).rollout, compose(["algo=nlac"]).algo.advanced
    corpus = corpus_of(world)
    mixture = dict.fromkeys([*corpus.exercises(), "play"], 1.0)
    made = collector(corpus, replace(STAGE, mixture=mixture, roles=EVERYTHING))
    made.texts_per_step = 6
    for episode in made.collect(0, 1):
        assert episode.tokens <= (play.max_seq_len if episode.group == "play" else reach)
        before = 0
        for turn in episode.turns:
            before += len(turn.observation_ids)
            for branch in turn.info["branches"]:
                begin = before + (len(turn.action_ids) if branch["place"] == "behind" else 0)
                assert begin + len(branch["prompt_ids"]) + len(branch["answer_ids"]) <= reach
                refines = chat.text_of(branch["prompt_ids"]).endswith("again.<|end|><|assistant|>")
                most = play.max_new_tokens if refines else advanced.role_tokens
                assert len(branch["answer_ids"]) <= most
            before += len(turn.action_ids)
            if episode.group in ("play", "attempts", "wild", "fits"):
                assert len(turn.action_ids) <= play.max_new_tokens


@pytest.mark.parametrize(("world", "kind"), kinds())
def test_ids_read_back_as_the_text(world: str, kind: str, chat: Chat):
    stage = stage_of(kind, roles={"explored": 0.5, "evaluate": 0.2})
    made = collector(corpus_of(world), stage)
    for episode, text in zip(made.collect(0, 1), texts_of_step(made, stage, 0), strict=True):
        whole = [i for turn in episode.turns for i in [*turn.observation_ids, *turn.action_ids]]
        spoken = "".join(
            "".join(f"<|{m.role}|>{m.content}<|end|>" for m in turn.observation)
            + ("<|assistant|>" if turn.observation else "")
            + turn.action
            + (
                "<|end|>"
                if not turn.action.endswith("\n\n") or kind in ("claims", "checks")
                else ""
            )
            for turn in text.turns
        )
        assert chat.text_of(whole).removesuffix("<|end|>") == spoken.removesuffix("<|end|>")
