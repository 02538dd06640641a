"""Rebuild and ship a bundled model. Run it from the root of the repository.

    python -m tools.tiny_models ENV [OVERRIDE ...]   train the model of ENV from random weights
    python -m tools.tiny_models refresh ENV          repeat the end of that training, but from the
                                                     shipped weights, after a change of texts
    python -m tools.tiny_models ship RUN ENV         copy a run's policy into the package

ENV is arithmetic, courier, tau_mini, twentyq or wiki. Training takes about four hours on one core,
and half an hour for the courier.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from omegaconf import OmegaConf
from safetensors.torch import load_file, save_file

from agentrl_cli.cli.main import app
from agentrl_cli.config.compose import compose
from agentrl_cli.models.load import TINY
from agentrl_cli.runs.checkpoints import played_checkpoint
from agentrl_cli.runs.find import find_run

CONF = Path(__file__).parent / "conf"
MAX_BYTES = 8 * 2**20  # bytes of one weight file


def train(env: str, *overrides: str) -> None:
    """Train the bundled model of an environment with its preset `experiment=ENV_base`."""
    app(["train", "--config-dir", str(CONF), f"experiment={env}_base", *overrides])


def refresh(env: str, *overrides: str) -> None:
    """Continue the last stage of the training of a bundled model from the shipped weights."""
    stages = compose([f"experiment={env}_base"], [CONF]).rollout.stages
    last = json.dumps(OmegaConf.to_container(stages[-1])).replace('"', "")
    settings = [f"rollout.stages=[{last}]", f"model.weights={env}", "steps=120", "save_every=60"]
    schedule = ["algo.optimizer.lr=4e-4", "algo.optimizer.warmup_steps=20"]
    train(env, *settings, *schedule, "algo.optimizer.decay_steps=120", *overrides)


def ship(ref: str, env: str) -> Path:
    """Write a run's policy to the package in bfloat16 and return the file. Raises ValueError if the
    weights exceed 8 MiB."""
    part = "models/policy/"
    policy = played_checkpoint(find_run(ref), part).folder / part
    weights = load_file(policy / "model.safetensors")
    target = TINY / env / "model.safetensors"
    target.parent.mkdir(exist_ok=True)
    small = {name: weight.to(torch.bfloat16).contiguous() for name, weight in weights.items()}
    if sum(weight.nbytes for weight in small.values()) > MAX_BYTES:
        raise ValueError(f"the weights of run '{ref}' are larger than {MAX_BYTES} bytes")
    save_file(small, target, {"format": "pt"})
    return target


if __name__ == "__main__":
    command, *arguments = sys.argv[1:] or ["--help"]
    if command == "ship":
        print(ship(*arguments))
    elif command.startswith("-"):
        print(__doc__)
    elif command == "refresh":
        refresh(*arguments)
    else:
        train(command, *arguments)
