"""What a run was made with: the commit, the packages, the machine. Facts only."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from agentrl_cli import __version__

PACKAGES = ("torch", "transformers", "tokenizers", "peft", "accelerate", "safetensors")
PACKAGES += ("numpy", "hydra-core", "omegaconf", "wandb")


def facts() -> dict[str, Any]:
    """All of them, as entries of meta.json."""
    made_with = {"packages": packages(), "machine": machine()}
    return {"agentrl": __version__, "git": git_state(), **made_with}


def git_state() -> dict[str, Any] | None:
    """Commit and whether tracked files differ from it; None where the package is no checkout."""
    root = Path(__file__).parents[2]
    if not (root / ".git").exists():
        return None
    try:
        commit = _git(root, "rev-parse", "HEAD")
        return {"commit": commit, "dirty": bool(_git(root, "status", "--porcelain", "-uno"))}
    except (OSError, subprocess.SubprocessError):
        return None


def packages() -> dict[str, str | None]:
    """Installed versions of what may change numbers; None where a package is absent."""
    return {name: _version(name) for name in PACKAGES}


def machine() -> dict[str, Any]:
    """Where it ran."""
    python = platform.python_version()
    return {"platform": platform.platform(), "python": python, "cpus": os.cpu_count()}


def _git(root: Path, *arguments: str) -> str:
    command = ["git", "-C", str(root), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=20)
    return done.stdout.strip()


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
