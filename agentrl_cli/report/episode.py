"""One episode, turn by turn, for a person: what was seen, done, earned and said of it.

`numbers` and `texts` are what there is to tell of a turn; the terminal and the page show both.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentrl_cli.algos.nlac.prompts import outcome
from agentrl_cli.core.errors import UserError
from agentrl_cli.core.types import Episode, Turn
from agentrl_cli.report.text import labelled
from agentrl_cli.runs import episode_files
from agentrl_cli.runs.episode_files import EpisodeEntry
from agentrl_cli.runs.run import Run, step_of

NUMBERS = ("value", "advantage", "td_error", "ratio")
COUNTS = ("masked", "discarded")  # of tokens, where an algorithm has recorded them
TOLD = {*NUMBERS, *COUNTS, "critic", "privileged", "thoughts"}
VERDICTS = {True: "the action stands", False: "a better action exists", None: "unreadable"}
FILTERS = ("won", "lost", "changed")
Facts = list[tuple[str, str]]


@dataclass(frozen=True)
class Found:
    """An episode that was asked for, the file it is in, how many of that file fit the question, and
    how many there are."""

    episode: Episode
    file: Path
    fitting: list[EpisodeEntry]
    total: int


def find_episode(
    run: Run, ref: str | None, step: int | None, filters: Collection[str] = ()
) -> Found:
    """The episode whose id starts with `ref`, in the newest step that has one.

    Without `ref`: the first that a critic has annotated, else the first. `filters` keep the won,
    the lost, or those whose outcome differs from the first evaluation's. Raises UserError where
    there is none.
    """
    files = [file for file in run.episode_files() if step in (None, step_of(file))]
    if not files:
        when = "yet; wait for its first evaluation" if step is None else f"of step {step}"
        raise UserError(f"run '{run.name}' has no episodes {when}")
    if ref is None and not filters:
        files = [file for file in files if step_of(file) == step_of(files[-1])]
    elif filters:
        files = [file for file in files if file.name.startswith("eval-")]
    for wanted in (True, False) if ref is None else (False,):
        for file in reversed(files):
            fits = keeper(run, file, filters)
            found = [entry for entry in episode_files.search(file, ref or "") if fits(entry)]
            first = next((entry for entry in found if entry.annotated or not wanted), None)
            if first is not None:
                return Found(
                    episode_files.read(file, first), file, found, episode_files.count(file)
                )
    asked = " ".join([*(f"--{name}" for name in filters), *([f"'{ref}'"] if ref else [])])
    raise UserError(f"run '{run.name}' has no episode {asked}; see {run.folder / 'episodes'}")


def keeper(run: Run, file: Path, filters: Collection[str]) -> Callable[[EpisodeEntry], bool]:
    """Whether an episode of the file passes all filters."""
    before = base_outcomes(run) if "changed" in filters else {}

    def fits(entry: EpisodeEntry) -> bool:
        asked = {
            "won": entry.success,
            "lost": not entry.success,
            "changed": before.get(entry.id, entry.success) != entry.success,
        }
        return all(asked[name] for name in filters)

    return fits


def base_outcomes(run: Run) -> dict[str, bool]:
    """Which episodes of the evaluation of the starting weights were won. Raises UserError without
    one."""
    file = run.folder / "episodes" / "eval-000000.jsonl"
    if not file.is_file():
        raise UserError(f"run '{run.name}' did not play its base; --changed needs eval.baseline")
    return {entry.id: entry.success for entry in episode_files.search(file)}


def render(episode: Episode, source: str) -> list[str]:
    """The lines to print; `source` says where the episode is from."""
    lines = [line for label, text in summary(episode, source) for line in labelled(label, text)]
    for number, (turn, earned) in enumerate(with_returns(episode), start=1):
        lines += ["", *render_turn(number, turn, earned, episode.success)]
    closing = [labelled(message.role, message.content) for message in episode.closing]
    return [*lines, *([""] if closing else []), *(line for part in closing for line in part)]


def render_turn(
    number: int, turn: Turn, earned: float | None = None, success: bool | None = None
) -> list[str]:
    """A turn's numbers, observation, action and what the critic wrote."""
    head = "  ".join(f"{name} {value}".strip() for name, value in numbers(turn, earned))
    body = [line for label, text in texts(turn, success) for line in labelled(label, text)]
    return [f"turn {number}  {head}", *body]


def summary(episode: Episode, source: str) -> Facts:
    """What is told of an episode as a whole."""
    won = "success" if episode.success else "no success"
    ended = f"{won}, reward {episode.reward:g}, {len(episode.turns)} turns, {episode.stop}"
    return [
        ("from", source),
        ("episode", f"{episode.id}, {episode.tokens} tokens, seed {episode.seed}"),
        ("task", f"{episode.task.id} ({episode.task.split})"),
        ("outcome", ended),
        *([("error", episode.error)] if episode.error else []),
    ]


def with_returns(episode: Episode) -> Iterator[tuple[Turn, float]]:
    """Every turn with its return: the undiscounted sum of the rewards from it on."""
    earned = episode.reward
    for turn in episode.turns:
        yield turn, earned
        earned -= turn.reward


def numbers(turn: Turn, earned: float | None) -> Facts:
    """What was earned, what the algorithm recorded of the turn, and how it ended if oddly."""
    found = [("reward", f"{turn.reward:g}")]
    found += [("return", f"{earned:g}")] if earned is not None else []
    found += [(name, f"{turn.info[name]:+.3f}") for name in NUMBERS if name in turn.info]
    found += [(name, f"{turn.info[name]:g}") for name in COUNTS if turn.info.get(name)]
    found += [(turn.finish, "")] if turn.finish != "stop" else []
    return found + ([("restart", "")] if turn.restart else [])


def texts(turn: Turn, success: bool | None) -> Facts:
    """What the agent saw and did, what the world notes beside it, what the critic wrote of it."""
    found: Facts = []
    for message in turn.observation:
        found.append((message.role, message.content))
        found += [("calls", _text(call)) for call in message.tool_calls]
    found += _action(turn)
    notes = {key: value for key, value in turn.info.items() if key not in TOLD}
    found += [("world", _notes(notes))] if notes else []
    hidden = turn.info.get("privileged")
    found += [("hidden", _notes(hidden))] if hidden else []
    return found + (_critic(turn.info["critic"], turn.action, success) if _said(turn) else [])


def _action(turn: Turn) -> Facts:
    """The action; where a critic took its thoughts one by one, each with what it said of it."""
    thoughts = turn.info.get("thoughts", [])
    if len(thoughts) < 2:
        return [("action", turn.action)]
    return [("thought", "  ".join([_text(one["text"]).strip(), *_values(one)])) for one in thoughts]


def _values(said: dict[str, Any]) -> list[str]:
    return [f"{name} {said[name]:+.3f}" for name in NUMBERS if name in said]


def _said(turn: Turn) -> bool:
    return isinstance(turn.info.get("critic"), dict)


def _critic(said: dict[str, Any], action: str, success: bool | None) -> Facts:
    """Forecasts (equal ones counted) and whether they came true, what was made of them, the refined
    action, and what was made of that."""
    found: Facts = []
    for key, label in (("forecasts", "forecast"), ("others", "other")):
        for text, count in Counter(map(_text, said.get(key, []))).most_common():
            found.append((label, f"{count} x {text}" if count > 1 else text))
    found += agreement(map(_text, said.get("forecasts", [])), success)
    found += _judgement(said, "")
    if said.get("refined"):
        same = said["refined"] == action
        found.append(("refined", "unchanged" if same else _text(said["refined"])))
        found += _judgement(said, "refined_")
    return found


def agreement(forecasts: Iterable[str], success: bool | None) -> Facts:
    """How many forecasts named the outcome that came; nothing where it is not known."""
    named = [said for said in map(outcome, forecasts) if said is not None]
    if success is None or not named:
        return []
    right, end = sum(said == success for said in named), "won" if success else "lost"
    return [("reality", f"{end}, as {right} of {len(named)} forecasts said")]


def _judgement(said: dict[str, Any], of: str) -> Facts:
    """The critique and its verdict; nothing where none was asked for."""
    if not said.get(f"{of}critique"):
        return []
    given = said.get(f"{of}verdict")
    verdict = VERDICTS[given] if isinstance(given, bool) else VERDICTS[None]
    return [("critique", _text(said[f"{of}critique"])), ("verdict", verdict)]


def _notes(notes: Any) -> str:
    """`kind question, repeated false`: what the world says of a turn, in the order it said it."""
    if not isinstance(notes, dict):
        return _text(notes)
    return ", ".join(f"{key.replace('_', ' ')} {_text(value)}" for key, value in notes.items())


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
