"""Compare losses and gradients with those of TRL, Stable-Baselines3, ETO and ArCHer.

`make parity` runs the code of the peers on a tiny model (peers/parity_side.py), which writes their
numbers to tests/parity. Then this script writes docs/results/parity.json and the table in
docs/algorithms.md. It measures the phase that an algorithm yields for the same tokens and rewards.
Differences are relative: the largest difference divided by the largest number of the peer.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain, groupby
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).parents[1]))

from agentrl_cli.algos.base import Algorithm, Context, Phase
from agentrl_cli.algos.losses import gae
from agentrl_cli.algos.samples import all_turns
from agentrl_cli.config.compose import as_dataclass, build, check, compose
from agentrl_cli.config.settings import ModelConfig
from agentrl_cli.core.types import Episode, Task, Turn
from agentrl_cli.generators.base import Completion, Generator, Sampling
from agentrl_cli.models.forward import collate
from agentrl_cli.models.model_set import ModelSet
from agentrl_cli.rollout.replay_buffer import ReplayBuffer

ROOT = Path(__file__).parents[1]
STORED, RESULT = ROOT / "tests" / "parity", ROOT / "docs" / "results" / "parity.json"
PAGE = ROOT / "docs" / "algorithms.md"
HEADER = "| rule | peer | its settings | ours | loss | gradient |\n|---|---|---|---|---|---|\n"
Arrays = dict[str, Any]
Numbers = tuple[np.ndarray, np.ndarray]  # a loss and a gradient; advantages and returns of GAE


@dataclass(frozen=True)
class Case:
    """A rule of a peer, the settings of both sides that make them equal, and our values of
    hyperparameters that the two share. `algo` is the name of ours."""

    rule: str
    peer: str
    theirs: str
    algo: str
    ours: str
    shared: str = ""

    @property
    def overrides(self) -> list[str]:
        settings = f"{self.ours} {self.shared}".split()
        return [f"algo={self.algo}", *(f"algo.{setting}" for setting in settings)]


LIKE_TRL = "advantage_std=sample skip_zero_advantages=false"
LIKE_SB3 = "gamma=0.97 gae_lambda=0.9 critic_warmup=0 entropy_coef=0.01"
LIKE_ARCHER = "critic_updates=1 critic_warmup=0 actor_epochs=1 actor_states=5"
CASES = {  # by file and prefix in it
    "grpo/dapo": Case("GRPO", "TRL", "loss_type=dapo (default)", "grpo", LIKE_TRL),
    "grpo/grpo": Case(
        "GRPO", "TRL", "loss_type=grpo beta=0.05", "grpo",
        f"{LIKE_TRL} loss_type=grpo use_bias_correction_kl=true", "kl_coef=0.05",
    ),
    "grpo/bnpo": Case(
        "GRPO", "TRL", "loss_type=bnpo beta=0.05 use_bias_correction_kl=false scale_rewards=none "
        "epsilon_high=0.28", "grpo",
        "normalise_advantages=false skip_zero_advantages=false clip_eps_high=0.28", "kl_coef=0.05",
    ),
    "grpo/dr_grpo": Case(
        "GRPO", "TRL", "loss_type=dr_grpo max_completion_length=16", "grpo",
        f"{LIKE_TRL} loss_type=dr_grpo max_completion_length=16",
    ),
    "sft/nll": Case("SFT", "TRL", "loss_type=nll (default)", "sft", ""),
    "dpo/sigmoid": Case(
        "DPO", "TRL", "loss_type=sigmoid (default)", "dpo", "nll_coef=0 reference=start", "beta=0.3"
    ),
    "eto/trajectory": Case("DPO", "ETO", "", "dpo", "nll_coef=0 reference=start", "beta=0.3"),
    "eto/step": Case(
        "StepAgent, implicit", "ETO", "one action per row", "stepagent_implicit",
        "nll_coef=0 reference=start attempt=turn", "beta=0.3 expert_states_per_update=0",
    ),
    "archer/critic": Case("ArCHer, critic", "ArCHer", "", "archer", "", LIKE_ARCHER),
    "archer/policy": Case("ArCHer, actor", "ArCHer", "", "archer", "", LIKE_ARCHER),
    "ppo/default": Case(
        "PPO", "Stable-Baselines3", "clip_range_vf=None (default)", "ppo",
        "level=token advantage_std=sample", LIKE_SB3,
    ),
    "ppo/value_clip": Case(
        "PPO", "Stable-Baselines3", "clip_range_vf=0.2 normalize_advantage=false", "ppo",
        "level=token value_clip=0.2 value_clip_error=clipped normalise_advantages=false", LIKE_SB3,
    ),
    "gae/gae": Case("GAE", "Stable-Baselines3", "", "ppo", "", LIKE_SB3),
}  # fmt: skip


# our side


@dataclass
class Replies(Generator):
    """Returns the given completion of each prompt."""

    replies: dict[tuple[int, ...], list[int]] = field(default_factory=dict)

    def generate(
        self, prompts: list[list[int]], seeds: list[int], sampling: Sampling, model: str = "policy"
    ) -> list[list[Completion]]:
        rows = [self.replies[tuple(prompt)] for prompt in prompts]
        return [[Completion(ids, [0.0] * len(ids), "stop")] for ids in rows]


def bind(overrides: list[str], tail: list[int]) -> Algorithm:
    """Return the algorithm with these settings, on the stored model. Its reference or target has
    the weights times 0.9. `tail` completes the state in which an episode was truncated."""
    model = [f"model.path={STORED / 'model'}", "model.weights=null"]
    cfg = check(compose([*overrides, "env=twentyq", "model=tiny", *model]))
    algo: Algorithm = build(cfg.algo)
    models = ModelSet(as_dataclass(cfg.model, ModelConfig), algo.models(), "cpu", 0)
    with torch.no_grad():
        for name in {"reference", "target"} & set(models.names):
            for weight in models.weights(name).values():
                weight.mul_(0.9)
    chat: Any = SimpleNamespace(end_of_turn=1, extend=lambda messages, last: tail, decode=str)
    algo.bind(Context(
        chat=chat, models=models, generator=Replies(), seed=0,
        sampling=Sampling(max_tokens=8, temperature=1.0, stop_ids=(1,)),
        probe=lambda starts: [], indistinguishable_tasks=lambda played, turn: [played.task],
    ))  # fmt: skip
    return algo


def episodes(arrays: Arrays, prefix: str = "") -> list[Episode]:
    """Return the rows as episodes: untrained tokens are observations, trained ones are actions. The
    last turn has the reward of the row."""
    rows = [arrays[f"{prefix}{name}"] for name in ("ids", "mask", "lengths")]
    count = len(rows[0])
    rewards, groups = (arrays.get(name, [0] * count) for name in ("rewards", "groups"))
    found = []
    for i, (ids, mask, length) in enumerate(zip(*rows, strict=True)):
        trained = zip(ids[:length].tolist(), mask[:length].tolist(), strict=True)
        parts = [[t for t, _ in part] for _, part in groupby(trained, lambda pair: pair[1])]
        parts += [[]] * (len(parts) % 2)
        turns = [
            Turn([], str(acted), seen, acted, [0.0] * len(acted))
            for seen, acted in zip(parts[::2], parts[1::2], strict=True)
        ]
        turns[-1].reward = float(rewards[i])
        found.append(Episode(str(i), Task(str(i), "train", {}), str(groups[i]), 0, turns))
    return found


def phases(name: str, algo: Any, arrays: Arrays) -> Iterator[Phase]:
    """Yield the phases of an algorithm on the rows of a file, with its old log-probs and values."""
    rule, _, prefix = name.partition("/")
    made, buffer = episodes(arrays, f"{prefix}/" if rule == "eto" else ""), ReplayBuffer(None, 10)
    replies = algo.context.generator.replies
    if rule in ("dpo", "eto"):  # all chosen rows, then all rejected ones
        algo.context.demos, made = made[: len(made) // 2], made[len(made) // 2 :]
        for demo, rejected in zip(algo.context.demos, made, strict=True):
            rejected.task, first = demo.task, rejected.turns[0]
            replies[tuple(first.observation_ids)] = first.action_ids
    for model in algo.context.models.heads:
        set_weights(algo.context.models.heads[model], arrays[f"{model}_head"])
    if rule == "archer":
        turns = all_turns(made)
        for ref, reward, ids in zip(turns, arrays["turn_rewards"], arrays["fresh"], strict=True):
            ref.episode.turns[ref.turn].reward = float(reward)
            replies[tuple(ref.state_ids)] = ids[ids >= 0].tolist()
        made[1].stop = "truncated"
        buffer.add(made)
    for phase in algo.update(made, buffer):
        for key in {"old_logprob", "old_value"} & arrays.keys():
            rows = arrays[key].tolist()  # skipped episodes come last
            for sample, row in zip(phase.samples, rows, strict=False):
                sample.per_token[key] = row[: len(sample.ids)]
        if rule != "archer" or phase.model == prefix:
            yield phase


def set_weights(head: nn.Module, flat: np.ndarray) -> None:
    """Copy a vector into the weights of a head, in the order of their names."""
    named = dict(head.named_parameters())
    ordered = [named[name] for name in sorted(named)]
    nn.utils.vector_to_parameters(torch.from_numpy(flat), ordered)


def measure(phase: Phase, models: ModelSet) -> Numbers:
    """Return the loss of a phase as one optimizer step, and its gradient in the order of names."""
    batch = collate(phase.samples)
    outputs = models.forward(phase.model).compute(batch, entropy_gradient=phase.entropy_gradient)
    loss = phase.loss(outputs, batch)[0] / sum(map(phase.units, phase.samples))
    named = models.weights(phase.model)
    gradient = torch.autograd.grad(loss, [named[name] for name in sorted(named)])
    return loss.detach().numpy(), torch.cat([part.flatten() for part in gradient]).numpy()


def ours(name: str, overrides: list[str], arrays: Arrays) -> Numbers:
    """Return our numbers of a case."""
    tail = arrays.get("tail", np.array([])).tolist()
    algo: Any = bind(overrides, tail)
    if name.startswith("gae/"):
        rewards, values, dones = (arrays[key].tolist() for key in ("rewards", "values", "dones"))
        advantages, returns = gae(rewards, values, dones, algo.gamma, algo.gae_lambda)
        return np.array(advantages), np.array(returns)
    return measure(next(phases(name, algo, arrays)), algo.context.models)


def compare(name: str, *changes: str) -> tuple[float, float]:
    """Return the relative differences of loss and gradient in a case; `changes` are overrides that
    are appended to its own."""
    rule, _, prefix = name.partition("/")
    with np.load(STORED / f"{rule}.npz") as file:
        arrays = dict(file)
    kinds = ("advantages", "returns") if rule == "gae" else ("loss", "gradient")
    theirs = (arrays[f"{prefix}/{kind}"] for kind in kinds)
    found = ours(name, [*CASES[name].overrides, *changes], arrays)
    loss, gradient = (
        float(np.abs(own - other).max() / np.abs(other).max())
        for own, other in zip(found, theirs, strict=True)
    )
    return loss, gradient


# the record and the page


def table(record: dict[str, Any]) -> str:
    """Return the table of a record."""
    lines = []
    for row in record["cases"]:
        texts = (f"`{row[key]}`" if row[key] else "defaults" for key in ("theirs", "ours"))
        numbers = (f"{row[key]:.0e}" if row[key] else "0" for key in ("loss", "gradient"))
        lines.append("| " + " | ".join(chain((row["rule"], row["peer"]), texts, numbers)) + " |\n")
    return HEADER + "".join(lines)


def largest(cases: Iterable[dict[str, Any]]) -> dict[str, float]:
    """Return the largest difference of each rule, such as `grpo_loss` and `archer_actor_gradient`.
    ETO's two rules are one."""
    found: dict[str, float] = {}
    for row in cases:
        rule = "eto" if row["peer"].startswith("ETO") else row["rule"].lower().replace(", ", "_")
        for kind in ("loss", "gradient"):
            found[f"{rule}_{kind}"] = max(found.get(f"{rule}_{kind}", 0.0), row[kind])
    return found


def main() -> None:
    """Compare all cases, and write the record and the table."""
    torch.set_num_threads(1)
    versions = json.loads((STORED / "versions.json").read_text())
    labels = {
        "TRL": versions["trl"], "Stable-Baselines3": versions["stable_baselines3"],
        "ETO": versions["eto"][:7], "ArCHer": versions["archer"][:7],
    }  # fmt: skip
    record: dict[str, Any] = {"command": "make parity", "versions": versions, "cases": []}
    for name, case in CASES.items():
        loss, gradient = (float(f"{number:.2g}") for number in compare(name))
        sides = {"theirs": case.theirs, "ours": f"algo={case.algo} {case.ours}".strip()}
        peer = f"{case.peer} {labels[case.peer]}"
        row = {"rule": case.rule, "peer": peer, **sides, "loss": loss, "gradient": gradient}
        record["cases"].append(row)
    stored = json.loads(RESULT.read_text()) if RESULT.exists() else {}  # also of trl_learning.py
    record |= largest(record["cases"])
    RESULT.write_text(json.dumps(stored | record, indent=1) + "\n")
    old = re.escape(HEADER) + r"(\|.*\n)*"
    PAGE.write_text(re.sub(old, lambda found: table(record), PAGE.read_text()))
    print(table(record))


if __name__ == "__main__":
    main()
