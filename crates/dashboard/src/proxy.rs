//! Carries requests of the page to the daemon, and what it answers back, as it comes.

use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1;
use hyper::header::{self, HeaderMap, HeaderName, HeaderValue};
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::ClientConfig;
use tokio_rustls::rustls::pki_types::ServerName;

/// A request of the page is a question or a few settings, never a job.
const BODY_MAX_BYTES: usize = 64 << 10;
const CONNECT_WITHIN: Duration = Duration::from_secs(5);
/// The head of an answer: a simulation may take its time.
const ANSWER_WITHIN: Duration = Duration::from_secs(120);

/// Headers of an answer that the page is given; the others concern the connection to the daemon.
const PASSED: [HeaderName; 2] = [header::CONTENT_TYPE, HeaderName::from_static("x-tandem-size")];

/// Where the daemon listens.
#[derive(Clone, Debug)]
pub enum Upstream {
    /// A unix socket, on which the system tells the daemon which user asks.
    Unix(PathBuf),
    /// A host and a port, with the token that stands for the user.
    Tcp {
        /// Host and port.
        host: String,
        /// The token.
        token: Option<String>,
        /// How the connection is encrypted; plain HTTP, on this machine, if absent.
        tls: Option<Arc<ClientConfig>>,
    },
}

pub(crate) type Body = BoxBody<Bytes, hyper::Error>;

/// Whether the page has any use for a request. Submitting is not among them: who gets hold of the session
/// can stop jobs, but not run a command.
pub fn is_allowed(method: &Method, path: &str) -> bool {
    let parts: Vec<&str> = path.split('/').skip(1).collect();
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    match (method, parts.as_slice()) {
        (&Method::GET, ["v1", rest @ ..]) => {
            !rest.is_empty() && rest.iter().all(|part| !part.is_empty() && *part != "..")
        }
        (&Method::POST, ["v1", "what-if"]) => true,
        (&Method::POST, ["v1", "jobs", id, "hold" | "release" | "pause" | "resume"])
        | (&Method::POST, ["v1", "devices", id, "drain" | "undrain"])
        | (&Method::DELETE, ["v1", "jobs", id]) => is_number(id),
        _ => false,
    }
}

impl Upstream {
    /// Sends a request on and returns the answer, whose body is still to come.
    pub(crate) async fn forward(&self, request: Request<Incoming>) -> Response<Body> {
        match self.try_forward(request).await {
            Ok(answer) => answer,
            Err(Trouble::TooLarge) => {
                let message = "the request is larger than 64 KiB";
                problem(StatusCode::PAYLOAD_TOO_LARGE, "too_large", message)
            }
            Err(Trouble::Away) => {
                let message = "the daemon cannot be reached";
                problem(StatusCode::SERVICE_UNAVAILABLE, "unavailable", message)
            }
        }
    }

    async fn try_forward(&self, request: Request<Incoming>) -> Result<Response<Body>, Trouble> {
        let (head, body) = request.into_parts();
        let body = Limited::new(body, BODY_MAX_BYTES).collect().await;
        let body = body.map_err(|_| Trouble::TooLarge)?.to_bytes();
        let path = head.uri.path_and_query().map_or("/", |path| path.as_str());
        let mut onward = Request::builder()
            .method(head.method)
            .uri(path)
            .header(header::HOST, "tandem")
            .body(Full::new(body))
            .map_err(|_| Trouble::Away)?;
        for name in [header::CONTENT_TYPE, HeaderName::from_static("last-event-id")] {
            if let Some(value) = head.headers.get(&name) {
                onward.headers_mut().insert(name, value.clone());
            }
        }
        let answer = match self {
            Upstream::Unix(path) => {
                let stream = timeout(CONNECT_WITHIN, UnixStream::connect(path)).await;
                exchange(opened(stream)?, onward).await?
            }
            Upstream::Tcp { host, token, tls } => {
                if let Some(token) = token {
                    let mut value = HeaderValue::try_from(format!("Bearer {token}"))
                        .map_err(|_| Trouble::Away)?;
                    value.set_sensitive(true);
                    onward.headers_mut().insert(header::AUTHORIZATION, value);
                }
                let stream = opened(timeout(CONNECT_WITHIN, TcpStream::connect(host)).await)?;
                match tls {
                    Some(tls) => exchange(encrypt(stream, host, tls).await?, onward).await?,
                    None => exchange(stream, onward).await?,
                }
            }
        };
        let (head, body) = answer.into_parts();
        let mut answer = Response::new(body.boxed());
        *answer.status_mut() = head.status;
        copy(&head.headers, answer.headers_mut());
        Ok(answer)
    }
}

/// Why a request could not be sent on.
enum Trouble {
    TooLarge,
    Away,
}

fn opened<S>(
    stream: Result<std::io::Result<S>, tokio::time::error::Elapsed>,
) -> Result<S, Trouble> {
    stream.map_err(|_| Trouble::Away)?.map_err(|_| Trouble::Away)
}

/// Encrypts a connection and checks that it leads to the host.
async fn encrypt(
    stream: TcpStream,
    host: &str,
    tls: &Arc<ClientConfig>,
) -> Result<TlsStream<TcpStream>, Trouble> {
    let name = host.rsplit_once(':').map_or(host, |(name, _)| name).trim_matches(['[', ']']);
    let name = ServerName::try_from(name.to_owned()).map_err(|_| Trouble::Away)?;
    let connector = TlsConnector::from(tls.clone());
    opened(timeout(CONNECT_WITHIN, connector.connect(name, stream)).await)
}

async fn exchange<S>(
    stream: S,
    request: Request<Full<Bytes>>,
) -> Result<Response<Incoming>, Trouble>
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let (mut sender, connection) =
        http1::handshake(TokioIo::new(stream)).await.map_err(|_| Trouble::Away)?;
    // Ends with the body of the answer; how it ends shows there.
    tokio::spawn(async move { drop(connection.await) });
    let answer = timeout(ANSWER_WITHIN, sender.send_request(request)).await;
    answer.map_err(|_| Trouble::Away)?.map_err(|_| Trouble::Away)
}

fn copy(from: &HeaderMap, to: &mut HeaderMap) {
    for name in PASSED {
        if let Some(value) = from.get(&name) {
            to.insert(name, value.clone());
        }
    }
}

/// A refusal of our own, in the form that the daemon gives its own.
pub(crate) fn problem(status: StatusCode, code: &str, message: &str) -> Response<Body> {
    // Neither holds a character that JSON would have to escape.
    let text = format!("{{\"error\":{{\"code\":\"{code}\",\"message\":\"{message}\"}}}}");
    let mut answer = Response::new(whole(text));
    *answer.status_mut() = status;
    let kind = HeaderValue::from_static("application/json");
    answer.headers_mut().insert(header::CONTENT_TYPE, kind);
    answer
}

/// A body that is known as a whole.
pub(crate) fn whole(bytes: impl Into<Bytes>) -> Body {
    Full::new(bytes.into()).map_err(|never| match never {}).boxed()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_can_look_and_steer_but_not_submit() {
        let allowed = |method: Method, path| is_allowed(&method, path);
        for path in ["/v1/events", "/v1/jobs", "/v1/jobs/7", "/v1/jobs/7/logs/tail", "/v1/timeline"]
        {
            assert!(allowed(Method::GET, path), "{path}");
        }
        for path in ["/v1/jobs/7/pause", "/v1/jobs/7/hold", "/v1/what-if", "/v1/devices/3/drain"] {
            assert!(allowed(Method::POST, path), "{path}");
        }
        assert!(allowed(Method::DELETE, "/v1/jobs/7"));
        assert!(!allowed(Method::POST, "/v1/jobs"), "that would run any command");
        assert!(!allowed(Method::PUT, "/v1/jobs/7/accum"));
        for path in ["/v1", "/v1/", "/v1//jobs", "/v1/../metrics", "/metrics", "/", "/events"] {
            assert!(!allowed(Method::GET, path), "{path}");
        }
        for path in ["/v1/jobs//pause", "/v1/jobs/x/pause", "/v1/jobs/7/accum", "/v1/jobs/7/pause/"]
        {
            assert!(!allowed(Method::POST, path), "{path}");
        }
        assert!(!allowed(Method::DELETE, "/v1/jobs/"));
    }
}
