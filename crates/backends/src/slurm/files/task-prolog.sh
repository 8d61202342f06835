#!/bin/sh
# Slurm's TaskProlog, which runs as the user before each task: its output changes the task's environment.
sock="/run/tandem/slurm/$SLURM_JOB_ID.sock"
if [ -S "$sock" ]; then
	echo "export TANDEM_SOCK=$sock"
	echo "export TANDEM_JOB_ID=$SLURM_JOB_ID"
fi
