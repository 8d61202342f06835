#!/bin/sh
# Slurm's Epilog, as root on a node when a job is over there: ends its relay.
if [ -x "@PROGRAM@" ]; then
	"@PROGRAM@" slurm relay --job "$SLURM_JOB_ID" --stop
fi
exit 0
