"""Fuzz the parts that read foreign text: configurations, model output, demonstrations, run folders,
chat templates and endpoints.

Run as `python stress/fuzz.py --cases 20000`. Only refusals that name the wrong value may be raised,
and no case may take 10 s. Results are appended to a file, so the same command continues where it
stopped. `--again FILE` repeats an input of runs/fuzz/found.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import os
import resource
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))
os.environ |= {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}

import hypothesis  # noqa: E402
from hypothesis import HealthCheck, Phase  # noqa: E402

from agentrl_cli.core import files  # noqa: E402
from agentrl_cli.core.types import derive_seed  # noqa: E402
from stress.fuzzing import configuration, demonstrations, endpoint, folders, templates, worlds  # noqa: E402
from stress.fuzzing.target import Target, check_refusal  # noqa: E402

TARGETS: dict[str, tuple[int, Callable[[Path], Target]]] = {  # and their shares of the cases
    "configuration": (3, configuration.target),
    "worlds": (8, worlds.target),
    "roles": (2, worlds.roles_target),
    "demonstrations": (2, demonstrations.target),
    "folders": (3, folders.target),
    "templates": (1, templates.target),
    "endpoint": (1, endpoint.target),
}
CHUNK = 500  # cases of one process
DEADLINE, DEAD = 10.0, 120.0  # seconds of a case: too long, and so long that it is killed
MEMORY = 6 * 2**30  # bytes of address space beyond those of the beginning
SHOWN = 200  # characters of a case


class Hang(BaseException):
    """A case took longer than DEADLINE. No product code catches this."""


@dataclass
class Chunk:
    """Some cases of a target and their outcomes. `found` are unexpected outcomes."""

    target: str
    number: int
    planned: int
    seed: int
    cases: int = 0
    refused: int = 0
    slowest: float = 0.0
    slowest_case: str = ""
    found: list[dict[str, str]] = field(default_factory=list)

    @property
    def key(self) -> tuple[str, int, int, int]:
        """The values that identify a chunk, which is not repeated."""
        return self.target, self.number, self.planned, self.seed


def main(arguments: list[str]) -> int:
    """Run the cases without results. Returns the number of unexpected outcomes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=2000, help="of all targets together")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--target", choices=TARGETS, action="append")
    parser.add_argument("--folder", type=Path, default=Path("runs/fuzz"))
    parser.add_argument("--record", type=Path, help="the JSON file that gets the figures")
    parser.add_argument("--again", type=Path, help="an input to repeat")
    options = parser.parse_args(arguments)
    options.folder.mkdir(parents=True, exist_ok=True)
    options.folder = options.folder.resolve()
    if options.again:
        return again(options.again, options.folder)
    chunks: list[Chunk] = []
    for name in options.target or TARGETS:
        chunks += run_target(name, plan(name, options), options.folder)
    print(summary(chunks))
    if options.record:
        store(options.record, chunks)
    return sum(len(chunk.found) for chunk in chunks)


def plan(name: str, options: argparse.Namespace) -> list[Chunk]:
    """Return the cases of a target in chunks."""
    named = options.target or TARGETS
    share = TARGETS[name][0] / sum(TARGETS[other][0] for other in named)
    count = round(options.cases * share)
    sizes = [min(CHUNK, count - begin) for begin in range(0, count, CHUNK)]
    return [Chunk(name, number, size, options.seed) for number, size in enumerate(sizes)]


def run_target(name: str, planned: list[Chunk], folder: Path) -> list[Chunk]:
    """Return the chunks of a target with their outcomes. Each chunk without stored results runs
    in a new process."""
    results = folder / "results.jsonl"
    rows = files.read_jsonl(results) if results.exists() else []
    known = {chunk.key: chunk for chunk in (Chunk(**row) for row in rows)}
    missing = [chunk for chunk in planned if chunk.key not in known]
    if missing:
        home = folder / "work" / name
        shutil.rmtree(home, ignore_errors=True)
        home.mkdir(parents=True)
        target = TARGETS[name][1](home)
        for chunk in missing:
            known[chunk.key] = done = in_process(target, chunk, folder)
            files.append_jsonl(results, [vars(done)])
            print(line(done), flush=True)
    return [known[chunk.key] for chunk in planned]


def in_process(target: Target, chunk: Chunk, folder: Path) -> Chunk:
    """Run a chunk in a new process, and return it with its outcomes. A case that hangs or
    crashes ends the process."""
    state = folder / "work" / f"{chunk.target}-state"
    state.mkdir(parents=True, exist_ok=True)
    for name in ("done.json", "error.txt"):
        (state / name).unlink(missing_ok=True)
    (state / "case.txt").write_text("")
    pid = os.fork()
    if pid == 0:
        try:
            child(target, chunk, state, folder / "found")
        except BaseException:
            (state / "error.txt").write_text(traceback.format_exc())
        finally:
            os._exit(1)
    status = waited(pid, state / "case.txt")
    if (state / "done.json").exists():
        return Chunk(**files.read_json(state / "done.json"))
    if (state / "error.txt").exists():  # of the fuzzer itself
        raise SystemExit((state / "error.txt").read_text())
    case, how = (state / "case.txt").read_text(), f"the process ended with status {status}"
    chunk.cases = 1 + int(case.partition(" ")[0] or 0)
    chunk.found.append(saved(folder / "found", chunk.target, case.partition(" ")[2], how, how))
    return chunk


def waited(pid: int, case: Path) -> int:
    """Return the status of a process, which is killed if a case takes too long."""
    while True:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            return status
        if time.time() - case.stat().st_mtime > DEAD:
            os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)


def child(target: Target, chunk: Chunk, state: Path, found: Path) -> None:
    """Run the cases of a chunk and write their outcomes."""
    limit = current_memory() + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.chdir(state)
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)

    def one(case: Any) -> None:
        (state / "case.txt").write_text(f"{chunk.cases} {case!r}")
        chunk.cases += 1
        began = seconds_at_work()
        error, place = outcome(target, case)
        seconds = seconds_at_work() - began
        chunk.refused += error == "refused"
        if seconds > chunk.slowest:
            chunk.slowest, chunk.slowest_case = round(seconds, 3), short(repr(case))
        if error not in ("", "refused"):
            chunk.found.append(saved(found, chunk.target, repr(case), error, place))

    cases = derived(target, chunk, one)
    cases()
    files.write_json(state / "done.json", vars(chunk))
    os._exit(0)


def derived(target: Target, chunk: Chunk, one: Callable[[Any], None]) -> Callable[[], None]:
    """Return a function that calls `one` with every case of a chunk, which are the same each
    time."""
    seed = derive_seed("fuzz", chunk.seed, chunk.target, chunk.number)
    settings = hypothesis.settings(
        max_examples=chunk.planned, database=None, deadline=None, phases=[Phase.generate],
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )  # fmt: skip
    return hypothesis.seed(seed)(settings(hypothesis.given(target.cases)(one)))


def outcome(target: Target, case: Any) -> tuple[str, str]:
    """Return "" or `refused`, or the unexpected outcome, and its place in the code."""
    began = seconds_at_work()

    def on_alarm(number: int, frame: Any) -> None:
        left = DEADLINE - (seconds_at_work() - began)
        if left <= 0.01:
            raise Hang(f"more than {DEADLINE:g} s")
        signal.setitimer(signal.ITIMER_REAL, left)

    signal.signal(signal.SIGALRM, on_alarm)
    signal.setitimer(signal.ITIMER_REAL, DEADLINE)
    try:
        try:
            target.run(case)
        except target.refusals as error:
            check_refusal(error, target.named(case))
            return "refused", ""
    except (Hang, Exception) as error:
        return f"{type(error).__name__}: {short(str(error))}", traceback.format_exc()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    return "", ""


def seconds_at_work() -> float:
    """Return the time of a clock that stops while other processes use the processor."""
    waited = int(Path("/proc/thread-self/schedstat").read_text().split()[1])  # proc(5), ns
    return time.monotonic() - waited / 1e9


def saved(folder: Path, target: str, case: str, error: str, place: str) -> dict[str, str]:
    """Keep an input with an unexpected outcome, so that it can be repeated."""
    name = f"{target}-{hashlib.sha256(case.encode()).hexdigest()[:10]}.txt"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(f"{case}\n\n{place}", encoding="utf-8", errors="backslashreplace")
    frames = [row.strip() for row in place.splitlines() if row.strip().startswith("File ")]
    at = next(
        (row for row in reversed(frames) if "agentrl_cli" in row), frames[-1] if frames else ""
    )
    return {"error": error, "place": at, "case": short(case), "file": name}


def again(file: Path, folder: Path) -> int:
    """Repeat a kept input and show its outcome."""
    name = file.name.partition("-")[0]
    home = folder / "work" / "again"
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir(parents=True)
    case = ast.literal_eval(file.read_text(encoding="utf-8").partition("\n")[0])
    error, place = outcome(TARGETS[name][1](home), case)
    print(error or "nothing was raised", place, sep="\n")
    return int(error not in ("", "refused"))


def summary(chunks: list[Chunk]) -> str:
    """Return the unexpected outcomes, the most frequent first, and the figures."""
    found = [row | {"target": chunk.target} for chunk in chunks for row in chunk.found]
    kinds: dict[str, list[dict[str, str]]] = {}
    for row in found:
        kinds.setdefault(f"{row['target']}: {row['error'][:80]} {row['place']}", []).append(row)
    lines = [
        f"{len(rows)} x {kind}\n    {rows[0]['case']} ({rows[0]['file']})"
        for kind, rows in sorted(kinds.items(), key=lambda item: -len(item[1]))
    ]
    return "\n".join([*lines, json.dumps(figures(chunks))])


def figures(chunks: list[Chunk]) -> dict[str, float]:
    """Return the figures to store."""
    return {
        "fuzz_cases": sum(chunk.cases for chunk in chunks),
        "fuzz_unexpected": sum(len(chunk.found) for chunk in chunks),
        "fuzz_slowest_seconds": max((chunk.slowest for chunk in chunks), default=0.0),
    }


def store(file: Path, chunks: list[Chunk]) -> None:
    """Add figures to the file."""
    kept = files.read_json(file) if file.exists() else {}
    files.write_json(file, dict(sorted((kept | figures(chunks)).items())))


def line(chunk: Chunk) -> str:
    """Return a line about a chunk."""
    return (
        f"{chunk.target} {chunk.number}: {chunk.cases} cases, {chunk.refused} refused, "
        f"{len(chunk.found)} unexpected, slowest {chunk.slowest:.2f} s ({chunk.slowest_case[:60]})"
    )


def short(text: str) -> str:
    """Return a text, without its middle if it is long."""
    return text if len(text) <= SHOWN else f"{text[:120]} …{len(text)}… {text[-60:]}"


def current_memory() -> int:
    """Return the bytes of this process's address space."""
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


if __name__ == "__main__":
    sys.exit(min(1, main(sys.argv[1:])))
