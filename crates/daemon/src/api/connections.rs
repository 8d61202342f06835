//! Connections: who may have how many at a time, and how long one may take to say what it wants.

use super::auth::Credentials;
use super::{ApiError, StatusCode};
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
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// A connection that has not said what it wants by then is closed.
const HEADER_TIMEOUT: Duration = Duration::from_secs(30);
/// When no more files can be opened, the next attempt comes after this.
const ACCEPT_RETRY: Duration = Duration::from_millis(200);
/// Of the files that the system lets a process have, the daemon keeps half for jobs and its store.
const CONNECTIONS_MAX: usize = 4096;

/// How many connections there are, and may be.
#[derive(Clone)]
pub(super) struct ConnectionLimits {
    /// By user; those over TCP together.
    open: Arc<Mutex<BTreeMap<Option<u32>, usize>>>,
    all_max: usize,
    /// Whose daemon it is.
    uid: u32,
}

impl ConnectionLimits {
    pub(super) fn new(uid: u32) -> Self {
        let files = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
        let files = files.and_then(|files| usize::try_from(files).ok()).unwrap_or(usize::MAX);
        Self { open: Arc::default(), all_max: (files / 2).clamp(16, CONNECTIONS_MAX), uid }
    }

    /// A slot for one more; nobody but root and the daemon's user gets more than a quarter of all.
    fn acquire(&self, who: Option<u32>) -> Option<ConnectionSlot> {
        let is_operator = who.is_some_and(|uid| uid == 0 || uid == self.uid);
        let most = if is_operator { self.all_max } else { self.all_max / 4 };
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let all: usize = open.values().sum();
        let own = open.entry(who).or_default();
        if *own >= most || all >= self.all_max {
            return None;
        }
        *own += 1;
        Some(ConnectionSlot { limits: self.clone(), who })
    }
}

/// A slot that is free again when this is dropped.
struct ConnectionSlot {
    limits: ConnectionLimits,
    who: Option<u32>,
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        let mut open = self.limits.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = open.get_mut(&self.who) {
            *count -= 1;
            if *count == 0 {
                open.remove(&self.who);
            }
        }
    }
}

/// Serves a unix socket until the daemon leaves.
pub(super) async fn serve_unix(
    listener: UnixListener,
    app: Router,
    limits: ConnectionLimits,
    mut shutdown: watch::Receiver<bool>,
) {
    let mut served = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = shutdown.wait_for(|shutdown| *shutdown) => break,
        };
        while served.try_join_next().is_some() {}
        let Ok((stream, _)) = accepted else {
            tokio::time::sleep(ACCEPT_RETRY).await;
            continue;
        };
        let credentials = Credentials::of(&stream);
        match limits.acquire(credentials.uid()) {
            Some(slot) => {
                let (app, shutdown) = (app.clone(), shutdown.clone());
                served.spawn(serve(stream, app, Some(credentials), slot, shutdown));
            }
            None => drop(served.spawn(reject(stream))),
        }
    }
    while served.join_next().await.is_some() {}
}

/// Serves TCP until the daemon leaves.
pub(super) async fn serve_tcp(
    listener: TcpListener,
    app: Router,
    limits: ConnectionLimits,
    mut shutdown: watch::Receiver<bool>,
) {
    let mut served = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = shutdown.wait_for(|shutdown| *shutdown) => break,
        };
        while served.try_join_next().is_some() {}
        let Ok((stream, _)) = accepted else {
            tokio::time::sleep(ACCEPT_RETRY).await;
            continue;
        };
        match limits.acquire(None) {
            Some(slot) => {
                served.spawn(serve(stream, app.clone(), None, slot, shutdown.clone()));
            }
            None => drop(served.spawn(reject(stream))),
        }
    }
    while served.join_next().await.is_some() {}
}

/// Answers what is asked over one connection.
async fn serve<S: AsyncRead + AsyncWrite + Unpin + Send>(
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

/// Says no to one connection too many.
async fn reject<S: AsyncRead + AsyncWrite + Unpin + Send>(mut stream: S) {
    let message = "too many connections are open; close some, or try again in a moment";
    let error = ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable", message);
    let body = serde_json::to_string(&error.answer()).unwrap_or_default();
    let answer = format!(
        "HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\n\
         connection: close\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    let _ = tokio::time::timeout(Duration::from_secs(1), stream.write_all(answer.as_bytes())).await;
}
