"""Makes a run's policy the embedded weights: `python -m agentrl_cli.corpora.ship RUN ENV`."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from agentrl_cli.models.load import TINY
from agentrl_cli.runs.best import played_checkpoint
from agentrl_cli.runs.find import find_run

MAX_BYTES = 8 * 2**20  # bytes of one weight file


def ship(ref: str, env: str, root: Path = Path("runs")) -> Path:
    """Write the run's policy in bfloat16 to the package; the file. ValueError above 8 MiB."""
    part = "models/policy/"
    policy = played_checkpoint(find_run(ref, root), part).folder / part
    weights = load_file(policy / "model.safetensors")
    target = TINY / env / "model.safetensors"
    target.parent.mkdir(exist_ok=True)
    small = {name: weight.to(torch.bfloat16).contiguous() for name, weight in weights.items()}
    if sum(weight.nbytes for weight in small.values()) > MAX_BYTES:
        raise ValueError(f"the weights of run '{ref}' are larger than {MAX_BYTES} bytes")
    save_file(small, target, {"format": "pt"})
    return target


if __name__ == "__main__":
    print(ship(sys.argv[1], sys.argv[2]))
