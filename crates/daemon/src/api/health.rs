//! The health of the daemon: what is checked, and what was found.

use super::live_types::{Health, HealthCheck};
use super::routes::JsonResult;
use super::types::{ErrorAnswer, SCHEMA};
use super::{Api, responses};
use crate::command::Caller;
use crate::cycle::Present;
use axum::Json;
use axum::extract::State;
use std::path::Path;

/// With less free space the next writes may fail.
const DISK_MIN_BYTES: u64 = 256 << 20;
/// Cycles that take longer than this make users wait.
const SLOW_US: u64 = 1 << 20;

/// What was checked, and what was found
#[utoipa::path(get, path = "/v1/health", responses(
    (status = 200, body = Health), (status = "default", body = ErrorAnswer)))]
pub(super) async fn health_report(State(api): State<Api>, _: Caller) -> JsonResult<Health> {
    let size = std::fs::metadata(&api.store).map_or(0, |metadata| metadata.len());
    let disk = disk(api.store.parent().unwrap_or(&api.store));
    let checks = api
        .query(move |present| {
            vec![cycles(present), store(present, size), disk, devices(present), plans(present)]
        })
        .await?;
    Ok(Json(Health { schema: SCHEMA, healthy: checks.iter().all(|check| check.ok), checks }))
}

fn check(name: &str, ok: bool, text: String) -> HealthCheck {
    HealthCheck { name: name.to_owned(), ok, text }
}

fn cycles(present: &Present<'_>) -> HealthCheck {
    let turns = present.turns;
    let mut below = 0;
    let power = turns.buckets.iter().position(|count| {
        below += count;
        below * 100 >= turns.count * 99
    });
    let most_us = power.map_or(u64::MAX, |power| 1 << power.min(63));
    let mean_ms = turns.sum_us as f64 / turns.count.max(1) as f64 / 1e3;
    let most_ms = most_us as f64 / 1e3;
    let text = match turns.count {
        0 => "no cycle yet".to_owned(),
        count => format!("{count} cycles, {mean_ms:.1} ms on average, 99 % within {most_ms:.0} ms"),
    };
    check("Scheduler", turns.count == 0 || most_us <= SLOW_US, text)
}

fn store(present: &Present<'_>, size: u64) -> HealthCheck {
    let failures = present.turns.store_failures;
    let size = format!("{:.1} MiB", size as f64 / f64::from(1 << 20));
    if let Some(trouble) = present.trouble {
        let text = format!("{size}, cannot be written: {trouble}; submissions are refused");
        return check("Store", false, text);
    }
    let text = match failures {
        0 => format!("{size}, every write succeeded"),
        1 => format!("{size}, one write failed"),
        _ => format!("{size}, {failures} writes failed"),
    };
    check("Store", failures == 0, text)
}

/// The free space where the daemon writes.
fn disk(state: &Path) -> HealthCheck {
    let shown = state.display();
    match rustix::fs::statvfs(state) {
        Ok(found) => {
            let free = found.f_bavail.saturating_mul(found.f_frsize);
            let text = format!("{:.1} GiB free in {shown}", free as f64 / f64::from(1 << 30));
            check("Disk", free >= DISK_MIN_BYTES, text)
        }
        Err(error) => check("Disk", false, format!("{shown}: {}", std::io::Error::from(error))),
    }
}

fn devices(present: &Present<'_>) -> HealthCheck {
    let devices = responses::devices(present, "").devices;
    let count = devices.len();
    let not_up: Vec<String> = devices
        .into_iter()
        .filter(|device| device.state != "up")
        .map(|device| match device.reason {
            Some(reason) => format!("GPU {} is {}: {reason}", device.index, device.state),
            None => format!("GPU {} is {}", device.index, device.state),
        })
        .collect();
    let text = if not_up.is_empty() { format!("all {count} take jobs") } else { not_up.join(", ") };
    check("GPUs", not_up.is_empty(), text)
}

fn plans(present: &Present<'_>) -> HealthCheck {
    let rejected = present.scheduler.engine().refused().0;
    let text = match rejected {
        0 => "no plan was rejected".to_owned(),
        1 => "one plan was illegal and not carried out".to_owned(),
        _ => format!("{rejected} plans were illegal and not carried out"),
    };
    check("Policy", rejected == 0, text)
}
