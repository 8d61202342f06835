//! The loopback server.

use crate::assets::asset;
use crate::guard::{Guard, Rejection};
use crate::peer::Peers;
use crate::proxy::{Body, Upstream, is_allowed, problem, whole};
use hyper::body::Incoming;
use hyper::header::{self, HeaderName, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use std::convert::Infallible;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use thiserror::Error;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

/// Connections at a time: a few tabs, each with a stream or two.
const CONNECTIONS_MAX: usize = 64;
/// A connection that has not said what it wants by then is closed.
const HEAD_WITHIN: Duration = Duration::from_secs(30);
/// Another user, who is only told to go away, must not take the places of the tabs.
const HEAD_OF_OTHERS_WITHIN: Duration = Duration::from_secs(1);
/// When no more connections can be opened, the next attempt comes after this.
const ACCEPT_AGAIN: Duration = Duration::from_millis(200);

/// Nothing inline, nothing from elsewhere, no frames; scripts cannot turn text into markup.
const CONTENT_SECURITY_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; \
    connect-src 'self'; img-src 'self' data:; base-uri 'none'; form-action 'none'; \
    frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'";

/// What every answer says about itself.
const HEADERS: [(HeaderName, &str); 8] = [
    (header::CONTENT_SECURITY_POLICY, CONTENT_SECURITY_POLICY),
    (header::CACHE_CONTROL, "no-store"),
    (header::REFERRER_POLICY, "no-referrer"),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::X_FRAME_OPTIONS, "DENY"),
    (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    (HeaderName::from_static("permissions-policy"), "camera=(), geolocation=(), microphone=()"),
];

/// Adds what every answer says about itself.
pub fn add_headers(headers: &mut hyper::HeaderMap) {
    for (name, value) in HEADERS {
        headers.insert(name, HeaderValue::from_static(value));
    }
}

/// Sends the browser on to the page by itself, so that the session cookie goes along: a redirect would
/// count as coming from wherever the link was.
const WELCOME: &str = "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\">\
    <link rel=\"icon\" href=\"data:,\"><meta http-equiv=\"refresh\" content=\"0;url=/\"><title>Tandem</title>\
    <p><a href=\"/\">Dashboard</a></p></html>\n";

/// Why there is no dashboard.
#[derive(Debug, Error)]
pub enum DashboardError {
    /// The port.
    #[error("cannot listen at port {port}: {cause}; give another one with --port")]
    Listen {
        /// The port that was asked for.
        port: u16,
        /// Why.
        cause: io::Error,
    },
    /// The system gives no random numbers.
    #[error("cannot make a token: {0}")]
    Token(io::Error),
}

/// A server that is about to serve.
pub struct Dashboard {
    listener: TcpListener,
    port: u16,
    gateway: Arc<Gateway>,
}

struct Gateway {
    peers: Peers,
    guard: Guard,
    upstream: Upstream,
}

impl Dashboard {
    /// Listens at a port of the loopback interface; port 0 is any that is free.
    pub async fn bind(port: u16, upstream: Upstream) -> Result<Self, DashboardError> {
        let failed = |cause| DashboardError::Listen { port, cause };
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let listener = TcpListener::bind(address).await.map_err(failed)?;
        let port = listener.local_addr().map_err(failed)?.port();
        let guard = Guard::new(port).map_err(DashboardError::Token)?;
        let peers = Peers::of_this_process();
        Ok(Self { listener, port, gateway: Arc::new(Gateway { peers, guard, upstream }) })
    }

    /// The port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The address that opens the dashboard, once.
    pub fn url(&self) -> String {
        let token = self.gateway.guard.token().unwrap_or_default();
        format!("http://127.0.0.1:{}/?token={token}", self.port)
    }

    /// Serves until it is dropped.
    pub async fn serve(self) {
        let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
        loop {
            // The semaphore is never closed.
            let Ok(place) = places.clone().acquire_owned().await else { return };
            let Ok((stream, peer)) = self.listener.accept().await else {
                tokio::time::sleep(ACCEPT_AGAIN).await;
                continue;
            };
            let gateway = self.gateway.clone();
            tokio::spawn(async move {
                let is_own = stream.local_addr().is_ok_and(|own| gateway.peers.have(peer, own));
                let service = service_fn(move |request| {
                    let gateway = gateway.clone();
                    async move { Ok::<_, Infallible>(gateway.answer(request, is_own).await) }
                });
                let mut builder = http1::Builder::new();
                let within = if is_own { HEAD_WITHIN } else { HEAD_OF_OTHERS_WITHIN };
                builder.timer(TokioTimer::new()).header_read_timeout(within).keep_alive(is_own);
                let _ = builder.serve_connection(TokioIo::new(stream), service).await;
                drop(place);
            });
        }
    }
}

impl Gateway {
    async fn answer(&self, request: Request<Incoming>, is_own: bool) -> Response<Body> {
        let decided = if is_own { self.decide(&request) } else { Err(Rejection::User) };
        let mut answer = match decided {
            Ok(Handling::Done(answer)) => answer,
            Ok(Handling::Forward) => self.upstream.forward(request).await,
            Err(refusal) => problem(refusal.status(), "unauthorized", refusal.message()),
        };
        add_headers(answer.headers_mut());
        answer
    }

    fn decide(&self, request: &Request<Incoming>) -> Result<Handling, Rejection> {
        let (method, headers, path) = (request.method(), request.headers(), request.uri().path());
        self.guard.check_source(method, headers)?;
        let has_session = self.guard.check_session(headers);
        if let Some(token) = token(request.uri().query()).filter(|_| path == "/") {
            // A used address still leads who came with it before to the page.
            return match self.guard.redeem(token) {
                Ok(cookie) => Ok(Handling::Done(welcome(Some(&cookie)))),
                Err(_) if has_session.is_ok() => Ok(Handling::Done(welcome(None))),
                Err(refusal) => Err(refusal),
            };
        }
        has_session?;
        if is_allowed(method, path) {
            return Ok(Handling::Forward);
        }
        Ok(Handling::Done(match asset(path).filter(|_| *method == Method::GET) {
            Some(asset) => page(asset.kind, asset.bytes),
            None => problem(StatusCode::NOT_FOUND, "not_found", "there is no such path"),
        }))
    }
}

/// What happens to a request.
enum Handling {
    Done(Response<Body>),
    Forward,
}

fn token(query: Option<&str>) -> Option<&str> {
    query?.split('&').find_map(|pair| pair.strip_prefix("token="))
}

fn page(kind: &'static str, bytes: &'static [u8]) -> Response<Body> {
    let mut answer = Response::new(whole(bytes));
    answer.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    answer
}

fn welcome(cookie: Option<&str>) -> Response<Body> {
    let mut answer = page("text/html; charset=utf-8", WELCOME.as_bytes());
    if let Some(cookie) = cookie.and_then(|cookie| HeaderValue::from_str(cookie).ok()) {
        answer.headers_mut().insert(header::SET_COOKIE, cookie);
    }
    answer
}
