"""The built-in encyclopedia: seeded, consistent, and with questions that need its pages."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter, defaultdict
from functools import cache

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from agentrl_cli.core.types import Task
from agentrl_cli.envs.wiki.env import Wiki, is_right
from agentrl_cli.envs.wiki.pages import normalise
from tests.builders.wiki import begun, expert_steps, wiki
from tests.paths import ROOT

NAMES = ("wiki", "wiki_full")
SPLITS = ("train", "test")


@cache
def built(name: str) -> Wiki:
    return wiki(name)


def tasks(env: Wiki) -> list[Task]:
    return [task for split in SPLITS for task in env.tasks(split)]


def named(env: Wiki, task: Task) -> set[str]:
    """Return the pages that a task is about, leads through, or asks for."""
    proved = {line[0] for step in task.data["proof"] for line in step}
    asked = {t for t in env.encyclopedia.pages if re.search(rf"\b{t}\b", task.data["question"])}
    return proved | asked | {a for a in task.data["answers"] if a in env.encyclopedia.pages}


@pytest.mark.parametrize("task", ["question", "article"])
@pytest.mark.parametrize("name", NAMES)
def test_expert_wins_every_task_in_time(name: str, task: str):
    env = wiki(name, task=task)
    for one in tasks(env):
        steps = expert_steps(env, one)
        assert steps[-1][1].info["success"] is True and len(steps) <= env.max_turns, one.id
        assert not any(step.info["invalid"] for _, step in steps), one.id


@hypothesis_settings(max_examples=6, deadline=None)
@given(seed=st.integers(1, 2**40), pages=st.integers(40, 150), name=st.sampled_from(NAMES))
def test_every_seed_has_answerable_questions(seed: int, pages: int, name: str):
    env = wiki(name, world_seed=seed, pages=pages, questions=20, test_questions=6)
    for one in tasks(env):
        assert expert_steps(env, one)[-1][1].info["success"] is True, one.id


@pytest.mark.parametrize("task", ["question", "article"])
@pytest.mark.parametrize("name", NAMES)
def test_train_and_test_share_no_page(name: str, task: str):
    env = wiki(name, task=task)
    train, test = (set().union(*(named(env, t) for t in env.tasks(split))) for split in SPLITS)
    assert train and test and not train & test


@pytest.mark.parametrize("name", NAMES)
def test_prompt_contains_no_answer(name: str):
    env = built(name)
    for task in tasks(env):
        prompt = f"{env.system()} {begun(env).reset(task, 0)[0].content}"
        prompt = prompt.rpartition(" 16 left")[0] or prompt.rpartition(" 24 left")[0]
        for answer in task.data["answers"]:
            assert f" {normalise(answer)} " not in f" {normalise(prompt)} ", task.id


@pytest.mark.parametrize("name", NAMES)
def test_guessing_wins_at_most_five_percent(name: str):
    """Guess the most common train answer of the same question form, and random titles."""
    env = built(name)
    names = re.compile("|".join(sorted(map(re.escape, env.encyclopedia.pages), key=len)[::-1]))

    def ending(task: Task) -> str:
        return task.data["kind"] + names.sub("X", task.data["question"])

    common: dict[str, Counter[str]] = defaultdict(Counter)
    for task in env.tasks("train"):
        common[ending(task)][task.data["answers"][0]] += 1
    guesses = {key: counts.most_common(1)[0][0] for key, counts in common.items()}
    test = env.tasks("test")
    right = [is_right(guesses.get(ending(task), ""), task.data["answers"]) for task in test]
    assert sum(right) / len(test) <= 0.05
    titles = [*env.encyclopedia.pages]
    drawn = [is_right(titles[i % len(titles)], t.data["answers"]) for i, t in enumerate(test * 20)]
    assert sum(drawn) / len(drawn) <= 0.05


@pytest.mark.parametrize("name", NAMES)
def test_links_stay_within_a_part(name: str):
    pages = built(name).encyclopedia.pages
    reached, parts = set[str](), list[set[str]]()
    for title in pages:
        if title not in reached:
            part, waiting = set[str](), [title]
            while waiting:
                part.add(one := waiting.pop())
                links = [to for to in pages[one].links.values() if to is not None]
                assert set(links) <= set(pages)
                back = [t for t, page in pages.items() if one in page.links.values()]
                waiting += [t for t in {*links, *back} - part - set(waiting)]
            reached |= part
            parts.append(part)
    env = built(name)
    for split, other in (SPLITS, SPLITS[::-1]):
        about = set().union(*(named(env, task) for task in env.tasks(split)))
        others = set().union(*(named(env, task) for task in env.tasks(other)))
        assert not any(part & about and part & others for part in parts)


def test_encyclopedia_is_equal_across_processes():
    code = (
        "from tests.builders.wiki import wiki; import hashlib; e = wiki(pages=60, questions=9,"
        "test_questions=3); text = repr([*e.encyclopedia.pages.values()]) + repr(e.tasks('train'));"
        "print(hashlib.blake2b(text.encode()).hexdigest(), e.encyclopedia.search('the year')[:9])"
    )
    env = {"PYTHONPATH": str(ROOT)}
    outputs = {
        subprocess.check_output([sys.executable, "-c", code], cwd=ROOT, env=env | hash_seed)
        for hash_seed in ({"PYTHONHASHSEED": "1"}, {"PYTHONHASHSEED": "2"})
    }
    assert len(outputs) == 1 and len(outputs.pop()) > 128
