"""Read runs for reports. Damaged or missing data is counted and noted in `Record.notes`; it raises
no error and is never guessed."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from agentrl_cli.config.renames import update_stored
from agentrl_cli.core import files
from agentrl_cli.core.errors import UserError
from agentrl_cli.core.statistics import Array, Interval
from agentrl_cli.runs import episode_files
from agentrl_cli.runs.checkpoints import best_evaluation
from agentrl_cli.runs.episode_files import EpisodeEntry
from agentrl_cli.runs.find import MAX_NAMED, RUNS, find_run, folders_of_runs, is_run, list_runs
from agentrl_cli.runs.run import Run

PHASES = ("rollout", "algorithm", "train", "eval")  # `time/PHASE` in seconds
LEARNING_TIMES = ("time/rollout", "time/algorithm", "time/train")  # all but evaluation
TRAINING_METRICS = ("loss", "kl_ref", "approx_kl", "entropy", "grad_norm")  # `MODEL/NAME`
CRITIC_METRICS = (
    "nlac/brier", "nlac/value_bias", "nlac/auc_within", "nlac/auc_all", "nlac/optimal_share",
    "nlac/refined_gain", "nlac/refined_gain_all", "nlac/kept_when_optimal", "nlac/valid_forecasts",
    "critique/faulty", "critique/recall", "critique/false_positive_rate",
    "refinement/fix_rate", "refinement/break_rate", "refinement/target_share",
    "refinement/target_gain", "refinement/target_gain_low", "improvement_check/low",
    "critic/brier", "critic/brier_ratio", "critic/value_bias", "critic/rank_correlation",
    "critic/rank_same_turn", "critic/auc_same_turn",
)  # fmt: skip
SHARE = re.compile(  # names of metrics between 0 and 1
    r".*/(auc_.*|.*_share|.*_optimal|brier|recall|faulty|valid_forecasts|.*_rate)"
)
ENVIRONMENT_NODES = ("env", "eval")  # runs are comparable if these are equal, except for
IGNORED_WHEN_COMPARING = ("eval.greedy", "eval.baseline")  # which only add episodes
IGNORED_WHEN_GROUPING = (
    *ENVIRONMENT_NODES, "seed", "name", "runs", "hardware", "logger", "save_every",
    "save_interval_minutes", "eval_every", "choices",
)  # fmt: skip
MAX_LABEL_KEYS = 3
YAML_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
Settings = dict[str, Any]


@dataclass
class Record:
    """One run. `columns` holds the metrics of the updates (NaN if missing), `evaluations` those of
    each evaluation by step. `slug` is the unique name of the run in anchors and file names."""

    run: Run
    config: dict[str, Any]
    columns: dict[str, Array]
    evaluations: dict[int, dict[str, float]]
    notes: list[str] = field(default_factory=list)
    slug: str = ""
    _entries: dict[Path, list[EpisodeEntry]] = field(default_factory=dict, repr=False)

    @property
    def name(self) -> str:
        return self.run.name

    @property
    def seed(self) -> int:
        return int(self.run.meta.get("seed", 0))

    @property
    def steps(self) -> Array:
        """The steps of the logged updates, [updates]."""
        return self.columns.get("step", np.array([]))

    @property
    def last_step(self) -> int:
        """The last logged step; 0 before the first."""
        return int(max([0, *self.steps[-1:], *self.evaluations]))

    @property
    def splits(self) -> list[str]:
        """The evaluated splits. Episodes are stored for the first one."""
        return evaluated_splits(self.evaluations[max(self.evaluations)]) if self.evaluations else []

    @property
    def final_step(self) -> int | None:
        """The step of the final evaluation, or of the best one with save_best=true; None for an
        unfinished run."""
        planned = self.config.get("steps")
        if self.run.status != "done" or not isinstance(planned, int):
            return None
        rows = [{"step": step, **row} for step, row in self.evaluations.items()]
        if self.config.get("save_best") and (best := best_evaluation(rows)):
            return int(best["step"])
        return planned if evaluated_splits(self.evaluations.get(planned, {})) else None

    @property
    def final_metrics(self) -> dict[str, float]:
        """The metrics of the final evaluation; empty for an unfinished run."""
        step = self.final_step
        return {} if step is None else self.evaluations.get(step, {})

    def score(self, step: int, split: str) -> float | None:
        """Return the success rate of an evaluation."""
        return self.evaluations.get(step, {}).get(f"eval/{split}_success")

    def outcomes(self, step: int) -> dict[str, list[float]] | None:
        """Return the success of each stored episode by task; None if there are none."""
        by_task: dict[str, list[float]] = {}
        for entry in self.entries(self.episode_file(step)):
            by_task.setdefault(entry.task, []).append(float(entry.success))
        return by_task or None

    def episode_file(self, step: int) -> Path:
        """Return the file with the episodes of an evaluation."""
        return self.run.folder / "episodes" / f"eval-{step:06d}.jsonl"

    def entries(self, file: Path) -> list[EpisodeEntry]:
        """Return the episodes of a file; none if it is missing or damaged."""
        if file not in self._entries:
            try:
                self._entries[file] = list(episode_files.search(file)) if file.is_file() else []
            except UserError:
                self._entries[file] = []
                line = f"run '{self.name}': {file.name} cannot be read, so its tasks are unknown"
                self.notes.append(line)
        return self._entries[file]

    def axis(self, name: str) -> Array:
        """Return the cumulated `episodes`, `gradient steps` or `seconds` at each update, [updates].
        Seconds exclude evaluation."""
        steps = [key for key in self.columns if key.endswith("/steps")]
        if name == "gradient steps" and not steps:  # an old run: count one step per update
            return np.arange(1, len(self.steps) + 1, dtype=float)
        keys = {"episodes": ["episodes/count"], "gradient steps": steps, "seconds": LEARNING_TIMES}
        return np.cumsum(sum((self.column(key) for key in keys[name]), np.zeros(len(self.steps))))

    def column(self, key: str) -> Array:
        """Return a metric of the updates with 0 for missing values, [updates]."""
        return np.nan_to_num(self.columns.get(key, np.zeros(len(self.steps))))


def evaluated_splits(row: dict[str, Any]) -> list[str]:
    """Return the splits for which a row of metrics has a success rate with an interval."""
    lows = [key for key in row if key.startswith("eval/") and key.endswith("_success_low")]
    splits = [key.removeprefix("eval/").removesuffix("_success_low") for key in lows]
    return [split for split in splits if f"eval/{split}_success" in row]


def success_interval(row: dict[str, Any], split: str) -> Interval:
    """Return the success rate of a split from a row of metrics. Raises KeyError if missing."""
    return Interval(*(row[f"eval/{split}_success{end}"] for end in ("", "_low", "_high")))


def shown_metrics(records: Iterable[Record]) -> dict[str, list[str]]:
    """Return the logged metrics of `training` and of each `critic`, in the order of their lists."""
    rows = [row for record in records for row in (record.columns, *record.evaluations.values())]
    logged = sorted({key for row in rows for key in row})
    training = [k for word in TRAINING_METRICS for k in logged if k.rpartition("/")[2] == word]
    return {"training": training, "critic": [key for key in CRITIC_METRICS if key in logged]}


def read_records(refs: Iterable[str]) -> list[Record]:
    """Return the runs with these names and those inside these folders, oldest first. Of a run and
    its copies only the longest is kept. Raises UserError for unknown names and empty folders."""
    by_folder = {run.folder.resolve(): run for ref in refs for run in find_runs(ref)}
    kept: dict[str, Record] = {}
    for run in sorted(by_folder.values(), key=lambda run: run.meta["created"]):
        record = read_record(run)
        settings = sorted(group_settings(record).items())
        key = str((run.meta["created"], record.seed, settings))
        if known := kept.get(key):
            copy, record = sorted((record, known), key=lambda each: each.last_step)
            record.notes.append(f"run '{copy.name}' is a copy of another run; it is skipped")
        kept[key] = record
    return list(kept.values())


def find_runs(ref: str) -> list[Run]:
    """Return the runs in a folder, or the run with this name."""
    folder = Path(ref)
    if not files.is_folder(folder) or is_run(folder):
        return [find_run(ref)]
    if runs := list_runs(folder):
        return runs
    if is_run(RUNS / ref):
        return [find_run(ref)]
    examples = ", ".join(map(str, list(folders_of_runs(folder))[:MAX_NAMED]))
    remedy = "give a folder that contains runs" + (f", such as {examples}" if examples else "")
    raise UserError(f"folder '{ref}' contains no runs; {remedy}", code="no-runs")


def read_record(run: Run) -> Record:
    """Return the metrics and settings of a run, with a note for each missing part."""
    rows, unreadable = run.readable_metrics()
    numbers = [{k: float(v) for k, v in row.items() if files.is_number(v)} for row in rows]
    updates = [row for row in numbers if "time/train" in row]
    keys = dict.fromkeys(key for row in updates for key in row)
    columns = {key: np.array([row.get(key, math.nan) for row in updates]) for key in keys}
    evaluations = {
        row["step"]: values
        for row, values in zip(rows, numbers, strict=True)
        if any(key.startswith("eval/") for key in row)
    }
    record = Record(run, {}, columns, evaluations)
    record.config = _read_config(run, record.notes)
    record.notes[:0] = _status_notes(record, unreadable)
    return record


def environment_settings(record: Record) -> Settings:
    """Return the settings that two comparable runs share."""
    nodes = {name: record.config.get(name) for name in ENVIRONMENT_NODES}
    settings = files.flatten(nodes | {"choice": _choice(record.run, "env")})
    return {key: value for key, value in settings.items() if key not in IGNORED_WHEN_COMPARING}


def group_settings(record: Record) -> Settings:
    """Return the settings that all seeds of one configuration share. The run given by `init` is
    replaced by its own settings, so that each seed may start from a run with the same seed."""
    settings = _learning_nodes(record.config) | {"choice": _choice(record.run, "algo")}
    init, siblings = str(record.config.get("init")), record.run.folder.parent
    try:  # a sibling is found also if all runs were moved
        folders = (siblings / Path(init).name, siblings / init, Path(init))
        start = next((Run(folder) for folder in folders if is_run(folder)), None)
    except UserError:
        start = None
    if start is not None:
        start_settings = sorted(files.flatten(_learning_nodes(_read_config(start, []))).items())
        digest = hashlib.blake2b(str(start_settings).encode(), digest_size=2).hexdigest()
        settings["init"] = f"{_choice(start, 'algo')}-{digest}"
    return files.flatten(settings)


def settings_label(settings: Settings, all_settings: list[Settings]) -> str:
    """Return the choice and the settings in which it differs from others, as `nlac forecasts=4`.
    Settings with the value `none` are left out."""
    same_choice = [other for other in all_settings if other["choice"] == settings["choice"]]
    keys = dict.fromkeys(key for each in (settings, *same_choice) for key in each)
    parts = [
        f"{key.rpartition('.')[2]}={setting_text(settings[key], 24)}"
        for key in keys
        if settings.get(key, "none") != "none"
        and any(each.get(key) != settings[key] for each in same_choice)
    ]
    rest = len(parts) - MAX_LABEL_KEYS
    more = [f"and {rest} more"] if rest > 0 else []
    return " ".join([settings["choice"], *parts[:MAX_LABEL_KEYS], *more])


def setting_text(value: Any, limit: int) -> str:
    """Return a value as in YAML, shortened in the middle to about `limit` characters."""
    text = "null" if value is None else str(value)
    text = text.lower() if isinstance(value, bool) else text
    return text if len(text) <= limit else f"{text[: limit // 2 - 2]}…{text[-limit // 2 :]}"


def _learning_nodes(config: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in config.items() if key not in IGNORED_WHEN_GROUPING}


def _status_notes(record: Record, unreadable: int) -> list[str]:
    name, status = f"run '{record.name}'", record.run.status
    at = f"step {record.last_step} of {record.config.get('steps', '?')}"
    skipped = "it is in the curves but not in the final results"
    notes = []
    if unreadable:
        notes.append(f"{name}: skipped {unreadable} unreadable lines of metrics.jsonl")
    if status in ("started", "running"):
        notes.append(f"{name} is running, or its machine stopped ({at}); {skipped}")
    elif status in ("failed", "stopped", "killed"):
        why = str(record.run.meta.get("error") or "").partition("\n")[0]
        notes.append(f"{name} {status} at {at}{': ' + why if why else ''}; {skipped}")
    elif record.final_step is None:
        notes.append(f"{name} has no readable evaluation of its last step ({at}); {skipped}")
    return notes


def _read_config(run: Run, notes: list[str]) -> dict[str, Any]:
    try:
        text = run.config_file.read_text(encoding="utf-8")
        files.require_plain_yaml(text)
        content = yaml.load(text, YAML_LOADER)
    except (OSError, ValueError, RecursionError, yaml.YAMLError):
        content = None
    if isinstance(content, dict):
        with suppress(KeyError, TypeError, ValueError, AttributeError):  # a damaged configuration
            return update_stored(content)
        return content
    notes.append(f"run '{run.name}': config.yaml cannot be read; only its choices are used")
    return {group: _choice(run, group) for group in ("algo", "env", "model")}


def _choice(run: Run, group: str) -> str:
    return str(run.meta.get("choices", {}).get(group) or "?")
