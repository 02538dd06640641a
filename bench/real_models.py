"""Count how many role answers and questions of real models are parsed correctly: `python
bench/real_models.py`, which writes docs/results/real_models.json.

The answers are our own; half of them were written before their author had read the parser. The
questions come from published transcripts. A question is parsed correctly if the reply answers it,
or if the reply says that the table has no answer and this is true.

`python bench/real_models.py --play twentyq wiki` measures these environments instead: the share of
actions of SmolLM2 that have the right form, without training, with both kinds of instructions and
at each temperature. It plays 24 val tasks of 5 turns each, or 100 problems.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from statistics import fmean
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from agentrl_cli.algos.nlac.parse import lenient_outcome, lenient_verdict
from agentrl_cli.config.compose import compose_checked
from agentrl_cli.core.types import Turn
from agentrl_cli.envs.twentyq.questions import (
    Guess,
    Question,
    Unanswerable,
    question_text,
    read_freely,
)
from agentrl_cli.envs.twentyq.world import load_world
from agentrl_cli.training.build import build_parts
from agentrl_cli.training.evaluate import play_split

ROOT = Path(__file__).parents[1]
RESULT = ROOT / "docs" / "results" / "real_models.json"
ANSWERS = ROOT / "tests" / "algos" / "nlac" / "role_answers.json"
QUESTIONS = ROOT / "tests" / "envs" / "twentyq" / "asked_questions.json"
WORDS = {"success": True, "failure": False, "yes": True, "no": False, None: None}
UNREAD = "unread"


def label(found: Question | Guess | Unanswerable | None) -> str | None:
    """Return how a question was parsed, in the notation of the table of questions."""
    if isinstance(found, Question):
        return f"-{found.attribute}" if found.negated else found.attribute
    if isinstance(found, Guess):
        return f"={found.object}"
    return None if isinstance(found, Unanswerable) else UNREAD


def answer_figures() -> dict[str, int]:
    """Return the number of role answers, and how many are parsed correctly."""
    rows = json.loads(ANSWERS.read_text(encoding="utf-8"))
    readers = {"forecast": lenient_outcome, "critique": lenient_verdict}
    right = sum(readers[row["role"]](row["text"]) is WORDS[row["read"]] for row in rows)
    return {"answers": len(rows), "answers_read_right": right}


def question_figures() -> dict[str, int]:
    """Return the number of questions, how many are parsed correctly, how many the table
    answers, and how many get the answer to another question, so that a No may be false."""
    rows = json.loads(QUESTIONS.read_text(encoding="utf-8"))
    world = load_world("full")
    pairs = [(label(read_freely(row["text"], world)), row["read"]) for row in rows]
    return {
        "questions": len(rows),
        "questions_read": sum(found == wanted for found, wanted in pairs),
        "questions_answered": sum(found not in (None, UNREAD) for found, _ in pairs),
        "questions_false_no": sum(found not in (None, UNREAD, wanted) for found, wanted in pairs),
    }


def has_form(env: str, turn: Turn) -> bool:
    """Return whether an action is in the right form: a question or guess, a boxed answer, an action
    of the browser, or a call or message without an error."""
    info = turn.info
    if env.startswith("twentyq"):
        return not info.get("invalid") or question_text(turn.action) is not None
    if env == "arithmetic":
        return not info["unboxed"]
    if env.startswith("wiki"):
        return info["action"] != "unknown"
    return not (info["invalid"] or info["tool_error"])


def accepted(turn: Turn) -> bool:
    """Return whether the environment also understood the action."""
    return not (turn.info.get("invalid") or turn.info.get("tool_error") or turn.info.get("unboxed"))


def play_figures(env: str, instructions: str, temperature: float, model: list[str]) -> Any:
    """Return the shares of actions of the right form and of accepted ones, and the turns."""
    single = ["env.turn_mode=single", "eval.tasks=100"]
    sizes = single if env == "arithmetic" else ["env.max_turns=5", "eval.tasks=24"]
    tokens = 128 if env == "arithmetic" else 48
    given = [f"env={env}", f"env.instructions={instructions}", *model, "algo=grpo", *sizes]
    cfg = compose_checked([*given, f"rollout.max_new_tokens={tokens}"])
    parts = build_parts(cfg, None, learns=False)
    try:
        turns = [t for e in play_split(parts, "val", 1, temperature) for t in e.turns]
    finally:
        parts.close()
    for turn in turns[:8]:
        print(f"  {turn.action!r}", file=sys.stderr)
    shares = (fmean(has_form(env, t) for t in turns), fmean(accepted(t) for t in turns))
    return {"form": round(shares[0], 3), "accepted": round(shares[1], 3), "turns": len(turns)}


def write(figures: dict[str, Any]) -> None:
    """Add figures to the file."""
    kept = json.loads(RESULT.read_text()) if RESULT.exists() else {}
    RESULT.write_text(json.dumps(kept | figures, indent=1) + "\n")


def main() -> None:
    """Measure, print, and add the figures to the file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--play", nargs="*", default=[], metavar="ENV")
    parser.add_argument("--instructions", nargs="*", default=["full", "short"])
    parser.add_argument("--temperatures", nargs="*", type=float, default=[1.0, 0.7])
    parser.add_argument("--model", nargs="*", default=["model=smollm2"], metavar="OVERRIDE")
    given = parser.parse_args()
    for env in given.play:
        for kind in given.instructions:
            for temperature in given.temperatures:
                name = f"valid_actions_{env}"
                known = json.loads(RESULT.read_text()).get(name, {})
                found = play_figures(env, kind, temperature, given.model)
                print(env, kind, temperature, found, flush=True)
                write({name: known | {f"{kind}_{temperature:g}": found}})
    if not given.play:
        write(answer_figures() | question_figures())
    print(RESULT.read_text(), end="")


if __name__ == "__main__":
    main()
