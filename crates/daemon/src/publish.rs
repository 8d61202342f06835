//! Telling whoever listens that a job has changed: the stream of events, and the webhook of a job that
//! is over. A webhook is kept in the store until it was called: what a daemon did not get to, the next
//! one does, so that a listener may hear twice of one end but never not at all.

use crate::api::live::LiveEvent;
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

/// Changes that a listener who was away can still get.
const HISTORY_MAX: usize = 10_000;
const WEBHOOK_ATTEMPTS: u32 = 3;
/// Webhooks that are called at a time.
const WEBHOOKS_MAX: usize = 16;
const WEBHOOK_TIMEOUT: Duration = Duration::from_secs(10);

/// A change, and whose job it is.
#[derive(Debug)]
pub struct OwnedChange {
    /// The owner of the job.
    pub uid: u32,
    /// As its owner sees it.
    pub change: JobChange,
}

/// Tells listeners.
pub struct Publisher {
    runtime: Handle,
    feed: Feed,
    seq: u64,
    /// Webhooks are called.
    webhooks: bool,
    calls: Arc<Semaphore>,
    /// Learns of calls that were made.
    inbox: Sender<Message>,
}

/// Where listeners listen.
#[derive(Clone)]
pub struct Feed {
    live: broadcast::Sender<Arc<OwnedChange>>,
    recent: Arc<Mutex<VecDeque<Arc<OwnedChange>>>>,
    /// Placements and samples, which nobody needs later.
    rest: broadcast::Sender<Arc<LiveEvent>>,
}

impl Publisher {
    /// Changes are counted on from `seq`, which is beyond all that were published before.
    pub fn new(runtime: Handle, seq: u64, webhooks: bool, inbox: Sender<Message>) -> Self {
        let (live, _) = broadcast::channel(4096);
        let (rest, _) = broadcast::channel(1024);
        let feed = Feed { live, recent: Arc::default(), rest };
        Self { runtime, feed, seq, webhooks, calls: Arc::new(Semaphore::new(WEBHOOKS_MAX)), inbox }
    }

    /// Where listeners listen.
    pub fn feed(&self) -> Feed {
        self.feed.clone()
    }

    /// A job has changed.
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

    /// Whether anybody listens to placements and samples.
    pub fn is_watched(&self) -> bool {
        self.feed.rest.receiver_count() > 0
    }

    /// A placement began or ended, or jobs and devices were sampled.
    pub fn publish_live(&self, event: LiveEvent) {
        let _ = self.feed.rest.send(Arc::new(event));
    }

    /// A job was over when an earlier daemon ended, which may not have called its webhook.
    pub fn retry_webhook(&mut self, job: &Job) {
        if self.has_webhook(job) {
            let change = self.change(job.end_us.unwrap_or(0), job);
            self.call(job, change);
        }
    }

    /// Whether there is a webhook to call now.
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
            name: job.name(),
            user: job.user.clone(),
            class: job.class.clone(),
            gpus: job.request.gpus,
            submit_time: crate::time::iso(job.submit_us),
            start_time: job.start_us.map(crate::time::iso),
            end_time: job.end_us.map(crate::time::iso),
        }
    }

    fn call(&self, job: &Job, change: JobChange) {
        let Some(address) = job.request.webhook.clone() else { return };
        let (owner, calls) = (Owner { uid: job.uid, gid: job.gid }, self.calls.clone());
        let inbox = self.inbox.clone();
        self.runtime.spawn(async move {
            let _turn = calls.acquire().await;
            hook(&address, owner, &change).await;
            let _ = inbox.send(Message::WebhookDone { job: change.id });
        });
    }
}

impl Feed {
    /// What was missed since `after`, and what is to come.
    pub fn listen(
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

    /// Placements and samples that are to come.
    pub fn listen_live(&self) -> broadcast::Receiver<Arc<LiveEvent>> {
        self.rest.subscribe()
    }
}

/// Posts the end of a job; a listener that is away for a moment gets it all the same.
async fn hook(address: &str, owner: Owner, change: &JobChange) {
    let body = serde_json::to_string(change).unwrap_or_default();
    for attempt in 0..WEBHOOK_ATTEMPTS {
        let posted = tokio::time::timeout(WEBHOOK_TIMEOUT, post(address, owner, body.clone()));
        match posted.await {
            Ok(Ok(status)) if status < 500 => return,
            Ok(Ok(status)) => tracing::warn!("webhook of job {}: status {status}", change.id),
            Ok(Err(error)) => tracing::warn!("webhook of job {}: {error}", change.id),
            Err(_) => tracing::warn!("webhook of job {}: no answer", change.id),
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
    let host = uri.host().ok_or("no host in its address")?.to_owned();
    let port = uri.port_u16().unwrap_or(80);
    let to = host.trim_matches(['[', ']']).to_owned();
    // The connection is the user's: where the system lets users reach less than root, so does this.
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
    let mut failed = std::io::Error::other("no such host");
    for address in (host, port).to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, WEBHOOK_TIMEOUT) {
            Ok(stream) => return Ok(stream),
            Err(error) => failed = error,
        }
    }
    Err(failed)
}
