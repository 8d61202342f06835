//! The forms in which users ask Slurm for GPUs, for the matrix.
//!
//! A form is a piece of bash with the functions of `forms.sh`: `run OPTIONS` submits a batch script and prints
//! how it ended, `submit` and `finish` do so in two steps, `waits JOB` prints why a job is pending, `user COMMAND`
//! runs a command as the user. `$P` is the partition, `$N0` to `$N3` are its nodes, `$SCRIPT` is the batch script.

/// A form, and where it is meant to differ from plain Slurm.
pub(crate) struct Form {
    pub(crate) name: &'static str,
    pub(crate) script: &'static str,
    /// The versions on which the outcome differs on purpose, and why. docs/slurm.md names them too.
    pub(crate) differs: Option<(On, &'static str)>,
    /// It changes nodes, or must not meet other jobs: nothing runs beside it.
    pub(crate) alone: bool,
}

/// Versions of Slurm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum On {
    Every,
    /// 22.05, where steps of shares have fewer options.
    Old,
    /// All but 22.05.
    New,
}

const fn form(name: &'static str, script: &'static str) -> Form {
    Form { name, script, differs: None, alone: false }
}

impl Form {
    const fn differs(self, on: On, why: &'static str) -> Self {
        Self { differs: Some((on, why)), ..self }
    }

    const fn alone(self) -> Self {
        Self { alone: true, ..self }
    }
}

pub(crate) const FORMS: &[Form] = &[
    // Requests.
    form("gres=gpu:1", "run --gres=gpu:1"),
    form("gres=gpu", "run --gres=gpu"),
    form("gres=gpu:0", "run --gres=gpu:0"),
    form("gres=gpu:2", "run --gres=gpu:2"),
    form("gres=gpu:4", "run --gres=gpu:4"),
    form("gres=gpu:5", "run --gres=gpu:5"),
    form("gpus=1", "run --gpus=1"),
    form("-G 1", "run -G 1"),
    form("gpus-per-node=1", "run --gpus-per-node=1"),
    form("gpus-per-task=1", "run -n1 --gpus-per-task=1"),
    form("gpus-per-task=1 of two tasks", "run -N1 -n2 --gpus-per-task=1"),
    form("gpus=4 on a node", "run -N1 --gpus=4"),
    form("gpus=6 on two nodes", "SCRIPT=$TOTAL; run -N2 --gpus=6"),
    form("gpus=5 on any nodes", "SCRIPT=$TOTAL; run --gpus=5"),
    form("gpus and gres", "run --gpus=1 --gres=gpu:1"),
    form("gpus and gpus-per-node", "run -N1 --gpus-per-node=2 --gpus=2"),
    form("a kind of GPU", "SCRIPT=$DEVICE; run --gres=gpu:g2:1"),
    form("a kind of GPU, gpus", "SCRIPT=$DEVICE; run --gpus=g3:1"),
    form("GPU and shards", "run --gres=gpu:1,shard:5"),
    form("shards", "run --gres=shard:30")
        .differs(On::Every, "shares are given by Tandem; a request for shards is refused"),
    form("no GPU", "run"),
    // Nodes, CPUs, memory.
    form("two nodes", "SCRIPT=\"srun bash -c '$FACTS'\"; run -N2 --gres=gpu:1"),
    form("two nodes, gpus=2", "SCRIPT=$TOTAL; run -N2 --gpus=2"),
    form("one or two nodes", "SCRIPT=$TOTAL; run -N1-2 --gpus=2"),
    form("cpus-per-task", "run -n1 -c8 --gres=gpu:1"),
    form("cpus-per-task, gpus-per-task", "run -n1 -c8 --gpus-per-task=1"),
    form("cpus-per-gpu", "run --gpus=1 --cpus-per-gpu=4"),
    form("cpus-per-gpu, gres", "run --gres=gpu:1 --cpus-per-gpu=4"),
    form("mem-per-gpu", "run --gpus=1 --mem-per-gpu=1000"),
    form("ntasks-per-gpu", "run --gpus=1 --ntasks-per-gpu=2"),
    form("mem", "run --mem=60000 --gres=gpu:1"),
    form("more memory than a node has", "run --mem=70000 --gres=gpu:1"),
    form("more CPUs than a node has", "run -N1 -n1 -c65 --gres=gpu:1"),
    form("two jobs that need the memory of a node each", "a=$(submit --mem=40000 --gres=gpu:1 -w $N1)
        b=$(submit --mem=40000 --gres=gpu:1 -w $N1); finish $a; finish $b").alone(),
    form("exclusive", "run --exclusive --gres=gpu:1"),
    form("exclusive without a request", "run --exclusive"),
    // Constraints.
    form("node list", "SCRIPT=$NODE; run -w $N3 --gres=gpu:1"),
    form("node list, gpus", "SCRIPT=$NODE; run -w $N2 --gpus=1"),
    form("excluded nodes", "SCRIPT=$NODE; run -x $N0,$N1,$N2 --gres=gpu:1"),
    form("all nodes excluded", "run -x $N0,$N1,$N2,$N3 --gres=gpu:1"),
    form("feature", "SCRIPT=$NODE; run -C big --gres=gpu:1"),
    form("two features", "SCRIPT=$NODE; run -C 'big&new' --gres=gpu:1"),
    form("one of two features", "run -C 'big|none' --gres=gpu:1"),
    form("unknown feature", "run -C nosuch --gres=gpu:1"),
    form("unknown node", "run -w n99 --gres=gpu:1"),
    form("two partitions", "run -p $P,plain --gres=gpu:1"),
    form("license", "run -L spare:1 --gres=gpu:1"),
    form("two licenses in turn", "SCRIPT='sleep 2'; a=$(submit -L spare:2 --gres=gpu:1)
        b=$(submit -L spare:2 --gres=gpu:1); finish $a; finish $b").alone(),
    form("unknown license", "run -L none:1 --gres=gpu:1"),
    form("own reservation", "reserve $N1 $USER_NAME; SCRIPT=$NODE; run --reservation=$RESERVATION --gres=gpu:1
        unreserve").alone(),
    form("nodes reserved for another user", "reserve $N0,$N1,$N2 root; SCRIPT=$NODE
        a=$(submit --gres=gpu:1); b=$(submit --gres=gpu:1); finish $a; finish $b; unreserve").alone(),
    form("unknown reservation", "run --reservation=none --gres=gpu:1"),
    // Holds and times.
    form("hold at submission", "a=$(submit -H --gres=gpu:1); waits $a; user scancel $a; finish $a"),
    form("hold and release", "a=$(submit -H --gres=gpu:1); user scontrol release $a; finish $a"),
    form("scontrol hold", "a=$(submit --begin=now+3 --gres=gpu:1); user scontrol hold $a; sleep 3; waits $a
        user scontrol release $a; finish $a"),
    form("hold of an operator", "a=$(submit --begin=now+3 --gres=gpu:1); scontrol hold $a; sleep 3; waits $a
        user scontrol release $a 2>&1 | grep -c denied; waits $a; scontrol release $a; finish $a"),
    form("begin", "a=$(submit --begin=now+8 --gres=gpu:1); waits $a; finish $a"),
    form("begin in a day", "a=$(submit --begin=now+1day --gres=gpu:1); waits $a; user scancel $a; finish $a"),
    form("deadline", "run --deadline=now+2hours -t 1 --gres=gpu:1"),
    form("nice", "run --nice=100 --gres=gpu:1"),
    form("time limit of the partition", "a=$(submit -t 3000 --gres=gpu:1); waits $a; user scancel $a; finish $a"),
    form("signal before the end", "SCRIPT='trap \"echo got; exit 0\" USR1; sleep 30 & wait'
        run --signal=B:USR1@50 -t 1 --gres=gpu:1"),
    // Arrays and dependencies.
    form("array", "run --array=1-4 --gres=gpu:1"),
    form("array, two at a time", "SCRIPT='sleep 1'; run --array=1-4%2 --gres=gpu:1"),
    form("task of an array cancelled", "SCRIPT='sleep 3'; a=$(submit --array=1-3 --gres=gpu:1)
        user scancel ${a}_2; finish $a"),
    form("afterok", "a=$(submit --gres=gpu:1); b=$(submit -d afterok:$a --gres=gpu:1); finish $a; finish $b"),
    form("afterany", "SCRIPT='exit 1'; a=$(submit --gres=gpu:1); SCRIPT=$FACTS
        b=$(submit -d afterany:$a --gres=gpu:1); finish $a; finish $b"),
    form("afterok of a job that fails", "SCRIPT='exit 1'; a=$(submit --gres=gpu:1); SCRIPT=$FACTS
        b=$(submit -d afterok:$a --kill-on-invalid-dep=yes --gres=gpu:1); finish $a; finish $b"),
    form("singleton", "SCRIPT='sleep 1'; a=$(submit -J one --gres=gpu:1); b=$(submit -J one -d singleton --gres=gpu:1)
        finish $a; finish $b"),
    // Ends.
    form("exit code", "SCRIPT='exit 3'; run --gres=gpu:1"),
    form("scancel of a running job", "SCRIPT='exec sleep 100'; a=$(submit --gres=gpu:1); runs $a; user scancel $a
        finish $a | sed s/0:9/0:15/"),
    form("scancel of a pending job", "a=$(submit -H --gres=gpu:1); user scancel $a; finish $a"),
    form("no-requeue", "SCRIPT='scontrol show job $SLURM_JOB_ID | grep -o Requeue=.'; run --no-requeue --gres=gpu:1"),
    form("requeue", "SCRIPT='echo started $SLURM_RESTART_COUNT; [ -n \"$SLURM_RESTART_COUNT\" ] || sleep 100'
        a=$(submit --requeue --gres=gpu:1); runs $a; user scontrol requeue $a
        hurry $a; finish $a"),
    form("heterogeneous job", "run --gres=gpu:1 : -p $P --gres=gpu:2"),
    form("test only", "user sbatch --test-only -p $P --gres=gpu:1 --wrap true 2>&1 | grep -c 'to start'")
        .differs(On::New, "Slurm tests the license of the gate too, and finds it reserved"),
    // Changes by the user.
    form("time limit changed", "a=$(submit -H --gres=gpu:1); user scontrol update jobid=$a timelimit=7
        scontrol show job $a | grep -o 'TimeLimit=[0-9:]*'; user scontrol release $a; finish $a"),
    form("nice changed", "a=$(submit --begin=now+8 --gres=gpu:1); user scontrol update jobid=$a nice=5
        waits $a; finish $a"),
    form("name changed", "a=$(submit -H --gres=gpu:1); user scontrol update jobid=$a name=other
        scontrol show job $a | grep -o 'JobName=[a-z]*'; user scontrol release $a; finish $a"),
    form("suspended by an operator", "SCRIPT='sleep 4'; a=$(submit --gres=gpu:1); runs $a; scontrol suspend $a
        sleep 3; waits $a; scontrol resume $a; finish $a"),
    // Steps.
    form("gres, srun", "SCRIPT=\"srun bash -c '$FACTS'\"; run --gres=gpu:1"),
    form("gpus, srun", "SCRIPT=\"srun bash -c '$FACTS'\"; run --gpus=1"),
    form("gpus-per-node, srun", "SCRIPT=\"srun bash -c '$FACTS'\"; run --gpus-per-node=1"),
    form("gpus-per-task, srun", "SCRIPT=\"srun bash -c '$FACTS'\"; run -n1 --gpus-per-task=1"),
    form("srun --gres=gpu:1", "SCRIPT=\"srun --gres=gpu:1 bash -c '$FACTS'\"; run --gres=gpu:1"),
    form("srun --gpus=1", "SCRIPT=\"srun --gpus=1 bash -c '$FACTS'\"; run --gres=gpu:1"),
    form("srun --gpus-per-task=1", "SCRIPT=\"srun -n1 --gpus-per-task=1 bash -c '$FACTS'\"; run --gres=gpu:1"),
    form("srun --gres=none", "SCRIPT=\"srun --gres=none bash -c '$FACTS'\"; run --gres=gpu:1"),
    form("srun --gpus=2 of one", "SCRIPT=\"srun --gpus=2 bash -c '$FACTS' 2> /dev/null\"; run --gres=gpu:1"),
    form("srun of two tasks", "SCRIPT=\"srun bash -c '$FACTS'\"; run -n2 --gres=gpu:1"),
    form("two steps at once", "SCRIPT=\"srun -n1 --exact bash -c '$FACTS' 2> /dev/null &
        srun -n1 --exact bash -c '$FACTS' 2> /dev/null & wait\"; run -n2 --gres=gpu:1"),
    form("srun within srun", "SCRIPT=\"srun --overlap srun --overlap bash -c '$FACTS'\"; run --gres=gpu:1"),
    form("srun joins a job", "SCRIPT='sleep 8'; a=$(submit --gres=gpu:1); runs $a
        user srun --jobid=$a --overlap bash -c \"$FACTS\"; user srun --jobid=$a --overlap --gpus=1 bash -c \"$FACTS\"
        finish $a"),
    form("a GPU for each task", "SCRIPT=\"srun --gpus-per-task=1 bash -c '$FACTS'\"; run -n2 --gres=gpu:2"),
    form("a GPU for each task of two nodes", "SCRIPT=\"srun --gpus-per-task=1 bash -c '$FACTS'\"
        run -N2 --ntasks-per-node=2 --gres=gpu:2"),
    form("gpu-bind", "SCRIPT=\"srun bash -c '$FACTS'\"; run -N1 --gpus=2 -n2 --gpu-bind=single:1"),
    form(
        "srun --gpu-bind of two tasks",
        "SCRIPT=\"srun --gpu-bind=none bash -c '$FACTS' 2> /dev/null\"; run -n2 --gres=gpu:1",
    )
    .differs(On::Old, "a step of a share with several tasks cannot take a binding back there"),
    form(
        "srun --cpus-per-gpu",
        "SCRIPT=\"srun --gpus=1 --cpus-per-gpu=1 bash -c '$FACTS' 2> /dev/null\"; run --gres=gpu:1",
    )
    .differs(On::Every, "a step of a share has no GPUs to count CPUs by"),
    // Without a batch script.
    form("srun from a shell", "user srun -p $P --gres=gpu:1 bash -c \"$FACTS\" 2> /dev/null"),
    form("srun from a shell, gpus", "user srun -p $P -n2 --gpus=1 bash -c \"$FACTS\" 2> /dev/null"),
    form("srun from a shell, exit code", "user srun -p $P --gres=gpu:1 bash -c 'exit 4' 2> /dev/null; echo $?"),
    form("salloc", "user salloc -Q -p $P --gres=gpu:1 srun bash -c \"$FACTS\""),
    form("salloc, gpus", "user salloc -Q -p $P -N1 --gpus=2 srun -n1 bash -c \"$FACTS\""),
    form("salloc, step of a GPU", "user salloc -Q -p $P -n2 --gres=gpu:2 srun -n1 --gpus=1 --exact bash -c \"$FACTS\""),
];
