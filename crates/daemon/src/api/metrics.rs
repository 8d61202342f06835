//! Prometheus metrics, computed when scraped.

use crate::cycle::{Present, Turns};
use crate::job::JobState;
use crate::request::Percentile;
use crate::scheduler::Phase;
use prometheus_client::encoding::{EncodeLabelSet, EncodeMetric, MetricEncoder, text};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::{MetricType, TypedMetric};
use prometheus_client::registry::Registry;
use std::sync::atomic::AtomicU64;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StateLabel {
    state: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct JobLabel {
    job_id: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct JobOnGpu {
    job_id: u64,
    gpu: u32,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Quantile {
    job_id: u64,
    quantile: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct GpuLabel {
    gpu: u32,
}

type RatioGauge = Gauge<f64, AtomicU64>;

/// The metrics in OpenMetrics text format.
pub(super) fn text(present: &Present<'_>) -> String {
    let mut registry = Registry::default();
    let jobs = Family::<StateLabel, Gauge>::default();
    for state in JobState::ALL.into_iter().filter(|state| !state.is_over()) {
        jobs.get_or_create(&StateLabel { state: state.name().to_owned() }).set(0);
    }
    let slowdown = Family::<JobLabel, RatioGauge>::default();
    let utilization = Family::<JobOnGpu, RatioGauge>::default();
    for (state, count) in present.scheduler.by_state() {
        let count = i64::try_from(count).unwrap_or(i64::MAX);
        jobs.get_or_create(&StateLabel { state: state.to_owned() }).set(count);
    }
    for active in present.scheduler.all_with_process() {
        if active.phase != Phase::Running {
            continue;
        }
        let (id, rate) = (active.job.id, f64::from(active.rate().0) / 1e6);
        if rate > 0.0 {
            slowdown.get_or_create(&JobLabel { job_id: id }).set(1.0 / rate);
        }
        for &gpu in active.allocation.iter().flat_map(|allocation| &allocation.devices) {
            utilization.get_or_create(&JobOnGpu { job_id: id, gpu }).set(rate);
        }
    }
    services(present, &mut registry);
    let memory = Family::<GpuLabel, Gauge>::default();
    for (gpu, sample) in (0..).zip(present.devices) {
        let used = i64::try_from(sample.memory_used_bytes).unwrap_or(i64::MAX);
        memory.get_or_create(&GpuLabel { gpu }).set(used);
    }
    registry.register("tandem_jobs", "Active jobs by state", jobs);
    registry.register(
        "tandem_job_slowdown_ratio",
        "Slowdown of a running job relative to running alone",
        slowdown,
    );
    registry.register(
        "tandem_job_gpu_utilization_ratio",
        "Rate of a running job relative to running alone",
        utilization,
    );
    registry.register("tandem_gpu_memory_used_bytes", "Memory in use by all processes", memory);
    registry.register(
        "tandem_scheduler_cycle_seconds",
        "Duration of scheduling cycles",
        CycleTimes(present.turns.clone()),
    );
    registry.register(
        "tandem_plans_rejected",
        "Plans of the policy that were rejected as illegal",
        ConstCounter::new(present.scheduler.engine().refused().0),
    );
    registry.register(
        "tandem_store_failures",
        "Failed writes to the store",
        ConstCounter::new(present.turns.store_failures),
    );
    let mut out = String::new();
    match text::encode(&mut out, &registry) {
        Ok(()) => out,
        Err(_) => String::new(),
    }
}

/// Latencies of services against their promises.
fn services(present: &Present<'_>, registry: &mut Registry) {
    let latency = Family::<Quantile, RatioGauge>::default();
    let promised = Family::<Quantile, RatioGauge>::default();
    let kept = Family::<JobLabel, RatioGauge>::default();
    let requests = Family::<JobLabel, Gauge>::default();
    for active in present.scheduler.services() {
        let (job_id, record) = (active.job.id, &active.job.latency);
        let label = |quantile: &str| Quantile { job_id, quantile: quantile.to_owned() };
        let seconds = |us: u64| us as f64 / 1e6;
        if record.window_requests > 0 {
            latency.get_or_create(&label("0.5")).set(seconds(record.p50_us));
            latency.get_or_create(&label("0.99")).set(seconds(record.p99_us));
        }
        if let Some(promise) = active.job.request.latency_promise() {
            let quantile = match promise.percentile {
                Percentile::P50 => "0.5",
                Percentile::P99 => "0.99",
            };
            promised.get_or_create(&label(quantile)).set(seconds(promise.limit_us));
        }
        if let Some(part) = record.kept() {
            kept.get_or_create(&JobLabel { job_id }).set(part);
        }
        let count = i64::try_from(record.requests).unwrap_or(i64::MAX);
        requests.get_or_create(&JobLabel { job_id }).set(count);
    }
    registry.register(
        "tandem_service_latency_seconds",
        "Latency of a service in its last window",
        latency,
    );
    registry.register(
        "tandem_service_promised_seconds",
        "Latency that a service is promised",
        promised,
    );
    registry.register(
        "tandem_service_kept_ratio",
        "Part of the time in which a service kept its promise",
        kept,
    );
    registry.register("tandem_service_requests", "Requests answered by a service", requests);
}

/// Histogram of cycle durations.
#[derive(Debug)]
struct CycleTimes(Turns);

impl TypedMetric for CycleTimes {
    const TYPE: MetricType = MetricType::Histogram;
}

impl EncodeMetric for CycleTimes {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> Result<(), std::fmt::Error> {
        let last = self.0.buckets.len() - 1;
        let bucket = |(power, count): (usize, &u64)| {
            let bound = if power == last { f64::MAX } else { (1_u64 << power) as f64 / 1e6 };
            (bound, *count)
        };
        let buckets: Vec<(f64, u64)> = self.0.buckets.iter().enumerate().map(bucket).collect();
        encoder.encode_histogram::<prometheus_client::encoding::NoLabelSet>(
            self.0.sum_us as f64 / 1e6,
            self.0.count,
            &buckets,
            None,
        )
    }

    fn metric_type(&self) -> MetricType {
        MetricType::Histogram
    }
}
