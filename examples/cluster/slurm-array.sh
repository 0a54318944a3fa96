#!/bin/bash
# sbatch --array=1-16 slurm-array.sh plan.toml
# Each job runs every sixteenth piece; a job that was stopped continues when it is submitted again.
#SBATCH --job-name=keyhole
#SBATCH --cpus-per-task=4
#SBATCH --mem=16G
#SBATCH --time=04:00:00
#SBATCH --requeue
#SBATCH --output=keyhole-%A-%a.log
set -euo pipefail

PLAN=${1:?name a plan: sbatch --array=1-16 slurm-array.sh plan.toml}
RUNS=${KEYHOLE_RUNS:-runs}         # a folder that all nodes share
FIRST=${SLURM_ARRAY_TASK_MIN:-1}
SHARDS=${SLURM_ARRAY_TASK_COUNT:?submit this script with --array=1-16}
SHARD=$((SLURM_ARRAY_TASK_ID - FIRST + 1))

export OMP_NUM_THREADS=${SLURM_CPUS_PER_TASK:-1}
keyhole audit "$PLAN" \
  --shard "$SHARD/$SHARDS" \
  --cpus-per-piece "${SLURM_CPUS_PER_TASK:-1}" \
  --pieces "$RUNS/pieces" \
  --out "$RUNS/shard-$SHARD-of-$SHARDS"
