#!/usr/bin/env bash
# One run with actors on all nodes of a job: sbatch --nodes N docs/slurm/ray.sh OVERRIDES name=NAME runs=/shared/runs
# The first GPU of the first node learns, all others play. Asked again by the same command, it resumes the run.
# Not yet run on a cluster (2026-11).
#SBATCH --job-name=agentrl
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=32
#SBATCH --signal=B:TERM@600
#SBATCH --time=24:00:00
set -euo pipefail

PORT=${PORT:-6379}
nodes=$(scontrol show hostnames "$SLURM_JOB_NODELIST")
head=${nodes%%$'\n'*}  # where this script runs
gpus=$(seq -s, 1 $((SLURM_GPUS_ON_NODE - 1)))  # all but the learner's

# what a run is called and where it lies, among the overrides
runs=runs name=
for word in "$@"; do
    case $word in
        runs=*) runs=${word#runs=} ;;
        name=*) name=${word#name=} ;;
    esac
done
[ -n "$name" ] || { echo "give the run a name=NAME, so that it can be resumed" >&2; exit 2; }

# nobody but this job may use its Ray, which runs whatever it is sent
export RAY_AUTH_MODE=token RAY_AUTH_TOKEN
RAY_AUTH_TOKEN=$(tr -d - < /proc/sys/kernel/random/uuid)

CUDA_VISIBLE_DEVICES=$gpus ray start --head --port "$PORT" --disable-usage-stats --block &
ray=$!
trap 'kill "$ray"' EXIT
until (: < "/dev/tcp/$head/$PORT") 2> /dev/null; do
    kill -0 "$ray"  # ends the job where Ray has ended
    sleep 1
done
for node in $nodes; do
    [ "$node" = "$head" ] && continue
    srun --nodes 1 --ntasks 1 --nodelist "$node" --overlap \
        ray start --address "$head:$PORT" --disable-usage-stats --block &
done

learner=
trap 'kill -TERM ${learner:-$ray}' TERM  # Slurm's warning: the run finishes its step and is saved
export CUDA_VISIBLE_DEVICES=0
if [ -d "$runs/$name/checkpoints" ]; then
    agentrl resume "$runs/$name" "hardware.actors.address=$head:$PORT" &
else
    agentrl train "$@" hardware=ray "hardware.actors.address=$head:$PORT" &
fi
learner=$!
wait "$learner" || wait "$learner"
