//! How a job is started: its command and environment, or its id in the cluster.

use super::Setup;
use super::active::Active;
use crate::job::StoredJob;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use tandem_backends::{DeviceAllocation, Launch, Op, Owner};

/// Starts the process of a job, or the job in its cluster.
pub(super) fn start_op(active: &Active, allocation: DeviceAllocation, setup: &Setup) -> Op {
    match active.job.external.clone() {
        Some(external) => {
            let (run, exclusive) = (active.run(), active.job.request.exclusive);
            Op::Place { run, external, devices: allocation.devices, exclusive }
        }
        None => Op::Start(Box::new(launch(active, allocation, setup))),
    }
}

/// What the back end needs. The environment that the user submitted is added where it is stored.
fn launch(active: &Active, allocation: DeviceAllocation, setup: &Setup) -> Launch {
    let job = &active.job;
    Launch {
        run: active.run(),
        command: job.command(),
        env: environment(active, &allocation, setup),
        dir: job.request.dir.clone(),
        stdout: job.stdout(),
        stderr: job.stderr(),
        append: job.runs > 1,
        owner: Some(Owner { uid: job.uid, gid: job.gid }),
        memory_limit_bytes: memory_limit(active, &allocation, setup),
        process: setup.process.clone(),
        allocation,
    }
}

/// The variables that tell a job about itself.
fn environment(
    active: &Active,
    allocation: &DeviceAllocation,
    setup: &Setup,
) -> BTreeMap<String, String> {
    let job = &active.job;
    let share = f64::from(allocation.share_ppm) / 1e6;
    let mut env = BTreeMap::from([
        ("TANDEM_JOB_ID".to_owned(), job.id.to_string()),
        ("TANDEM_RUN".to_owned(), job.runs.to_string()),
        ("TANDEM_ACCUM".to_owned(), allocation.sub_batches.to_string()),
        ("TANDEM_GPU_SHARE".to_owned(), share.to_string()),
        ("TANDEM_SOCK".to_owned(), socket(&setup.sockets, job.id).to_string_lossy().into_owned()),
    ]);
    if allocation.memory_bytes > 0 {
        env.insert("TANDEM_GPU_MEMORY_LIMIT".to_owned(), allocation.memory_bytes.to_string());
    }
    if let Some(task) = job.task {
        env.insert("TANDEM_ARRAY_JOB_ID".to_owned(), task.first.to_string());
        env.insert("TANDEM_ARRAY_TASK_ID".to_owned(), task.number.to_string());
    }
    if job.request.slurm_env {
        env.extend(slurm_environment(job, allocation));
    }
    for (name, value) in job.params() {
        env.insert(format!("TANDEM_PARAM_{}", name.to_uppercase()), value.to_owned());
    }
    env
}

/// The variables that Slurm sets. `SLURM_NTASKS` is not among them, as with `sbatch` unless it is asked for:
/// frameworks take it for the sign of a job that `srun` started.
fn slurm_environment(job: &StoredJob, allocation: &DeviceAllocation) -> BTreeMap<String, String> {
    let devices: Vec<String> = allocation.devices.iter().map(u32::to_string).collect();
    let mut env = BTreeMap::from([
        ("SLURM_JOB_ID", job.id.to_string()),
        ("SLURM_JOBID", job.id.to_string()),
        ("SLURM_JOB_NAME", job.name()),
        ("SLURM_JOB_USER", job.user.clone()),
        ("SLURM_JOB_UID", job.uid.to_string()),
        ("SLURM_JOB_PARTITION", "local".to_owned()),
        ("SLURM_JOB_NUM_NODES", "1".to_owned()),
        ("SLURM_NNODES", "1".to_owned()),
        ("SLURM_NODEID", "0".to_owned()),
        ("SLURM_PROCID", "0".to_owned()),
        ("SLURM_LOCALID", "0".to_owned()),
        ("SLURM_JOB_GPUS", devices.join(",")),
        ("SLURM_GPUS_ON_NODE", devices.len().to_string()),
        ("SLURM_RESTART_COUNT", job.runs.saturating_sub(1).to_string()),
    ]);
    if let Some(task) = job.task {
        env.insert("SLURM_ARRAY_JOB_ID", task.first.to_string());
        env.insert("SLURM_ARRAY_TASK_ID", task.number.to_string());
        let tasks = job.request.tasks().ok();
        let count = tasks.as_ref().map_or(0, |tasks| tasks.count());
        let numbers: Vec<u32> =
            (0..count).filter_map(|index| tasks.as_ref()?.number(index)).collect();
        if let (Some(least), Some(most)) = (numbers.iter().min(), numbers.iter().max()) {
            env.insert("SLURM_ARRAY_TASK_COUNT", numbers.len().to_string());
            env.insert("SLURM_ARRAY_TASK_MIN", least.to_string());
            env.insert("SLURM_ARRAY_TASK_MAX", most.to_string());
            let step = numbers.windows(2).map(|two| two[1].abs_diff(two[0])).min();
            env.insert("SLURM_ARRAY_TASK_STEP", step.unwrap_or(1).to_string());
        }
    }
    env.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

/// Declared memory is a limit, because co-located jobs were placed on the strength of it. Learned memory is
/// none: the job promised nothing. A job that is retried alone after it ran out of memory may use all of its
/// devices' memory.
fn memory_limit(active: &Active, allocation: &DeviceAllocation, setup: &Setup) -> Option<u64> {
    let declared = active.job.request.gpu_memory_bytes.filter(|&bytes| bytes > 0)?;
    let of = |&device: &u32| setup.devices.get(device as usize).map_or(0, |one| one.memory_bytes);
    let each =
        |device: &u32| if active.job.oom_retried { declared.max(of(device)) } else { declared };
    Some(allocation.devices.iter().map(each).fold(0, u64::saturating_add))
}

/// The socket of a job.
pub(crate) fn socket(sockets: &Path, job: u64) -> PathBuf {
    sockets.join(format!("{job}.sock"))
}
