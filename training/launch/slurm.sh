#!/usr/bin/env bash
# Train on several machines under Slurm:   sbatch training/launch/slurm.sh training/recipes/base-en-de.toml
#
# Ninety seconds before its time is over the job gets SIGTERM: the run saves, and the job is put back into the queue,
# where it goes on from the newest checkpoint. So it is after an error, if the job has saved a checkpoint before.
# output_dir has to be on a disk that all machines reach.
#SBATCH --job-name=vaswani
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=32
#SBATCH --time=04:00:00
#SBATCH --signal=TERM@90
#SBATCH --requeue
#SBATCH --open-mode=append
set -uo pipefail

output_dir=$(python -c 'import sys; from training.recipe import parse_settings
print(parse_settings(sys.argv[1:]).run.output_dir)' "$@") || exit
newest() { ls -d "$output_dir"/checkpoints/step-* 2> /dev/null | tail -n 1; }
before=$(newest)

first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export first

# torchrun on every machine; accelerate finds the processes that it starts.
srun bash -c 'exec torchrun \
    --nnodes "$SLURM_NNODES" --nproc_per_node "$SLURM_GPUS_ON_NODE" --node_rank "$SLURM_NODEID" \
    --master_addr "$first" --master_port 29500 \
    training/run.py "$@" --resume_from_checkpoint latest' run "$@"

# A run that is not done leaves no model yet, or that of its recipe before it was extended. It goes on where this job
# has brought it further: one that fails at once would be put back for ever.
if ! { [ -e "$output_dir/model/README.md" ] && cmp -s "$output_dir"{,/model}/recipe.toml; } \
    && [ "$(newest)" != "$before" ]; then
    scontrol requeue "$SLURM_JOB_ID"
fi
