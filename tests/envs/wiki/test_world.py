"""The built-in encyclopedia: made from a seed alone, true to itself, and with questions that can be
answered by reading and hardly by guessing."""

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
from agentrl_cli.envs.wiki.answers import is_right, normalise
from agentrl_cli.envs.wiki.env import Wiki
from agentrl_cli.envs.wiki.pages import link_key
from agentrl_cli.envs.wiki.schema import RELATIONS
from tests.builders.wiki import begun, expert_steps, wiki
from tests.paths import ROOT

NAMES = ("wiki", "wiki_full")
SPLITS = ("train", "test")


@cache
def world(name: str) -> Wiki:
    return wiki(name)


def tasks(env: Wiki) -> list[Task]:
    return [task for split in SPLITS for task in env.tasks(split)]


def named(env: Wiki, task: Task) -> set[str]:
    """The pages that a task is about, leads through, or asks for."""
    proved = {line[0] for step in task.data["proof"] for line in step}
    asked = {t for t in env.encyclopedia.pages if re.search(rf"\b{t}\b", task.data["question"])}
    return proved | asked | {a for a in task.data["answers"] if a in env.encyclopedia.pages}


@pytest.mark.parametrize("task", ["question", "article"])
@pytest.mark.parametrize("name", NAMES)
def test_the_expert_succeeds_at_every_task_within_the_turns(name: str, task: str):
    env = wiki(name, task=task)
    for one in tasks(env):
        steps = expert_steps(env, one)
        assert steps[-1][1].info["success"] is True and len(steps) <= env.max_turns, one.id
        assert not any(step.info["invalid"] for _, step in steps), one.id


@hypothesis_settings(max_examples=6, deadline=None)
@given(seed=st.integers(1, 2**40), pages=st.integers(40, 150), name=st.sampled_from(NAMES))
def test_every_seed_makes_a_world_whose_questions_can_be_answered(seed: int, pages: int, name: str):
    env = wiki(name, world_seed=seed, pages=pages, questions=20, test_questions=6)
    for one in tasks(env):
        assert expert_steps(env, one)[-1][1].info["success"] is True, one.id


@pytest.mark.parametrize("task", ["question", "article"])
@pytest.mark.parametrize("name", NAMES)
def test_train_and_test_are_disjoint_by_entity(name: str, task: str):
    env = wiki(name, task=task)
    train, test = (set().union(*(named(env, t) for t in env.tasks(split))) for split in SPLITS)
    assert train and test and not train & test


@pytest.mark.parametrize("name", NAMES)
def test_no_answer_is_in_the_prompt(name: str):
    env = world(name)
    for task in tasks(env):
        prompt = f"{env.system()} {begun(env).reset(task, 0)[0].content}"
        prompt = prompt.rpartition(" 16 left")[0] or prompt.rpartition(" 24 left")[0]
        for answer in task.data["answers"]:
            assert f" {normalise(answer)} " not in f" {normalise(prompt)} ", task.id


@pytest.mark.parametrize("name", NAMES)
def test_guessing_wins_at_most_five_per_cent(name: str):
    """The commonest right answer of the train questions that are worded alike but for names, for
    every test question; and any page of the kind that is asked for."""
    env = world(name)
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
def test_nothing_is_won_without_reading(name: str):
    env = world(name)
    for task in env.tasks("test")[:20]:
        step = begun(env, task).step(f"SUBMIT {task.data['answers'][0]}")
        assert step.reward == 0.0 and step.messages[0].content == "Right. Not proved."


@pytest.mark.parametrize("name", NAMES)
def test_every_link_leads_to_a_page_of_the_same_part(name: str):
    pages = world(name).encyclopedia.pages
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
    env = world(name)
    for split, other in (SPLITS, SPLITS[::-1]):
        about = set().union(*(named(env, task) for task in env.tasks(split)))
        others = set().union(*(named(env, task) for task in env.tasks(other)))
        assert not any(part & about and part & others for part in parts)


def test_the_pages_of_the_small_world_say_what_their_links_say():
    for page in world("wiki").encyclopedia.pages.values():
        assert 1 <= len(page.lines) <= 6 and re.fullmatch(r"an? \w+", page.summary)
        told = [re.fullmatch(r"The \w+ (?:is|are) (.+)\.", line) for line in page.lines]
        names = [n for m in told if m for n in re.split(r", | and ", m[1]) if not n.isdigit()]
        assert all(told) and {link_key(name) for name in names} == set(page.links)


def test_every_relation_is_told_and_asked_for_in_full():
    env = world("wiki_full")
    asked = " ".join(task.data["question"] for task in tasks(env))
    assert [r.noun for r in RELATIONS if not r.several and r.noun not in asked] == []
    text = "\n".join(line for page in env.encyclopedia.pages.values() for line in page.lines)
    assert "[" in text and text.count("[") == text.count("]")


def test_a_work_names_its_writer_and_the_writer_the_work():
    pages = world("wiki").encyclopedia.pages
    for title, page in pages.items():
        writers = [m[1] for line in page.lines if (m := re.match(r"The writer is (\w+)", line))]
        for writer in writers:
            listed = [line for line in pages[writer].lines if line.startswith("The works")]
            assert not listed or re.search(rf"\b{title}\b", listed[0])


def test_kinds_of_questions_come_in_their_shares():
    kinds = Counter(task.data["kind"] for task in tasks(world("wiki")))
    assert set(kinds) == {"lookup", "bridge", "comparison", "count"}
    assert 0.05 < kinds["count"] / kinds.total() < 0.15 and kinds["bridge"] > 0.4 * kinds.total()
    hops = Counter(
        task.data["question"].count(" of ")
        for task in world("wiki_full").tasks("train")
        if task.data["kind"] in ("lookup", "bridge")
    )
    assert len(hops) >= 4


def test_the_same_seed_makes_the_same_world_in_another_process():
    code = (
        "from tests.builders.wiki import wiki; import hashlib; e = wiki(pages=60, questions=9,"
        "test_questions=3); text = repr([*e.encyclopedia.pages.values()]) + repr(e.tasks('train'));"
        "print(hashlib.blake2b(text.encode()).hexdigest(), e.encyclopedia.search('the year')[:9])"
    )
    run = [sys.executable, "-c", code]
    said = {
        subprocess.run(
            run,
            cwd=ROOT,
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(said) == 1 and len(said.pop()) > 128


def test_other_seeds_make_other_worlds():
    first, second = (wiki(world_seed=seed, pages=60, questions=9) for seed in (0, 1))
    assert first.tasks("train") != second.tasks("train")
    assert {*first.encyclopedia.pages} != {*second.encyclopedia.pages}


def test_a_title_that_is_searched_for_comes_first():
    for name in NAMES:
        encyclopedia = world(name).encyclopedia
        for title in encyclopedia.pages:
            assert encyclopedia.search(title.upper())[0] == title
