"""One episode, turn by turn, for a person: what was seen, done, earned and written of it. `numbers`
and `texts` are all that is shown of a turn; the terminal and the page show both."""

from __future__ import annotations

import json
import textwrap
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentrl_cli.algos.nlac.parse import stated_outcome
from agentrl_cli.core.errors import UserError
from agentrl_cli.core.files import is_number
from agentrl_cli.core.types import Episode, Turn
from agentrl_cli.report.text import labelled
from agentrl_cli.runs import episode_files
from agentrl_cli.runs.episode_files import EpisodeEntry
from agentrl_cli.runs.run import Run, step_of

NUMBERS = ("value", "advantage", "td_error", "ratio")
COUNTS = ("masked", "discarded")  # of tokens, where an algorithm has recorded them
NOT_OF_THE_WORLD = {*NUMBERS, *COUNTS, "critic", "privileged", "thoughts"}  # in a turn's info
VERDICTS = {True: "the action stands", False: "a better action exists", None: "unreadable"}
OUTCOMES = {True: "Success", False: "Failure", None: "without an outcome"}
SHOWN_FORECASTS = 2  # different ones of a turn, which are shown where others are folded
MIN_WIDTH = 24
HANGING: Any = {"subsequent_indent": " " * 8, "break_on_hyphens": False}
STYLES = {  # by label, in a terminal
    "turn": "bold", "action": "bold cyan", "thought": "cyan", "forecast": "dim", "forecasts": "dim",
    "other": "dim", "others": "dim", "reality": "yellow", "critique": "magenta",
    "verdict": "magenta", "refined": "green", "outcome": "bold", "error": "red", "hidden": "dim",
}  # fmt: skip
FILTERS = ("won", "lost", "changed")
Facts = list[tuple[str, str]]  # labels, each with its text


@dataclass(frozen=True)
class Style:
    """How an episode is printed: in lines of at most `width`, and with many forecasts of a turn
    folded to counts, or all of them with their texts."""

    width: int = 100
    folds: bool = False


@dataclass(frozen=True)
class EpisodeMatch:
    """The first episode that fits a query, the file it is in, all entries of that file that fit,
    and the number of episodes in it."""

    episode: Episode
    file: Path
    entries: list[EpisodeEntry]
    total: int


def find_episode(
    run: Run, ref: str | None, step: int | None, filters: Collection[str] = ()
) -> EpisodeMatch:
    """The episode whose id starts with `ref`, in the newest step that has one. Without `ref`: the
    first that a critic has annotated, else the first. `filters` keep the won, the lost, or those
    whose outcome differs from the first evaluation's. Raises UserError where there is none."""
    files = [file for file in run.episode_files() if step in (None, step_of(file))]
    if not files:
        when = "yet; wait for its first evaluation" if step is None else f"of step {step}"
        raise UserError(f"run '{run.name}' has no episodes {when}")
    if ref is None and not filters:
        files = [file for file in files if step_of(file) == step_of(files[-1])]
    elif filters:
        files = [file for file in files if file.name.startswith("eval-")]
    base = base_outcomes(run) if files and "changed" in filters else {}
    for needs_critic in (True, False) if ref is None else (False,):
        for file in reversed(files):
            entries = [e for e in episode_files.search(file, ref or "") if fits(e, filters, base)]
            first = next((e for e in entries if e.annotated or not needs_critic), None)
            if first is not None:
                episode = episode_files.read(file, first)
                return EpisodeMatch(episode, file, entries, episode_files.count(file))
    query = " ".join([*(f"--{name}" for name in filters), *([f"'{ref}'"] if ref else [])])
    raise UserError(f"run '{run.name}' has no episode {query}; see {run.folder / 'episodes'}")


def fits(entry: EpisodeEntry, filters: Collection[str], base: dict[str, bool]) -> bool:
    """Whether an episode passes all filters; `base` are the first evaluation's outcomes by id."""
    is_changed = has_changed(entry, base)
    passes = {"won": entry.success, "lost": not entry.success, "changed": is_changed}
    return all(passes[name] for name in filters)


def has_changed(episode: Episode | EpisodeEntry, base: dict[str, bool]) -> bool:
    """Whether an episode ended otherwise than with the starting weights, where these played it."""
    return base.get(episode.id, episode.success) != episode.success


def base_outcomes(run: Run) -> dict[str, bool]:
    """Which episodes the starting weights won when evaluated. Raises UserError where none were."""
    file = run.folder / "episodes" / "eval-000000.jsonl"
    if not file.is_file():
        raise UserError(f"run '{run.name}' did not play its base; --changed needs eval.baseline")
    return {entry.id: entry.success for entry in episode_files.search(file)}


def render(episode: Episode, source: str, how: Style | None = None) -> list[str]:
    """The lines to print; `source` says where the episode is from."""
    how = how or Style()
    lines = _labelled(summary(episode, source), how)
    for number, (turn, return_) in enumerate(with_returns(episode), start=1):
        lines += ["", *render_turn(number, turn, return_, known_end(episode), how)]
    closing = _labelled([(message.role, message.content) for message in episode.closing], how)
    return [*lines, "", *closing] if closing else lines


def render_turn(
    number: int,
    turn: Turn,
    return_: float | None = None,
    success: bool | None = None,
    how: Style | None = None,
) -> list[str]:
    """A turn's numbers, observation, action and what the critic wrote."""
    how = how or Style()
    head = "  ".join(f"{name} {value}".strip() for name, value in numbers(turn, return_))
    first = textwrap.wrap(f"turn {number}  {head}", max(how.width, MIN_WIDTH), **HANGING)
    return [*first, *_labelled(texts(turn, success, folds=how.folds), how)]


def _labelled(facts: Facts, how: Style) -> list[str]:
    return [line for label, text in facts for line in labelled(label, text, how.width)]


def summary(episode: Episode, source: str) -> Facts:
    """An episode as a whole: where it is from, its task, how it ended."""
    won = "success" if episode.success else "no success"
    ended = f"{won}, reward {episode.reward:g}, {len(episode.turns)} turns, {episode.stop}"
    facts = [("from", source)]
    facts += [("episode", f"{episode.id}, {episode.tokens} tokens, seed {episode.seed}")]
    facts += [("task", f"{episode.task.id} ({episode.task.split})"), ("outcome", ended)]
    return facts + ([("error", episode.error)] if episode.error else [])


def known_end(episode: Episode) -> bool | None:
    """Whether it was won; None where it broke or was cut off, so that nobody knows."""
    return episode.success if episode.stop == "done" else None


def with_returns(episode: Episode) -> Iterator[tuple[Turn, float]]:
    """Every turn with its return: the undiscounted sum of the rewards from it on."""
    return_ = episode.reward
    for turn in episode.turns:
        yield turn, return_
        return_ -= turn.reward


def numbers(turn: Turn, return_: float | None) -> Facts:
    """Reward and return, what the algorithm recorded of the turn, and how it ended if oddly."""
    facts = [("reward", f"{turn.reward:g}")]
    facts += [("return", f"{return_:g}")] if return_ is not None else []
    known = {name: value for name, value in turn.info.items() if is_number(value)}
    facts += [(name, f"{known[name]:+.3f}") for name in NUMBERS if name in known]
    facts += [(name, f"{known[name]:g}") for name in COUNTS if known.get(name)]
    facts += [(turn.finish, "")] if turn.finish != "stop" else []
    return facts + ([("restart", "")] if turn.restart else [])


def texts(turn: Turn, success: bool | None, *, folds: bool = False) -> Facts:
    """What the agent saw and did, what the world notes of it, what the critic wrote of it, where it
    `folds` with counts in place of many forecasts."""
    facts: Facts = []
    for message in turn.observation:
        facts.append((message.role, message.content))
        facts += [("calls", _text(call)) for call in message.tool_calls]
    facts += _action(turn)
    notes = {key: value for key, value in turn.info.items() if key not in NOT_OF_THE_WORLD}
    facts += [("world", _notes(notes))] if notes else []
    hidden = turn.info.get("privileged")
    facts += [("hidden", _notes(hidden))] if hidden else []
    critic = turn.info.get("critic")
    if not isinstance(critic, dict):
        return facts
    return facts + _forecasts(critic, folds) + _critic(critic, turn.action, success)


def _action(turn: Turn) -> Facts:
    """The action; where a critic judged its thoughts one by one, each with its numbers."""
    found = turn.info.get("thoughts")
    is_list = isinstance(found, list)
    thoughts = [t for t in found if isinstance(t, dict) and "text" in t] if is_list else []
    facts: Facts = []
    for thought in thoughts:
        known = [name for name in NUMBERS if is_number(thought.get(name))]
        values = [f"{name} {thought[name]:+.3f}" for name in known]
        facts.append(("thought", "  ".join([_text(thought["text"]).strip(), *values])))
    return facts if len(thoughts) > 1 else [("action", turn.action)]


def _forecasts(critic: dict[str, Any], folds: bool) -> Facts:
    """Forecasts of the action and of another one, equal ones counted; where it `folds`, of more
    than SHOWN_FORECASTS different ones only how many say what."""
    facts: Facts = []
    for key, label in (("forecasts", "forecast"), ("others", "other")):
        found = _texts(critic, key)
        counted = Counter(found).most_common()
        if folds and len(counted) > SHOWN_FORECASTS:
            facts.append((f"{label}s", _outcomes(found)))
            continue
        for text, count in counted:
            facts.append((label, f"{count} x {text}" if count > 1 else text))
    return facts


def _outcomes(forecasts: list[str]) -> str:
    """`3 x Success, 1 x Failure`: the outcomes that forecasts end with."""
    counts = Counter(map(stated_outcome, forecasts))
    named = [f"{counts[end]} x {name}" for end, name in OUTCOMES.items() if counts[end]]
    return ", ".join(named) + " (their texts: --full)"


def _critic(critic: dict[str, Any], action: str, success: bool | None) -> Facts:
    """Whether the forecasts came true, the critique of the action, the refined action, and its
    critique."""
    facts = _agreement(_texts(critic, "forecasts"), success)
    facts += _critique(critic, "")
    if critic.get("refined"):
        is_same = critic["refined"] == action
        facts.append(("refined", "unchanged" if is_same else _text(critic["refined"])))
        facts += _critique(critic, "refined_")
    return facts


def _agreement(forecasts: Iterable[str], success: bool | None) -> Facts:
    """How many forecasts named the outcome that came; nothing where it is not known."""
    named = [forecast for forecast in map(stated_outcome, forecasts) if forecast is not None]
    if success is None or not named:
        return []
    right, end = sum(forecast == success for forecast in named), "won" if success else "lost"
    return [("reality", f"{end}, as {right} of {len(named)} forecasts said")]


def _critique(critic: dict[str, Any], prefix: str) -> Facts:
    """A critique and its verdict; nothing where none was written."""
    if not critic.get(f"{prefix}critique"):
        return []
    optimal = critic.get(f"{prefix}verdict")
    verdict = VERDICTS[optimal if isinstance(optimal, bool) else None]
    return [("critique", _text(critic[f"{prefix}critique"])), ("verdict", verdict)]


def _notes(notes: Any) -> str:
    """`kind question, repeated false`: what the world notes of a turn, in its order."""
    if not isinstance(notes, dict):
        return _text(notes)
    return ", ".join(f"{key.replace('_', ' ')} {_text(value)}" for key, value in notes.items())


def _texts(critic: dict[str, Any], key: str) -> list[str]:
    found = critic.get(key)
    return [_text(value) for value in found] if isinstance(found, list) else []


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
