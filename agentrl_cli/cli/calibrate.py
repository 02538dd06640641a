"""`agentrl calibrate`: compare a model that answers Twenty Questions with the table of answers."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from agentrl_cli.config.compose import build, check, compose
from agentrl_cli.core.errors import EmptyAnswer, UserError, require_at_least
from agentrl_cli.core.types import Message
from agentrl_cli.envs.twentyq.env import ORACLE_SEED, TwentyQ
from agentrl_cli.envs.twentyq.oracle import ChatFunction, calibrate

OBJECTS = 8  # per attribute, if n= is not given


def calibration(overrides: list[str], config_dir: Path | None = None) -> dict[str, Any]:
    """Return the agreement of `env.llm` with the table, in total and by attribute.

    Raises UserError for other environments and without a model.
    """
    given = [text for text in overrides if text.startswith("n=")]
    number = given[-1].removeprefix("n=") if given else str(OBJECTS)
    if not number.isdecimal():
        raise UserError(f"n is '{number}'; give a whole number", code="not-a-number")
    require_at_least(1, n=int(number))
    rest = [text for text in overrides if text not in given]
    cfg = check(compose(rest, config_dir), skip=("algo", "hardware", "model", "rollout"))
    env = build(cfg.env)
    if not isinstance(env, TwentyQ):
        line = f"env '{cfg.choices.env}' has no table of answers; use env=twentyq_full"
        raise UserError(line, code="no-table")
    if env.llm is None:
        raise UserError("env.llm.model is not set; give env.llm.model=NAME", code="no-model")
    rows = calibrate(env.world_table, partial(_answer, env.llm), int(number), cfg.seed)
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


def _answer(llm: ChatFunction, messages: list[Message]) -> str:
    try:
        return llm(messages, ORACLE_SEED)
    except EmptyAnswer:
        return ""  # agrees with nothing


def lines(record: dict[str, Any]) -> list[str]:
    """Return the record as a table, with the least agreement first."""
    from agentrl_cli.report.summary import table

    rows = [
        [
            row["question"],
            f"{row['agreement']:.2f}",
            f"{row['contradicted']:.2f}",
            str(row["asked"]),
        ]
        for row in record["attributes"]
    ]
    total = f"{record['agreement']:.3f} of {record['questions']} answers agree with the table"
    cells = [["question", "agrees", "contradicts", "asked"], *rows]
    return [*table(cells), f"{total}, {record['contradicted']:.3f} contradict it"]
