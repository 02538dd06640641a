"""How many processes a launcher has started. A run is trained by one: its neighbours would train
the same run once more, each on the first device."""

from __future__ import annotations

import os

from agentrl_cli.core.errors import UserError

MOST = {  # what a launcher may say where it has started one process
    "WORLD_SIZE": 1, "RANK": 0, "LOCAL_RANK": 0,  # torchrun, accelerate launch
    "OMPI_COMM_WORLD_SIZE": 1, "PMI_SIZE": 1, "MV2_COMM_WORLD_SIZE": 1,  # mpirun
    "SLURM_STEP_NUM_TASKS": 1,  # srun; SLURM_NTASKS is what a job may start
}  # fmt: skip


def refuse_several_processes() -> None:
    """Raise UserError where a launcher has started more than this process."""
    for variable, most in MOST.items():
        value = os.environ.get(variable, "")
        if value.isdecimal() and int(value) > most:
            line = f"{variable} is {value}, so several processes were started, and a run has one"
            raise UserError(f"{line}; start agentrl by itself, without a launcher")
