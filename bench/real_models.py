"""How many answers of roles and questions of real models are read right.

Run as `python bench/real_models.py`; writes docs/results/real_models.json. The answers are
our own, half of them written before their author had read the parser; the questions are of
published transcripts. A question counts as read where it is answered as what it asks, or said to be
none that the table can answer where it is none.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from agentrl_cli.algos.nlac.parse import lenient_outcome, lenient_verdict
from agentrl_cli.envs.twentyq.questions import Guess, Question, Unanswerable, read_freely
from agentrl_cli.envs.twentyq.world import load_world

ROOT = Path(__file__).parents[1]
RESULT = ROOT / "docs" / "results" / "real_models.json"
ANSWERS = ROOT / "tests" / "algos" / "nlac" / "role_answers.json"
QUESTIONS = ROOT / "tests" / "envs" / "twentyq" / "asked_questions.json"
WORDS = {"success": True, "failure": False, "yes": True, "no": False, None: None}
UNREAD = "unread"


def label(found: Question | Guess | Unanswerable | None) -> str | None:
    """What a question was read as, in the manner of the table of questions."""
    if isinstance(found, Question):
        return f"-{found.attribute}" if found.negated else found.attribute
    if isinstance(found, Guess):
        return f"={found.object}"
    return None if isinstance(found, Unanswerable) else UNREAD


def answer_figures() -> dict[str, int]:
    """Of the answers of roles: how many there are, and how many are read right."""
    rows = json.loads(ANSWERS.read_text(encoding="utf-8"))
    readers = {"forecast": lenient_outcome, "critique": lenient_verdict}
    right = sum(readers[row["role"]](row["text"]) is WORDS[row["read"]] for row in rows)
    return {"answers": len(rows), "answers_read_right": right}


def question_figures() -> dict[str, int]:
    """Of the questions: how many there are, are read right, are answered by the table, and get an
    answer that is not theirs, so that a No may be false."""
    rows = json.loads(QUESTIONS.read_text(encoding="utf-8"))
    world = load_world("full")
    pairs = [(label(read_freely(row["text"], world)), row["read"]) for row in rows]
    return {
        "questions": len(rows),
        "questions_read": sum(found == wanted for found, wanted in pairs),
        "questions_answered": sum(found not in (None, UNREAD) for found, _ in pairs),
        "questions_false_no": sum(found not in (None, UNREAD, wanted) for found, wanted in pairs),
    }


def main() -> None:
    """Count, keep what else the file holds, write, print."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    kept = json.loads(RESULT.read_text()) if RESULT.exists() else {}
    RESULT.write_text(json.dumps(kept | answer_figures() | question_figures(), indent=1) + "\n")
    print(RESULT.read_text(), end="")


if __name__ == "__main__":
    main()
