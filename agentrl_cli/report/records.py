"""Runs as the report reads them: columns of numbers instead of lines, and what cannot be read is
counted and said, never guessed.

A run belongs to a *world* (environment and how it is evaluated) and within it to a *group* (all of
its configuration but the seed and what only says where it computes). Nothing is judged here.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from agentrl_cli.core import files
from agentrl_cli.core.errors import UserError
from agentrl_cli.core.statistics import Array, Interval
from agentrl_cli.runs import episode_files
from agentrl_cli.runs.episode_files import EpisodeEntry
from agentrl_cli.runs.find import NAMED, find_run, folders_of_runs, is_run, list_runs
from agentrl_cli.runs.run import Run

SPENT = ("time/rollout", "time/algorithm", "time/train")  # learning, without evaluation
ASIDE = ("seed", "name", "runs", "hardware", "logger", "save_every", "eval_every", "choices")
WORLD = ("env", "eval")
WITHOUT = "none"  # how a preset says that it uses none of something
UNWORLDLY = ("eval.greedy", "eval.baseline")  # what is played besides
LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass
class Record:
    """One run. `columns` hold the updates' metrics (NaN where a line has none), `evaluations` the
    lines of evaluations by step, `lost` the number of lines that could not be read, `slug` its name
    as an anchor and a file's name, which no other run of a report has."""

    run: Run
    config: dict[str, Any]
    columns: dict[str, Array]
    evaluations: dict[int, dict[str, float]]
    lost: int
    notes: list[str] = field(default_factory=list)
    slug: str = ""

    @property
    def name(self) -> str:
        """The run's name."""
        return self.run.name

    @property
    def status(self) -> str:
        """started, running, done, failed or stopped."""
        return str(self.run.meta.get("status", "started"))

    @property
    def seed(self) -> int:
        """The run's seed."""
        return int(self.run.meta.get("seed", 0))

    @property
    def algo(self) -> str:
        """The chosen algorithm."""
        return str(self.run.meta.get("choices", {}).get("algo") or "?")

    @property
    def env(self) -> str:
        """The chosen environment."""
        return str(self.run.meta.get("choices", {}).get("env") or "?")

    @property
    def steps(self) -> Array:
        """The numbers of the logged updates."""
        return self.columns.get("step", np.array([]))

    @property
    def last_step(self) -> int:
        """How far the run came."""
        return int(max([0, *self.steps[-1:], *self.evaluations]))

    @property
    def splits(self) -> list[str]:
        """The evaluated splits, the one whose episodes are kept first."""
        last = self.evaluations[max(self.evaluations)] if self.evaluations else {}
        return [k[5:-12] for k in last if k.startswith("eval/") and k.endswith("_success_low")]

    @property
    def final_step(self) -> int | None:
        """The step of the evaluation that ended the run; None for a run that did not come there."""
        planned = self.config.get("steps")
        return planned if self.status == "done" and planned in self.evaluations else None

    def score(self, step: int, split: str) -> float | None:
        """The success of an evaluation."""
        return self.evaluations.get(step, {}).get(f"eval/{split}_success")

    def interval(self, split: str) -> Interval | None:
        """The final success with the interval that the run itself has logged; None without one."""
        row = self.evaluations.get(self.final_step or 0, {})
        keys = [f"eval/{split}_success{end}" for end in ("", "_low", "_high")]
        return Interval(*(row[key] for key in keys)) if all(key in row for key in keys) else None

    def outcomes(self, step: int) -> dict[str, list[float]] | None:
        """Success of every episode of the first split by task; None where they are not kept."""
        found: dict[str, list[float]] = {}
        for entry in self.entries(step):
            found.setdefault(entry.task, []).append(float(entry.success))
        return found or None

    def entries(self, step: int) -> list[EpisodeEntry]:
        """The kept episodes of an evaluation; none where its file is missing or damaged."""
        if step not in self._entries:
            self._entries[step] = _entries(self.episode_file(step), self.notes, self.name)
        return self._entries[step]

    def episode_file(self, step: int) -> Path:
        """Where the episodes of an evaluation are kept."""
        return self.run.folder / "episodes" / f"eval-{step:06d}.jsonl"

    @cached_property
    def _entries(self) -> dict[int, list[EpisodeEntry]]:
        return {}

    def axis(self, name: str) -> Array:
        """The updates against `episodes`, `gradient steps` or `seconds` (without evaluations),
        summed from the start."""
        if name == "episodes":
            return np.cumsum(self.total("episodes/count"))
        if name == "seconds":
            return np.cumsum(sum((self.total(part) for part in SPENT), np.zeros(len(self.steps))))
        taken = [key for key in self.columns if key.endswith("/steps")]
        if not taken:  # a run of an earlier version: one for each update
            return np.arange(1, len(self.steps) + 1, dtype=float)
        return np.cumsum(sum((self.total(key) for key in taken), np.zeros(len(self.steps))))

    def total(self, key: str) -> Array:
        """A column with 0 where nothing was logged."""
        return np.nan_to_num(self.columns.get(key, np.zeros(len(self.steps))))


def read_all(refs: Iterable[str]) -> list[Record]:
    """The runs that are named, and those in the folders that are named; each once, oldest first.

    Raises UserError for a folder without runs and for a name that no run has.
    """
    found: dict[Path, Run] = {}
    for ref in refs:
        for run in runs_of(ref):
            found.setdefault(run.folder.resolve(), run)
    return [read(run) for run in sorted(found.values(), key=lambda run: run.meta["created"])]


def runs_of(ref: str) -> list[Run]:
    """A folder's runs, or the run that a name means."""
    folder = Path(ref)
    if files.is_folder(folder) and not is_run(folder):
        inside = list_runs(folder)
        if not inside:
            raise UserError(f"folder '{ref}' holds no runs; {_where(folder)}")
        return inside
    return [find_run(ref)]


def _where(folder: Path) -> str:
    """What to name instead of a folder without runs."""
    inside = ", ".join(map(str, list(folders_of_runs(folder))[:NAMED]))
    return f"name one with runs in it, like {inside}" if inside else "name one with runs in it"


def read(run: Run) -> Record:
    """All that a report needs of a run, with a sentence for whatever is missing."""
    kept, lost = run.readable_metrics()
    updates = [row for row in kept if "time/train" in row]
    evaluations = {
        row["step"]: _numbers(row) for row in kept if any(k.startswith("eval/") for k in row)
    }
    notes: list[str] = []
    record = Record(run, _config(run, notes), _columns(updates), evaluations, lost, notes)
    record.notes = [*_state(record), *notes]
    return record


def flat(node: dict[str, Any], path: str = "") -> dict[str, Any]:
    """A nested configuration with dotted names."""
    found: dict[str, Any] = {}
    for key, value in node.items():
        name = f"{path}.{key}" if path else str(key)
        found |= flat(value, name) if isinstance(value, dict) else {name: value}
    return found


def world_of(record: Record) -> dict[str, Any]:
    """What must be equal for two runs to be compared."""
    keys = flat({name: record.config.get(name) for name in WORLD} | {"choice": record.env})
    return {key: value for key, value in keys.items() if key not in UNWORLDLY}


def group_of(record: Record) -> dict[str, Any]:
    """What must be equal for two runs to be one configuration. A run that it starts from counts by
    its own configuration, so that each seed may start from a run of its own."""
    own = _chosen(record.config) | {"choice": record.algo}
    if start := _start(record):
        told = str(sorted(flat(_chosen(_config(start, []))).items()))
        digest = hashlib.blake2b(told.encode(), digest_size=2).hexdigest()
        own["init"] = f"{start.meta.get('choices', {}).get('algo', '?')}-{digest}"
    return flat(own)


def _chosen(config: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in config.items() if k not in ASIDE and k not in WORLD}


def _start(record: Record) -> Run | None:
    """The run that a run starts from; None where there is none or it cannot be read."""
    named = str(record.config.get("init"))
    try:
        places = (Path(named), record.run.folder.parent / named)
        return next((Run(place) for place in places if is_run(place)), None)
    except UserError:
        return None


def label(own: dict[str, Any], others: list[dict[str, Any]], most: int = 3) -> str:
    """The choice, and the keys in which others of the same choice differ: `nlac forecasts=4`; what
    is switched off (`control=none`) is not told."""
    rivals = [other for other in others if other["choice"] == own["choice"]]
    keys = dict.fromkeys(key for one in (own, *rivals) for key in one)
    apart = [key for key in keys if any(other.get(key) != own.get(key) for other in rivals)]
    named = [key for key in apart if own.get(key, WITHOUT) != WITHOUT]
    told = [f"{key.rpartition('.')[2]}={_short(own[key])}" for key in named]
    more = [f"and {len(told) - most} more"] if len(told) > most else []
    return " ".join([own["choice"], *told[:most], *more])


def _short(value: Any) -> str:
    text = (
        "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
    )
    return text if len(text) <= 24 else text[:10] + "…" + text[-12:]


def _state(record: Record) -> list[str]:
    """A sentence for each thing that makes the run less than a finished one."""
    name, planned = f"run '{record.name}'", record.config.get("steps", "?")
    at = f"step {record.last_step} of {planned}"
    out = "it is in the curves and left out of the final figures"
    found = []
    if record.lost:
        lines = "line" if record.lost == 1 else "lines"
        found.append(f"{name}: {record.lost} {lines} of metrics.jsonl cannot be read, left out")
    if record.status in ("started", "running"):
        found.append(f"{name} is still going, or its machine died ({at}): {out}")
    elif record.status in ("failed", "stopped"):
        why = str(record.run.meta.get("error") or "").partition("\n")[0]
        found.append(f"{name} {record.status} at {at}{': ' + why if why else ''}; {out}")
    elif record.final_step is None:
        found.append(f"{name} has no readable evaluation of its last step ({at}): {out}")
    return found


def _config(run: Run, notes: list[str]) -> dict[str, Any]:
    try:
        with run.config_file.open() as file:
            content = yaml.load(file, LOADER)
    except (OSError, yaml.YAMLError):
        content = None
    if isinstance(content, dict):
        return content
    notes.append(f"run '{run.name}': config.yaml cannot be read; it is taken by its choices alone")
    return {name: run.meta.get("choices", {}).get(name) for name in ("algo", "env", "model")}


def _numbers(row: dict[str, Any]) -> dict[str, float]:
    return {key: float(value) for key, value in row.items() if _is_number(value)}


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def _columns(rows: list[dict[str, Any]]) -> dict[str, Array]:
    keys = dict.fromkeys(key for row in rows for key in row)
    return {
        key: np.array([row[key] if _is_number(row.get(key)) else math.nan for row in rows], float)
        for key in keys
    }


def _entries(file: Path, notes: list[str], name: str) -> list[EpisodeEntry]:
    if not file.is_file():
        return []
    try:
        return list(episode_files.search(file))
    except UserError:
        notes.append(f"run '{name}': {file.name} cannot be read; its tasks are not told apart")
        return []
