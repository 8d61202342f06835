//! Fuzz targets: every reader of what others write. `tests/readers.rs` drives them with a seeded mutator.

mod mutate;

pub use mutate::Mutator;

use tandem_backends::slurm::fuzzing as slurm;
use tandem_daemon::fuzzing as daemon;
use tandem_sim::fuzzing as files;

/// A reader, and real recordings of what it reads.
#[derive(Clone, Copy, Debug)]
pub struct FuzzTarget {
    /// Its name.
    pub name: &'static str,
    /// The reader. It must not panic.
    pub read: fn(&[u8]),
    /// Recordings.
    pub corpus: &'static [&'static [u8]],
}

macro_rules! recorded {
    ($($file:literal),* $(,)?) => { &[$(include_bytes!(concat!("../../../", $file)).as_slice()),*] };
}

/// All targets.
pub const TARGETS: [FuzzTarget; 12] = [
    FuzzTarget {
        name: "request",
        read: daemon::request,
        corpus: recorded!(
            "crates/fuzz/corpus/request/array.json",
            "crates/fuzz/corpus/request/full.json",
            "crates/fuzz/corpus/request/plain.json",
        ),
    },
    FuzzTarget {
        name: "selector",
        read: daemon::selector,
        corpus: &[
            b"1-10:2,14",
            b"last",
            b"afterok:3:4,afterany:7_2",
            b"0-99%4",
            b"user:ann",
            b"1,3-9:3%2",
        ],
    },
    FuzzTarget {
        name: "job_line",
        read: daemon::job_line,
        corpus: recorded!("crates/fuzz/corpus/job_line/steps.jsonl"),
    },
    FuzzTarget {
        name: "output",
        read: daemon::output,
        corpus: recorded!("crates/fuzz/corpus/output/bars.txt"),
    },
    FuzzTarget {
        name: "relay",
        read: slurm::relay,
        corpus: recorded!("crates/fuzz/corpus/relay/handshake.json"),
    },
    FuzzTarget {
        name: "squeue",
        read: slurm::squeue,
        corpus: recorded!(
            "crates/backends/src/slurm/fixtures/squeue-22.05.json",
            "crates/backends/src/slurm/fixtures/squeue-24.05.json",
        ),
    },
    FuzzTarget {
        name: "scontrol",
        read: slurm::nodes,
        corpus: recorded!(
            "crates/backends/src/slurm/fixtures/nodes-24.05.json",
            "crates/backends/src/slurm/fixtures/sinfo-22.05.json",
            "crates/backends/src/slurm/fixtures/sinfo-24.05.json",
        ),
    },
    FuzzTarget {
        name: "slurm_text",
        read: slurm::texts,
        corpus: &[
            b"gpu:a100:4(IDX:0-2),shard:g1:8(2/4,0/4)",
            b"node[01-17,20],gpu[3-5]x",
            b"0-7:2%4",
            b"tandem1:0123456789abcdef:1:2:job:2",
            b"afterok:5(unfulfilled),afterany:6_*(unfulfilled)?after:7+5",
            b"JobId=17 UserId=ann(1000) JobState=COMPLETED ExitCode=0:0 ",
        ],
    },
    FuzzTarget {
        name: "trace",
        read: files::trace,
        corpus: recorded!(
            "examples/trace.csv",
            "crates/sim/tests/fixtures/sacct.txt",
            "crates/sim/tests/fixtures/sacct-p-local.txt",
            "crates/sim/tests/fixtures/sacct-steps.txt",
        ),
    },
    FuzzTarget {
        name: "table",
        read: files::table,
        corpus: recorded!(
            "examples/conv_4_fwd.csv",
            "examples/copies.csv",
            "examples/pairs.csv",
            "examples/pairs.json",
            "examples/placements.csv",
            "examples/shares.csv",
            "examples/solo.csv",
        ),
    },
    FuzzTarget {
        name: "cluster",
        read: files::cluster,
        corpus: recorded!("examples/cluster.toml", "examples/partitions.csv"),
    },
    FuzzTarget {
        name: "model",
        read: files::model,
        corpus: recorded!("crates/fuzz/corpus/model/small.json"),
    },
];
