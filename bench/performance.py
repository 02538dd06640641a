"""Measure the speed of agentrl, and compare it with other libraries: writes
docs/results/performance.json, and SmolLM2's figures to smollm2_cost.json.

Run as `python bench/performance.py --peers FOLDER`. docs/performance.md explains each figure.
FOLDER has a virtual environment for each other library, which is made if it is missing. Without
`--peers` the comparisons are left out.

- `--only NAME` measures one figure.
- `--compare` writes nothing and exits with 1 if a figure is worse than the stored one by more than
  the tolerance.
- `--quick` runs everything at toy sizes and only prints.

All seconds are CPU seconds of one thread. The two sides of a ratio warm up, then alternate, and
medians are compared, so other load on the machine has little effect. A comparison also has the
seconds of both sides and the lowest and highest ratio of its rounds. Of five rounds this is a 94 %
interval of the median, of the two of SmolLM2 a 50 % one.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch

from agentrl_cli.core import files
from agentrl_cli.generators.base import Sampling
from agentrl_cli.training.build import keep_freed_memory
from bench.measures import startup
from bench.measures.logprobs import LogprobCase, peak
from bench.measures.training import cut_into_turns, default_updates
from bench.measures.workload import LORA, QUICK, SMOLLM2, Ours, Served, Sizes, Updates, write_model
from bench.peers.environments import PACKAGES, SIDES, Peer, PeerError, launch, start

RESULT, COST = (
    Path(__file__).parents[1] / "docs" / "results" / f"{name}.json"
    for name in ("performance", "smollm2_cost")
)
SUFFIX = "_smollm2"  # of the figures of that model
Answer = dict[str, Any]
Ask = Callable[[], Answer]
Keep = Callable[[dict[str, Any]], object]


@dataclass(frozen=True)
class Ratio:
    """The CPU seconds of another library and of ours in the same rounds."""

    theirs: list[float]
    ours: list[float]

    def figures(self, name: str) -> dict[str, float]:
        """Return the ratio of the medians under `name`, and the seconds and the lowest and highest
        ratio of a round under names that begin with it."""
        them, us = statistics.median(self.theirs), statistics.median(self.ours)
        rounds = [a / b for a, b in zip(self.theirs, self.ours, strict=True)]
        found = {"": them / us, "_low": min(rounds), "_high": max(rounds)}
        found |= {"_theirs_seconds": them, "_ours_seconds": us}
        return {name + end: _rounded(value) for end, value in found.items()}


def _rounded(value: float) -> float:
    return float(f"{value:.3g}")


@dataclass
class Bench:
    """A model and the work to measure on it. `peers` is the folder of the environments of other
    libraries; with None their figures are left out."""

    folder: Path
    sizes: Sizes
    peers: Path | None = None
    running: dict[str, Peer] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.folder.mkdir()
        self.quick = self.sizes == QUICK
        self.model = self.folder / "model"
        write_model(self.model, self.sizes)
        self.ours = Ours(self.model, self.sizes)
        self.episodes = self.ours.finished()
        self.work = self.folder / "work.json"
        self.work.write_text(json.dumps(self.ours.work(self.episodes)))

    def peer(self, name: str) -> Peer:
        """Return the running side of another library. Raises PeerError if it cannot be
        had."""
        if self.peers is None:
            raise PeerError(f"{name} is left out; give --peers FOLDER")
        if name not in self.running:
            self.running[name] = start(name, self.peers, self.work)
        return self.running[name]

    def versions(self) -> dict[str, str]:
        """Return the measured versions of the other libraries."""
        alive = {name: peer for name, peer in self.running.items() if peer.is_alive}
        return {name: peer.ask("versions")[name] for name, peer in alive.items()}

    def close(self) -> None:
        """End the other libraries."""
        for peer in self.running.values():
            peer.close()

    def rounds(
        self, *sides: Callable[[], float], times: int = 1, warm_up: Sequence[Ask] = ()
    ) -> list[list[float]]:
        """Return the values of each side in several rounds, in which the sides alternate. First
        each side, or what is given as `warm_up`, runs once without being counted."""
        for side in warm_up or sides:
            side()
        rows = [[side() for side in sides] for _ in range(times * self.sizes.repeats)]
        return [list(column) for column in zip(*rows, strict=True)]

    def medians(self, *sides: Callable[[], float], times: int = 1) -> list[float]:
        """Return the medians of the sides over these rounds."""
        return [statistics.median(column) for column in self.rounds(*sides, times=times)]

    def compare(self, theirs: Ask, ours: Ask, same: str, warm_up: Sequence[Ask] = ()) -> Ratio:
        """Return the seconds of both sides. Both must have done the same amount of `same`."""
        done: dict[str, Answer] = {}

        def seconds(side: str, ask: Ask) -> float:
            done[side] = ask()
            return done[side]["seconds"]

        sides = partial(seconds, "theirs", theirs), partial(seconds, "ours", ours)
        found = self.rounds(*sides, warm_up=warm_up)
        if done["theirs"][same] != done["ours"][same]:
            raise SystemExit(f"the sides did different work: {done}")
        return Ratio(*found)


def rollout_vs_trl(bench: Bench, turns: int) -> Ratio:
    """Compare generation with TRL's."""
    return _compare_rollouts(bench, bench.peer("trl"), bench.ours, turns)


def rollout_vs_agilerl(bench: Bench, turns: int) -> Ratio:
    """Compare generation with AgileRL's, both with the same adapters."""
    adapted = Ours(bench.model, bench.sizes, LORA)
    return _compare_rollouts(bench, bench.peer("agilerl"), adapted, turns)


def _compare_rollouts(bench: Bench, peer: Peer, ours: Ours, turns: int) -> Ratio:
    """Compare episodes of so many turns. One turn warms up."""

    def sides(turns: int) -> tuple[Ask, Ask]:
        return partial(peer.ask, "rollout", turns=turns), partial(ours.rollout, turns)

    return bench.compare(*sides(turns), "tokens", warm_up=sides(1))


def grpo_update_vs_trl(bench: Bench) -> Ratio:
    """Compare an update with TRL's, on the same episodes and with as many optimizer steps."""
    peer = bench.peer("trl")
    steps = len(bench.episodes) // bench.sizes.group
    ours = Updates(bench.model, bench.episodes, steps, bench.sizes)
    return bench.compare(partial(peer.ask, "update"), ours.update, "steps")


def episodes_vs_verifiers(bench: Bench, turns: int) -> Ratio:
    """Compare episodes with those of verifiers, with a server that answers at once."""
    peer, command = bench.peer("verifiers"), [sys.executable, str(SIDES / "endpoint.py")]
    size: Answer = {"episodes": 4 if bench.quick else 64, "turns": turns, "live": 16}
    with closing(launch("endpoint", command, bench.folder)) as server:
        size["url"] = server.ask("requests")["url"]

        def counted(play: Ask) -> Answer:
            return {**play(), "requests": server.ask("requests")["requests"]}

        theirs, ours = partial(peer.ask, "rollout", **size), Served(bench.ours, **size).rollout
        return bench.compare(partial(counted, theirs), partial(counted, ours), "requests")


def generation_vs_transformers(bench: Bench) -> Ratio:
    """Compare generation with `transformers.generate`: 64 different prompts of 100 tokens, 32 new
    tokens each."""
    rows, length, new = (4, 10, 2) if bench.quick else (64, 100, 32)
    ours, module = bench.ours, bench.ours.models.module("policy")
    words = module.config.vocab_size  # as the end token's id: no token ends a reply
    draws = torch.Generator().manual_seed(0)
    prompts = torch.randint(words, (rows, length), generator=draws)
    sampling = Sampling(max_tokens=new, temperature=1.0, stop_ids=())

    def plain() -> None:
        module.generate(
            prompts, attention_mask=torch.ones_like(prompts), do_sample=True, temperature=1.0,
            top_k=0, top_p=1.0, max_new_tokens=new, eos_token_id=words, pad_token_id=0,
        )  # fmt: skip

    def own() -> None:
        ours.engine.clear()
        ours.engine.generate(prompts.tolist(), list(range(rows)), sampling)

    return Ratio(*bench.rounds(_timed(plain), _timed(own)))


def logprob_time_ratio(bench: Bench) -> float:
    """Return the seconds of log-probs in chunks divided by those from full logits."""
    reader = _reader(bench)
    chunked, plain = bench.medians(_timed(reader.chunked), _timed(reader.plain))
    return_freed_memory()
    return chunked / plain


def logprob_memory_ratio(bench: Bench) -> float:
    """Return the same for the peak of bytes, which repeats exactly and is measured once."""
    reader = _reader(bench)
    ratio = peak(reader.chunked) / peak(reader.plain)
    return_freed_memory()
    return ratio


def return_freed_memory() -> None:
    """Give the memory of full logits back to the system, which `keep_freed_memory` prevents."""
    if platform.libc_ver()[0] == "glibc":
        ctypes.CDLL(None).malloc_trim(0)


def _timed(work: Callable[[], object]) -> Callable[[], float]:
    """Return a function that does the work and returns its CPU seconds."""

    def seconds() -> float:
        began = time.process_time()
        work()
        return time.process_time() - began

    return seconds


def _reader(bench: Bench) -> LogprobCase:
    return LogprobCase(vocabulary=151_936, tokens=16 if bench.quick else 4096, width=128)


def tokens_flat_in_turns(bench: Bench) -> float:
    """Return the seconds to play and train the same tokens in many turns divided by those in
    few."""
    many, few, tokens = (4, 2, 200) if bench.quick else (40, 5, 2000)
    cut = partial(cut_into_turns, bench.folder / "cut", tokens=tokens, base=bench.sizes)
    in_many, in_few = bench.medians(cut(turns=many), cut(turns=few))
    return in_many / in_few


def nlac_seconds_over_grpo(bench: Bench) -> float:
    """Return NLAC's training seconds per episode divided by GRPO's."""
    sides = [default_updates(algo, small=bench.quick) for algo in ("nlac", "grpo")]
    nlac, grpo = bench.medians(*sides)
    return nlac / grpo


def help_ms_above_typer(bench: Bench) -> float:
    """Return the milliseconds of `agentrl --help` minus those of an empty Typer application."""
    ours, bare = bench.medians(startup.help_seconds, startup.bare_help_seconds, times=3)
    return 1000 * (ours - bare)


def first_episode_seconds(bench: Bench) -> float:
    """Return the seconds from the command to the first finished training episode."""
    return bench.medians(startup.first_episode_seconds)[0]


def wrong_word_seconds(bench: Bench) -> float:
    """Return the seconds from a wrong command to its refusal."""
    return bench.medians(startup.wrong_word_seconds)[0]


FIGURES: dict[str, Callable[[Bench], float | Ratio]] = {
    "rollout_vs_trl_1_turn": partial(rollout_vs_trl, turns=1),
    "rollout_vs_trl_20_turns": partial(rollout_vs_trl, turns=20),
    "rollout_vs_agilerl_20_turns": partial(rollout_vs_agilerl, turns=20),
    "grpo_update_vs_trl": grpo_update_vs_trl,
    "episodes_vs_verifiers_10_turns": partial(episodes_vs_verifiers, turns=10),
    "generation_vs_transformers_smollm2": generation_vs_transformers,
    "rollout_vs_trl_1_turn_smollm2": partial(rollout_vs_trl, turns=1),
    "rollout_vs_trl_10_turns_smollm2": partial(rollout_vs_trl, turns=10),
    "grpo_update_vs_trl_smollm2": grpo_update_vs_trl,
    "logprob_memory_ratio": logprob_memory_ratio,
    "logprob_time_ratio": logprob_time_ratio,
    "tokens_flat_in_turns": tokens_flat_in_turns,
    "nlac_seconds_over_grpo": nlac_seconds_over_grpo,
    "first_episode_seconds": first_episode_seconds,
    "help_ms_above_typer": help_ms_above_typer,
    "wrong_word_seconds": wrong_word_seconds,
}


def measure(
    names: list[str], folder: Path, peers: Path | None, keep: Keep, *, quick: bool = False
) -> dict[str, Any]:
    """Return these figures; those of SmolLM2 come last. Each is given to `keep` at once, with the
    versions of the libraries. If one cannot be installed or run, its figures are left out and a
    line is printed on stderr."""
    found: dict[str, Any] = {}
    for model, sizes in {"tiny": Sizes(), "smollm2": SMOLLM2}.items():
        own = [name for name in names if name.endswith(SUFFIX) == (model == "smollm2")]
        if own:
            bench = Bench(folder / model, QUICK if quick else sizes, peers)
            try:
                found |= measured(bench, own, keep)
            finally:
                bench.close()
    return found


def measured(bench: Bench, names: list[str], keep: Keep) -> dict[str, Any]:
    """Return the figures of one model."""
    found: dict[str, Any] = {}
    for name in names:
        try:
            figure = FIGURES[name](bench)
        except PeerError as error:
            print(f"{name}: {error}", file=sys.stderr)
            continue
        if isinstance(figure, Ratio):
            own = figure.figures(name)
            value, low, high, theirs, ours = (f"{value:g}" for value in own.values())
            print(f"{name} {value} [{low}, {high}]: {theirs} s there, {ours} s here", flush=True)
        else:
            own = {name: _rounded(figure)}
            print(f"{name} {own[name]:g}", flush=True)
        keep(own | {"torch": torch.__version__} | bench.versions())
        found |= own
    return found


def worse(found: dict[str, Any], stored: dict[str, Any], tolerance: float) -> list[str]:
    """Return a line for each figure that is worse than the stored one by more than this
    share."""
    lines = []
    for name in sorted(FIGURES.keys() & found.keys() & stored.keys()):
        now, then = found[name], stored[name]
        loss = then / now - 1 if "_vs_" in name else (now - then) / abs(then)
        if loss > tolerance:
            lines.append(f"{name} is {now:g}, {loss:.0%} worse than the stored {then:g}")
    return lines


def main() -> int:
    """Measure, then write or compare. Returns 1 if a figure is worse."""
    given = _arguments()
    torch.set_num_threads(1)
    keep_freed_memory()
    names = given.only or list(FIGURES)
    with tempfile.TemporaryDirectory() as folder:
        keep = ignore if given.compare or given.quick else store
        found = measure(names, Path(folder), given.peers, keep, quick=given.quick)
    if given.compare:
        lines = worse(found, json.loads(RESULT.read_text()), given.tolerance)
        print("\n".join(lines) or "no figure is worse than the stored one")
        return int(bool(lines))
    return 0


def ignore(figures: dict[str, Any]) -> None:
    """Store nothing."""


def store(figures: dict[str, Any]) -> None:
    """Add figures to the files."""
    ratios = {k.removesuffix(SUFFIX): v for k, v in figures.items() if k.endswith(SUFFIX)}
    for file, added in ((RESULT, figures), (COST, ratios)):
        if added:
            kept = json.loads(file.read_text()) if file.exists() else {}
            files.replace_text(file, json.dumps(kept | added, indent=1) + "\n")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    peers = ", ".join(PACKAGES)
    parser.add_argument("--peers", type=Path, metavar="FOLDER", help=f"environments of {peers}")
    parser.add_argument("--only", action="append", choices=list(FIGURES), metavar="NAME")
    parser.add_argument("--compare", action="store_true", help="with the stored file")
    parser.add_argument("--tolerance", type=float, default=0.15, help="a share; 0.15 by default")
    parser.add_argument("--quick", action="store_true", help="toy sizes, only printed")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
