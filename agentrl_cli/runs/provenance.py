"""The code, packages and machine of a run, for its meta.json."""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from agentrl_cli import __version__

PACKAGES = ("torch", "transformers", "tokenizers", "peft", "accelerate", "safetensors")
PACKAGES += ("numpy", "hydra-core", "omegaconf", "wandb")
OWN_CODE = (".py", ".yaml", ".yml", ".jinja")  # files that can change a run
MAX_FILES, MAX_BYTES = 50, 1 << 20


def facts() -> dict[str, Any]:
    """Return the entries of meta.json. The version of a missing package is None."""
    packages: dict[str, str | None] = dict.fromkeys(PACKAGES)
    for name in PACKAGES:
        try:
            packages[name] = version(name)
        except PackageNotFoundError:
            pass
    python = platform.python_version()
    machine = {"platform": platform.platform(), "python": python, "cpus": os.cpu_count()}
    return {"agentrl": __version__, **code(), "packages": packages, "machine": machine}


def code() -> dict[str, Any]:
    """Return the states of this package (`git`) and of the `working_folder`, in which a user's own
    code lies."""
    root = Path(__file__).parents[2]
    git = _state(root) if (root / ".git").exists() else None  # None without a checkout
    return {"git": git, "working_folder": working_folder()}


def working_folder() -> dict[str, Any]:
    """Return the working folder and the state of its repository. `git` is None outside of one; its
    `files` are uncommitted Python and YAML files with 16 hex digits of their digest."""
    folder = Path.cwd()
    state = _state(folder)
    if state is None:
        return {"folder": str(folder), "git": None}
    listing = ("ls-files", "-z", "--modified", "--others", "--exclude-standard")
    try:
        changed = _git(folder, *listing).split("\0")
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError):
        changed = []
    own = sorted({name for name in changed if Path(name).suffix in OWN_CODE})[:MAX_FILES]
    files = {name: digest for name in own if (digest := _digest(folder / name))}
    return {"folder": str(folder), "git": {**state, "files": files}}


def _state(folder: Path) -> dict[str, Any] | None:
    try:
        commit = _git(folder, "rev-parse", "HEAD")
        return {"commit": commit, "dirty": bool(_git(folder, "status", "--porcelain", "-uno"))}
    except (OSError, subprocess.SubprocessError):
        return None


def _digest(file: Path) -> str | None:
    try:
        if file.stat().st_size > MAX_BYTES:
            return None
        return hashlib.blake2b(file.read_bytes(), digest_size=8).hexdigest()
    except OSError:
        return None


def _git(root: Path, *arguments: str) -> str:
    """Return the output of git, which must not start programs named in the repository's config."""
    command = ["git", "-c", "core.fsmonitor=false", "-C", str(root), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=20)
    return done.stdout.strip()
