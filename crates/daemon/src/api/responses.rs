//! Builds the JSON responses from the state of the scheduler.

use super::types::{
    ClassInfo, Classes, DaemonInfo, DeviceInfo, Devices, JobInfo, JobLine, JobPrivate, LatencyInfo,
    PairInfo, SCHEMA,
};
use crate::cycle::Present;
use crate::job::StoredJob;
use crate::scheduler::{Phase, ShutCause, View};
use crate::time::iso;
use std::collections::BTreeMap;
use tandem_backends::Enforcement;
use tandem_policies::REGISTRY;

const SECOND: f64 = 1e6;

/// The public part of a job; the full reason only if the caller may see it. `view` is present while the job
/// is active.
pub(super) fn line(job: &StoredJob, view: Option<&View>, may_see_all: bool) -> JobLine {
    let runs = view.filter(|view| view.phase == Phase::Running);
    let waiting = view.and_then(|view| view.waiting.as_ref()).map(crate::scheduler::Waiting::text);
    let ran_us = view.map_or(job.ran_us, |view| view.ran_us);
    JobLine {
        id: job.id,
        external: job.external.as_deref().map(tandem_backends::short_id).map(str::to_owned),
        name: job.name(),
        user: job.user.clone(),
        state: job.state,
        reason: waiting
            .or_else(|| if may_see_all { job.reason.clone() } else { job.public_reason() }),
        task: job.task,
        gpus: job.request.gpus,
        class: job.class.clone(),
        devices: job.devices.clone(),
        beside: view.map_or_else(Vec::new, |view| view.beside.clone()),
        rate: runs.filter(|view| view.rate_source.is_some()).map(|view| view.rate),
        rate_measured: runs.is_some_and(|view| view.measured),
        rate_from: runs.and_then(|view| view.rate_source),
        submit_time: iso(job.submit_us),
        start_time: job.start_us.map(iso),
        end_time: job.end_us.map(iso),
        run_s: ran_us as f64 / SECOND,
        shared_s: view.map_or(job.shared_us, |view| view.shared_us) as f64 / SECOND,
        exit_code: job.exit_code,
        latency: latency(job),
    }
}

/// The latency of a service against its promise.
pub(crate) fn latency(job: &StoredJob) -> Option<LatencyInfo> {
    let service = job.request.service.as_ref()?;
    let record = &job.latency;
    let last = Some(record).filter(|record| record.window_requests > 0);
    let ms = |us: u64| us as f64 / 1e3;
    let promise = job.request.latency_promise();
    Some(LatencyInfo {
        slo: service.slo.clone(),
        promised_ms: promise.map(|promise| ms(promise.limit_us)),
        requests: record.requests,
        rate_per_s: record.rate_per_s(),
        p50_ms: last.map(|record| ms(record.p50_us)),
        p99_ms: last.map(|record| ms(record.p99_us)),
        is_kept: last
            .zip(promise)
            .map(|(record, promise)| promise.is_kept_by(record.p50_us, record.p99_us)),
        kept: promise.and_then(|_| record.kept()),
    })
}

/// Everything about a job; `env` only if the caller may see it.
pub(super) fn info(
    job: &StoredJob,
    view: Option<&View>,
    env: Option<BTreeMap<String, String>>,
    present: &Present<'_>,
) -> JobInfo {
    let memory_peak = present.meter.memory_peak(job.id);
    let runs = view.filter(|view| view.phase == Phase::Running);
    let device_rate =
        runs.and(job.devices.first()).and_then(|&device| throughput(&running(present, device)));
    let text = |path: &std::path::Path| path.to_string_lossy().into_owned();
    let may_see_all = env.is_some();
    // A job of a cluster has its command and its files there.
    let private = env.filter(|_| job.external.is_none()).map(|env| JobPrivate {
        command: job.command(),
        params: job
            .params()
            .into_iter()
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect(),
        dir: text(&job.request.dir),
        stdout: text(&job.stdout()),
        stderr: text(&job.stderr().unwrap_or_else(|| job.stdout())),
        env,
    });
    let caps = [("report", job.caps.reports), ("accum", job.caps.accum), ("stop", job.caps.stop)];
    let shares = runs.filter(|view| !view.beside.is_empty() && view.rate_source.is_some());
    let slowdown = |rate: f64| (rate > 0.0).then(|| 1.0 / rate);
    let request = &job.request;
    JobInfo {
        line: line(job, view, may_see_all),
        private,
        uid: job.uid,
        pid: view.and_then(|view| view.pid),
        runs: job.runs,
        retried: job.retried,
        signal: job.signal,
        share: view.map_or(f64::from(request.share_ppm()) / 1e6, |view| view.share),
        share_promised: request.share,
        enforcement: enforcement(view.map_or(Enforcement::None, |view| view.enforcement))
            .to_owned(),
        sub_batches: view.map_or(job.sub_batches, |view| view.sub_batches),
        caps: caps.iter().filter(|(_, has)| *has).map(|(cap, _)| (*cap).to_owned()).collect(),
        slowdown_predicted: shares.and_then(|view| slowdown(view.predicted)),
        slowdown_measured: shares.filter(|view| view.measured).and_then(|view| slowdown(view.rate)),
        normalised_throughput: device_rate,
        done_s: view.map_or(job.done_us, |view| view.done_us) as f64 / SECOND,
        estimate_s: view.and_then(|view| view.estimate_us).map(|us| us as f64 / SECOND),
        estimate_from: view.map(|view| view.estimate_basis.text()),
        memory_peak_bytes: job.memory_peak_bytes.max(memory_peak),
        gpu_memory_bytes: request.gpu_memory_bytes,
        exclusive: request.exclusive,
        max_slowdown: request.max_slowdown,
        time_limit_s: request.time_limit_s,
        priority: request.priority,
        cpu_s: job.cpu_s,
        dependency: request.dependency.clone(),
        begin_time: request.begin_unix_s.map(|begin| iso((begin * 1e6) as u64)),
        retries_left: request.retries.saturating_sub(job.retried),
        stop_signal: request.stop_signal.clone(),
        may_change: may_see_all,
        steps_per_s: runs.and_then(|_| present.samples().speed(job.id)),
        steps_per_s_alone: solo_speed(job, view, present),
    }
}

/// Steps per second of a job's class alone, with the job's number of sub-batches.
fn solo_speed(job: &StoredJob, view: Option<&View>, present: &Present<'_>) -> Option<f64> {
    let parts = view.map_or(job.sub_batches, |view| view.sub_batches);
    let solo = &present.scheduler.classes().get(&job.class)?.solo;
    solo.get(&parts).or_else(|| solo.get(&1)).copied()
}

fn enforcement(enforcement: Enforcement) -> &'static str {
    match enforcement {
        Enforcement::None => "none",
        Enforcement::Advisory => "advisory",
        Enforcement::Cgroup => "cgroup",
        Enforcement::Mps => "mps",
        Enforcement::Mig => "mig",
    }
}

/// The running jobs of a device.
fn running(present: &Present<'_>, device: u32) -> Vec<View> {
    let scheduler = present.scheduler;
    scheduler
        .present(device)
        .filter_map(|job| scheduler.view(job, present.now.time()))
        .filter(|view| view.phase == Phase::Running)
        .collect()
}

/// The sum of the rates of jobs; `None` if one of them is not known.
fn throughput(running: &[View]) -> Option<f64> {
    let rate = |view: &View| view.rate_source.map(|_| view.rate);
    let rates: Option<Vec<f64>> = running.iter().map(rate).collect();
    rates.filter(|rates| !rates.is_empty()).map(|rates| rates.iter().sum())
}

/// The devices.
pub(super) fn devices(present: &Present<'_>, provider: &str) -> Devices {
    let scheduler = present.scheduler;
    let device = |device: &tandem_backends::Device| {
        let index = device.index;
        let sample = present.devices.get(index as usize);
        let jobs: Vec<u64> = scheduler.present(index).collect();
        let running = running(present, index);
        let foreign = scheduler.foreign(index);
        let cause = scheduler.shut_cause(index);
        let state = match &cause {
            Some(ShutCause::Drained(_) | ShutCause::DrainedUntil(..)) => "drained",
            Some(ShutCause::Closed(_)) => "closed",
            Some(ShutCause::Foreign) => "foreign",
            Some(ShutCause::Reserved) | None => "up",
        };
        DeviceInfo {
            index,
            name: device.name.clone(),
            kind: device.kind.clone(),
            node: device.node.clone(),
            memory_bytes: device.memory_bytes,
            memory_used_bytes: sample.map(|sample| sample.memory_used_bytes),
            utilization: sample.and_then(|sample| sample.utilisation),
            state: state.to_owned(),
            reason: cause.as_ref().and_then(crate::reasons::shut_reason),
            foreign_bytes: foreign,
            normalised_throughput: throughput(&running),
            measured: !running.is_empty() && running.iter().all(|view| view.measured),
            jobs,
        }
    };
    let devices = scheduler.setup().devices.iter().map(device).collect();
    Devices { schema: SCHEMA, provider: provider.to_owned(), devices }
}

/// What has been learned about job classes.
pub(super) fn classes(present: &Present<'_>, sees: impl Fn(u32) -> bool) -> Classes {
    let known = present.scheduler.classes();
    let definition = |name: &str| known.definition(name).filter(|one| sees(one.uid));
    let class = |(name, class): (&String, &crate::scheduler::LearnedClass)| ClassInfo {
        name: name.clone(),
        defined_by: definition(name).map(crate::class::ClassDefinition::text),
        ignored: definition(name).map_or_else(Vec::new, |definition| {
            known.ignored_arguments(&definition.program).map(str::to_owned).collect()
        }),
        duty: class.duty,
        duration_s: known.expected(name, None).map(|expected| expected.median.0 as f64 / SECOND),
        memory_bytes: class
            .memory
            .values()
            .next()
            .and_then(tandem_models::memory::ObservedMemory::peak)
            .map(|peak| (peak.mib() * f64::from(1 << 20)) as u64),
        steps_per_s: class.solo.clone(),
        finished: class.durations_us.len() as u64,
        beside: class
            .partners()
            .into_iter()
            .map(|other| {
                let rate = present.scheduler.believed(name, other).unwrap_or(0.5);
                let measurements = class.measurements(other) as u64;
                let seen = class.beside.get(other).map_or(&[][..], |seen| &seen.measured);
                let weight: f64 = seen.iter().map(|(_, noise)| noise.powi(-2)).sum();
                let uncertainty = (weight.is_finite() && weight > 0.0).then(|| weight.powf(-0.5));
                let recent = seen.iter().map(|&(rate, _)| rate).collect();
                (other.to_owned(), PairInfo { rate, measurements, uncertainty, recent })
            })
            .collect(),
    };
    Classes { schema: SCHEMA, classes: known.iter().map(class).collect() }
}

/// Version, policy and state of the daemon.
pub(super) fn daemon(present: &Present<'_>, api: &super::Api) -> DaemonInfo {
    DaemonInfo {
        schema: SCHEMA,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        policy: api.policy.clone(),
        policies: REGISTRY.iter().map(|entry| entry.name.to_owned()).collect(),
        provider: api.provider.clone(),
        partition: api.partition.clone(),
        devices: u32::try_from(present.scheduler.setup().devices.len()).unwrap_or(u32::MAX),
        cgroups: api
            .groups
            .as_ref()
            .map_or_else(|| "managed by the cluster".to_owned(), ToString::to_string),
        up_s: present.now.unix_us.saturating_sub(api.started_us) as f64 / SECOND,
        uid: api.uid,
        pid: std::process::id(),
        jobs: present.scheduler.by_state().map(|(name, count)| (name.to_owned(), count)).collect(),
        plans_rejected: present.scheduler.engine().refused().0,
    }
}
