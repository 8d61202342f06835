//! Everything that happens as one stream of server-sent events: changes of jobs, placements, samples.

use super::live_types::{PlacementInfo, Sample, SampleDevice, SampleJob};
use super::types::ErrorAnswer;
use super::{Api, ApiError, events, responses};
use crate::command::Caller;
use crate::cycle::Present;
use crate::publish::OwnedChange;
use crate::scheduler::Phase;
use crate::time::iso;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::sse::{Event, Sse};
use axum::response::{IntoResponse, Response};
use std::collections::{BTreeMap, VecDeque};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::broadcast::{self, error::RecvError};
use tokio::sync::{OwnedSemaphorePermit, watch};

/// Interval of `ping` events on an idle stream.
const PING_EVERY: Duration = Duration::from_secs(15);

/// What is streamed beside changes of jobs.
#[derive(Clone, Debug)]
pub enum LiveEvent {
    /// A placement began or ended.
    Placement(PlacementInfo),
    /// The running jobs and the devices.
    Sample(Sample),
}

impl LiveEvent {
    /// The event as the caller may see it: what a job reports is for its owner and operators.
    fn event(&self, caller: &Caller, daemon_uid: u32) -> Event {
        match self {
            LiveEvent::Placement(placement) => event("placement", placement),
            LiveEvent::Sample(sample) => {
                let mut sample = sample.clone();
                for job in &mut sample.jobs {
                    if !caller.may_change(job.uid, daemon_uid) {
                        job.scalars.clear();
                    }
                }
                event("sample", &sample)
            }
        }
    }
}

pub(super) fn event(kind: &str, data: &impl serde::Serialize) -> Event {
    let data = serde_json::to_string(data).unwrap_or_default();
    Event::default().event(kind).data(data)
}

/// The running jobs and the devices.
pub(crate) fn sample(present: &Present<'_>) -> Sample {
    let scheduler = present.scheduler;
    let samples = present.samples();
    let running = scheduler.all_with_process().filter(|active| active.phase == Phase::Running);
    let job = |active: &crate::scheduler::Active| {
        let id = active.job.id;
        let placement = present.history.placements.open(id);
        SampleJob {
            id,
            uid: active.job.uid,
            rate: Some(f64::from(active.rate().0) / 1e6),
            rate_measured: active.rate_is_measured(),
            steps_per_s: samples.speed(id),
            memory_bytes: samples.memory_bytes(id),
            share: f64::from(active.budget().0) / 1e6,
            latency: responses::latency(&active.job),
            beside: placement.map_or_else(Vec::new, |placement| placement.placed.beside.clone()),
            scalars: samples.scalars(id).cloned().unwrap_or_default(),
        }
    };
    let device = |device: super::types::DeviceInfo| SampleDevice {
        index: device.index,
        memory_used_bytes: device.memory_used_bytes,
        utilization: device.utilization,
        state: device.state,
        jobs: device.jobs,
        normalised_throughput: device.normalised_throughput,
        measured: device.measured,
    };
    Sample {
        time: iso(present.now.unix_us),
        jobs: running.map(job).collect(),
        devices: responses::devices(present, "").devices.into_iter().map(device).collect(),
    }
}

/// Changes of jobs, placements and samples as server-sent events
#[utoipa::path(get, path = "/v1/events", params(
    ("last-event-id" = Option<u64>, Header, description = "Continue the changes of jobs after this event")),
    responses((status = 200, body = String, content_type = "text/event-stream",
        description = "`job` events are a `JobChange`, `placement` a `PlacementInfo`, `sample` a `Sample`; `ping` keeps an idle stream open"),
        (status = "default", body = ErrorAnswer)))]
pub(super) async fn live(
    State(api): State<Api>,
    caller: Caller,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let after = headers.get("last-event-id").and_then(|value| value.to_str().ok()?.parse().ok());
    let (missed, jobs) = api.feed.subscribe(after);
    let subscription = Subscription {
        missed: missed.into(),
        jobs,
        rest: api.feed.subscribe_live(),
        shutdown: api.shutdown.clone(),
        caller,
        daemon_uid: api.uid,
        _permit: super::asker::stream()?,
    };
    let first = (Some(events::hello()), subscription);
    let stream = futures_util::stream::unfold(first, |(hello, mut subscription)| async {
        let event = match hello {
            Some(hello) => hello,
            None => subscription.next().await?,
        };
        Some((Ok::<Event, Infallible>(event), (None, subscription)))
    });
    Ok(Sse::new(stream).into_response())
}

struct Subscription {
    missed: VecDeque<Arc<OwnedChange>>,
    jobs: broadcast::Receiver<Arc<OwnedChange>>,
    rest: broadcast::Receiver<Arc<LiveEvent>>,
    shutdown: watch::Receiver<bool>,
    caller: Caller,
    daemon_uid: u32,
    _permit: Option<OwnedSemaphorePermit>,
}

impl Subscription {
    /// The next event; `None` if the daemon stops, or if the client was too slow and has to reconnect.
    async fn next(&mut self) -> Option<Event> {
        if let Some(change) = self.missed.pop_front() {
            return Some(events::event(&change, &self.caller, self.daemon_uid));
        }
        tokio::select! {
            change = self.jobs.recv() => match change {
                Ok(change) => Some(events::event(&change, &self.caller, self.daemon_uid)),
                Err(RecvError::Lagged(_) | RecvError::Closed) => None,
            },
            event = self.rest.recv() => match event {
                Ok(event) => Some(event.event(&self.caller, self.daemon_uid)),
                Err(RecvError::Lagged(_) | RecvError::Closed) => None,
            },
            () = tokio::time::sleep(PING_EVERY) => Some(event("ping", &BTreeMap::<u8, u8>::new())),
            _ = self.shutdown.wait_for(|shutdown| *shutdown) => None,
        }
    }
}
