"""Every promise of docs/reliability.md and SECURITY.md names tests, and these exist."""

from __future__ import annotations

import ast
import re

import pytest

from tests.paths import ROOT

TEST = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")
RELIABILITY = (ROOT / "docs" / "reliability.md").read_text().partition("## What is not promised")[0]
SECURITY = (ROOT / "SECURITY.md").read_text()


def items(text: str) -> list[str]:
    """The items of a page's lists, each with the lines that belong to it."""
    return re.findall(r"^- .*(?:\n  .*)*", text, re.MULTILINE)


KEPT_OUT = SECURITY.partition("Trusted is what you write yourself")[0]
PROMISES = [*items(RELIABILITY), *items(KEPT_OUT)]
SECTIONS = re.findall(r"^## (?:Opening|Keys).*\n(?:(?!## ).*\n)*", SECURITY, re.MULTILINE)


@pytest.mark.parametrize("promise", [*PROMISES, *SECTIONS], ids=lambda text: text[2:50])
def test_a_promise_names_its_test(promise: str):
    assert TEST.search(promise), f"no test shows: {promise}"


def test_both_pages_have_promises():
    assert len(items(RELIABILITY)) > 20 and len(items(KEPT_OUT)) >= 6 and len(SECTIONS) == 2


@pytest.mark.parametrize(("file", "name"), sorted(set(TEST.findall(RELIABILITY + SECURITY))))
def test_a_named_test_exists(file: str, name: str):
    tree = ast.parse((ROOT / file).read_text())
    assert name in {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
