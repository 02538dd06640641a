"""One episode, turn by turn, for a person: what was seen, done, earned and said of it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from agentrl_cli.errors import UserError
from agentrl_cli.report.text import labelled
from agentrl_cli.run import Run, read_episodes, step_of
from agentrl_cli.types import Episode, Turn

NUMBERS = ("value", "advantage", "td_error", "ratio")
VERDICTS = {True: "the action stands", False: "a better action exists", None: "unreadable"}


def find_episode(run: Run, ref: str | None, step: int | None) -> tuple[Episode, str, int]:
    """The episode whose id starts with `ref`, the file it is in, and how many are in that file.

    The newest step that has one counts. Without `ref`: the first that a critic has annotated, else
    the first.
    """
    files = [file for file in run.episode_files() if step in (None, step_of(file))]
    if not files:
        when = "yet; wait for its first evaluation" if step is None else f"of step {step}"
        raise UserError(f"run '{run.name}' has no episodes {when}")
    if ref is None:
        files = [file for file in files if step_of(file) == step_of(files[-1])]
    found = [(e, file) for file in reversed(files) for e in _matching(file, ref)]
    if not found:
        raise UserError(f"run '{run.name}' has no episode '{ref}'; see {run.folder / 'episodes'}")
    annotated = [pair for pair in found if ref is None and _is_annotated(pair[0])]
    chosen, file = [*annotated, *found][0]
    return chosen, file.stem, len(_matching(file, None))


def render(episode: Episode, source: str) -> list[str]:
    """The lines to print; `source` says where the episode is from."""
    outcome = "success" if episode.success else "no success"
    summary = f"{outcome}, reward {episode.reward:g}, {len(episode.turns)} turns, {episode.stop}"
    lines = [
        *labelled("from", source),
        *labelled("episode", f"{episode.id}, {episode.tokens} tokens, seed {episode.seed}"),
        *labelled("task", f"{episode.task.id} ({episode.task.split})"),
        *labelled("outcome", summary),
        *(labelled("error", episode.error) if episode.error else []),
    ]
    for number, turn in enumerate(episode.turns, start=1):
        lines += ["", *render_turn(number, turn)]
    closing = [labelled(message.role, message.content) for message in episode.closing]
    return [*lines, *([""] if closing else []), *(line for part in closing for line in part)]


def render_turn(number: int, turn: Turn) -> list[str]:
    """A turn's numbers, observation, action and what the critic wrote."""
    numbers = [f"reward {turn.reward:g}"]
    numbers += [f"{name} {turn.info[name]:+.3f}" for name in NUMBERS if name in turn.info]
    notes = [turn.finish] if turn.finish != "stop" else []
    notes += ["restart"] if turn.restart else []
    lines = [f"turn {number}  " + "  ".join([*numbers, *notes])]
    for message in turn.observation:
        lines += labelled(message.role, message.content)
        lines += [line for call in message.tool_calls for line in labelled("calls", str(call))]
    lines += _action(turn)
    return lines + (_critic(turn.info["critic"], turn.action) if "critic" in turn.info else [])


def _action(turn: Turn) -> list[str]:
    """The action; where a critic took its thoughts one by one, each with what it said of it."""
    thoughts = turn.info.get("thoughts", [])
    if len(thoughts) < 2:
        return labelled("action", turn.action)
    noted = [
        "  ".join(
            [_text(one["text"]).strip(), *(f"{n} {one[n]:+.3f}" for n in NUMBERS if n in one)]
        )
        for one in thoughts
    ]
    return [line for text in noted for line in labelled("thought", text)]


def _critic(said: dict[str, Any], action: str) -> list[str]:
    """Forecasts (equal ones counted), what was made of them, the refined action, and what was made
    of that."""
    lines = []
    for key, label in (("forecasts", "forecast"), ("others", "other")):
        for text, count in Counter(map(_text, said.get(key, []))).most_common():
            lines += labelled(label, f"{count} x {text}" if count > 1 else text)
    lines += _judgement(said, "")
    if said.get("refined"):
        same = said["refined"] == action
        lines += labelled("refined", "unchanged" if same else _text(said["refined"]))
        lines += _judgement(said, "refined_")
    return lines


def _judgement(said: dict[str, Any], of: str) -> list[str]:
    """The critique and its verdict; nothing where none was asked for."""
    if not said.get(f"{of}critique"):
        return []
    verdict = VERDICTS[said[f"{of}verdict"]] if f"{of}verdict" in said else "unreadable"
    return labelled("critique", _text(said[f"{of}critique"])) + labelled("verdict", verdict)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else str(value)


def _matching(file: Path, ref: str | None) -> list[Episode]:
    return [e for e in read_episodes(file) if ref is None or e.id.startswith(ref)]


def _is_annotated(episode: Episode) -> bool:
    return any("critic" in turn.info or "value" in turn.info for turn in episode.turns)
