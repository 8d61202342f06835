//! A trace prepared for a cluster: partitions resolved, jobs checked, sorted and given estimates.

use crate::interference::PairTable;
use crate::profiles::SoloProfiles;
use crate::shares::SharesFile;
use crate::trace::{BadRow, Class, Problem, Trace, TraceError, TraceJob, TraceService};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rand_distr::{Distribution, StandardNormal};
use rustc_hash::FxHashMap;
use std::collections::BTreeMap;
use std::sync::Arc;
use tandem_core::{
    ClassId, Cluster, JobId, JobSpec, MICROS_PER_SECOND, Memory, Occupancy, PartitionId,
    PlacementRule, Ppm, Profile, Promise, Shares, Span, SubBatches, Time, UserId, Utilisation,
};
use tandem_models::history;
use tandem_models::sub_batches;
use tandem_models::throughput::Gang;

/// How the policies' duration estimates are made.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Estimates {
    /// The true durations.
    True,
    /// The estimate column of the trace.
    Trace,
    /// From the jobs that have finished in the run when a job is submitted.
    History,
    /// The true duration × e^(σ·N), N standard normal, seeded.
    Noisy {
        /// σ.
        sigma: f64,
    },
}

/// A load factor as an exact fraction: 1.5 is 15 / 10.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoadFactor {
    numerator: u64,
    denominator: u64,
}

impl LoadFactor {
    /// Load 1: the trace as it is.
    pub const ONE: LoadFactor = LoadFactor { numerator: 1, denominator: 1 };

    /// From decimal text; above zero, with at most nine decimals.
    pub fn parse(text: &str) -> Option<Self> {
        let decimals = text.split_once('.').map_or(0, |(_, fraction)| fraction.len());
        let scale = i32::try_from(decimals).ok().filter(|&scale| scale <= 9)?;
        let numerator = crate::decimal::parse_scaled(text, scale).ok()?;
        let denominator = 10_u64.pow(scale.unsigned_abs());
        let in_range = numerator > 0 && numerator <= denominator.saturating_mul(1_000_000);
        in_range.then_some(Self { numerator, denominator })
    }

    /// The submission time of a job in a trace that begins at `first`: inter-arrival times are divided by the
    /// load, in whole seconds, rounded down. Saturates.
    fn apply(self, first: Time, submit: Time) -> Time {
        if self.numerator == self.denominator {
            return submit;
        }
        let scaled = u128::from(submit.since(first).0) * u128::from(self.denominator)
            / u128::from(self.numerator)
            / u128::from(MICROS_PER_SECOND);
        first + Span::from_secs(u64::try_from(scaled).unwrap_or(u64::MAX))
    }
}

/// Options of a workload.
#[derive(Clone, Copy, Debug)]
pub struct WorkloadOptions {
    /// How durations are estimated.
    pub estimates: Estimates,
    /// Divides the inter-arrival times.
    pub load: LoadFactor,
    /// Seed of everything that is drawn at random.
    pub seed: u64,
    /// How GPUs are chosen for a job of its own: a gang that can never be placed is refused here.
    pub placement: PlacementRule,
    /// Memory of each tenant's context.
    pub context: Memory,
    /// Skip and count unusable jobs instead of refusing the trace.
    pub skip_bad: bool,
}

impl Default for WorkloadOptions {
    fn default() -> Self {
        Self {
            estimates: Estimates::True,
            load: LoadFactor::ONE,
            seed: 1,
            placement: PlacementRule::Strict,
            context: Memory::default(),
            skip_bad: false,
        }
    }
}

/// A job of a workload.
#[derive(Clone, Debug)]
pub struct WorkloadJob {
    /// What the scheduler is told.
    pub spec: JobSpec,
    /// True solo duration.
    pub duration: Span,
    /// The partition that the trace names, by its number there; [`UNNAMED`] if it names none.
    named_partition: u32,
    /// Position in the file.
    file_index: u32,
}

const UNNAMED: u32 = u32::MAX;

// Jobs reuse the memory of their rows, which requires that they are no larger.
const _: () = assert!(size_of::<WorkloadJob>() <= size_of::<TraceJob>());

impl WorkloadJob {
    /// A job without a trace.
    pub(crate) fn assumed(spec: JobSpec, duration: Span) -> Self {
        Self { spec, duration, named_partition: UNNAMED, file_index: 0 }
    }

    /// The partition that the trace names, by its number there, even if the cluster ignores it.
    pub(crate) fn named_partition(&self) -> Option<u32> {
        (self.named_partition != UNNAMED).then_some(self.named_partition)
    }
}

/// Jobs to simulate, by `JobId`: in order of submission.
#[derive(Clone, Debug)]
pub struct Workload {
    /// The hardware.
    pub cluster: Arc<Cluster>,
    /// By `JobId`.
    pub jobs: Vec<WorkloadJob>,
    /// Names and ids; its jobs have moved into the workload.
    pub trace: Trace,
    /// How durations are estimated.
    pub estimates: Estimates,
}

impl Workload {
    /// Checks `trace` against `cluster` and sorts it.
    pub fn new(
        mut trace: Trace,
        cluster: Arc<Cluster>,
        file: &str,
        options: &WorkloadOptions,
    ) -> Result<Self, TraceError> {
        let mut admission = Admission::new(&trace, &cluster, options);
        let mut bad = Vec::new();
        let mut ids = (0..).map(JobId);
        // The rows are not needed any more, so the jobs reuse their memory.
        let rows = std::mem::take(&mut trace.jobs);
        let mut jobs: Vec<WorkloadJob> = rows
            .into_iter()
            .enumerate()
            .filter_map(|(index, row)| match admission.check(&trace, &row) {
                Ok(partition) => {
                    let id = ids.next().expect("jobs are counted in u32");
                    Some(prepare(&row, id, index, partition, options.estimates))
                }
                Err(row) => {
                    bad.push(row);
                    None
                }
            })
            .collect();
        if !options.skip_bad && !bad.is_empty() {
            return Err(TraceError::Row { file: file.to_owned(), row: bad.swap_remove(0) });
        }
        trace.skipped.append(&mut bad);
        if jobs.is_empty() {
            return Err(TraceError::File { file: file.to_owned(), problem: Problem::NoJobs });
        }
        if options.load != LoadFactor::ONE {
            let first = jobs.iter().map(|job| job.spec.submit).min().unwrap_or_default();
            for job in &mut jobs {
                job.spec.submit = options.load.apply(first, job.spec.submit);
            }
        }
        // Most traces are sorted, and every pass over a long one costs time.
        if !jobs.is_sorted_by_key(|job| job.spec.submit) {
            // Stable: jobs of one submission time stay in file order.
            jobs.sort_by_key(|job| job.spec.submit);
            for (id, job) in (0..).map(JobId).zip(&mut jobs) {
                job.spec.id = id;
            }
        }
        if let Estimates::Noisy { sigma } = options.estimates {
            let mut rng = ChaCha8Rng::seed_from_u64(options.seed);
            for job in &mut jobs {
                job.spec.estimate = noisy(job.duration, sigma, &mut rng);
            }
        }
        Ok(Self { cluster, jobs, trace, estimates: options.estimates })
    }

    /// The shares that a file states among the users of this workload. Charges jobs to its accounts.
    pub fn share(&mut self, file: &SharesFile) -> Shares {
        let Self { jobs, trace, cluster, .. } = self;
        for job in jobs {
            let name = job.spec.share.account.map(|account| trace.accounts.get(account.0));
            job.spec.share.account = name.and_then(|name| file.account_id(name));
        }
        file.resolve(cluster, |name| trace.users.find(&name.to_owned()).map(UserId))
    }

    /// Sets the sub-batch options of every job.
    pub fn offer_sub_batches(&mut self, mut ways: impl FnMut(&JobSpec) -> SubBatches) {
        for job in &mut self.jobs {
            job.spec.sub_batches = ways(&job.spec);
        }
    }

    /// Sets the sub-batch options of jobs whose class was measured at several batch sizes.
    pub fn offer_measured_sub_batches(&mut self, solo: &SoloProfiles) {
        let fits = solo.fits();
        let options = |class: &Class, memory: Memory| {
            let group = Class { batch: None, ..class.clone() };
            let fit = fits.iter().find(|fit| fit.class == group)?;
            let ways = sub_batches(class.batch?, memory, Gang::ONE, &fit.throughput, &fit.memory);
            Some(SubBatches::new(ways))
        };
        // Jobs of a class that declare the same memory share their options.
        let mut known: BTreeMap<(ClassId, Memory), SubBatches> = BTreeMap::new();
        let Self { jobs, trace, .. } = self;
        for job in jobs {
            let Profile { class: Some(class), memory, .. } = job.spec.profile else { continue };
            let ways = known
                .entry((class, memory))
                .or_insert_with(|| options(trace.classes.get(class.0), memory).unwrap_or_default());
            job.spec.sub_batches = ways.clone();
        }
    }

    /// Number of jobs.
    pub fn len(&self) -> usize {
        self.jobs.len()
    }

    /// Whether there are no jobs.
    pub fn is_empty(&self) -> bool {
        self.jobs.is_empty()
    }

    /// What the scheduler is told about a job.
    pub fn spec(&self, job: JobId) -> &JobSpec {
        &self.jobs[job.index()].spec
    }

    /// The true solo duration of a job.
    pub fn duration(&self, job: JobId) -> Span {
        self.jobs[job.index()].duration
    }

    /// The id of a job in the trace.
    pub fn id(&self, job: JobId) -> &str {
        self.trace.ids.get(self.jobs[job.index()].file_index as usize)
    }

    /// The first submission.
    pub(crate) fn first_submit(&self) -> Time {
        self.jobs.first().map_or(Time(0), |job| job.spec.submit)
    }
}

/// What a service counts as when jobs are ranked.
const SERVICE_ESTIMATE: Span = Span::from_secs(60);

fn promise(row: &TraceJob) -> Promise {
    let of_service = |service: TraceService| Promise {
        is_service: true,
        least_rate: service.least_rate(row.gpu_util.unwrap_or(Utilisation::FULL)),
        floor: Ppm::ZERO,
        goes_first: false,
    };
    row.service.map_or_else(Promise::default, of_service)
}

/// A row as a job; load, order and noise are applied when all rows are known.
fn prepare(
    row: &TraceJob,
    id: JobId,
    index: usize,
    partition: PartitionId,
    estimates: Estimates,
) -> WorkloadJob {
    let estimate = match estimates {
        Estimates::True | Estimates::Noisy { .. } => row.duration,
        // Set at submission.
        Estimates::History => history::UNKNOWN,
        Estimates::Trace => row.estimate.expect("admission refuses a job without an estimate"),
    };
    // A service has no end that could come sooner: it is as urgent as a short job.
    let estimate = if row.service.is_some() { SERVICE_ESTIMATE } else { estimate };
    let spec = JobSpec {
        id,
        user: row.user,
        partition,
        submit: row.submit,
        gpus: row.gpus,
        estimate,
        profile: Profile {
            class: row.class,
            memory: row.memory.unwrap_or_default(),
            gpu_util: row.gpu_util,
            bandwidth_util: row.bandwidth_util,
        },
        sub_batches: SubBatches::default(),
        tolerance: row.tolerance,
        promise: promise(row),
        priority: row.priority,
        // A service is never taken from its GPUs.
        stoppable: row.service.is_none(),
        // The value of published systems; policies do not know the true cost.
        restore: Span::from_secs(if row.gpus <= 8 { 40 } else { 60 }),
        share: row.share,
    };
    WorkloadJob {
        spec,
        duration: row.duration,
        named_partition: row.partition.unwrap_or(UNNAMED),
        file_index: u32::try_from(index).expect("jobs are counted in u32"),
    }
}

/// Gives every job a random class of `table`, for traces without models.
pub fn assign_classes(trace: &mut Trace, table: &PairTable, seed: u64) {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    trace.classes = table.classes.clone();
    let count = u32::try_from(table.classes.len()).expect("classes are counted in u32");
    for job in &mut trace.jobs {
        job.class = (count > 0).then(|| ClassId(rng.random_range(0..count)));
    }
}

fn noisy(duration: Span, sigma: f64, rng: &mut ChaCha8Rng) -> Span {
    let normal: f64 = StandardNormal.sample(rng);
    let micros = duration.0 as f64 * (sigma * normal).exp();
    // Between a second and three thousand years, so that sums cannot overflow.
    Span(micros.clamp(1e6, 1e17) as u64)
}

/// Checks whether a job can ever run on the cluster.
struct Admission<'a> {
    cluster: &'a Cluster,
    options: &'a WorkloadOptions,
    /// By the trace's number of a partition name; the last entry is for jobs that name none.
    partitions: Vec<Option<PartitionId>>,
    empty: Occupancy,
    /// Whether a gang size can ever be placed in a partition, as far as computed.
    placeable: FxHashMap<(PartitionId, u32), bool>,
    memory_min: Vec<Memory>,
}

impl<'a> Admission<'a> {
    fn new(trace: &Trace, cluster: &'a Arc<Cluster>, options: &'a WorkloadOptions) -> Self {
        let names = trace.partitions.iter().map(|name| cluster.partition_named(Some(name)));
        let partitions: Vec<_> = names.chain([cluster.partition_named(None)]).collect();
        let empty = Occupancy::new(cluster.clone());
        let ids = (0..).map(PartitionId).take(cluster.partitions().len());
        let memory_min = ids.map(|partition| cluster.memory_min(partition)).collect();
        Self { cluster, options, partitions, empty, placeable: FxHashMap::default(), memory_min }
    }

    fn check(&mut self, trace: &Trace, job: &TraceJob) -> Result<PartitionId, BadRow> {
        let bad =
            |field: &str, problem| BadRow { line: job.line, field: field.to_owned(), problem };
        let number = job.partition.map_or(self.partitions.len() - 1, |p| p as usize);
        let Some(partition) = self.partitions[number] else {
            let name = trace.partition_of(job).unwrap_or("").to_owned();
            let known: Vec<&str> =
                self.cluster.partitions().iter().map(|p| p.name.as_str()).collect();
            let known = known.join(", ");
            return Err(bad(
                trace.format.partition_column(),
                Problem::UnknownPartition { name, known },
            ));
        };
        let described = self.cluster.partition(partition);
        let placeable = self.placeable.entry((partition, job.gpus)).or_insert_with(|| {
            let rule = self.options.placement;
            self.empty.has_room(partition, job.gpus, Memory::default(), rule)
        });
        if !*placeable {
            let (gpus, size) = (job.gpus, described.gpu_count());
            let partition = described.name.clone();
            return Err(bad(
                trace.format.gpus_column(),
                Problem::LargerThanPartition { gpus, partition, size },
            ));
        }
        let available = self.memory_min[partition.index()];
        let wanted = job.memory.unwrap_or_default() + self.options.context;
        if wanted > available {
            let partition = described.name.clone();
            return Err(bad(
                trace.format.memory_column(),
                Problem::MemoryOver { wanted, partition, available },
            ));
        }
        if self.options.estimates == Estimates::Trace && job.estimate.is_none() {
            return Err(bad(trace.format.estimate_column(), Problem::NoEstimate));
        }
        Ok(partition)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn load_divides_inter_arrival_times_exactly() {
        let load = |text: &str, offset_s: u64| {
            let first = Time::from_secs(100);
            let submit = first + Span::from_secs(offset_s);
            LoadFactor::parse(text).unwrap().apply(first, submit).since(first).0 / MICROS_PER_SECOND
        };
        assert_eq!(load("1.5", 10), 6);
        assert_eq!(load("1.1", 11), 10);
        assert_eq!(load("0.5", 7), 14);
        assert_eq!(load("3", 10), 3);
        for bad in ["0", "-1", "x", "", "1.0000000001"] {
            assert_eq!(LoadFactor::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn load_one_keeps_fractions_of_a_second() {
        let submit = Time(1_500_000);
        assert_eq!(LoadFactor::parse("1.0").unwrap().apply(Time(0), submit), submit);
    }
}
