//! Jobs of a cluster that keeps the queue, as Slurm does. Events are made by hand, and so is the time.

#![allow(clippy::unwrap_used)]

mod cluster;
mod import;
mod lifecycle;
mod lost_nodes;
mod random;
mod restart;
mod waits;

use cluster::cycle::{TestDaemon, imported, job};
use cluster::{TestCluster, exit, kept, submission};
use tandem_backends::{
    BackendEvent, ClusterJob, Exit, ExitCause, ExitStatus, Op, OpId, RecoveredRun, RunHandle, RunId,
};
use tandem_daemon::job::JobState;
use tandem_daemon::journal::replay;
use tandem_daemon::scheduler::{Active, Fact, Input, Kept, Phase};
