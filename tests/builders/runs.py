"""Small runs of a random model, and what must be equal in two runs that are the same."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agentrl_cli.cli.train import start
from agentrl_cli.core import files
from agentrl_cli.generators.base import Completion, Sampling
from agentrl_cli.generators.hf import HFGenerator
from agentrl_cli.runs.run import Run
from tests.paths import ROOT

SMALL = [
    "env=coin", "model.weights=null", "steps=4", "eval_every=2", "save_every=2", "eval.tasks=2",
    "eval.episodes_per_task=2", "eval.splits=[test]", "rollout.episodes_per_step=8",
    "rollout.max_new_tokens=6", "rollout.max_seq_len=512", "hardware.threads=1",
]  # fmt: skip
DEMOS = f"data.demos={Path(__file__).parent / 'coin_demos.jsonl'}"
ALGORITHMS = {
    "sft": ["algo=sft", "algo.optimizer.decay_steps=4"],
    "rft": ["algo=rft"],
    "grpo": ["algo=grpo", "algo.kl_coef=0.1", "algo.group_size=4", "algo.epochs=2"],
    "ppo": [
        "algo=ppo", "algo.level=token", "algo.value_clip=0.2", "algo.kl_coef=0.1",
        "algo.minibatch_tokens=300", "algo.critic_warmup=1",
    ],
    "archer": [
        "algo=archer", "algo.critic_updates=2", "algo.critic_warmup=1",
        "algo.episodes_per_update=4", "algo.buffer_size=20", "algo.actor_states=8",
    ],
    "archer_small": [
        "algo=archer_small", "algo.critic_updates=2", "algo.critic_warmup=1",
        "algo.episodes_per_update=4", "algo.buffer_size=20",
    ],
    "dpo": ["algo=dpo", DEMOS, "algo.minibatch_tokens=400", "algo.reference=iteration"],
    "stepagent_implicit": ["algo=stepagent_implicit", DEMOS, "algo.minibatch_tokens=300"],
    "stepagent_inverse": ["algo=stepagent_inverse", DEMOS, "algo.expert_states_per_update=2"],
    "self_ac": ["algo=self_ac", "algo.epochs=2", "algo.ratio=turn_geo", "algo.critic_warmup=1"],
    "nlac": [
        "algo=nlac", "algo.kl_coef=0.1", "algo.critic_warmup=1", "algo.separate_critic=false",
        "algo.policy_target=refined", "algo.require_optimal=true", "algo.num_candidates=2",
        "algo.turns_per_update=8", "algo.advanced.buffer_size=20", "algo.advanced.role_tokens=5",
        "algo.diagnostics.num_states=1", "algo.diagnostics.num_rollouts=2",
        # the roles' texts are random, so few of them could be parsed
        "algo.advanced.terminal_targets=text", "algo.advanced.drop_unchanged=false",
        "algo.advanced.critic_steps=2", "algo.advanced.priority_exponent=0.5",
    ],
}  # fmt: skip
SPEAKER = "hardware=speaker"
GUARDED = [
    "algo.separate_critic=true",
    "algo.improvement_check={every: 1, num_targets: 8, num_rollouts: 2, window: 4}",
    "algo.policy_target=best_of_n",
    "algo.num_candidates=4",
    "algo.require_optimal=false",
]
ACTORS = (  # two of them, in threads of this process
    "+hardware.actors={_target_: tests.fakes.thread_cluster.ThreadCluster, count: 2, gpus: 0, "
    "staleness: 2}"
)
Settings = list[str]
Agentrl = Callable[..., subprocess.CompletedProcess[str]]  # the fixture `agentrl`

GROUPS = {
    "env/coin.yaml": "_target_: tests.fakes.coin.CoinEnv\nturns: 2\n",
    "hardware/speaker.yaml": "device: cpu\nthreads: 1\nmicrobatch_tokens: 4096\n"
    "generator: {_target_: tests.fakes.coin.RandomRoleGenerator}\n",
}
for strategy in ("ddp", "fsdp"):  # several speakers
    GROUPS[f"hardware/speaker_{strategy}.yaml"] = (
        GROUPS["hardware/speaker.yaml"] + f"strategy: {strategy}\n"
    )


def folders(root: Path) -> Path:
    """A folder of groups: the world `coin`, which a random model wins now and then, and a speaker
    of all roles in its place."""
    for name, text in GROUPS.items():
        (root / "groups" / name).parent.mkdir(parents=True, exist_ok=True)
        (root / "groups" / name).write_text(text)
    return root / "groups"


def settings(root: Path, algo: str, name: str, *more: str) -> Settings:
    own = ALGORITHMS.get(algo, [f"algo={algo}"])
    return [*SMALL, *own, f"runs={root}", f"name={name}", *more]


def begun(
    root: Path, algo: str, name: str, *more: str, **environment: str
) -> subprocess.Popen[str]:
    """A small run in a process of its own, which has just begun."""
    command = [sys.executable, "-m", "agentrl_cli.cli", "train", *settings(root, algo, name, *more)]
    return subprocess.Popen(
        [*command, "--config-dir", str(folders(root))], stderr=subprocess.PIPE, text=True,
        cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
    )  # fmt: skip


def trained(root: Path, algo: str, name: str, *more: str) -> Run:
    start(settings(root, algo, name, *more), config_dirs=[folders(root)])
    return Run(root / name)


def facts(run: Run) -> dict[str, Any]:
    last = run.latest_checkpoint()
    kept = {str(file.relative_to(last)): file for file in sorted(last.rglob("*.safetensors"))}
    buffer = run.folder / "buffer.jsonl"
    return {
        "metrics": [timeless(row) for row in run.metrics()],
        "weights": {name: digest(file) for name, file in kept.items()},
        "state": files.read_json(last / "state.json"),
        "episodes": {file.name: untimed(files.read_jsonl(file)) for file in run.episode_files()},
        "buffer": untimed(files.read_jsonl(buffer)) if buffer.exists() else [],
        "step": last.name,
    }


def saved(run: Run) -> dict[str, dict[str, str]]:
    """The bytes of every planned checkpoint, as digests by the names of its files."""
    planned = [folder for folder in run.checkpoints() if folder.name.startswith("step-")]
    return {
        folder.name: {
            str(file.relative_to(folder)): digest(file)
            for file in sorted(folder.rglob("*"))
            if file.is_file()
        }
        for folder in planned
    }


def digest(file: Path) -> str:
    return hashlib.blake2b(file.read_bytes(), digest_size=8).hexdigest()


def timeless(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if not name.startswith("time/")}


def untimed(value: Any) -> Any:
    if isinstance(value, dict):
        left_out = ("seconds", "env_seconds")
        return {key: untimed(item) for key, item in value.items() if key not in left_out}
    return [untimed(item) for item in value] if isinstance(value, list) else value


@dataclass(kw_only=True)
class Interrupted(HFGenerator):
    """Sends its process a signal in its call number `at`, once: the file `marker` says that it was
    done. SIGINT is Ctrl-C."""

    at: int
    marker: str
    signal: str
    calls: int = field(default=0, init=False)

    def generate(
        self, prompts: list[list[int]], seeds: list[int], sampling: Sampling, model: str = "policy"
    ) -> list[list[Completion]]:
        self.calls += 1
        if self.calls == self.at and not Path(self.marker).exists():
            Path(self.marker).touch()
            os.kill(os.getpid(), signal.Signals[self.signal])
        return super().generate(prompts, seeds, sampling, model)


def interrupted(root: Path, at: int, by: str = "SIGINT") -> str:
    """The override that presses Ctrl-C, or sends another signal, in call number `at`."""
    target = f"_target_: tests.builders.runs.Interrupted, marker: '{root / 'pressed'}', at: {at}"
    target += f", signal: {by}"
    return f"hardware.generator={{{target}, max_batch: 64, cache_tokens: 10000}}"
