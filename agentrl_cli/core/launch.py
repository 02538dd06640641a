"""Checks of how many processes a launcher has started.

Processes that train one run together need `hardware.strategy`. Without it each would train the same
run again, on the first device.
"""

from __future__ import annotations

import os

from agentrl_cli.core.errors import UserError

SINGLE = {  # the largest value of a single process
    "WORLD_SIZE": 1, "RANK": 0, "LOCAL_RANK": 0,  # torchrun, accelerate launch
    "OMPI_COMM_WORLD_SIZE": 1, "PMI_SIZE": 1, "MV2_COMM_WORLD_SIZE": 1,  # mpirun
    "SLURM_STEP_NUM_TASKS": 1,  # srun; SLURM_NTASKS is the size of the allocation
}  # fmt: skip
NEEDED = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
ALONE = "start agentrl without a launcher"
LAUNCH = "accelerate launch --num_processes N -m agentrl_cli.cli"


def require_single_process(remedy: str = ALONE) -> None:
    """Raise UserError if a launcher has started more than this process."""
    for variable, most in SINGLE.items():
        value = os.environ.get(variable, "")
        if value.isdecimal() and int(value) > most:
            line = f"{variable} is {value}, so several processes were started, and a run has one"
            raise UserError(f"{line}; {remedy}", code="several-processes")


def validate_processes(strategy: str | None, processes: int | None) -> None:
    """Raise UserError unless the number of processes matches `hardware.strategy` and
    `hardware.processes`; without a strategy it is one."""
    if strategy is None:
        together = "give hardware=ddp, or hardware=fsdp for full weights, to train one run"
        require_single_process(f"{together}, or {ALONE}")
        return
    missing = [variable for variable in NEEDED if not os.environ.get(variable)]
    if missing:
        line = f"hardware.strategy is {strategy}, but no launcher has set {missing[0]}"
        remedy = f"start with {LAUNCH} …, or give hardware.strategy=null"
        raise UserError(f"{line}; {remedy}", code="no-launcher")
    started = os.environ["WORLD_SIZE"]
    if processes is not None and started != str(processes):
        line = f"hardware.processes is {processes}, but the launcher has started {started}"
        remedy = f"start {processes}, or give hardware.processes=null"
        raise UserError(f"{line}; {remedy}", code="wrong-process-count")


def is_first_process() -> bool:
    """Return whether this process owns the run."""
    return os.environ.get("RANK", "0") == "0"
