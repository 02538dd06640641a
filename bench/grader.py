"""Measure the errors and the cost of the grader of env=math: `python bench/grader.py`, which writes
docs/results/math_grader.json.

Needs the extra `math` and the 500 answers of MATH-500 in the folder AGENTRL_DATA. Each answer must
equal itself and differ from the answer of another row, drawn with seed 0 among rows with another
text. Hard pairs and hostile answers are our own. Reported pairs are faults that users of graders
reported (tests/builders/math_answers.py). Random pairs are values in two notations, or slightly
different values (tests/builders/exact_answers.py); every second one is a formula in a reply.

Seconds are wall-clock seconds, and CPU seconds of the grading processes, including their start and
the other pairs.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import statistics
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from agentrl_cli.envs.math.grader import Grade, grade, pool_of
from tests.builders.exact_answers import pairs
from tests.builders.math_answers import HARD, MISJUDGED, REPORTED, REPORTED_REPLIES, hostile

ROOT = Path(__file__).parents[1]
RESULT = ROOT / "docs" / "results" / "math_grader.json"
DATA = Path(os.environ.get("AGENTRL_DATA", ROOT.parent / "shared" / "data"))
HOSTILE = 1000
RANDOM = 20_000


def timed(answer: str, gold: str) -> tuple[Grade, float]:
    """Return the grade and its milliseconds."""
    began = time.perf_counter()
    found = grade(answer, gold)
    return found, 1000 * (time.perf_counter() - began)


def answers() -> list[str]:
    """Return the 500 correct answers."""
    lines = (DATA / "math" / "MATH-500_answers_only.jsonl").read_text().splitlines()
    return [json.loads(line)["answer"] for line in lines]


def wrong_pairs(golds: list[str]) -> list[tuple[str, str]]:
    """Return every answer with that of another row."""
    draw = random.Random(0)
    return [(draw.choice([one for one in golds if one != gold]), gold) for gold in golds]


def random_figures(count: int) -> dict[str, float]:
    """Return the verdicts on random pairs. Prints wrong answers that are graded right."""
    found: Counter[tuple[bool, str]] = Counter()
    for number, row in enumerate(pairs(count, seed=0)):
        if number % 2:
            result = grade(f"The answer is ${row.answer}$.", f"${row.gold}$", "last_math")
        else:
            result = grade(row.answer, row.gold)
        found[row.equal, "timeout" if result.reason == "timeout" else str(result.correct)] += 1
        if result and not row.equal:
            print("wrong, called right:", row, file=sys.stderr, flush=True)
        if number % 1000 == 999:
            print(number + 1, dict(found), file=sys.stderr, flush=True)
    return {
        "random_equal": found.total() - (wrong := sum(found[key] for key in found if not key[0])),
        "random_equal_right": found[True, "True"],
        "random_changed": wrong,
        "random_changed_called_right": found[False, "True"],
        "random_timeouts": found[True, "timeout"] + found[False, "timeout"],
    }


def hostile_figures() -> dict[str, float]:
    """Return the verdicts on a thousand hostile answers from two threads, and whether the pool
    works afterwards."""
    texts, lost = hostile(HOSTILE), pool_of(os.getpid()).lost
    began = time.perf_counter()
    with ThreadPoolExecutor(2) as threads:
        grades = list(threads.map(lambda text: grade(text, "x+1"), texts))
    reasons = Counter(found.reason for found in grades)
    seconds = time.perf_counter() - began
    right = sum(bool(grade("1+x", "x+1")) for _ in range(10))
    lost = pool_of(os.getpid()).lost - lost
    pool_of(os.getpid()).close()
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return {
        "hostile_answers": HOSTILE,
        "hostile_seconds": round(seconds, 1),
        "grader_cpu_seconds": round(used.ru_utime + used.ru_stime, 1),
        "hostile_called_right": sum(map(bool, grades)),
        "hostile_timeouts": reasons["timeout"],
        "hostile_crashes": reasons["crash"],
        "workers_lost": lost,
        "right_afterwards": right,
    }


def main() -> None:
    """Measure, print, and write the result."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    grade("x+1", "1+x")  # the workers load
    golds = answers()
    equal = [timed(gold, gold) for gold in golds]
    wrong = [timed(*pair) for pair in wrong_pairs(golds)]
    hard = [(*timed(answer, gold), expected) for answer, gold, expected in HARD]
    reported = [bool(grade(answer, gold)) == expected for answer, gold, expected in REPORTED]
    reported += [
        bool(grade(reply, gold, "last_math")) == expected
        for reply, gold, expected in REPORTED_REPLIES
    ]
    figures: dict[str, float] = {
        "self_equal": sum(map(bool, (found for found, _ in equal))),
        "self_pairs": len(equal),
        "wrong_refused": sum(not found for found, _ in wrong),
        "wrong_pairs": len(wrong),
        "hard_right": sum(bool(found) == expected for found, _, expected in hard),
        "hard_pairs": len(hard),
        "hard_misjudged_listed": len(MISJUDGED),
        "reported_right": sum(reported),
        "reported_pairs": len(reported),
        "median_ms": round(statistics.median(ms for _, ms in equal + wrong), 3),
        "timeouts_on_answers": sum(f.reason == "timeout" for f, *_ in [*equal, *wrong, *hard]),
    }
    figures |= hostile_figures() | random_figures(RANDOM)
    RESULT.write_text(json.dumps(figures, indent=1) + "\n")
    print(RESULT.read_text(), end="")


if __name__ == "__main__":
    main()
