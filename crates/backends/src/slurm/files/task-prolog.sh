#!/bin/sh
# Slurm's TaskProlog, which runs as the user before each task: its output changes the task's environment.
sock="/run/tandem/slurm/$SLURM_JOB_ID.sock"
if [ -S "$sock" ]; then
	echo "export TANDEM_SOCK=$sock"
	echo "export TANDEM_JOB_ID=$SLURM_JOB_ID"
fi
# A shared job has shards of a certain GPU. srun inside of the job would request them again and fail.
if [ -n "$SLURM_SHARDS_ON_NODE" ] && [ -z "$SLURM_STEP_GRES" ]; then
	echo "export SLURM_STEP_GRES=gres:shard:1"
fi
