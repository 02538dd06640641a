"""Show one episode turn by turn, in the terminal and in the HTML page: observations, actions,
rewards, and the texts of its critic. The second half compares critics with outcomes."""

from __future__ import annotations

import json
import math
import textwrap
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from agentrl_cli.algos.nlac.parse import stated_outcome
from agentrl_cli.core.errors import UserError
from agentrl_cli.core.files import count_lines, is_number
from agentrl_cli.core.terminal import safe
from agentrl_cli.core.types import ANNOTATIONS, Episode, Turn
from agentrl_cli.models.fetch import converted_folder
from agentrl_cli.report.records import Record
from agentrl_cli.runs import episode_files
from agentrl_cli.runs.episode_files import EpisodeEntry
from agentrl_cli.runs.run import Run, step_of

NUMBERS = ("value", "advantage", "td_error")  # metrics of a turn
NOT_FROM_ENVIRONMENT = ANNOTATIONS | {"privileged"}  # in a turn's info
VERDICTS = {True: "optimal", False: "not optimal", None: "unreadable"}
OUTCOMES = {True: "Success", False: "Failure", None: "unreadable"}
SHOWN_FORECASTS = 2  # different forecasts of a turn; more of them are summarised
FILTERS = ("won", "lost", "changed")
WIDTH = 100  # characters of a line if the output is not a terminal
LABEL_WIDTH = 10
STYLES = {  # of each label in a terminal
    "turn": "bold", "action": "bold cyan", "thought": "cyan", "forecast": "dim", "forecasts": "dim",
    "other": "dim", "others": "dim", "reality": "yellow", "critique": "magenta",
    "verdict": "magenta", "refined": "green", "outcome": "bold", "error": "red", "hidden": "dim",
}  # fmt: skip
Facts = list[tuple[str, str]]  # labels with their texts


@dataclass(frozen=True)
class EpisodeMatch:
    """The first matching episode, its file, all matching entries, and the number of episodes."""

    episode: Episode
    file: Path
    entries: list[EpisodeEntry]
    total: int


def find_episode(
    run: Run, ref: str | None, step: int | None, filters: Collection[str] = ()
) -> EpisodeMatch:
    """Return the episode with an id that starts with `ref`, from the newest step. Without `ref` an
    episode with notes of a critic is preferred. `filters` select won or lost evaluated episodes, or
    those with another outcome than before training. Raises UserError if no episode matches."""
    found = [file for file in run.episode_files() if step in (None, step_of(file))]
    if not found:
        when = "yet; wait for its first evaluation" if step is None else f"at step {step}"
        raise UserError(f"run '{run.name}' has no episodes {when}", code="no-episodes")
    if filters:
        found = [file for file in found if file.name.startswith("eval-")]
    elif ref is None:
        found = [file for file in found if step_of(file) == step_of(found[-1])]
    base: dict[str, bool] = {}
    if "changed" in filters:
        first_file = run.folder / "episodes" / "eval-000000.jsonl"
        if not first_file.is_file():
            line = f"run '{run.name}' has no evaluation before training; --changed needs a run"
            raise UserError(f"{line} with eval.baseline=true", code="no-base")
        base = {entry.id: entry.success for entry in episode_files.search(first_file)}
    for needs_critic in (True, False) if ref is None else (False,):
        for file in reversed(found):
            entries = [
                entry
                for entry in episode_files.search(file, ref or "")
                if not ("won" in filters and not entry.success)
                and not ("lost" in filters and entry.success)
                and not ("changed" in filters and not has_changed(entry, base))
            ]
            first = next((e for e in entries if e.annotated or not needs_critic), None)
            if first is not None:
                episode = episode_files.read(file, first)
                return EpisodeMatch(episode, file, entries, count_lines(file))
    query = " ".join([*(f"--{name}" for name in filters), *([f"'{ref}'"] if ref else [])])
    line = f"run '{run.name}' has no episode {query}; see {run.folder / 'episodes'}"
    raise UserError(line, code="no-episodes")


def has_changed(episode: Episode | EpisodeEntry, base: dict[str, bool]) -> bool:
    """Return whether an episode ended differently before training."""
    return base.get(episode.id, episode.success) != episode.success


def render(episode: Episode, source: str, width: int = WIDTH, *, fold: bool = False) -> list[str]:
    """Return the lines of an episode; `fold` summarises many forecasts of a turn."""
    lines, end = labelled(summary(episode, source), width), known_end(episode)
    for number, (turn, return_) in enumerate(with_returns(episode), start=1):
        shown = [f"{name}\0{value}".strip("\0") for name, value in numbers(turn, return_)]
        head = textwrap.wrap(
            "  ".join([f"turn {number}", *shown]), max(width, 24),
            subsequent_indent=" " * 8, break_on_hyphens=False,
        )  # fmt: skip
        head = [safe(line.replace("\0", " ")) for line in head]  # names and numbers stay together
        lines += ["", *head, *labelled(texts(turn, end, fold=fold), width)]
    closing = [(message.role, message.content) for message in episode.final_observation]
    return [*lines, "", *labelled(closing, width)] if closing else lines


def labelled(facts: Facts, width: int = WIDTH) -> list[str]:
    """Return wrapped lines of a label and a text; in a narrow terminal the text is below."""
    lines: list[str] = []
    for label, text in facts:
        head = f"  {safe(label):<{LABEL_WIDTH}}"
        is_narrow = width - len(head) < 20
        indent = 4 if is_narrow else len(head)
        room = max(width - indent, 10)
        parts = [p for line in safe(text).split("\n") for p in textwrap.wrap(line, room) or [""]]
        wrapped = [" " * indent + part for part in parts]
        lines += [head.rstrip(), *wrapped] if is_narrow else [head + parts[0], *wrapped[1:]]
    return lines


def painted(lines: Iterable[str]) -> str:
    """Return rendered lines with terminal colours; each label and its text in the label's style."""
    from rich.console import Console
    from rich.text import Text

    console, style = Console(highlight=False, soft_wrap=True), ""
    with console.capture() as captured:
        for line in lines:
            word = line.split(" ", 1)[0] or line[2 : 2 + LABEL_WIDTH].strip()
            style = STYLES.get(word, "") if word else style
            console.print(Text(line, style=style))
    return captured.get()


def summary(episode: Episode, source: str) -> Facts:
    """Return the source, task and outcome of an episode."""
    won = "success" if episode.success else "no success"
    ended = f"{won}, reward {episode.reward:g}, {len(episode.turns)} turns, {episode.stop}"
    facts = [("from", source)]
    facts += [("episode", f"{episode.id}, {episode.tokens} tokens, seed {episode.seed}")]
    facts += [("task", f"{episode.task.id} ({episode.task.split})"), ("outcome", ended)]
    return facts + ([("error", episode.error)] if episode.error else [])


def known_end(episode: Episode) -> bool | None:
    """Return whether the episode was won; None if it failed or was cut off."""
    return episode.success if episode.stop == "done" else None


def with_returns(episode: Episode) -> Iterator[tuple[Turn, float]]:
    """Yield every turn with its return, the undiscounted sum of rewards from it on."""
    return_ = episode.reward
    for turn in episode.turns:
        yield turn, return_
        return_ -= turn.reward


def numbers(turn: Turn, return_: float) -> Facts:
    """Return reward, return, the algorithm's numbers, and how the turn ended if unusual."""
    known = {name: value for name, value in turn.info.items() if is_number(value)}
    facts = [("reward", f"{turn.reward:g}"), ("return", f"{return_:g}")]
    facts += [(name, f"{known[name]:+.3f}") for name in NUMBERS if name in known]
    return facts + ([("finish_reason", turn.finish_reason)] if turn.finish_reason != "stop" else [])


def texts(turn: Turn, success: bool | None, *, fold: bool = False) -> Facts:
    """Return observation, action, notes of the environment, and texts of the critic. The action is
    replaced by its thoughts with their numbers if a critic judged each of them."""
    facts: Facts = []
    for message in turn.observation:
        facts.append((message.role, message.content))
        facts += [("calls", _text(call)) for call in message.tool_calls]
    thoughts = [t for t in _listed(turn.info, "thoughts") if isinstance(t, dict) and "text" in t]
    for thought in thoughts if len(thoughts) > 1 else []:
        values = [f"{n} {thought[n]:+.3f}" for n in NUMBERS if is_number(thought.get(n))]
        facts.append(("thought", "  ".join([_text(thought["text"]).strip(), *values])))
    if len(thoughts) <= 1:
        facts.append(("action", turn.action.rstrip("\n")))
    notes = {key: value for key, value in turn.info.items() if key not in NOT_FROM_ENVIRONMENT}
    for label, found in (("notes", notes), ("hidden", turn.info.get("privileged"))):
        if isinstance(found, dict) and found:
            pairs = [f"{key.replace('_', ' ')} {_text(value)}" for key, value in found.items()]
            facts.append((label, ", ".join(pairs)))
        elif found:
            facts.append((label, _text(found)))
    critic = turn.info.get("critic")
    if not isinstance(critic, dict):
        return facts
    facts += _forecasts(_listed(critic, "forecasts"), "forecast", fold)
    facts += _forecasts(_listed(critic, "others"), "other", fold)
    named = _stated_outcomes(critic)
    if success is not None and named:
        right, end = sum(each == success for each in named), "won" if success else "lost"
        facts.append(("reality", f"{end}, as {right} of {len(named)} forecasts predicted"))
    facts += _critique(critic, "")
    if refined := critic.get("refined"):
        is_unchanged, again = refined == turn.action, _critique(critic, "refined_")
        facts.append(("refined", "unchanged" if is_unchanged else _text(refined)))
        facts += [] if is_unchanged and again == _critique(critic, "") else again
    return facts


def _critique(critic: dict[str, Any], prefix: str) -> Facts:
    if not (text := critic.get(f"{prefix}critique")):
        return []
    optimal = critic.get(f"{prefix}verdict")
    verdict = VERDICTS[optimal if isinstance(optimal, bool) else None]
    return [("critique", _text(text)), ("verdict", verdict)]


def _forecasts(found: list[Any], label: str, fold: bool) -> Facts:
    counted = Counter(map(_text, found)).most_common()
    if fold and len(counted) > SHOWN_FORECASTS:
        ends = Counter(stated_outcome(_text(text)) for text in found)
        named = [f"{ends[end]} x {name}" for end, name in OUTCOMES.items() if ends[end]]
        return [(f"{label}s", ", ".join(named) + " (show their texts: --full)")]
    return [(label, f"{count} x {text}" if count > 1 else text) for text, count in counted]


def _stated_outcomes(critic: dict[str, Any]) -> list[bool]:
    """Return the outcomes of the forecasts that can be parsed."""
    ends = [stated_outcome(_text(text)) for text in _listed(critic, "forecasts")]
    return [end for end in ends if end is not None]


def _listed(info: dict[str, Any], key: str) -> list[Any]:
    found = info.get(key)
    return found if isinstance(found, list) else []


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


# credit and critics


class Prediction(NamedTuple):
    """The success that a critic expected at a turn, its verdict if any, and the outcome."""

    expected: float
    optimal: bool | None
    won: bool

    @property
    def error(self) -> float:
        """The absolute error, 0 to 1."""
        return abs(self.expected - self.won)


def expected_success(turn: Turn) -> float | None:
    """Return the success that a critic expected: the share of its forecasts, or its value; None
    without a readable forecast or value."""
    critic, value = turn.info.get("critic"), turn.info.get("value")
    if isinstance(critic, dict):
        named = _stated_outcomes(critic)
        return fmean(named) if named else None
    return min(1.0, max(0.0, float(value))) if is_number(value) else None


def credit(turn: Turn) -> dict[str, float]:
    """Return the advantage of a turn, and the success that a critic expected, if known."""
    advantage, expected = turn.info.get("advantage"), expected_success(turn)
    found = {"advantage": float(advantage)} if is_number(advantage) else {}
    name = "forecast" if isinstance(turn.info.get("critic"), dict) else "value"
    return found | ({name: expected} if expected is not None else {})


def predictions(episode: Episode) -> list[Prediction]:
    """Return the critic's expectation at each turn; none if the outcome is unknown."""
    found: list[Prediction] = []
    for turn in episode.turns if episode.stop == "done" else []:
        expected, critic = expected_success(turn), turn.info.get("critic")
        if expected is not None:
            verdict = critic.get("verdict") if isinstance(critic, dict) else None
            optimal = verdict if isinstance(verdict, bool) else None
            found.append(Prediction(expected, optimal, episode.success))
    return found


def calibration(predictions: list[Prediction], count: int = 5) -> list[dict[str, float]]:
    """Return expected and actual success in `count` equal ranges; empty ranges are left out."""
    bins = []
    for number in range(count):
        inside = [p for p in predictions if min(count - 1, int(p.expected * count)) == number]
        if inside:
            bins.append({
                "low": number / count, "high": (number + 1) / count, "turns": len(inside),
                "expected": fmean(p.expected for p in inside), "won": fmean(p.won for p in inside),
            })  # fmt: skip
    return bins


def verdicts(predictions: list[Prediction]) -> dict[str, float | None] | None:
    """Return turns with a verdict, the share called optimal, and success rates by verdict.
    Returns None without verdicts."""
    optimal = [p.won for p in predictions if p.optimal is True]
    other = [p.won for p in predictions if p.optimal is False]
    if not (turns := len(optimal) + len(other)):
        return None
    return {
        "turns": turns, "optimal": len(optimal) / turns,
        "won_if_optimal": fmean(optimal) if optimal else None,
        "won_if_not": fmean(other) if other else None,
    }  # fmt: skip


# tokens

SHADES = (0.9, 0.5, 0.1, 0.01)  # limits of probability between shades
Token = tuple[str, float, int]  # text, log-prob, and shade from 0 (likely) to 4 (unlikely)
Decode = Callable[[list[int]], str]


def decoder(record: Record) -> Decode:
    """Return a function that decodes token ids. Raises UserError without the run's tokenizer."""
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError
    from tokenizers import Tokenizer

    model = record.config.get("model") or {}
    path = str(model.get("path") if isinstance(model, dict) else model)
    bundled = Path(__file__).parent.parent / "models" / "tiny"
    folder = bundled if path == "tiny" else converted_folder(path) or Path(path)
    file: Any = folder / "tokenizer.json"
    if not file.is_file():
        with suppress(HFValidationError):  # not a valid model name
            file = try_to_load_from_cache(path, file.name)
    if not isinstance(file, str | Path) or not Path(file).is_file():
        remedy = "make the report on a machine that has the model, or without --logprobs"
        line = f"run '{record.name}': the tokenizer of its model was not found; {remedy}"
        raise UserError(line, code="no-tokenizer")
    tokenizer = Tokenizer.from_file(str(file))
    return lambda ids: str(tokenizer.decode(ids, skip_special_tokens=False))


def tokens(turn: Turn, decode: Decode) -> list[Token]:
    """Return the tokens of the action; none if their log-probs were not stored, or are not known
    because another action replaced the sampled one."""
    if len(turn.logprobs) != len(turn.action_ids) or None in turn.logprobs:
        return []
    pairs = zip(turn.action_ids, turn.logprobs, strict=True)
    return [(decode([id]), p, sum(p < math.log(limit) for limit in SHADES)) for id, p in pairs]
