"""`agentrl reproduce`: run a shipped preset and hold its result against the stored numbers.

The numbers lie in reproduce.json: for each preset and seed the final success and its interval, from
runs that were kept with --store. A smoke run walks every preset at toy size and claims no more.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentrl_cli.config.compose import check, compose, options
from agentrl_cli.config.schema import nearest
from agentrl_cli.core import files
from agentrl_cli.core.errors import UserError
from agentrl_cli.runs.run import Run

if TYPE_CHECKING:
    from omegaconf import DictConfig

STORED = Path(__file__).parent / "reproduce.json"
GROUP = "experiment"
ELSEWHERE = "choose another place with --folder"
TOY = {  # where a preset has the key
    "steps": "1", "eval_every": "0", "save_every": "0", "hardware.threads": "1", "eval.tasks": "2",
    "eval.episodes_per_task": "1", "eval.splits": "[test]", "eval.greedy": "false",
    "rollout.episodes_per_step": "8", "rollout.texts_per_step": "4", "algo.critic_warmup": "0",
    "algo.turns_per_update": "8", "algo.critic_updates": "1",
    "algo.advanced.monitored_states": "1", "algo.advanced.probes": "2",
    "algo.advanced.monitored_actions": "2", "algo.fragments_per_update": "4", "init": "null",
}  # fmt: skip


@dataclass(frozen=True)
class Result:
    """The final success of a run on its first split, with its interval clustered by task."""

    split: str
    final: float
    low: float
    high: float


@dataclass(frozen=True)
class Verdict:
    """What a run gave beside what is stored; `agrees` is None where nothing is."""

    name: str
    seed: int
    found: Result
    stored: Result | None

    @property
    def agrees(self) -> bool | None:
        """Whether the result lies in the stored interval."""
        if self.stored is None or self.stored.split != self.found.split:
            return None
        return self.stored.low <= self.found.final <= self.stored.high

    def line(self) -> str:
        """What a person reads."""
        told = f"{self.name} seed {self.seed}: {_percent(self.found)} on {self.found.split}"
        if self.stored is None:
            return f"{told}; nothing is stored for this seed, keep it with --store"
        word = {True: "agrees with", False: "DISAGREES with", None: "is another split than"}
        return f"{told} {word[self.agrees]} the stored {_percent(self.stored)}"


def reproduce(name: str, seeds: list[int], folder: Path, store: bool) -> list[Verdict]:
    """Run a preset with the given seeds (of none: all that are stored, else 0), unless a run of an
    earlier call is done. Raises UserError for an unknown preset and for a run that failed."""
    known = options(GROUP)
    if name not in known:
        raise UserError(f"experiment '{name}' not found{nearest(name, known)}")
    stored = read_stored().get(name, {})
    with files.explain_write_errors(folder, ELSEWHERE):
        folder.mkdir(parents=True, exist_ok=True)
    verdicts = []
    for seed in seeds or sorted(map(int, stored)) or [0]:
        found, kept = result(finished(name, seed, folder)), stored.get(str(seed))
        verdicts.append(Verdict(name, seed, found, Result(**kept) if kept else None))
        if store:
            keep(name, seed, found)
    return verdicts


def finished(name: str, seed: int, folder: Path) -> Run:
    """The run of a preset in the folder, trained now unless it is done; what it starts from (its
    `init`, the same seed of another preset) comes first. Raises UserError where a run failed."""
    run = folder / f"{name}_s{seed}"
    if _is_done(run):
        return Run(run)
    asked = [f"experiment={name}", f"seed={seed}", f"runs={folder}", f"name={run.name}"]
    if start := compose(asked).init:
        finished(Path(start).name.removesuffix(f"_s{seed}"), seed, folder)
    print(f"run {run}, log in {run}.log", file=sys.stderr, flush=True)
    if not _train(asked, folder / f"{run.name}.log"):
        raise UserError(f"the run failed; its last words are in {run}.log")
    return Run(run)


def smoke(folder: Path) -> tuple[list[str], int]:
    """Walk every preset of the embedded model at toy size, as many at a time as there are cores; a
    line for each, and how many failed."""
    began = time.perf_counter()
    composed = {name: compose([f"{GROUP}={name}"]) for name in options(GROUP)}
    tiny = {name: cfg for name, cfg in composed.items() if cfg.model.path == "tiny"}
    here = {name: toy(cfg) for name, cfg in tiny.items()}  # now: Hydra composes in one thread only
    with files.explain_write_errors(folder, ELSEWHERE):
        folder.mkdir(parents=True, exist_ok=True)

    def walk(name: str) -> tuple[str, bool]:
        started = time.perf_counter()
        run = f"{name}-{time.time_ns():x}"
        asked = [f"{GROUP}={name}", f"runs={folder}", f"name={run}", *here[name]]
        fine = _train(asked, folder / f"{run}.log")
        took = f"{time.perf_counter() - started:.0f} s"
        return (
            f"ok      {name}  {took}" if fine else f"failed  {name}, see {folder}/{run}.log",
            fine,
        )

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        walked = list(pool.map(walk, here))
    minutes = (time.perf_counter() - began) / 60
    left = sorted(set(composed) - set(here))
    lines = [line for line, _ in walked]
    lines += [f"left out: {len(left)} presets of larger models ({', '.join(left)})"] if left else []
    lines.append(
        f"walked {len(walked)} presets at toy size in {minutes:.1f} minutes: their paths run or do"
        " not; of their numbers this says nothing"
    )
    return lines, sum(not fine for _, fine in walked)


def toy(cfg: DictConfig) -> list[str]:
    """The overrides that make a preset tiny, of those keys that it has."""
    from omegaconf import OmegaConf

    missing = object()
    has = {key: OmegaConf.select(cfg, key, default=missing) is not missing for key in TOY}
    overrides = [f"{key}={value}" for key, value in TOY.items() if has[key]]
    check(compose([f"{GROUP}={cfg.choices[GROUP]}", *overrides]))
    return overrides


def result(run: Run) -> Result:
    """What the last evaluation of a run says of its first split."""
    rows = [row for row in run.metrics() if any(k.endswith("_success_low") for k in row)]
    if not rows:
        raise UserError(f"run '{run.name}' has no evaluation; give the preset one")
    last = rows[-1]
    split = next(key[5:-12] for key in last if key.endswith("_success_low"))
    numbers = (last[f"eval/{split}_success{end}"] for end in ("", "_low", "_high"))
    return Result(split, *numbers)


def read_stored() -> dict[str, dict[str, dict[str, Any]]]:
    """Preset, seed as text, and the fields of a Result."""
    return files.read_json(STORED) if STORED.is_file() else {}


def keep(name: str, seed: int, found: Result) -> None:
    """Store a result in the package, for the next who reproduces it."""
    known = read_stored()
    known.setdefault(name, {})[str(seed)] = vars(found)
    with files.explain_write_errors(STORED.parent, "make the package's folder writable"):
        files.write_json(STORED, dict(sorted(known.items())))


def _is_done(run: Path) -> bool:
    if not run.exists():
        return False
    if Run(run).meta["status"] == "done":
        return True
    raise UserError(f"'{run}' is there and not done; agentrl resume {run}, or remove it")


def _train(overrides: list[str], log: Path) -> bool:
    command = [sys.executable, "-m", "agentrl_cli.cli", "train", *overrides]
    with log.open("w") as file:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=file, stderr=file)
    return done.returncode == 0


def _percent(found: Result) -> str:
    return f"{100 * found.final:.1f} % [{100 * found.low:.1f}, {100 * found.high:.1f}]"
