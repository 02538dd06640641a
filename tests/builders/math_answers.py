"""Answers for the grader: hard pairs of our own with the expected verdict, and hostile texts."""

from __future__ import annotations

import json
import random

from tests.paths import ROOT

# rows of (answer, right answer, tolerance in DECIMALS, whether it should count as right)
FILE = ROOT / "tests" / "envs" / "math" / "graded_answers.json"
ROWS = json.loads(FILE.read_text(encoding="utf-8"))
HARD = [tuple(row) for rows in ROWS["hard"].values() for row in rows]
NOTATIONS, DECIMALS = ROWS["notations"], ROWS["decimals"]  # other notations that users write
# faults that users reported, by source
REPORTED = [row for rows in ROWS["reported"].values() for row in rows]
REPORTED_REPLIES = [row for rows in ROWS["reported_replies"].values() for row in rows]
REPLIES = ROWS["replies"]  # as math-verify reads the whole reply
MISJUDGED = {  # of these, and why
    (r"e^{i\pi}", "-1"): "math-verify reads i as a real symbol where the right answer is real",
}


def hostile(count: int, seed: int = 0) -> list[str]:
    """Answers made to hang, crash or fool a grader, the same for a seed."""
    draw = random.Random(seed)
    return [draw.choice(MAKERS)(draw) for _ in range(count)]


def _tower(draw: random.Random) -> str:
    height = draw.randint(3, 12)
    return "^{".join([str(draw.randint(2, 99))] * height) + "}" * (height - 1)


def _noise(draw: random.Random) -> str:
    alphabet = (
        r"\{}()[]^_$%&#~<>|+-*/=.,;:!?0123456789abcxyzπ∞√" + "\x00\x07\x1b\u202e\ud7ff\U0001f41f"
    )
    return "".join(draw.choices(alphabet, k=draw.randint(1, 500)))


def _words(draw: random.Random) -> str:
    parts = r"\frac \sqrt \left( \right) { } ^ _ \int \sum x 9".split()
    return "".join(draw.choices(parts, k=draw.randint(10, 120)))


MAKERS = (
    lambda draw: "(" * (n := draw.randint(100, 2000)) + "1" + ")" * n,
    lambda draw: "(" * (n := draw.randint(20, 250)) + "x" + ")" * n,
    lambda draw: "{" * (n := draw.randint(20, 250)) + "1" + "}" * n,
    lambda draw: "[" * draw.randint(20, 500),
    _tower,
    lambda draw: f"{_tower(draw)}+{_tower(draw)}",
    lambda draw: f"({draw.randint(2, 9)}+x)^{{{draw.randint(10**3, 10**9)}}}",
    lambda draw: f"{draw.randint(10**4, 10**6)}!",
    lambda draw: "!".join(["9"] * draw.randint(2, 40)) + "!",
    lambda draw: r"\binom{" + "9" * draw.randint(3, 60) + "}{" + "4" * draw.randint(2, 30) + "}",
    lambda draw: "9" * draw.randint(100, 100_000),
    lambda draw: "1." + "0" * draw.randint(10, 400) + "1",
    lambda draw: "x" * draw.randint(50, 100_000),
    lambda draw: r"\frac{1}{" * (n := draw.randint(10, 120)) + "2" + "}" * n,
    lambda draw: r"\sqrt{" * (n := draw.randint(10, 120)) + "2" + "}" * n,
    lambda draw: r"\boxed{" * draw.randint(2, 20_000),
    lambda draw: r"\sum_{n=1}^{" + "9" * draw.randint(3, 40) + "} n^{n}",
    lambda draw: r"\int_0^{" + str(draw.randint(1, 99)) + r"} \sin(x^{x^{x}})\,dx",
    lambda draw: r"\prod_{n=1}^{10^{9}} (x+n)",
    lambda draw: "+".join(f"x^{{{draw.randint(2, 999)}}}" for _ in range(draw.randint(5, 60))),
    lambda draw: ",".join(str(draw.randint(0, 9)) for _ in range(draw.randint(5, 250))),
    lambda draw: r"\begin{pmatrix}" * draw.randint(1, 25),
    lambda draw: "".join(chr(draw.randint(0, 31)) for _ in range(draw.randint(1, 400))),
    lambda draw: r"\def\a{\a\a}\a" * draw.randint(1, 30),
    lambda draw: "__import__('os').system('true')",
    lambda draw: "$" * draw.randint(1, 500),
    _noise,
    _words,
)  # fmt: skip
