#!/bin/bash
# A campaign as a Slurm array: each task runs a share of one seed's traces in a folder of its own. Submit it, then merge:
#
#   job=$(sbatch --parsable --export=ALL,SEED=$(date +%Y%m%d) slurm-array.sh)
#   srun --dependency=afterany:$job hybridfuzz merge night/* -o all --junit all.xml
#
# A task that Slurm requeues after a node failure continues where it was: same command, same folder.
#SBATCH --job-name=hybridfuzz
#SBATCH --array=1-64
#SBATCH --cpus-per-task=8
#SBATCH --mem-per-cpu=3G
#SBATCH --time=08:30:00
#SBATCH --requeue
#SBATCH --output=hybridfuzz-%a.log
# Slurm sends SIGTERM before the time is up: the campaign then ends with its outputs.
#SBATCH --signal=B:TERM@120
set -euo pipefail
exec hybridfuzz fuzz --target "${TARGET:-vllm@0.33.0}" --seed "${SEED:?}" --shard "$SLURM_ARRAY_TASK_ID/$SLURM_ARRAY_TASK_COUNT" --time "${TIME:-8h}" --jobs "$SLURM_CPUS_PER_TASK" -o "night/$SLURM_ARRAY_TASK_ID"
