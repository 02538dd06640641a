"""How many processes a launcher has started, and whether that is what was asked for. Those that
train one run together say so by `hardware.strategy`; others would train the same run once more,
each on the first device."""

from __future__ import annotations

import os

from agentrl_cli.core.errors import UserError

MOST = {  # what a launcher may say where it has started one process
    "WORLD_SIZE": 1, "RANK": 0, "LOCAL_RANK": 0,  # torchrun, accelerate launch
    "OMPI_COMM_WORLD_SIZE": 1, "PMI_SIZE": 1, "MV2_COMM_WORLD_SIZE": 1,  # mpirun
    "SLURM_STEP_NUM_TASKS": 1,  # srun; SLURM_NTASKS is what a job may start
}  # fmt: skip
NEEDED = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
ALONE = "start agentrl by itself, without a launcher"
LAUNCH = "accelerate launch --num_processes N -m agentrl_cli.cli"


def refuse_several_processes(remedy: str = ALONE) -> None:
    """Raise UserError where a launcher has started more than this process."""
    for variable, most in MOST.items():
        value = os.environ.get(variable, "")
        if value.isdecimal() and int(value) > most:
            line = f"{variable} is {value}, so several processes were started, and a run has one"
            raise UserError(f"{line}; {remedy}")


def refuse_other_processes(strategy: str | None, processes: int | None) -> None:
    """Raise UserError unless a launcher has started what `hardware.strategy` and
    `hardware.processes` ask for: one process where there is no strategy."""
    if strategy is None:
        together = "give hardware=ddp, or hardware=fsdp for full weights, to train it together"
        refuse_several_processes(f"{together}, or {ALONE}")
        return
    missing = [variable for variable in NEEDED if not os.environ.get(variable)]
    if missing:
        line = f"hardware.strategy is {strategy}, but no launcher has set {missing[0]}"
        raise UserError(f"{line}; start with {LAUNCH} …, or give hardware.strategy=null")
    started = os.environ["WORLD_SIZE"]
    if processes is not None and started != str(processes):
        line = f"hardware.processes is {processes}, but the launcher has started {started}"
        raise UserError(f"{line}; start {processes}, or give hardware.processes=null")


def is_first_process() -> bool:
    """Whether no other process of a launcher owns the run."""
    return os.environ.get("RANK", "0") == "0"
