"""Runs as the report reads them: columns of numbers instead of lines of JSON. What cannot be read
is counted and noted, never guessed, and nothing is judged here. A run belongs to a *world* (its
environment and how it is evaluated) and within it to a *group* (all of its configuration but the
seed and what only says where it computes)."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from agentrl_cli.core import files
from agentrl_cli.core.errors import UserError
from agentrl_cli.core.statistics import Array, Interval
from agentrl_cli.runs import episode_files
from agentrl_cli.runs.best import best_evaluation
from agentrl_cli.runs.episode_files import EpisodeEntry
from agentrl_cli.runs.find import MAX_NAMED, RUNS, find_run, folders_of_runs, is_run, list_runs
from agentrl_cli.runs.run import Run

LEARNING_TIMES = ("time/rollout", "time/algorithm", "time/train")  # all but evaluation
IGNORED_WHEN_GROUPING = (
    "seed", "name", "runs", "hardware", "logger", "save_every", "save_minutes", "eval_every",
    "choices",
)  # fmt: skip
WORLD_NODES = ("env", "eval")  # of the configuration
IGNORED_WHEN_COMPARING = ("eval.greedy", "eval.baseline")  # they add episodes and change none
SWITCHED_OFF = "none"  # how a preset says that it uses none of something
MAX_LABEL_KEYS = 3
MAX_YAML_DEPTH = 100
YAML_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass
class Record:
    """One run. `columns` hold the updates' metrics (NaN where a line has none), `evaluations` the
    lines of evaluations by step, `slug` its name as an anchor and a file's name, which no other run
    of a report has."""

    run: Run
    config: dict[str, Any]
    columns: dict[str, Array]
    evaluations: dict[int, dict[str, float]]
    unreadable_lines: int
    notes: list[str] = field(default_factory=list)
    slug: str = ""
    _entries: dict[int, list[EpisodeEntry]] = field(default_factory=dict, repr=False)

    @property
    def name(self) -> str:
        """The run's name."""
        return self.run.name

    @property
    def anchor(self) -> str:
        """Where the run is in a page."""
        return f"run-{self.slug}"

    @property
    def status(self) -> str:
        """started, running, killed, done, failed or stopped."""
        return self.run.status

    @property
    def seed(self) -> int:
        """The run's seed."""
        return int(self.run.meta.get("seed", 0))

    @property
    def steps(self) -> Array:
        """The numbers of the logged updates, [updates]."""
        return self.columns.get("step", np.array([]))

    @property
    def last_step(self) -> int:
        """The last step that logged anything; 0 before the first."""
        return int(max([0, *self.steps[-1:], *self.evaluations]))

    @property
    def splits(self) -> list[str]:
        """The evaluated splits, the one whose episodes are kept first."""
        return evaluated_splits(self.evaluations[max(self.evaluations)]) if self.evaluations else []

    @property
    def final_step(self) -> int | None:
        """The step of the evaluation that ended the run, or of the best one where that is what it
        keeps; None for a run that did not come to its end."""
        planned = self.config.get("steps")
        if self.status != "done" or not isinstance(planned, int):
            return None
        rows = [{"step": step, **row} for step, row in self.evaluations.items()]
        if self.config.get("keep") == "best" and (best := best_evaluation(rows)):
            return int(best["step"])
        return planned if evaluated_splits(self.evaluations.get(planned, {})) else None

    def score(self, step: int, split: str) -> float | None:
        """The success of an evaluation."""
        return self.evaluations.get(step, {}).get(f"eval/{split}_success")

    def failed(self, split: str) -> float:
        """The share of the last evaluation's episodes that broke, which count as lost."""
        return self.evaluations.get(self.final_step or 0, {}).get(f"eval/{split}_failed", 0.0)

    def interval(self, split: str) -> Interval | None:
        """The final success with the interval that the run itself has logged; None without one."""
        try:
            return success_interval(self.evaluations.get(self.final_step or 0, {}), split)
        except KeyError:
            return None

    def outcomes(self, step: int) -> dict[str, list[float]] | None:
        """Success of every episode of the first split by task; None where they are not kept."""
        by_task: dict[str, list[float]] = {}
        for entry in self.entries(step):
            by_task.setdefault(entry.task, []).append(float(entry.success))
        return by_task or None

    def entries(self, step: int) -> list[EpisodeEntry]:
        """The kept episodes of an evaluation; none where its file is missing or damaged."""
        if step not in self._entries:
            self._entries[step] = _read_entries(self.episode_file(step), self.notes, self.name)
        return self._entries[step]

    def trained_entries(self) -> tuple[Path, list[EpisodeEntry]] | None:
        """The last file of episodes that were trained on, and its entries; None without one."""
        kept = [file for file in self.run.episode_files() if file.name.startswith("train-")]
        return (kept[-1], _read_entries(kept[-1], self.notes, self.name)) if kept else None

    def episode_file(self, step: int) -> Path:
        """Where the episodes of an evaluation are kept."""
        return self.run.folder / "episodes" / f"eval-{step:06d}.jsonl"

    def axis(self, name: str) -> Array:
        """The updates against `episodes`, `gradient steps` or `seconds` (without evaluations),
        summed from the start, [updates]."""
        if name == "episodes":
            return np.cumsum(self.column("episodes/count"))
        keys: Iterable[str] = LEARNING_TIMES
        if name == "gradient steps":
            keys = [key for key in self.columns if key.endswith("/steps")]
            if not keys:  # a run of an earlier version: one for each update
                return np.arange(1, len(self.steps) + 1, dtype=float)
        return np.cumsum(sum((self.column(key) for key in keys), np.zeros(len(self.steps))))

    def column(self, key: str) -> Array:
        """A metric of the updates with 0 where nothing was logged, [updates]."""
        return np.nan_to_num(self.columns.get(key, np.zeros(len(self.steps))))


def evaluated_splits(row: dict[str, Any]) -> list[str]:
    """The splits whose success a line of metrics holds with its interval, in its order."""
    lows = [key for key in row if key.startswith("eval/") and key.endswith("_success_low")]
    splits = [key.removeprefix("eval/").removesuffix("_success_low") for key in lows]
    return [split for split in splits if f"eval/{split}_success" in row]


def success_interval(row: dict[str, Any], split: str) -> Interval:
    """The success of a split as a line of metrics holds it. Raises KeyError where it does not."""
    return Interval(*(row[f"eval/{split}_success{end}"] for end in ("", "_low", "_high")))


def read_records(refs: Iterable[str]) -> list[Record]:
    """The runs that are named, and those in the folders that are named; each once, oldest first.
    Raises UserError for a folder without runs and for a name that no run has."""
    by_folder: dict[Path, Run] = {}
    for ref in refs:
        for run in find_runs(ref):
            by_folder.setdefault(run.folder.resolve(), run)
    runs = sorted(by_folder.values(), key=lambda run: run.meta["created"])
    return _without_copies([read_record(run) for run in runs])


def _without_copies(records: list[Record]) -> list[Record]:
    """The records, of a run and its copies the one that went furthest, or the first: the others
    show nothing of how seeds differ."""
    kept: dict[tuple[object, ...], Record] = {}
    for record in records:
        meta, settings = record.run.meta, files.flatten(group_settings(record))
        key = (meta["created"], record.seed, str(sorted(settings.items())))
        known = kept.get(key)
        if known is None or record.last_step > known.last_step:
            kept[key] = record
        if known is not None:
            copy = known if kept[key] is record else record
            line = f"run '{copy.name}' is a copy of another run in the report, and is left out"
            kept[key].notes.append(line)
    return list(kept.values())


def find_runs(ref: str) -> list[Run]:
    """A folder's runs, or the run that a name means."""
    folder = Path(ref)
    if not files.is_folder(folder) or is_run(folder):
        return [find_run(ref)]
    if runs := list_runs(folder) or _named_run(ref):
        return runs
    examples = ", ".join(map(str, list(folders_of_runs(folder))[:MAX_NAMED]))
    remedy = "name one with runs in it" + (f", like {examples}" if examples else "")
    raise UserError(f"folder '{ref}' holds no runs; {remedy}")


def _named_run(ref: str) -> list[Run]:
    """The run of exactly that name in `runs`, if there is one."""
    return [find_run(ref)] if is_run(RUNS / ref) else []


def read_record(run: Run) -> Record:
    """All that a report needs of a run, with a sentence for whatever is missing."""
    rows, unreadable = run.readable_metrics()
    updates = [row for row in rows if "time/train" in row]
    evaluated = [row for row in rows if any(key.startswith("eval/") for key in row)]
    evaluations = {
        row["step"]: {key: float(value) for key, value in row.items() if files.is_number(value)}
        for row in evaluated
    }
    notes: list[str] = []
    record = Record(run, _read_config(run, notes), _columns(updates), evaluations, unreadable)
    record.notes = [*_status_notes(record), *notes]
    return record


def world_settings(record: Record) -> dict[str, Any]:
    """What must be equal for two runs to be compared."""
    nodes = {name: record.config.get(name) for name in WORLD_NODES}
    settings = files.flatten(nodes | {"choice": _choice(record.run, "env")})
    return {key: value for key, value in settings.items() if key not in IGNORED_WHEN_COMPARING}


def group_settings(record: Record) -> dict[str, Any]:
    """What must be equal for two runs to be one configuration. A run that it starts from counts by
    its own configuration, so that each seed may start from a run of its own."""
    settings = _learning_nodes(record.config) | {"choice": _choice(record.run, "algo")}
    if start := _starting_run(record):
        start_settings = sorted(files.flatten(_learning_nodes(_read_config(start, []))).items())
        digest = hashlib.blake2b(str(start_settings).encode(), digest_size=2).hexdigest()
        settings["init"] = f"{_choice(start, 'algo')}-{digest}"
    return files.flatten(settings)


def _learning_nodes(config: dict[str, Any]) -> dict[str, Any]:
    ignored = (*IGNORED_WHEN_GROUPING, *WORLD_NODES)
    return {key: value for key, value in config.items() if key not in ignored}


def _starting_run(record: Record) -> Run | None:
    """The run that a run starts from; None where there is none or it cannot be read."""
    init = str(record.config.get("init"))
    try:
        beside = record.run.folder.parent  # where it lies, too, if all runs were moved
        folders = (beside / Path(init).name, beside / init, Path(init))
        return next((Run(folder) for folder in folders if is_run(folder)), None)
    except UserError:
        return None


def settings_label(settings: dict[str, Any], all_settings: list[dict[str, Any]]) -> str:
    """The choice, and the keys in which others of the same choice differ: `nlac forecasts=4`; what
    is switched off (`control=none`) is left out."""
    same_choice = [other for other in all_settings if other["choice"] == settings["choice"]]
    keys = dict.fromkeys(key for each in (settings, *same_choice) for key in each)
    differing = [
        key for key in keys if any(each.get(key) != settings.get(key) for each in same_choice)
    ]
    parts = [
        f"{key.rpartition('.')[2]}={_short(settings[key])}"
        for key in differing
        if settings.get(key, SWITCHED_OFF) != SWITCHED_OFF
    ]
    rest = len(parts) - MAX_LABEL_KEYS
    more = [f"and {rest} more"] if rest > 0 else []
    return " ".join([settings["choice"], *parts[:MAX_LABEL_KEYS], *more])


def _short(value: Any) -> str:
    """A value as YAML writes it, a long one without its middle."""
    text = str(value)
    if value is None or isinstance(value, bool):
        text = "null" if value is None else text.lower()
    return text if len(text) <= 24 else text[:10] + "…" + text[-12:]


def _status_notes(record: Record) -> list[str]:
    """A sentence for each thing that makes the run less than a finished one."""
    name, planned = f"run '{record.name}'", record.config.get("steps", "?")
    at = f"step {record.last_step} of {planned}"
    out = "it is in the curves and left out of the final figures"
    notes = []
    if count := record.unreadable_lines:
        lines = "line" if count == 1 else "lines"
        notes.append(f"{name}: {count} {lines} of metrics.jsonl cannot be read, left out")
    if record.status in ("started", "running"):
        notes.append(f"{name} is still going, or its machine died ({at}): {out}")
    elif record.status in ("failed", "stopped", "killed"):
        why = str(record.run.meta.get("error") or "").partition("\n")[0]
        notes.append(f"{name} {record.status} at {at}{': ' + why if why else ''}; {out}")
    elif record.final_step is None:
        notes.append(f"{name} has no readable evaluation of its last step ({at}): {out}")
    return notes


def _read_config(run: Run, notes: list[str]) -> dict[str, Any]:
    try:
        text = run.config_file.read_text()
        _refuse_deep_yaml(text)
        content = yaml.load(text, YAML_LOADER)
    except (OSError, ValueError, RecursionError, yaml.YAMLError):
        content = None
    if isinstance(content, dict):
        return content
    notes.append(f"run '{run.name}': config.yaml cannot be read; it is taken by its choices alone")
    return {group: run.meta.get("choices", {}).get(group) for group in ("algo", "env", "model")}


def _refuse_deep_yaml(text: str) -> None:
    """Raise ValueError for nesting at which the fast loader would end the process."""
    depth = 0
    for event in yaml.parse(text, YAML_LOADER):
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        if depth > MAX_YAML_DEPTH:
            raise ValueError("nested too deeply")


def _choice(run: Run, group: str) -> str:
    return str(run.meta.get("choices", {}).get(group) or "?")


def _columns(rows: list[dict[str, Any]]) -> dict[str, Array]:
    keys = dict.fromkeys(key for row in rows for key in row)
    return {
        key: np.array(
            [row[key] if files.is_number(row.get(key)) else math.nan for row in rows], float
        )
        for key in keys
    }


def _read_entries(file: Path, notes: list[str], name: str) -> list[EpisodeEntry]:
    if not file.is_file():
        return []
    try:
        return list(episode_files.search(file))
    except UserError:
        notes.append(f"run '{name}': {file.name} cannot be read; its tasks are not told apart")
        return []
