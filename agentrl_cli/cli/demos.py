"""`agentrl demos`: write a file of expert episodes."""

from __future__ import annotations

from pathlib import Path

from agentrl_cli.config.compose import build, check, compose
from agentrl_cli.core import files
from agentrl_cli.core.errors import UserError, require_at_least
from agentrl_cli.rollout.demos import expert_episodes


def write_demos(overrides: list[str], config_dir: Path | None = None) -> tuple[Path, int]:
    """Write `n` episodes to the file `out`. Returns the file and the number of episodes.

    Raises UserError if `n` or `out` is missing or invalid, or the environment has no expert.
    """
    number, out = _value(overrides, "n"), Path(_value(overrides, "out"))
    if not number.isdecimal():
        raise UserError(f"n is '{number}'; give a whole number", code="not-a-number")
    require_at_least(1, n=int(number))
    rest = [text for text in overrides if not text.startswith(("n=", "out="))]
    cfg = check(compose(rest, config_dir), skip=("algo", "hardware", "model", "rollout"))
    if out.exists():
        raise UserError(f"'{out}' exists; choose another out=", code="exists")
    episodes = expert_episodes(build(cfg.env), int(number), cfg.seed)
    with files.explain_write_errors(out.parent, "choose another out="):
        files.write_jsonl(out, (episode.to_json() for episode in episodes))
    return out, len(episodes)


def _value(overrides: list[str], name: str) -> str:
    values = [text.partition("=")[2] for text in overrides if text.startswith(f"{name}=")]
    if len(values) != 1 or not values[0]:
        line = f"{name} is missing or empty; give n and out, for example n=128 out=demos.jsonl"
        raise UserError(line, code="missing-value")
    return values[0]
