"""`agentrl reproduce`: run a preset and compare its result with the stored numbers.

`reproduce.json` stores for each preset and seed the final success and its interval, from runs with
`--store`. A smoke test runs every preset at toy size and compares no numbers.
"""

from __future__ import annotations

import multiprocessing
import os
import time
import traceback
from collections.abc import Collection
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from agentrl_cli.cli.sweep import run_agentrl
from agentrl_cli.config.compose import compose, not_found
from agentrl_cli.config.renames import PRESETS, current_name, preset_overrides
from agentrl_cli.core import files
from agentrl_cli.core.errors import UserError
from agentrl_cli.core.launch import require_single_process
from agentrl_cli.core.terminal import echo_err
from agentrl_cli.report.records import evaluated_splits, read_record, success_interval
from agentrl_cli.runs.checkpoints import kept_evaluation
from agentrl_cli.runs.run import Run

STORED = Path(__file__).parent / "reproduce.json"
FOLDER_REMEDY = "choose another place with --folder"
TOY_SIZES = {  # set if a preset has the key
    "steps": "1", "eval_every": "0", "save_every": "0", "hardware.threads": "1", "eval.tasks": "2",
    "eval.episodes_per_task": "1", "eval.splits": "[test]", "eval.greedy": "false",
    "rollout.episodes_per_step": "8", "rollout.texts_per_step": "4", "algo.critic_warmup": "0",
    "algo.turns_per_update": "8", "algo.critic_updates": "1",
    "algo.diagnostics.num_states": "1", "algo.diagnostics.num_rollouts": "2",
    "algo.diagnostics.num_actions": "2", "algo.min_parse_rate": "0",
    "algo.expert_states_per_update": "4", "init": "null",
}  # fmt: skip
PRELOADED = [  # by the process from which those of a smoke test are forked
    "peft", "transformers.models.qwen2.modeling_qwen2", "agentrl_cli.cli.run_training",
    "agentrl_cli.generators.hf", "agentrl_cli.algos.nlac", "agentrl_cli.algos.self_ac",
    "agentrl_cli.algos.stepagent",
]  # fmt: skip


@dataclass(frozen=True)
class Result:
    """The final success of a run on its first split, with its interval clustered by task."""

    split: str
    final: float
    low: float
    high: float

    def agrees(self, stored: Result) -> bool | None:
        """Return whether the result lies in a stored interval; None for that of another split."""
        if stored.split != self.split:
            return None
        return stored.low <= self.final <= stored.high

    def __str__(self) -> str:
        return f"{100 * self.final:.1f} % [{100 * self.low:.1f}, {100 * self.high:.1f}]"


def reproduce(preset: str, seeds: list[int], folder: Path, store: bool) -> tuple[list[str], int]:
    """Run a preset with the given seeds, or with all that are stored, unless an earlier run is
    done. Returns a line for each seed, and how many disagree with the stored numbers.

    Raises UserError for an unknown preset and for a run that failed.
    """
    require_single_process()
    if preset not in PRESETS:
        raise not_found("preset", preset, PRESETS, "unknown-preset")
    preset = current_name(preset)
    stored = read_stored().get(preset, {})
    with files.explain_write_errors(folder, FOLDER_REMEDY):
        folder.mkdir(parents=True, exist_ok=True)
    lines, disagreeing = [], 0
    for seed in seeds or sorted(map(int, stored)) or [0]:
        result = final_result(finished_run(preset, seed, folder))
        line = f"{preset} seed {seed}: {result} on {result.split}"
        if str(seed) in stored:
            expected = Result(**stored[str(seed)])
            agrees = result.agrees(expected)
            word = {True: "agrees with", False: "DISAGREES with", None: "is another split than"}
            lines.append(f"{line} {word[agrees]} the stored {expected}")
            disagreeing += agrees is False
        else:
            lines.append(f"{line}; nothing is stored for this seed, keep it with --store")
        if store:
            store_result(preset, seed, result)
    return lines, disagreeing


def finished_run(preset: str, seed: int, folder: Path) -> Run:
    """Return the run of a preset, trained now unless it is done. The run in its `init`, the same
    seed of another preset, comes first. Raises UserError if a run fails."""
    run = folder / f"{preset}_s{seed}"
    if run.exists():
        if Run(run).is_done:
            return Run(run)
        line = f"'{run}' exists and is not done; agentrl resume {run}, or remove it"
        raise UserError(line, code="unfinished-run")
    overrides = [*preset_overrides(preset), f"seed={seed}", f"runs={folder}", f"name={run.name}"]
    if start := compose(overrides).init:
        finished_run(Path(start).name.removesuffix(f"_s{seed}"), seed, folder)
    echo_err(f"run {run}, log in {run}.log")
    if run_agentrl(["train", *overrides], folder / f"{run.name}.log") != 0:
        raise UserError(f"the run failed; its last words are in {run}.log", code="failed-run")
    return Run(run)


def smoke_test(folder: Path, presets: Collection[str] = ()) -> tuple[list[str], int]:
    """Run every preset of the bundled model, or those named, at toy size, as many at a time as
    there are cores. Returns a line for each, and how many failed."""
    began = time.perf_counter()
    with files.explain_write_errors(folder, FOLDER_REMEDY):
        folder.mkdir(parents=True, exist_ok=True)
    composed = {preset: compose(preset_overrides(preset)) for preset in presets or PRESETS}
    bundled = {preset: cfg for preset, cfg in composed.items() if cfg.model.path == "tiny"}
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    with ProcessPoolExecutor(mp_context=context, max_tasks_per_child=1) as pool:
        toys = [
            pool.submit(_smoke, preset, toy_overrides(cfg), folder)
            for preset, cfg in bundled.items()
        ]
        lines = [toy.result() for toy in toys]
    failed = sum(line.startswith("failed") for line in lines)
    minutes = (time.perf_counter() - began) / 60
    if larger := sorted(set(composed) - set(bundled)):
        lines.append(f"left out: {len(larger)} presets of larger models ({', '.join(larger)})")
    count = f"ran {len(bundled)} presets at toy size in {minutes:.1f} minutes"
    return [*lines, f"{count}; their numbers were not compared"], failed


def _smoke(preset: str, overrides: list[str], folder: Path) -> str:
    """Run a preset at toy size in this process, and return a line that begins with `ok` or
    `failed`. All output goes to the log of the run."""
    from agentrl_cli.cli.train import start

    began = time.perf_counter()
    run = f"{preset}-{time.time_ns():x}"
    with (folder / f"{run}.log").open("w") as log:
        for stream in (1, 2):
            os.dup2(log.fileno(), stream)
        try:
            start([*preset_overrides(preset), f"runs={folder}", f"name={run}", *overrides])
        except BaseException:  # also SystemExit
            traceback.print_exc()
            return f"failed  {preset}, see {log.name}"
    return f"ok      {preset}  {time.perf_counter() - began:.0f} s"


def toy_overrides(cfg: DictConfig) -> list[str]:
    """Return the overrides that make a preset tiny."""
    missing = object()
    has = {key: OmegaConf.select(cfg, key, default=missing) is not missing for key in TOY_SIZES}
    return [f"{key}={value}" for key, value in TOY_SIZES.items() if has[key]]


def final_result(run: Run) -> Result:
    """Return the success on the first split of the evaluation that a run keeps."""
    rows = [row for row in run.metrics() if evaluated_splits(row)]
    if not rows:
        raise UserError(f"run '{run.name}' has no evaluation", code="no-evaluation")
    kept = kept_evaluation(rows, bool(read_record(run).config.get("save_best")))
    split = evaluated_splits(kept)[0]
    success = success_interval(kept, split)
    return Result(split, success.mean, success.low, success.high)


def read_stored() -> dict[str, dict[str, dict[str, Any]]]:
    """Return the fields of a Result by preset and seed."""
    return files.read_json(STORED) if STORED.is_file() else {}


def store_result(preset: str, seed: int, result: Result) -> None:
    """Store a result in the package."""
    stored = read_stored()
    stored.setdefault(preset, {})[str(seed)] = vars(result)
    with files.explain_write_errors(STORED.parent, "make the package's folder writable"):
        files.write_json(STORED, dict(sorted(stored.items())))
