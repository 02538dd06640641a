"""Available memory, and the settings that reduce the memory of a run."""

from __future__ import annotations

import copy
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from omegaconf import OmegaConf

from agentrl_cli.algos.base import Algorithm
from agentrl_cli.config.settings import RESUMABLE
from agentrl_cli.core.errors import UserError
from agentrl_cli.models.load import dtype_of
from agentrl_cli.training.memory_plan import MemoryPlan, device_type, plan_memory

if TYPE_CHECKING:
    from omegaconf import DictConfig

GIB = 2**30
NAMED = 3  # settings in a message
LIMITS = {"": ("", "memory.max"), "memory": ("memory", "memory.limit_in_bytes")}
GROUPS, OWN_GROUP = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
LORA = {"rank": 16, "alpha": 32, "targets": ["all-linear"]}


@dataclass(frozen=True)
class Saver:
    """A setting with a lower value, and the bytes by which it reduces the predicted peak."""

    key: str
    value: Any
    saves: int

    def __str__(self) -> str:
        value = self.value
        if isinstance(value, dict):
            value = "{" + ",".join(f"{k}:{v}" for k, v in value.items()).replace("'", "") + "}"
        return f"{self.key}={value}".lower().replace(" ", "")


def available_bytes(cfg: DictConfig) -> int | None:
    """Return `hardware.memory_gib`, or the free memory of the GPU, or this process's share of the
    memory of the machine or control group. None if the device is not present."""
    given = cfg.hardware.get("memory_gib")
    if given is not None:
        return int(given * GIB)
    if device_type(cfg) == "cuda":
        return torch.cuda.mem_get_info()[0] if torch.cuda.is_available() else None
    processes = int(os.environ.get("LOCAL_WORLD_SIZE", 1)) if cfg.hardware.get("strategy") else 1
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min([machine, *group_limits()]) // processes


def group_limits(root: Path = GROUPS, own: Path = OWN_GROUP) -> list[int]:
    """Return the memory limits, in bytes, of this process's control groups (v1 and v2) and of their
    parents, as set by containers and batch systems."""
    rows = own.read_text().splitlines() if own.is_file() else []
    files: list[Path] = []
    for _, controllers, place in (row.split(":", 2) for row in rows):
        if controllers in LIMITS:
            folder, name = LIMITS[controllers]
            group = Path(folder, place.strip("/"))
            files += [root / above / name for above in (group, *group.parents)]
    texts = [file.read_text().strip() for file in files if file.is_file()]
    return [int(text) for text in texts if text.isdecimal()]


def memory_savers(cfg: DictConfig, algo: Algorithm) -> list[Saver]:
    """Return the settings that can be lowered, the most effective first."""
    halved = ["hardware.tokens_per_batch", "rollout.max_context"]
    keys = ("max_batch", "cache_tokens", "cache_mib")
    halved += [f"hardware.generator.{k}" for k in keys if cfg.hardware.generator.get(k)]
    values: dict[str, Any] = {key: OmegaConf.select(cfg, key) // 2 for key in halved}
    if not cfg.model.gradient_checkpointing:
        values["model.gradient_checkpointing"] = True
    if cfg.hardware.get("strategy") != "fsdp":  # which supports neither of these
        if cfg.model.lora is None:
            values["model.lora"] = LORA
        if dtype_of(cfg.model.dtype, torch.device(device_type(cfg))) == torch.float32:
            values["model.dtype"] = "bfloat16"
    peak, savers = plan_memory(cfg, algo).peak, []
    for key, value in values.items():
        if value:
            changed = copy.deepcopy(cfg)
            OmegaConf.update(changed, key, value, merge=False)
            savers.append(Saver(key, value, peak - plan_memory(changed, algo).peak))
    return sorted(savers, key=lambda saver: -saver.saves)


def refuse_too_little_memory(cfg: DictConfig, algo: Algorithm, plan: MemoryPlan) -> None:
    """Raise UserError if the plan exceeds the available memory, with the settings to lower."""
    limit = available_bytes(cfg)
    if limit is None or plan.peak <= limit:
        return
    parts = sorted(plan.parts.items(), key=lambda part: -part[1])
    needs = ", ".join(f"{name} {in_gib(n)}" for name, n in parts if n >= 0.01 * plan.peak)
    needed = f"this run needs {in_gib(plan.peak)} of memory in {plan.largest_phase} ({needs})"
    savers = [saver for saver in memory_savers(cfg, algo)[:NAMED] if saver.saves > 0]
    lower = ", ".join(f"{saver} (saves {in_gib(saver.saves)})" for saver in savers)
    raise UserError(
        f"{needed} but has {in_gib(limit)}; lower first: {lower}; "
        "or set the available memory with hardware.memory_gib=N",
        code="too-little-memory",
    )


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether the device or the machine ran out of memory."""
    kinds = (torch.OutOfMemoryError, MemoryError)
    return isinstance(error, kinds) or "DefaultCPUAllocator" in str(error)


def out_of_memory(cfg: DictConfig, algo: Algorithm, step: int) -> str:
    """Return the message for a run that ran out of memory, with settings to lower on resume."""
    savers = [saver for saver in memory_savers(cfg, algo) if saver.key in RESUMABLE]
    lower = " or ".join(map(str, savers[:NAMED]))
    return f"memory ran out after {step} steps; go on with less, as with {lower}"


def in_gib(number: int) -> str:
    """Return a number of bytes as GiB or MiB."""
    return f"{number / GIB:.1f} GiB" if number >= GIB else f"{number / 2**20:.0f} MiB"
