//! HTTP connections: limits per user and in total, and the timeout for request headers.

use super::auth::Credentials;
use super::{ApiError, StatusCode, UnixSocket};
use axum::Router;
use axum::extract::ConnectInfo;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

/// A connection that has not sent its request headers by then is closed.
const HEADER_TIMEOUT: Duration = Duration::from_secs(30);
/// Time to send the 503 response to a connection beyond the limits.
const REJECT_TIMEOUT: Duration = Duration::from_secs(1);
/// Delay before accepting again when the process is out of file descriptors.
const ACCEPT_RETRY: Duration = Duration::from_millis(200);
/// Upper bound on connections. Half of the file descriptors stay free for jobs and the store.
const CONNECTIONS_MAX: usize = 4096;

/// Counts open connections and limits them.
#[derive(Clone)]
pub(super) struct ConnectionLimits {
    /// Open connections by user; `None` for all connections over TCP.
    open: Arc<Mutex<BTreeMap<Option<u32>, usize>>>,
    total_max: usize,
    /// The user of the daemon.
    daemon_uid: u32,
}

impl ConnectionLimits {
    pub(super) fn new(daemon_uid: u32) -> Self {
        let files = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
        let files = files.and_then(|files| usize::try_from(files).ok()).unwrap_or(usize::MAX);
        Self { open: Arc::default(), total_max: (files / 2).clamp(16, CONNECTIONS_MAX), daemon_uid }
    }

    /// Takes a slot. A user other than root and the daemon's own gets at most a quarter of all slots, and never
    /// more than are left for the other users, so that several users together do not lock another out. All
    /// such users leave a quarter for root.
    fn acquire(&self, uid: Option<u32>) -> Option<ConnectionSlot> {
        let is_operator =
            |uid: &Option<u32>| uid.is_some_and(|uid| uid == 0 || uid == self.daemon_uid);
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let all: usize = open.values().sum();
        let users: usize =
            open.iter().filter(|(uid, _)| !is_operator(uid)).map(|(_, count)| count).sum();
        let own = open.entry(uid).or_default();
        let is_too_many = if is_operator(&uid) {
            all >= self.total_max
        } else {
            let left = (self.total_max / 4 * 3).saturating_sub(users);
            *own >= left.min(self.total_max / 4)
        };
        if is_too_many {
            return None;
        }
        *own += 1;
        Some(ConnectionSlot { limits: self.clone(), uid })
    }
}

/// A slot, released when dropped.
struct ConnectionSlot {
    limits: ConnectionLimits,
    uid: Option<u32>,
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        let mut open = self.limits.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = open.get_mut(&self.uid) {
            *count -= 1;
            if *count == 0 {
                open.remove(&self.uid);
            }
        }
    }
}

/// A unix or TCP listener.
pub(super) trait Accept {
    /// A connection as it is accepted.
    type Raw: Send + 'static;
    /// A connection on which requests arrive.
    type Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static;

    /// The next connection, with the credentials of its peer on a unix socket.
    fn next(
        &self,
    ) -> impl Future<Output = std::io::Result<(Self::Raw, Option<Credentials>)>> + Send;

    /// Prepares an accepted connection for requests: nothing, or the TLS handshake.
    fn prepare(&self) -> impl Prepare<Self::Raw, Self::Stream>;
}

/// Makes an accepted connection ready for requests; `None` if its peer is not allowed.
pub(super) trait Prepare<Raw, Stream>: Send + 'static {
    fn prepare(self, raw: Raw) -> impl Future<Output = Option<Stream>> + Send;
}

/// Plain connections need no preparation.
struct Plain;

impl<S: Send + 'static> Prepare<S, S> for Plain {
    async fn prepare(self, raw: S) -> Option<S> {
        Some(raw)
    }
}

impl Accept for UnixSocket {
    type Raw = UnixStream;
    type Stream = UnixStream;

    async fn next(&self) -> std::io::Result<(UnixStream, Option<Credentials>)> {
        let stream = self.accept().await?;
        let credentials = Credentials::of(&stream);
        Ok((stream, Some(credentials)))
    }

    fn prepare(&self) -> impl Prepare<UnixStream, UnixStream> {
        Plain
    }
}

impl Accept for TcpListener {
    type Raw = TcpStream;
    type Stream = TcpStream;

    async fn next(&self) -> std::io::Result<(TcpStream, Option<Credentials>)> {
        let (stream, _) = self.accept().await?;
        Ok((stream, None))
    }

    fn prepare(&self) -> impl Prepare<TcpStream, TcpStream> {
        Plain
    }
}

/// A TCP listener with TLS.
pub(super) struct TlsListener {
    pub(super) listener: TcpListener,
    pub(super) acceptor: TlsAcceptor,
}

impl Prepare<TcpStream, TlsStream<TcpStream>> for TlsAcceptor {
    async fn prepare(self, raw: TcpStream) -> Option<TlsStream<TcpStream>> {
        tokio::time::timeout(HEADER_TIMEOUT, self.accept(raw)).await.ok()?.ok()
    }
}

impl Accept for TlsListener {
    type Raw = TcpStream;
    type Stream = TlsStream<TcpStream>;

    async fn next(&self) -> std::io::Result<(TcpStream, Option<Credentials>)> {
        self.listener.next().await
    }

    fn prepare(&self) -> impl Prepare<TcpStream, TlsStream<TcpStream>> {
        self.acceptor.clone()
    }
}

/// Serves a listener until the daemon shuts down, then waits for open connections.
pub(super) async fn serve_listener(
    listener: impl Accept,
    app: Router,
    limits: ConnectionLimits,
    mut shutdown: watch::Receiver<bool>,
) {
    let mut served = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.next() => accepted,
            _ = shutdown.wait_for(|shutdown| *shutdown) => break,
        };
        while served.try_join_next().is_some() {}
        let Ok((stream, credentials)) = accepted else {
            tokio::time::sleep(ACCEPT_RETRY).await;
            continue;
        };
        match limits.acquire(credentials.and_then(Credentials::uid)) {
            Some(slot) => {
                let (app, shutdown, prepare) = (app.clone(), shutdown.clone(), listener.prepare());
                served.spawn(async move {
                    if let Some(stream) = prepare.prepare(stream).await {
                        serve_connection(stream, app, credentials, slot, shutdown).await;
                    }
                });
            }
            None => {
                let prepare = listener.prepare();
                served.spawn(async move {
                    let ready = tokio::time::timeout(REJECT_TIMEOUT, prepare.prepare(stream)).await;
                    if let Ok(Some(stream)) = ready {
                        reject(stream).await;
                    }
                });
            }
        }
    }
    while served.join_next().await.is_some() {}
}

/// Serves the requests of one connection.
async fn serve_connection<S: AsyncRead + AsyncWrite + Unpin + Send>(
    stream: S,
    app: Router,
    credentials: Option<Credentials>,
    _slot: ConnectionSlot,
    mut shutdown: watch::Receiver<bool>,
) {
    let app = TowerToHyperService::new(app);
    let service = service_fn(move |mut request: hyper::Request<Incoming>| {
        if let Some(credentials) = credentials {
            request.extensions_mut().insert(ConnectInfo(credentials));
        }
        app.call(request)
    });
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(HEADER_TIMEOUT);
    let mut connection = pin!(builder.serve_connection(TokioIo::new(stream), service));
    tokio::select! {
        _ = connection.as_mut() => return,
        _ = shutdown.wait_for(|shutdown| *shutdown) => connection.as_mut().graceful_shutdown(),
    }
    let _ = connection.await;
}

/// Answers 503 to a connection beyond the limits.
async fn reject<S: AsyncRead + AsyncWrite + Unpin + Send>(mut stream: S) {
    let message = "too many connections are open; close some, or try again in a moment";
    let error = ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable", message);
    let body = serde_json::to_string(&error.body()).unwrap_or_default();
    let response = format!(
        "HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\n\
         connection: close\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    let _ = tokio::time::timeout(REJECT_TIMEOUT, stream.write_all(response.as_bytes())).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_leave_connections_for_root() {
        let limits = ConnectionLimits { open: Arc::default(), total_max: 64, daemon_uid: 0 };
        let mut slots = Vec::new();
        for uid in 1..=5 {
            let own: Vec<_> = (0..64).map_while(|_| limits.acquire(Some(uid))).collect();
            assert!(own.len() <= 16, "{uid} has {}", own.len());
            slots.extend(own);
        }
        // Users who hold what they can get leave some for the next.
        assert!(limits.acquire(Some(6)).is_some());
        let root: Vec<_> = (0..64).map_while(|_| limits.acquire(Some(0))).collect();
        assert!(root.len() >= 16, "{}", root.len());
        drop(slots);
        assert!(limits.acquire(Some(9)).is_some());
    }
}
