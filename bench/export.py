"""Success of an exported SmolLM2: `python bench/export.py RUN` writes docs/results/export.json.

RUN is a run of recipe=arithmetic_smollm2. Its policy solves the test problems in four forms: as the
run, merged in Transformers, merged behind vLLM, and as an adapter on the base behind vLLM. `make
vllm-test` installs vLLM. Each reply is a turn, because an endpoint cannot continue a reply. Each
figure is of 200 sampled replies.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from agentrl_cli.generators.vllm import ServedModel, ServerProcess, ServerSettings
from agentrl_cli.models.load import find_model
from agentrl_cli.runs.find import find_run

ROOT = Path(__file__).parents[1]
RESULT = ROOT / "docs" / "results" / "export.json"
AGENTRL = [sys.executable, "-m", "agentrl_cli.cli"]
PLAY = ["env.turn_mode=single", "eval.splits=[test]", "eval.episodes_per_task=2"]
RECIPE = ["recipe=arithmetic_smollm2", "algo=grpo", "init=null", *PLAY]
NAME = "exported"
CPU = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}


def evaluate(*arguments: str) -> dict[str, float]:
    """Return the success of an evaluation with its interval, in percent."""
    command = [*AGENTRL, "eval", *arguments, "--json"]
    done = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
    record = json.loads(done.stdout)
    names = {"success": "", "low": "_low", "high": "_high"}
    return {name: round(100 * record[f"eval/test_success{end}"], 1) for name, end in names.items()}


@contextmanager
def served(program: Path, path: str, *arguments: str) -> Iterator[list[str]]:
    """Serve a model with vLLM, and yield the overrides with which agentrl uses it."""
    own = ["--no-skip-tokenizer-init", "--enforce-eager", "--max-model-len", "2048", *arguments]
    settings = ServerSettings(
        program=str(program), host="127.0.0.1", port=None, gpus=None, start_timeout=600.0,
        arguments=own,
    )  # fmt: skip
    model = ServedModel(path=path, dtype="bfloat16", rank=16, models=1)
    with tempfile.NamedTemporaryFile(suffix=".log") as log:
        server = ServerProcess(settings, model, Path(log.name))
        try:
            server.wait_until_ready()
            limits = ["rollout.max_seq_len=4096"]  # bytes: the tokenizer of an endpoint is unknown
            yield ["model=endpoint", f"model.url={server.url}/v1", f"model.name={NAME}", *limits]
        finally:
            server.stop()


def measure(run: str, program: Path, folder: Path) -> Iterator[tuple[str, dict[str, float]]]:
    """Yield the success of each form of the policy."""
    merged, adapter = folder / "merged", folder / "adapter"
    for target, options in ((merged, []), (adapter, ["--adapter"])):
        subprocess.run([*AGENTRL, "export", run, str(target), *options], cwd=ROOT, check=True)
    yield "trained", evaluate(run, *PLAY)
    yield "transformers", evaluate(*RECIPE, "model=hf", f"model.path={merged}")
    with served(program, str(merged), "--served-model-name", NAME) as endpoint:
        yield "vllm", evaluate(*RECIPE, *endpoint)
    base, lora = find_model("smollm2"), ["--lora-modules", f"{NAME}={adapter}"]
    with served(program, base, *lora) as endpoint:
        yield "vllm_adapter", evaluate(*RECIPE, *endpoint)


def main() -> None:
    """Measure and store."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run")
    parser.add_argument("--vllm", type=Path, default=ROOT / ".venv-vllm" / "bin" / "vllm")
    asked = parser.parse_args()
    os.environ.update(CPU)
    with tempfile.TemporaryDirectory() as folder:
        run = find_run(asked.run)
        found: dict[str, Any] = {"run": run.name, "commit": run.meta["git"]["commit"]}
        for name, figures in measure(str(run.folder), asked.vllm, Path(folder)):
            print(name, figures, flush=True)
            found[name] = figures
    RESULT.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
