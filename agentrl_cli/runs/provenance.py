"""What a run was made with: the commit, the packages, the machine. Facts only."""

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
OWN_CODE = (".py", ".yaml", ".yml", ".jinja")  # files that may change what a run does
MAX_FILES, MAX_BYTES = 50, 1 << 20


def facts() -> dict[str, Any]:
    """All of them, as entries of meta.json."""
    made_with = {"packages": packages(), "machine": machine()}
    return {"agentrl": __version__, **code(), **made_with}


def code() -> dict[str, Any]:
    """By which code: `git` is the state of our own, `working_folder` that of the folder where the
    run is started or resumed, in which a user's own code lies."""
    return {"git": git_state(), "working_folder": working_folder()}


def git_state() -> dict[str, Any] | None:
    """Commit and whether tracked files differ from it; None where the package is no checkout."""
    root = Path(__file__).parents[2]
    return _state(root) if (root / ".git").exists() else None


def working_folder() -> dict[str, Any]:
    """Where this process was started, and the state of the repository around it: `git` is None
    outside of one, its `files` are those of Python and YAML there that no commit holds as they
    are, with 16 hex digits of each one's bytes."""
    folder = Path.cwd()
    state = _state(folder)
    if state is None:
        return {"folder": str(folder), "git": None}
    changed = _git_lines(folder, "ls-files", "-z", "--modified", "--others", "--exclude-standard")
    own = sorted({name for name in changed if Path(name).suffix in OWN_CODE})[:MAX_FILES]
    files = {name: digest for name in own if (digest := _digest(folder / name))}
    return {"folder": str(folder), "git": {**state, "files": files}}


def _state(folder: Path) -> dict[str, Any] | None:
    """The commit of a repository and whether tracked files differ; None where there is none."""
    try:
        commit = _git(folder, "rev-parse", "HEAD")
        return {"commit": commit, "dirty": bool(_git(folder, "status", "--porcelain", "-uno"))}
    except (OSError, subprocess.SubprocessError):
        return None


def _git_lines(folder: Path, *arguments: str) -> list[str]:
    """What git answers, split at NUL; nothing where it fails."""
    try:
        return [name for name in _git(folder, *arguments).split("\0") if name]
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError):
        return []


def _digest(file: Path) -> str | None:
    """16 hex digits of a file's bytes; None where it cannot be read or is no code by its size."""
    try:
        if file.stat().st_size > MAX_BYTES:
            return None
        return hashlib.blake2b(file.read_bytes(), digest_size=8).hexdigest()
    except OSError:
        return None


def packages() -> dict[str, str | None]:
    """Installed versions of what may change numbers; None where a package is absent."""
    return {name: _version(name) for name in PACKAGES}


def machine() -> dict[str, Any]:
    """Where it ran."""
    python = platform.python_version()
    return {"platform": platform.platform(), "python": python, "cpus": os.cpu_count()}


def _git(root: Path, *arguments: str) -> str:
    """What git answers; it starts no program that the repository's own settings name."""
    command = ["git", "-c", "core.fsmonitor=false", "-C", str(root), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=20)
    return done.stdout.strip()


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
