//! The forms in which users ask Slurm for GPUs, for the matrix.
//!
//! A form is a piece of bash with the functions of `forms.sh`: `run OPTIONS` submits a batch script and prints
//! how it ended, `submit` and `finish` do so in two steps, `waits JOB` prints why a job is pending, `user COMMAND`
//! runs a command as the user. `$P` is the partition, `$N0` to `$N3` are its nodes, `$SCRIPT` is the batch script.

/// A form.
pub(crate) struct Form {
    pub(crate) name: &'static str,
    pub(crate) script: &'static str,
}

const fn form(name: &'static str, script: &'static str) -> Form {
    Form { name, script }
}

pub(crate) const FORMS: &[Form] = &[
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
    form("gpu-bind", "SCRIPT=\"srun bash -c '$FACTS'\"; run --gpus=2 -n2 --gpu-bind=single:1"),
    // Without a batch script.
    form("srun from a shell", "user srun -p $P --gres=gpu:1 bash -c \"$FACTS\" 2> /dev/null"),
    form("srun from a shell, exit code", "user srun -p $P --gres=gpu:1 bash -c 'exit 4' 2> /dev/null; echo $?"),
    form("salloc", "user salloc -Q -p $P --gres=gpu:1 srun bash -c \"$FACTS\""),
    form("salloc, gpus", "user salloc -Q -p $P --gpus=2 srun -n1 bash -c \"$FACTS\""),
    form("salloc, step of a GPU", "user salloc -Q -p $P -n2 --gres=gpu:2 srun -n1 --gpus=1 --exact bash -c \"$FACTS\""),
];
