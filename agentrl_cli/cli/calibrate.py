"""`agentrl calibrate`: how far the model that answers questions agrees with the table."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from agentrl_cli.config.compose import build, check, compose
from agentrl_cli.core.errors import EmptyAnswer, UserError, require_at_least
from agentrl_cli.core.types import Message
from agentrl_cli.envs.twentyq.env import ORACLE_SEED, TwentyQ
from agentrl_cli.envs.twentyq.oracle import ChatFunction, calibrate

OBJECTS = 8  # that are asked about for each attribute, unless n= says another number


def calibration(overrides: list[str], config_dir: Path | None = None) -> dict[str, Any]:
    """The agreement of `env.llm` with the table: of all questions, and a row for each attribute.
    Raises UserError where the environment is no game of Twenty Questions with a table, or no model
    is named."""
    given = [text for text in overrides if text.startswith("n=")]
    number = given[-1].removeprefix("n=") if given else str(OBJECTS)
    if not number.isdecimal():
        raise UserError(f"n is '{number}'; give a whole number of objects")
    require_at_least(1, n=int(number))
    rest = [text for text in overrides if text not in given]
    cfg = check(compose(rest, config_dir), skip=("algo", "hardware", "model", "rollout"))
    env = build(cfg.env)
    if not isinstance(env, TwentyQ):
        raise UserError(f"env '{cfg.choices.env}' has no table of answers; use env=twentyq_full")
    if env.llm is None:
        raise UserError("no model is named to calibrate; give env.llm.model=NAME")
    rows = calibrate(env.world_table, partial(answer, env.llm), int(number), cfg.seed)
    asked = sum(row.asked for row in rows)
    return {
        "questions": asked,
        "agreement": sum(row.agreed for row in rows) / asked,
        "contradicted": sum(row.contradicted for row in rows) / asked,
        "attributes": [
            {"attribute": row.attribute, "question": row.question, "asked": row.asked,
             "agreement": row.share, "contradicted": row.contradicted / row.asked}
            for row in rows
        ],
    }  # fmt: skip


def answer(llm: ChatFunction, messages: list[Message]) -> str:
    """What the model answers; "", which agrees with nothing, where its answer holds no text."""
    try:
        return llm(messages, ORACLE_SEED)
    except EmptyAnswer:
        return ""


def lines(record: dict[str, Any]) -> list[str]:
    """The record as a table: the attributes that agree least come first."""
    width = max(len(row["question"]) for row in record["attributes"])
    head = f"{'question':<{width}}  agrees  contradicts  asked"
    rows = [
        f"{row['question']:<{width}}  {row['agreement']:6.2f}  {row['contradicted']:11.2f}"
        f"  {row['asked']:5}"
        for row in record["attributes"]
    ]
    total = f"{record['agreement']:.3f} of {record['questions']} answers agree with the table"
    return [head, *rows, f"{total}, {record['contradicted']:.3f} contradict it"]
