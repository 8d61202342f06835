#!/bin/sh
# Slurm's Epilog, which runs as root on a node after a job: stops its relay.
if [ -x "@PROGRAM@" ]; then
	"@PROGRAM@" slurm relay --job "$SLURM_JOB_ID" --stop
fi
exit 0
