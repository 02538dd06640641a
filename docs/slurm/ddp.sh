#!/usr/bin/env bash
# One run that all GPUs of a job train: sbatch --nodes N docs/slurm/ddp.sh OVERRIDES name=NAME runs=/shared/runs
# Asked again by the same command, it resumes the run. Not yet run on a cluster (2026-11).
#SBATCH --job-name=agentrl
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=64
#SBATCH --signal=TERM@600
#SBATCH --time=24:00:00
set -euo pipefail

PORT=${PORT:-29500}
head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)

runs=runs name=
for word in "$@"; do
    case $word in
        runs=*) runs=${word#runs=} ;;
        name=*) name=${word#name=} ;;
    esac
done
[ -n "$name" ] || { echo "give the run a name=NAME, so that it can be resumed" >&2; exit 2; }

export TORCH_ELASTIC_SHUTDOWN_TIMEOUT=570  # seconds that torchrun leaves a step after SIGTERM; its default is 30

command=(train "$@" hardware=ddp)
[ -d "$runs/$name/checkpoints" ] && command=(resume "$runs/$name")

srun torchrun --nnodes "$SLURM_NNODES" --nproc-per-node "$SLURM_GPUS_ON_NODE" \
    --rdzv-backend c10d --rdzv-endpoint "$head:$PORT" --rdzv-id "$SLURM_JOB_ID" \
    -m agentrl_cli.cli "${command[@]}"
