//! Telling whoever listens that a job has changed: the stream of events, and the webhook of a job that
//! is over.

use crate::api::types::JobChange;
use crate::job::Job;
use crate::scheduler::Now;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::broadcast;

/// Changes that a listener who was away can still get.
const REMEMBERED_MAX: usize = 10_000;
const HOOK_TRIES: u32 = 3;

/// Tells listeners.
pub struct Publisher {
    runtime: Handle,
    feed: Feed,
    seq: u64,
}

/// Where listeners listen.
#[derive(Clone)]
pub struct Feed {
    live: broadcast::Sender<Arc<JobChange>>,
    recent: Arc<Mutex<VecDeque<Arc<JobChange>>>>,
}

impl Publisher {
    /// Changes are counted on from `seq`, which is beyond all that were told before.
    pub fn new(runtime: Handle, seq: u64) -> Self {
        let (live, _) = broadcast::channel(4096);
        Self { runtime, feed: Feed { live, recent: Arc::default() }, seq }
    }

    /// Where listeners listen.
    pub fn feed(&self) -> Feed {
        self.feed.clone()
    }

    /// A job has changed.
    pub fn publish(&mut self, now: Now, job: &Job) {
        self.seq += 1;
        let change = Arc::new(JobChange {
            seq: self.seq,
            time: crate::time::iso(now.unix_us),
            id: job.id,
            state: job.state,
            reason: job.reason.clone(),
            devices: job.devices.clone(),
            exit_code: job.exit_code,
        });
        let mut recent = self.feed.recent.lock().unwrap_or_else(PoisonError::into_inner);
        if recent.len() == REMEMBERED_MAX {
            recent.pop_front();
        }
        recent.push_back(change.clone());
        drop(recent);
        let _ = self.feed.live.send(change.clone());
        if job.state.is_over()
            && let Some(address) = &job.request.webhook
        {
            self.runtime.spawn(hook(address.clone(), change));
        }
    }
}

impl Feed {
    /// What was missed since `after`, and what is to come.
    pub fn listen(
        &self,
        after: Option<u64>,
    ) -> (Vec<Arc<JobChange>>, broadcast::Receiver<Arc<JobChange>>) {
        let recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        let live = self.live.subscribe();
        let missed = after.map_or_else(Vec::new, |after| {
            recent.iter().filter(|change| change.seq > after).cloned().collect()
        });
        (missed, live)
    }
}

/// Posts the end of a job; a listener that is away for a moment gets it all the same.
async fn hook(address: String, change: Arc<JobChange>) {
    let body = serde_json::to_string(&*change).unwrap_or_default();
    for attempt in 0..HOOK_TRIES {
        let posted = tokio::time::timeout(Duration::from_secs(10), post(&address, body.clone()));
        match posted.await {
            Ok(Ok(status)) if status < 500 => return,
            Ok(Ok(status)) => tracing::warn!("webhook of job {}: status {status}", change.id),
            Ok(Err(error)) => tracing::warn!("webhook of job {}: {error}", change.id),
            Err(_) => tracing::warn!("webhook of job {}: no answer", change.id),
        }
        tokio::time::sleep(Duration::from_secs(1 << (2 * attempt))).await;
    }
}

async fn post(address: &str, body: String) -> Result<u16, Box<dyn std::error::Error + Send + Sync>> {
    let uri: hyper::Uri = address.parse()?;
    let host = uri.host().ok_or("no host in its address")?.to_owned();
    let port = uri.port_u16().unwrap_or(80);
    let stream = tokio::net::TcpStream::connect((host.as_str(), port)).await?;
    let io = hyper_util::rt::TokioIo::new(stream);
    let (mut sender, connection) = hyper::client::conn::http1::handshake(io).await?;
    tokio::spawn(connection);
    let path = uri.path_and_query().map_or("/", |path| path.as_str());
    let request = hyper::Request::post(path)
        .header("host", host)
        .header("content-type", "application/json")
        .body(body)?;
    Ok(sender.send_request(request).await?.status().as_u16())
}
