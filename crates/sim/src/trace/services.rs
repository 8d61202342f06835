//! Synthetic services for a generated trace. They come early and stay until the last job has arrived.

use super::generate::number;
use super::{Class, Trace, TraceJob, TraceService};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use tandem_core::{ClassId, Memory, Span, Time, Tolerance, UserId, Utilisation};

/// Model, memory in MiB, and the range of the utilisation in percent.
const MODELS: [(&str, u64, [u32; 2]); 6] = [
    ("ResNet-serve", 2_100, [8, 25]),
    ("BERT-serve", 2_900, [10, 35]),
    ("Whisper-serve", 5_200, [15, 45]),
    ("SDXL-serve", 9_800, [25, 55]),
    ("Recommender-serve", 3_400, [5, 20]),
    ("7B-serve", 15_300, [20, 50]),
];
/// Requests per second.
const RATES: [u32; 2] = [5, 80];
/// The rates at which services keep just what they are promised, in percent.
const LEAST_RATES: [u32; 2] = [50, 92];
/// All services come within this part of the arrivals of jobs.
const EARLY: f64 = 0.05;
/// Own draws, so that the jobs of a seed are the same with services and without.
const STREAM: u64 = 0x5e7c;

/// Adds services on one GPU each, with promised latencies. The same seed gives the same services.
pub fn add_services(trace: &mut Trace, count: usize, seed: u64) {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    rng.set_stream(STREAM);
    let user = UserId(trace.users.intern("services"));
    let last = trace.jobs.iter().map(|job| job.submit).max().unwrap_or_default();
    // A service of a trace in which nothing arrives is there for an hour.
    let until_s = (last.since(Time::default()).0 / 1_000_000).max(3600);
    for _ in 0..count {
        let (model, memory, [least, most]) = MODELS[rng.random_range(0..MODELS.len())];
        let class = Class { model: model.into(), dataset: "".into(), batch: None, amp: true };
        let class = ClassId(trace.classes.intern(&class));
        let submit_s = rng.random_range(0..=(until_s as f64 * EARLY) as u64);
        let percent = rng.random_range(least..=most);
        let rate = rng.random_range(RATES[0]..=RATES[1]);
        let least_rate = f64::from(rng.random_range(LEAST_RATES[0]..=LEAST_RATES[1])) / 100.0;
        trace.jobs.push(TraceJob {
            line: 0,
            user,
            partition: None,
            submit: Time::from_secs(submit_s),
            duration: Span::from_secs(until_s - submit_s),
            gpus: 1,
            estimate: None,
            class: Some(class),
            memory: Some(Memory::from_mib(memory)),
            gpu_util: Some(Utilisation(percent * 1000)),
            bandwidth_util: None,
            tolerance: Tolerance::Any,
            priority: 0,
            share: tandem_core::JobShare::default(),
            service: Some(TraceService {
                rate_milli: rate * 1000,
                slo_us: Some(promise_us(f64::from(percent) / 100.0, f64::from(rate), least_rate)),
            }),
        });
    }
    trace.jobs.sort_by_key(|job| job.submit);
    number(trace);
}

/// The promised p99 that a service with this utilisation keeps at `least_rate` and not below it.
fn promise_us(util: f64, rate_per_s: f64, least_rate: f64) -> u32 {
    let least_rate = least_rate.max(util + 0.05);
    let request_s = util / rate_per_s;
    (request_s * 100_f64.ln() / (least_rate - util) * 1e6).ceil() as u32
}

#[cfg(test)]
mod tests {
    use super::super::{GenerateOptions, ReadOptions, TraceFormat, generate, parse, write};
    use super::*;

    #[test]
    fn services_are_added_to_the_same_jobs_and_can_be_read_again() {
        let options = GenerateOptions { jobs: 200, gpus: 16, load: 1.0, seed: 3 };
        let (plain, mut trace) = (generate(&options), generate(&options));
        add_services(&mut trace, 12, 3);
        let of_kind = |is_service: bool| {
            trace.jobs.iter().filter(move |job| job.service.is_some() == is_service)
        };
        assert_eq!((of_kind(true).count(), of_kind(false).count()), (12, 200));
        let submits = |jobs: &mut dyn Iterator<Item = &TraceJob>| -> Vec<(Time, Span)> {
            jobs.map(|job| (job.submit, job.duration)).collect()
        };
        assert_eq!(submits(&mut of_kind(false)), submits(&mut plain.jobs.iter()));
        for job in of_kind(true) {
            let (service, util) = (job.service.unwrap(), job.gpu_util.unwrap());
            let least = service.least_rate(util).0;
            assert!((400_000..=940_000).contains(&least), "{least}");
        }
        let mut written = Vec::new();
        write(&trace, TraceFormat::Tandem, &mut written).unwrap();
        let read = parse(&written, "trace.csv", &ReadOptions::default()).unwrap();
        let services = |trace: &Trace| -> Vec<Option<TraceService>> {
            trace.jobs.iter().map(|job| job.service).collect()
        };
        assert_eq!(services(&read), services(&trace));
    }
}
