#!/bin/bash
# sbatch --nodes=4 slurm-ray.sh plan.toml                     (without GPUs: add --gpus-per-task=0)
# Starts Ray on the nodes of the job and runs the plan there. A job that was stopped continues.
#SBATCH --job-name=keyhole-ray
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=8
#SBATCH --gpus-per-task=1
#SBATCH --time=04:00:00
#SBATCH --requeue
#SBATCH --output=keyhole-ray-%j.log
set -euo pipefail

PLAN=${1:?name a plan: sbatch --nodes=4 slurm-ray.sh plan.toml}
RUNS=${KEYHOLE_RUNS:-runs}         # a folder that all nodes share
PORT=${RAY_PORT:-6379}
CPUS=${SLURM_CPUS_PER_TASK:-1}
GPUS=${SLURM_GPUS_PER_TASK:-0}
HEAD=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
OTHERS=$((SLURM_JOB_NUM_NODES - 1))
export RAY_USAGE_STATS_ENABLED=0

srun --nodes=1 --ntasks=1 --overlap -w "$HEAD" \
  ray start --head --port="$PORT" --num-cpus="$CPUS" --num-gpus="$GPUS" --block &
sleep "${RAY_START_SECONDS:-20}"
if [ "$OTHERS" -gt 0 ]; then
  srun --nodes="$OTHERS" --ntasks="$OTHERS" --overlap --exclude="$HEAD" \
    ray start --address="$HEAD:$PORT" --num-cpus="$CPUS" --num-gpus="$GPUS" --block &
  sleep "${RAY_START_SECONDS:-20}"
fi

srun --nodes=1 --ntasks=1 --overlap -w "$HEAD" \
  keyhole audit "$PLAN" --on ray --address "$HEAD:$PORT" --gpus-per-piece "$GPUS" \
  --pieces "$RUNS/pieces" --out "$RUNS/whole"
