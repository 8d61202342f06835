//! Publishes state changes of jobs: to subscribers of the event stream, and to the webhook of a job that
//! ended. A webhook stays in the store until it was called, across restarts: delivery is at least once.

use crate::api::live::LiveEvent;
use crate::api::types::JobChange;
use crate::cycle::Message;
use crate::job::{StoredJob, public_reason};
use crate::mail::Mailer;
use crate::scheduler::Now;
use rustls::pki_types::ServerName;
use std::collections::{BTreeMap, VecDeque};
use std::net::{TcpStream, ToSocketAddrs};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;
use tandem_backends::Owner;
use tandem_backends::local::as_user;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, broadcast};
use tokio_rustls::TlsConnector;

/// Changes that a subscriber can still get after reconnecting.
const HISTORY_MAX: usize = 10_000;
const WEBHOOK_ATTEMPTS: u32 = 3;
/// Concurrent webhook calls.
const WEBHOOKS_MAX: usize = 64;
/// Concurrent webhook calls of one user: slow servers of a user must not delay the webhooks of others.
const WEBHOOKS_PER_USER: usize = 4;
/// Concurrent mails.
const MAILS_MAX: usize = 4;
/// Concurrent mails of one user: many of them do not delay those of others.
const MAILS_PER_USER: usize = 1;
const WEBHOOK_TIMEOUT: Duration = Duration::from_secs(10);

/// A change and the owner of its job.
#[derive(Debug)]
pub struct OwnedChange {
    /// The owner of the job.
    pub uid: u32,
    /// The change as its owner may see it.
    pub change: JobChange,
    /// As JSON, for those who may see all and for others: many streams carry the same.
    texts: [OnceLock<String>; 2],
}

impl OwnedChange {
    /// As JSON; without what only the owner may see, unless all may be shown.
    pub(crate) fn text(&self, shows_all: bool) -> &str {
        self.texts[usize::from(shows_all)].get_or_init(|| {
            let public = (!shows_all).then(|| JobChange {
                reason: self.change.reason.as_deref().map(public_reason),
                ..self.change.clone()
            });
            serde_json::to_string(public.as_ref().unwrap_or(&self.change)).unwrap_or_default()
        })
    }
}

/// Publishes changes.
pub struct Publisher {
    runtime: Handle,
    feed: Feed,
    seq: u64,
    /// Webhooks are enabled.
    webhooks: bool,
    calls: Arc<Semaphore>,
    /// The calls of each user.
    calls_of: BTreeMap<u32, Arc<Semaphore>>,
    /// Receives `WebhookDone`.
    inbox: Sender<Message>,
    /// How mail is sent, if at all.
    pub mailer: Option<Mailer>,
    mails: Arc<Semaphore>,
    /// The mails of each user.
    mails_of: BTreeMap<u32, Arc<Semaphore>>,
}

/// The source of changes for subscribers.
#[derive(Clone)]
pub struct Feed {
    live: broadcast::Sender<Arc<OwnedChange>>,
    recent: Arc<Mutex<VecDeque<Arc<OwnedChange>>>>,
    /// Placements and samples, which are not repeated after a reconnection.
    samples: broadcast::Sender<Arc<LiveEvent>>,
}

impl Publisher {
    /// Sequence numbers continue from `seq`, which exceeds all that were published before.
    pub fn new(runtime: Handle, seq: u64, webhooks: bool, inbox: Sender<Message>) -> Self {
        let (live, _) = broadcast::channel(4096);
        let (samples, _) = broadcast::channel(1024);
        let feed = Feed { live, recent: Arc::default(), samples };
        Self {
            runtime,
            feed,
            seq,
            webhooks,
            calls_of: BTreeMap::new(),
            calls: Arc::new(Semaphore::new(WEBHOOKS_MAX)),
            inbox,
            mailer: None,
            mails: Arc::new(Semaphore::new(MAILS_MAX)),
            mails_of: BTreeMap::new(),
        }
    }

    /// The feed that subscribers read.
    pub fn feed(&self) -> Feed {
        self.feed.clone()
    }

    /// Publishes a change of a job and calls its webhook if it ended.
    pub fn publish(&mut self, now: Now, job: &StoredJob) {
        let change = Arc::new(OwnedChange {
            uid: job.uid,
            change: self.change(now.unix_us, job),
            texts: Default::default(),
        });
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
        if job.state.is_over() {
            self.mail(job, &change.change);
        }
    }

    /// Sends the mail of a job that ended, if it asked for one. It is tried three times and not repeated after
    /// a restart.
    fn mail(&mut self, job: &StoredJob, change: &JobChange) {
        let (Some(mailer), Some(to)) = (self.mailer.clone(), job.request.mail.clone()) else {
            return;
        };
        let text = crate::mail::message(job, change, &to);
        let from = format!("{}@{}", job.user, crate::tls::host_name());
        // Only root can act as another user.
        let owner =
            rustix::process::geteuid().is_root().then_some(Owner { uid: job.uid, gid: job.gid });
        let (mails, id) = (self.mails.clone(), job.id);
        let of_user = || Arc::new(Semaphore::new(MAILS_PER_USER));
        let of_user = self.mails_of.entry(job.uid).or_insert_with(of_user).clone();
        self.runtime.spawn(async move {
            let _of_user = of_user.acquire().await;
            let _permit = mails.acquire().await;
            for attempt in 0..WEBHOOK_ATTEMPTS {
                let (mailer, from, to, text) =
                    (mailer.clone(), from.clone(), to.clone(), text.clone());
                let send = move || mailer.send(owner, &from, &to, &text);
                match tokio::task::spawn_blocking(send).await {
                    Ok(Ok(())) => return,
                    Ok(Err(error)) => tracing::warn!("mail of job {id}: {error}"),
                    Err(error) => tracing::warn!("mail of job {id}: {error}"),
                }
                tokio::time::sleep(Duration::from_secs(1 << (2 * attempt))).await;
            }
        });
    }

    /// Whether anyone subscribes to placements and samples.
    pub fn is_watched(&self) -> bool {
        self.feed.samples.receiver_count() > 0
    }

    /// Publishes a placement or a sample.
    pub fn publish_live(&self, event: LiveEvent) {
        let _ = self.feed.samples.send(Arc::new(event));
    }

    /// Calls the webhook of a job that ended under an earlier daemon.
    pub fn retry_webhook(&mut self, job: &StoredJob) {
        if self.has_webhook(job) {
            let change = self.change(job.end_us.unwrap_or(0), job);
            self.call(job, change);
        }
    }

    /// Whether the job ended and has a webhook to call.
    pub fn has_webhook(&self, job: &StoredJob) -> bool {
        self.webhooks && job.state.is_over() && job.request.webhook.is_some()
    }

    fn change(&mut self, unix_us: u64, job: &StoredJob) -> JobChange {
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
            latency: crate::api::latency(job),
        }
    }

    fn call(&mut self, job: &StoredJob, change: JobChange) {
        let Some(address) = job.request.webhook.clone() else { return };
        let (owner, calls) = (Owner { uid: job.uid, gid: job.gid }, self.calls.clone());
        let of_user = || Arc::new(Semaphore::new(WEBHOOKS_PER_USER));
        let of_user = self.calls_of.entry(job.uid).or_insert_with(of_user).clone();
        let inbox = self.inbox.clone();
        self.runtime.spawn(async move {
            let _of_user = of_user.acquire().await;
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

    /// A receiver of placements and samples.
    pub fn subscribe_live(&self) -> broadcast::Receiver<Arc<LiveEvent>> {
        self.samples.subscribe()
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
    let is_https = uri.scheme_str() == Some("https");
    let port = uri.port_u16().unwrap_or(if is_https { 443 } else { 80 });
    let to = host.trim_matches(['[', ']']).to_owned();
    let name = ServerName::try_from(to.clone());
    // The connection is opened as the user, so that firewall rules by user apply.
    let connect = move || as_user(Some(owner), || connect(&to, port))?;
    let stream = tokio::task::spawn_blocking(connect).await??;
    stream.set_nonblocking(true)?;
    let stream = tokio::net::TcpStream::from_std(stream)?;
    let request = {
        let path = uri.path_and_query().map_or("/", |path| path.as_str());
        let request = hyper::Request::post(path).header("host", host);
        request.header("content-type", "application/json").body(body)?
    };
    if is_https {
        send(TlsConnector::from(trusted()?).connect(name?, stream).await?, request).await
    } else {
        send(stream, request).await
    }
}

/// Whom webhooks over TLS trust: the authorities of the system, or of `SSL_CERT_FILE`.
fn trusted() -> Result<Arc<rustls::ClientConfig>, crate::tls::TlsError> {
    static TRUSTED: OnceLock<Arc<rustls::ClientConfig>> = OnceLock::new();
    if let Some(known) = TRUSTED.get() {
        return Ok(known.clone());
    }
    let config = crate::tls::client(None)?;
    Ok(TRUSTED.get_or_init(|| config).clone())
}

/// Sends one request and returns the status of the answer.
async fn send(
    stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    request: hyper::Request<String>,
) -> Result<u16, Box<dyn std::error::Error + Send + Sync>> {
    let io = hyper_util::rt::TokioIo::new(stream);
    let (mut sender, connection) = hyper::client::conn::http1::handshake(io).await?;
    tokio::spawn(connection);
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
