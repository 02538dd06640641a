"""Rebuild and ship an embedded model. Run it from the root of the repository.

    python -m tools.tiny_models ENV [OVERRIDE ...]   train the model of ENV from random weights
    python -m tools.tiny_models ship RUN ENV         copy a run's policy into the package

ENV is arithmetic, tau_mini, twentyq or wiki. Training takes about four hours on one core.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from agentrl_cli.cli.main import app
from agentrl_cli.models.load import TINY
from agentrl_cli.runs.checkpoints import played_checkpoint
from agentrl_cli.runs.find import find_run

CONF = Path(__file__).parent / "conf"
MAX_BYTES = 8 * 2**20  # bytes of one weight file


def train(env: str, *overrides: str) -> None:
    """Train the embedded model of an environment with its preset `experiment=ENV_base`."""
    app(["train", "--config-dir", str(CONF), f"experiment={env}_base", *overrides])


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
    else:
        train(command, *arguments)
