//! A service: a job that answers requests until it is cancelled, and what it was promised.

use super::{BadRequest, JobRequest, bad, check::latency_pattern};
use serde::{Deserialize, Serialize};
use std::fmt;
use tandem_core::{BUDGET_MIN, PPM_ONE};
use utoipa::ToSchema;

/// The longest latency that can be promised, in microseconds: an hour.
const LATENCY_MAX_US: f64 = 3.6e9;

/// What makes a job a service. It runs until it is cancelled, and is started again when it fails.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ServiceRequest {
    /// The latency that it is promised: `p99=100ms`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slo: Option<String>,
    /// The most requests per second that it is to answer; measured if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 0.001, maximum = 1e9)]
    pub rate_per_s: Option<f64>,
    /// How its output shows the latency of a request, with one group for the milliseconds: `took (\S+) ms`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub latency_regex: Option<String>,
}

/// The part of all requests that a latency holds for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Percentile {
    /// Half of them.
    P50,
    /// 99 of 100.
    P99,
}

/// A promised latency.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LatencyPromise {
    /// Which requests.
    pub percentile: Percentile,
    /// Their latency at most, in microseconds.
    pub limit_us: u64,
}

impl LatencyPromise {
    /// Reads `p99=100ms`, `p50=2s` or `p99=800us`.
    pub fn parse(text: &str) -> Result<Self, String> {
        let shown: String = text.escape_debug().take(40).collect();
        let form = || format!("'{shown}' is not a promise; give a latency as p99=100ms or p50=2s");
        let (name, value) = text.split_once('=').ok_or_else(form)?;
        let percentile = match name {
            "p50" => Percentile::P50,
            "p99" => Percentile::P99,
            _ => return Err(format!("'{shown}' is about neither p50 nor p99; give p99=100ms")),
        };
        let units = [("us", 1.0), ("ms", 1e3), ("s", 1e6)];
        let of_unit = |(unit, factor): (&str, f64)| {
            let number: f64 = value.strip_suffix(unit)?.parse().ok()?;
            Some(number * factor)
        };
        let limit_us = units.into_iter().find_map(of_unit).ok_or_else(form)?;
        if !(1.0..=LATENCY_MAX_US).contains(&limit_us) {
            return Err(format!("'{shown}' is not between a microsecond and an hour"));
        }
        Ok(Self { percentile, limit_us: limit_us.round() as u64 })
    }

    /// Whether these latencies keep it.
    pub fn is_kept_by(self, p50_us: u64, p99_us: u64) -> bool {
        self.of(p50_us, p99_us) <= self.limit_us
    }

    /// The latency that it is about.
    pub fn of(self, p50_us: u64, p99_us: u64) -> u64 {
        match self.percentile {
            Percentile::P50 => p50_us,
            Percentile::P99 => p99_us,
        }
    }
}

impl fmt::Display for LatencyPromise {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self.percentile {
            Percentile::P50 => "p50",
            Percentile::P99 => "p99",
        };
        write!(f, "{name} of {} ms", self.limit_us as f64 / 1e3)
    }
}

impl JobRequest {
    /// Whether it is a service.
    pub fn is_service(&self) -> bool {
        self.service.is_some()
    }

    /// The latency that it is promised.
    pub fn latency_promise(&self) -> Option<LatencyPromise> {
        LatencyPromise::parse(self.service.as_ref()?.slo.as_deref()?).ok()
    }

    /// The part of each GPU that it is sure of, in parts per million; 0 if none is promised.
    pub fn floor_ppm(&self) -> u32 {
        (self.share.unwrap_or(0.0) * f64::from(PPM_ONE)).round() as u32
    }

    pub(super) fn check_service(&self) -> Result<(), BadRequest> {
        let least = f64::from(BUDGET_MIN.0) / f64::from(PPM_ONE);
        if let Some(share) = self.share {
            if !(least..=1.0).contains(&share) {
                return Err(bad("share", format!("is {share:?}; give {least} to 1 of a GPU")));
            }
            if share > self.gpus {
                let problem = format!("is {share}, more than the {} GPUs it asks for", self.gpus);
                return Err(bad("share", problem));
            }
        }
        let Some(service) = &self.service else { return Ok(()) };
        if self.array.is_some() || !self.params.is_empty() {
            return Err(bad("service", "is one job; submit it again for another instance"));
        }
        if self.estimate_s.is_some() {
            return Err(bad("service", "runs until it is cancelled; leave out the estimate"));
        }
        if let Some(slo) = &service.slo {
            LatencyPromise::parse(slo).map_err(|problem| bad("slo", problem))?;
        }
        if let Some(rate) = service.rate_per_s
            && !(0.001..=1e9).contains(&rate)
        {
            return Err(bad("rate_per_s", format!("is {rate}; give requests per second")));
        }
        if let Some(pattern) = &service.latency_regex {
            let regex = latency_pattern(pattern)?;
            if regex.captures_len() < 2 {
                let problem = r"has no group for the milliseconds; try 'took (\S+) ms'";
                return Err(bad("latency_regex", problem));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn promises_are_read_with_their_units() {
        let us = |text: &str| LatencyPromise::parse(text).map(|promise| promise.limit_us);
        assert_eq!(us("p99=100ms"), Ok(100_000));
        assert_eq!(us("p50=1.5s"), Ok(1_500_000));
        assert_eq!(us("p99=800us"), Ok(800));
        let nonsense = ["", "fast", "p99", "p99=", "p99=100", "p99=-3ms", "p99=0ms", "p95=1ms"];
        for text in nonsense.into_iter().chain(["p99=NaNms", "p99=infs", "p99=2h", "p99=1e9s"]) {
            assert!(us(text).is_err(), "{text}");
        }
        let promise = LatencyPromise::parse("p99=100ms").unwrap();
        assert_eq!(promise.to_string(), "p99 of 100 ms");
        assert!(promise.is_kept_by(1, 100_000) && !promise.is_kept_by(1, 100_001));
    }

    #[test]
    fn a_service_is_one_job_without_an_end() {
        let service = || JobRequest {
            command: vec!["serve".to_owned()],
            service: Some(ServiceRequest::default()),
            ..JobRequest::default()
        };
        assert_eq!(service().check(), Ok(()));
        let field = |request: JobRequest| request.check().unwrap_err().field;
        assert_eq!(field(JobRequest { array: Some("0-3".to_owned()), ..service() }), "service");
        assert_eq!(field(JobRequest { estimate_s: Some(3.0), ..service() }), "service");
        assert_eq!(field(JobRequest { share: Some(1.5), ..service() }), "share");
        assert_eq!(field(JobRequest { share: Some(0.5), gpus: 0.2, ..service() }), "share");
        let with = |one: ServiceRequest| JobRequest { service: Some(one), ..service() };
        let slo = ServiceRequest { slo: Some("soon".to_owned()), ..ServiceRequest::default() };
        assert_eq!(field(with(slo)), "slo");
        let rate = ServiceRequest { rate_per_s: Some(-1.0), ..ServiceRequest::default() };
        assert_eq!(field(with(rate)), "rate_per_s");
        let regex = ServiceRequest { latency_regex: Some("took".to_owned()), ..Default::default() };
        assert_eq!(field(with(regex)), "latency_regex");
    }
}
