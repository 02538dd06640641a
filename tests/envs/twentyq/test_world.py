"""The table of Twenty Questions is sound, and the worlds made of it split fairly."""

from __future__ import annotations

import hashlib
import json
import pickle
from itertools import combinations

import pytest

from agentrl_cli.core.errors import UserError
from agentrl_cli.envs.twentyq.world import load_world

SMALL, FULL = load_world("small"), load_world("full")
FROZEN = "dbf22abf3e485703"
ENTAILMENTS = {
    "animal": "alive", "plant": "alive", "mammal": "animal", "bird": "animal legs wings",
    "insect": "animal legs tiny", "fur": "mammal", "hunts": "animal", "bites": "animal",
    "pet": "animal", "farm": "animal", "fruit": "eaten", "vegetable": "eaten", "sweet": "eaten",
    "drink": "liquid", "kitchen": "home", "cloth": "soft man_made",
    "building": "man_made inside big heavy", "inside": "big", "tool": "man_made",
    "furniture": "man_made", "clothing": "man_made",
    "vehicle": "man_made outdoors", "instrument": "man_made", "machine": "man_made",
    "electric": "man_made", "motor": "man_made machine", "wheels": "man_made",
    "buttons": "man_made", "toy": "man_made",
    "handle": "man_made", "container": "man_made", "cleaning": "man_made", "paper": "man_made",
    "glass": "man_made", "metal": "man_made", "strings": "man_made", "sport": "man_made",
}  # fmt: skip
EXCLUSIONS = """alive man_made, alive metal, alive vehicle, tiny heavy, tiny big, bird mammal,
insect bird, animal plant, animal fruit, liquid legs, white black, plant eaten, clothing vehicle,
furniture vehicle, metal wood, glass cloth, wheels legs, fruit vegetable, liquid sharp, stone soft,
paper metal"""


# the table


@pytest.mark.parametrize("world", [SMALL, FULL], ids=lambda world: world.name)
def test_all_objects_differ_in_some_attribute(world):
    for one, other in combinations(world.objects, 2):
        assert world.answers[one] != world.answers[other], (one, other)


@pytest.mark.parametrize(("world", "least"), [(SMALL, 7), (FULL, 3)])
def test_attributes_split_the_objects(world, least):
    for attribute in world.attributes:
        column = [world.answer(name, attribute) for name in world.objects]
        assert min(column.count("yes"), column.count("no")) >= least, attribute


def having(attribute: str) -> list[str]:
    return [name for name in FULL.objects if FULL.answer(name, attribute) == "yes"]


def test_entailments_hold():
    for attribute, entailed in ENTAILMENTS.items():
        for name in having(attribute):
            for other in entailed.split():
                assert FULL.answer(name, other) == "yes", (name, attribute, other)


def test_exclusions_hold():
    for pair in EXCLUSIONS.split(","):
        one, other = pair.split()
        assert not set(having(one)) & set(having(other)), pair


def test_small_world_is_frozen():
    rows = [[n, SMALL.categories[n], SMALL.guess(n), SMALL.answers[n]] for n in SMALL.objects]
    text = json.dumps(rows, sort_keys=True)
    assert hashlib.blake2b(text.encode(), digest_size=8).hexdigest() == FROZEN


def test_full_world_agrees_with_small():
    for name in SMALL.objects:
        assert SMALL.answers[name].items() <= FULL.answers[name].items()


# worlds


def test_unknown_world_is_refused():
    with pytest.raises(UserError) as error:
        load_world("smal")
    assert error.value.code == "unknown-world" and "smal" in str(error.value)


@pytest.mark.parametrize(("world", "count"), [(SMALL, 40), (FULL, 60), (SMALL, 0)])
def test_splits_are_disjoint_complete_and_stratified(world, count):
    train, test = world.split("train", count, 0), world.split("test", count, 0)
    assert len(test) == count and not set(train) & set(test)
    assert set(train) | set(test) == set(world.objects)
    for category in set(world.categories.values()):
        members = [name for name in world.objects if world.categories[name] == category]
        expected = count * len(members) / len(world.objects)
        assert abs(sum(name in test for name in members) - expected) < 1, category


@pytest.mark.parametrize(("split", "count"), [("dev", 40), ("test", 96), ("test", -1)])
def test_impossible_splits_are_refused(split, count):
    with pytest.raises(UserError):
        SMALL.split(split, count, 0)


def test_world_is_pickled_by_name():
    assert pickle.loads(pickle.dumps(SMALL)) is SMALL
