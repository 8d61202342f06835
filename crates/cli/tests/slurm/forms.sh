# The functions of the forms in forms.rs. Runs as root; environment: P N0 N1 N2 N3 HERE USER_NAME USER_ID GROUP_ID.

COUNT='count() { echo -n "$1" | tr , "\n" | grep -c .; };'
# What a script sees of its job.
FACTS='count() { echo -n "$1" | tr , "\n" | grep -c .; }; echo "gpus=$(count $CUDA_VISIBLE_DEVICES) of $(count $SLURM_JOB_GPUS), on node $SLURM_GPUS_ON_NODE, nodes $SLURM_JOB_NUM_NODES, cpus $SLURM_CPUS_ON_NODE, tasks $SLURM_NTASKS"'
# GPUs of all nodes together, where Slurm is free to choose how many each gives.
TOTAL='srun --ntasks-per-node=1 -n $SLURM_JOB_NUM_NODES bash -c "echo -n \$CUDA_VISIBLE_DEVICES, | tr -d \"\\n\"" | tr , "\n" | grep -c .'
NODE='echo "node $((${SLURMD_NODENAME#n} % 4)), gpus $SLURM_GPUS_ON_NODE"'
DEVICE='echo "devices $CUDA_VISIBLE_DEVICES"'
SCRIPT=$FACTS
RESERVATION=r-$P

user() { setpriv --reuid="$USER_ID" --regid="$GROUP_ID" --clear-groups "$@" < /dev/null; }

# Submits $SCRIPT with these options and prints the job's id; "refused" if Slurm does not take it.
submit() {
	local file
	file=$(mktemp "$HERE/XXXXXX.sh")
	printf '#!/bin/bash\n%s\n' "$SCRIPT" > "$file"
	chmod 755 "$file"
	user sbatch --parsable -t 5 -p "$P" -o "$HERE/%j.out" "$@" "$file" 2> "$HERE/errors" || echo refused
}

field() { scontrol show job -o "$1" 2> /dev/null | grep -o " $2=[^ ]*" | sed 's/.*=//' | sort -u | tr '\n' ' '; }

# Waits until a job and its tasks have ended, or for $PATIENCE seconds; prints states, exit codes and output.
finish() {
	local job=$1 end=$((SECONDS + PATIENCE)) lines
	case $job in *[!0-9]* | '') echo "$job"; return ;; esac
	while [ $SECONDS -lt $end ]; do
		lines=$(scontrol show job -o "$job" 2> /dev/null)
		grep -qE ' JobState=(PENDING|RUNNING|SUSPENDED|COMPLETING|CONFIGURING|REQUEUED)' <<< "$lines" || break
		sleep 0.5
	done
	while read -r line; do
		state=$(grep -o ' JobState=[A-Z_]*' <<< "$line"); reason=$(grep -o ' Reason=[^ ]*' <<< "$line")
		case $state in *PENDING) state="$state$reason" ;; esac
		echo "$state$(grep -o ' ExitCode=[0-9:]*' <<< "$line")"
	done <<< "$lines" | sort
	for id in $(grep -o 'JobId=[0-9]*' <<< "$lines" | sed 's/.*=//' | sort -un); do
		# Without Slurm's own messages, which have times and process ids.
		[ ! -s "$HERE/$id.out" ] || grep -vE '^(slurmstepd|\[20)' "$HERE/$id.out"
	done | sort
	! grep -q PENDING <<< "$lines" || scancel "$job"
}

run() { finish "$(submit "$@")"; }

# Waits for 4 seconds and prints the state of a job, and why it is pending.
waits() {
	case $1 in *[!0-9]* | '') echo "$1"; return ;; esac
	sleep 4
	echo "$(field "$1" JobState)$(field "$1" Reason)"
}

# Waits until a job runs.
runs() {
	local end=$((SECONDS + PATIENCE))
	while [ $SECONDS -lt $end ] && [ "$(field "$1" JobState)" != "RUNNING " ]; do sleep 0.3; done
}

# Lets a job that was requeued start at once: Slurm delays it by two minutes.
hurry() {
	local end=$((SECONDS + PATIENCE))
	while [ $SECONDS -lt $end ] && [ "$(field "$1" JobState)" != "PENDING " ]; do sleep 0.3; done
	scontrol update jobid="$1" starttime=now
}

reserve() {
	scontrol create reservation="$RESERVATION" starttime=now duration=5 nodes="$1" users="$2" flags=ignore_jobs > /dev/null
	sleep 3
}

unreserve() { scontrol delete reservation="$RESERVATION"; }
