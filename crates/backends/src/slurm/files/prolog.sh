#!/bin/sh
# Slurm's Prolog, as root on a node before a job begins there: starts the relay through which a job of
# Tandem reports to the daemon. Never fails a job.
if [ -n "@ADDRESS@" ] && [ -x "@PROGRAM@" ]; then
	"@PROGRAM@" slurm relay --to "@ADDRESS@" --secret-file "@SECRET@" \
		--job "$SLURM_JOB_ID" --uid "$SLURM_JOB_UID" --detach
fi
exit 0
