#!/bin/bash
# JOB=$(sbatch --parsable --array=1-16 slurm-array.sh plan.toml)
# sbatch --dependency=afterok:$JOB slurm-merge.sh 16
#SBATCH --job-name=keyhole-merge
#SBATCH --cpus-per-task=1
#SBATCH --mem=8G
#SBATCH --time=00:20:00
#SBATCH --output=keyhole-merge-%j.log
set -euo pipefail

SHARDS=${1:?say how many shards there are: sbatch slurm-merge.sh 16}
RUNS=${KEYHOLE_RUNS:-runs}
PARTS=()
for ((SHARD = 1; SHARD <= SHARDS; SHARD++)); do
  PARTS+=("$RUNS/shard-$SHARD-of-$SHARDS")
done
keyhole merge "${PARTS[@]}" --out "$RUNS/whole" --fresh
