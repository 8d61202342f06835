#!/bin/sh
# Slurm's Prolog, which runs as root on a node before a job starts: starts the relay through which the job
# reports to the daemon. Never fails a job.
if [ -n "@ADDRESS@" ] && [ -x "@PROGRAM@" ]; then
	"@PROGRAM@" slurm relay --to "@ADDRESS@" --secret-file "@SECRET@" \
		--job "$SLURM_JOB_ID" --uid "$SLURM_JOB_UID" --detach
fi
exit 0
