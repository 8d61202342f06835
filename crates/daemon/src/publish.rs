//! Publishes state changes of jobs: to subscribers of the event stream, and to the webhook of a job that
//! ended. A webhook stays in the store until it was called, across restarts: delivery is at least once.

use crate::api::types::JobChange;
use crate::cycle::Message;
use crate::job::Job;
use crate::scheduler::Now;
use std::collections::VecDeque;
use std::net::{TcpStream, ToSocketAddrs};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tandem_backends::Owner;
use tandem_backends::local::as_user;
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, broadcast};

/// Changes that a subscriber can still get after reconnecting.
const HISTORY_MAX: usize = 10_000;
const WEBHOOK_ATTEMPTS: u32 = 3;
/// Concurrent webhook calls.
const WEBHOOKS_MAX: usize = 16;
const WEBHOOK_TIMEOUT: Duration = Duration::from_secs(10);

/// A change and the owner of its job.
#[derive(Debug)]
pub struct OwnedChange {
    /// The owner of the job.
    pub uid: u32,
    /// The change as its owner may see it.
    pub change: JobChange,
}

/// Publishes changes.
pub struct Publisher {
    runtime: Handle,
    feed: Feed,
    seq: u64,
    /// Webhooks are enabled.
    webhooks: bool,
    calls: Arc<Semaphore>,
    /// Receives `WebhookDone`.
    inbox: Sender<Message>,
}

/// The source of changes for subscribers.
#[derive(Clone)]
pub struct Feed {
    live: broadcast::Sender<Arc<OwnedChange>>,
    recent: Arc<Mutex<VecDeque<Arc<OwnedChange>>>>,
}

impl Publisher {
    /// Sequence numbers continue from `seq`, which exceeds all that were published before.
    pub fn new(runtime: Handle, seq: u64, webhooks: bool, inbox: Sender<Message>) -> Self {
        let (live, _) = broadcast::channel(4096);
        let feed = Feed { live, recent: Arc::default() };
        Self { runtime, feed, seq, webhooks, calls: Arc::new(Semaphore::new(WEBHOOKS_MAX)), inbox }
    }

    /// The feed that subscribers read.
    pub fn feed(&self) -> Feed {
        self.feed.clone()
    }

    /// Publishes a change of a job and calls its webhook if it ended.
    pub fn publish(&mut self, now: Now, job: &Job) {
        let change = Arc::new(OwnedChange { uid: job.uid, change: self.change(now.unix_us, job) });
        let mut recent = self.feed.recent.lock().unwrap_or_else(PoisonError::into_inner);
        if recent.len() == HISTORY_MAX {
            recent.pop_front();
        }
        recent.push_back(change.clone());
        drop(recent);
        let _ = self.feed.live.send(change.clone());
        if self.has_webhook(job) {
            self.call(job, change.change.clone());
        }
    }

    /// Calls the webhook of a job that ended under an earlier daemon.
    pub fn retry_webhook(&mut self, job: &Job) {
        if self.has_webhook(job) {
            let change = self.change(job.end_us.unwrap_or(0), job);
            self.call(job, change);
        }
    }

    /// Whether the job ended and has a webhook to call.
    pub fn has_webhook(&self, job: &Job) -> bool {
        self.webhooks && job.state.is_over() && job.request.webhook.is_some()
    }

    fn change(&mut self, unix_us: u64, job: &Job) -> JobChange {
        self.seq += 1;
        JobChange {
            seq: self.seq,
            time: crate::time::iso(unix_us),
            id: job.id,
            state: job.state,
            reason: job.reason.clone(),
            devices: job.devices.clone(),
            exit_code: job.exit_code,
        }
    }

    fn call(&self, job: &Job, change: JobChange) {
        let Some(address) = job.request.webhook.clone() else { return };
        let (owner, calls) = (Owner { uid: job.uid, gid: job.gid }, self.calls.clone());
        let inbox = self.inbox.clone();
        self.runtime.spawn(async move {
            let _permit = calls.acquire().await;
            call_webhook(&address, owner, &change).await;
            let _ = inbox.send(Message::WebhookDone { job: change.id });
        });
    }
}

impl Feed {
    /// The recent changes after `after`, and a receiver of further ones.
    pub fn subscribe(
        &self,
        after: Option<u64>,
    ) -> (Vec<Arc<OwnedChange>>, broadcast::Receiver<Arc<OwnedChange>>) {
        let recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        let live = self.live.subscribe();
        let missed = after.map_or_else(Vec::new, |after| {
            recent.iter().filter(|owned| owned.change.seq > after).cloned().collect()
        });
        (missed, live)
    }
}

/// Posts the end of a job, with retries.
async fn call_webhook(address: &str, owner: Owner, change: &JobChange) {
    let body = serde_json::to_string(change).unwrap_or_default();
    for attempt in 0..WEBHOOK_ATTEMPTS {
        let posted = tokio::time::timeout(WEBHOOK_TIMEOUT, post(address, owner, body.clone()));
        match posted.await {
            Ok(Ok(status)) if status < 500 => return,
            Ok(Ok(status)) => tracing::warn!("webhook of job {}: status {status}", change.id),
            Ok(Err(error)) => tracing::warn!("webhook of job {}: {error}", change.id),
            Err(_) => tracing::warn!("webhook of job {}: timed out", change.id),
        }
        tokio::time::sleep(Duration::from_secs(1 << (2 * attempt))).await;
    }
}

async fn post(
    address: &str,
    owner: Owner,
    body: String,
) -> Result<u16, Box<dyn std::error::Error + Send + Sync>> {
    let uri: hyper::Uri = address.parse()?;
    let host = uri.host().ok_or("its URL has no host")?.to_owned();
    let port = uri.port_u16().unwrap_or(80);
    let to = host.trim_matches(['[', ']']).to_owned();
    // The connection is opened as the user, so that firewall rules by user apply.
    let connect = move || as_user(Some(owner), || connect(&to, port))?;
    let stream = tokio::task::spawn_blocking(connect).await??;
    stream.set_nonblocking(true)?;
    let stream = tokio::net::TcpStream::from_std(stream)?;
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

fn connect(host: &str, port: u16) -> std::io::Result<TcpStream> {
    let mut failed = std::io::Error::other("host not found");
    for address in (host, port).to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, WEBHOOK_TIMEOUT) {
            Ok(stream) => return Ok(stream),
            Err(error) => failed = error,
        }
    }
    Err(failed)
}
