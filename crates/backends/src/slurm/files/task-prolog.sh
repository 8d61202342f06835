#!/bin/sh
# Slurm's TaskProlog, as the user before each task: what it prints becomes part of the environment.
sock="/run/tandem/slurm/$SLURM_JOB_ID.sock"
if [ -S "$sock" ]; then
	echo "export TANDEM_SOCK=$sock"
	echo "export TANDEM_JOB_ID=$SLURM_JOB_ID"
fi
# A share names its GPU, which srun inside of the job would ask for again and not get.
if [ -n "$SLURM_SHARDS_ON_NODE" ] && [ -z "$SLURM_STEP_GRES" ]; then
	echo "export SLURM_STEP_GRES=gres:shard:1"
fi
