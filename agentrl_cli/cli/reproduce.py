"""`agentrl reproduce`: run a shipped preset and compare its result with the stored numbers. The
numbers lie in reproduce.json: for each preset and seed the final success and its interval, from
runs with --store. A smoke test runs every preset at toy size and claims nothing of numbers."""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
import traceback
from collections.abc import Collection
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from agentrl_cli.cli.sweep import run_agentrl
from agentrl_cli.config.compose import compose
from agentrl_cli.config.groups import nearest
from agentrl_cli.config.presets import PRESETS, current_name, preset_overrides
from agentrl_cli.core import files
from agentrl_cli.core.errors import UserError
from agentrl_cli.core.launch import require_single_process
from agentrl_cli.report.records import evaluated_splits, read_record, success_interval
from agentrl_cli.runs.checkpoints import kept_evaluation
from agentrl_cli.runs.run import Run

STORED = Path(__file__).parent / "reproduce.json"
FOLDER_REMEDY = "choose another place with --folder"
TOY_SIZES = {  # where a preset has the key
    "steps": "1", "eval_every": "0", "save_every": "0", "hardware.threads": "1", "eval.tasks": "2",
    "eval.episodes_per_task": "1", "eval.splits": "[test]", "eval.greedy": "false",
    "rollout.episodes_per_step": "8", "rollout.texts_per_step": "4", "algo.critic_warmup": "0",
    "algo.turns_per_update": "8", "algo.critic_updates": "1",
    "algo.diagnostics.num_states": "1", "algo.diagnostics.num_rollouts": "2",
    "algo.diagnostics.num_actions": "2", "algo.min_parse_rate": "0",
    "algo.expert_states_per_update": "4", "init": "null",
}  # fmt: skip
PRELOADED = (  # by the process from which those of a smoke test are forked
    "peft", "transformers.models.qwen2.modeling_qwen2", "agentrl_cli.cli.run_training",
    "agentrl_cli.generators.hf", "agentrl_cli.algos.nlac", "agentrl_cli.algos.self_ac",
    "agentrl_cli.algos.stepagent",
)  # fmt: skip


@dataclass(frozen=True)
class Result:
    """The final success of a run on its first split, with its interval clustered by task."""

    split: str
    final: float
    low: float
    high: float


@dataclass(frozen=True)
class Reproduction:
    """What a run measured and what is stored for its seed, if anything is."""

    preset: str
    seed: int
    measured: Result
    stored: Result | None

    @property
    def agrees(self) -> bool | None:
        """Whether the result lies in the stored interval; None where its split has none stored."""
        if self.stored is None or self.stored.split != self.measured.split:
            return None
        return self.stored.low <= self.measured.final <= self.stored.high

    def line(self) -> str:
        """What a person reads."""
        measured = f"{_percent(self.measured)} on {self.measured.split}"
        line = f"{self.preset} seed {self.seed}: {measured}"
        if self.stored is None:
            return f"{line}; nothing is stored for this seed, keep it with --store"
        word = {True: "agrees with", False: "DISAGREES with", None: "is another split than"}
        return f"{line} {word[self.agrees]} the stored {_percent(self.stored)}"


def reproduce(preset: str, seeds: list[int], folder: Path, store: bool) -> list[Reproduction]:
    """Run a preset with the given seeds (of none: all that are stored, else 0), unless a run of an
    earlier call is done. Raises UserError for an unknown preset and for a run that failed."""
    require_single_process()
    if preset not in PRESETS:
        raise UserError(
            f"preset '{preset}' not found{nearest(preset, PRESETS)}", code="unknown-preset"
        )
    preset = current_name(preset)
    stored = read_stored().get(preset, {})
    with files.explain_write_errors(folder, FOLDER_REMEDY):
        folder.mkdir(parents=True, exist_ok=True)
    reproductions = []
    for seed in seeds or sorted(map(int, stored)) or [0]:
        row = stored.get(str(seed))
        measured = final_result(finished_run(preset, seed, folder))
        reproductions.append(Reproduction(preset, seed, measured, Result(**row) if row else None))
        if store:
            store_result(preset, seed, measured)
    return reproductions


def finished_run(preset: str, seed: int, folder: Path) -> Run:
    """The run of a preset in the folder, trained now unless it is done; what it starts from (its
    `init`, the same seed of another preset) comes first. Raises UserError where a run failed."""
    run = folder / f"{preset}_s{seed}"
    if run.exists():
        if Run(run).meta["status"] == "done":
            return Run(run)
        raise UserError(f"'{run}' is there and not done; agentrl resume {run}, or remove it")
    overrides = [*preset_overrides(preset), f"seed={seed}", f"runs={folder}", f"name={run.name}"]
    if start := compose(overrides).init:
        finished_run(Path(start).name.removesuffix(f"_s{seed}"), seed, folder)
    print(f"run {run}, log in {run}.log", file=sys.stderr, flush=True)
    if run_agentrl(["train", *overrides], folder / f"{run.name}.log") != 0:
        raise UserError(f"the run failed; its last words are in {run}.log")
    return Run(run)


def smoke_test(folder: Path, presets: Collection[str] = ()) -> tuple[list[str], int]:
    """Run every preset of the embedded model, or those named, at toy size, as many at a time as
    there are cores; a line for each, and how many failed."""
    began = time.perf_counter()
    with files.explain_write_errors(folder, FOLDER_REMEDY):
        folder.mkdir(parents=True, exist_ok=True)
    composed = {preset: compose(preset_overrides(preset)) for preset in presets or PRESETS}
    embedded = {preset: cfg for preset, cfg in composed.items() if cfg.model.path == "tiny"}
    with forked_processes() as pool:
        toys = [
            pool.submit(_smoke, preset, toy_overrides(cfg), folder)
            for preset, cfg in embedded.items()
        ]
        lines = [toy.result() for toy in toys]
    failed = sum(line.startswith("failed") for line in lines)
    minutes = (time.perf_counter() - began) / 60
    if larger := sorted(set(composed) - set(embedded)):
        lines.append(f"left out: {len(larger)} presets of larger models ({', '.join(larger)})")
    lines.append(
        f"walked {len(embedded)} presets at toy size in {minutes:.1f} minutes: their paths run or"
        " do not; of their numbers this says nothing"
    )
    return lines, failed


def forked_processes() -> ProcessPoolExecutor:
    """As many as there are cores, a new one for each task, forked from one that has imported what
    every run needs."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(PRELOADED))
    return ProcessPoolExecutor(mp_context=context, max_tasks_per_child=1)


def _smoke(preset: str, overrides: list[str], folder: Path) -> str:
    """The line that says whether a preset runs at toy size: `ok` or `failed`. What this process
    prints goes to the run's log."""
    from agentrl_cli.cli.train import start

    began = time.perf_counter()
    run = f"{preset}-{time.time_ns():x}"
    with (folder / f"{run}.log").open("w") as log:
        for stream in (1, 2):
            os.dup2(log.fileno(), stream)
        try:
            start([*preset_overrides(preset), f"runs={folder}", f"name={run}", *overrides])
        except BaseException:  # what ends a process, too, is a preset that does not run
            traceback.print_exc()
            return f"failed  {preset}, see {log.name}"
    return f"ok      {preset}  {time.perf_counter() - began:.0f} s"


def toy_overrides(cfg: DictConfig) -> list[str]:
    """The overrides that make a preset tiny, of those keys that it has."""
    missing = object()
    has = {key: OmegaConf.select(cfg, key, default=missing) is not missing for key in TOY_SIZES}
    return [f"{key}={value}" for key, value in TOY_SIZES.items() if has[key]]


def final_result(run: Run) -> Result:
    """The first split of the evaluation that tells how good a run is."""
    rows = [row for row in run.metrics() if evaluated_splits(row)]
    if not rows:
        raise UserError(f"run '{run.name}' has no evaluation; give the preset one")
    kept = kept_evaluation(rows, bool(read_record(run).config.get("save_best")))
    split = evaluated_splits(kept)[0]
    success = success_interval(kept, split)
    return Result(split, success.mean, success.low, success.high)


def read_stored() -> dict[str, dict[str, dict[str, Any]]]:
    """Preset, seed as text, and the fields of a Result."""
    return files.read_json(STORED) if STORED.is_file() else {}


def store_result(preset: str, seed: int, result: Result) -> None:
    """Store a result in the package, for the next who reproduces it."""
    stored = read_stored()
    stored.setdefault(preset, {})[str(seed)] = vars(result)
    with files.explain_write_errors(STORED.parent, "make the package's folder writable"):
        files.write_json(STORED, dict(sorted(stored.items())))


def _percent(result: Result) -> str:
    return f"{100 * result.final:.1f} % [{100 * result.low:.1f}, {100 * result.high:.1f}]"
