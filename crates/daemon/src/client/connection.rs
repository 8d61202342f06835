//! One HTTP connection to the daemon, over a unix socket or TCP.

use super::ClientError;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST, HeaderValue};
use hyper::{Method, Request, Response};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use std::fmt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

/// Causes for which no daemon is there.
pub(super) const NO_SOCKET: &str = "no such socket";
pub(super) const REFUSED: &str = "connection refused";
/// Timeout of connecting.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Timeout of a response: a forecast may take long.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(120);
/// The longest response that is read.
const RESPONSE_MAX_BYTES: usize = 256 << 20;

/// The address of a daemon.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// A unix socket.
    Unix(PathBuf),
    /// A host and a port, without encryption: on this machine only.
    Tcp(String),
    /// A host and a port with TLS.
    Tls {
        /// `HOST:PORT`
        host: String,
        /// Certificates to trust instead of those of the system.
        authorities: Option<PathBuf>,
    },
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Unix(path) => path.display().fmt(f),
            Address::Tcp(host) => write!(f, "http://{host}"),
            Address::Tls { host, .. } => write!(f, "https://{host}"),
        }
    }
}

/// The address of a daemon and the token for it.
#[derive(Clone)]
pub(super) struct Endpoint {
    pub(super) address: Address,
    pub(super) token: Option<String>,
}

pub(super) type HttpSender = SendRequest<Full<Bytes>>;

/// A response, read to its end.
pub(super) struct RawResponse {
    pub(super) status: u16,
    /// The header `x-tandem-size`.
    pub(super) size: Option<u64>,
    pub(super) body: Bytes,
}

impl Endpoint {
    pub(super) fn unreachable(&self, cause: impl fmt::Display) -> ClientError {
        let (address, cause) = (self.address.to_string(), cause.to_string());
        ClientError::Unreachable { address, cause }
    }

    /// Opens a connection; a task of the runtime drives it.
    pub(super) async fn connect(&self) -> Result<HttpSender, ClientError> {
        let opened = timeout(CONNECT_TIMEOUT, async {
            match &self.address {
                Address::Unix(path) => {
                    check_socket(path)?;
                    let stream = UnixStream::connect(path).await.map_err(io_cause)?;
                    check_peer(&stream)?;
                    drive(stream).await
                }
                Address::Tcp(host) => {
                    let stream = TcpStream::connect(host).await.map_err(io_cause)?;
                    let peer = stream.peer_addr().map_err(io_cause)?;
                    if self.token.is_some() && !peer.ip().is_loopback() {
                        return Err("a token is not sent without TLS; use https://".to_owned());
                    }
                    drive(stream).await
                }
                Address::Tls { host, authorities } => {
                    let config = crate::tls::client(authorities.as_deref());
                    let config = config.map_err(|error| error.to_string())?;
                    let stream = TcpStream::connect(host).await.map_err(io_cause)?;
                    let name = host.rsplit_once(':').map_or(host.as_str(), |(name, _)| name);
                    let name = name.trim_matches(['[', ']']).to_owned();
                    let name = ServerName::try_from(name).map_err(|error| error.to_string())?;
                    let connected = TlsConnector::from(config).connect(name, stream).await;
                    drive(connected.map_err(|error| tls_cause(&error))?).await
                }
            }
        });
        match opened.await {
            Ok(opened) => opened.map_err(|cause| self.unreachable(cause)),
            Err(_) => {
                Err(self.unreachable(format!("no response within {} s", CONNECT_TIMEOUT.as_secs())))
            }
        }
    }

    /// Builds a request.
    pub(super) fn request(
        &self,
        method: &Method,
        path: &str,
        body: &[u8],
    ) -> Result<Request<Full<Bytes>>, ClientError> {
        let mut request = Request::builder().method(method).uri(path).header(HOST, "tandem");
        if !body.is_empty() {
            request = request.header(CONTENT_TYPE, "application/json");
        }
        if let Some(token) = &self.token {
            let mut value = HeaderValue::try_from(format!("Bearer {token}")).map_err(|_| {
                ClientError::Protocol(
                    "the token contains characters that are not allowed in a header".to_owned(),
                )
            })?;
            value.set_sensitive(true);
            request = request.header(AUTHORIZATION, value);
        }
        let request = request.body(Full::new(Bytes::copy_from_slice(body)));
        request.map_err(|error| ClientError::Protocol(format!("{path}: {error}")))
    }

    /// Sends a request and waits for the headers of the response.
    pub(super) async fn send(
        &self,
        sender: &mut HttpSender,
        request: Request<Full<Bytes>>,
    ) -> Result<Response<Incoming>, ClientError> {
        sender.ready().await.map_err(|error| self.unreachable(http_cause(&error)))?;
        match timeout(RESPONSE_TIMEOUT, sender.send_request(request)).await {
            Ok(response) => response.map_err(|error| self.unreachable(http_cause(&error))),
            Err(_) => {
                Err(self
                    .unreachable(format!("no response within {} s", RESPONSE_TIMEOUT.as_secs())))
            }
        }
    }

    /// Reads a response to its end.
    pub(super) async fn read(
        &self,
        response: Response<Incoming>,
    ) -> Result<RawResponse, ClientError> {
        let status = response.status().as_u16();
        let size = response
            .headers()
            .get("x-tandem-size")
            .and_then(|size| size.to_str().ok()?.parse().ok());
        let body = Limited::new(response.into_body(), RESPONSE_MAX_BYTES).collect();
        match timeout(RESPONSE_TIMEOUT, body).await {
            Ok(Ok(body)) => Ok(RawResponse { status, size, body: body.to_bytes() }),
            Ok(Err(error)) => Err(self.unreachable(format!("the response was cut off: {error}"))),
            Err(_) => Err(self.unreachable("the response timed out")),
        }
    }
}

/// Refuses a socket that another user could have put there: the requests hold the user's environment.
fn check_socket(path: &Path) -> Result<(), String> {
    let own = rustix::process::geteuid().as_raw();
    // Root names the socket of another user's daemon on purpose; default sockets are checked before.
    if own == 0 {
        return Ok(());
    }
    let folder = path.parent().filter(|folder| *folder != Path::new("")).unwrap_or(Path::new("."));
    for place in [folder, path] {
        // One that is not there shows when connecting.
        let Ok(metadata) = place.metadata() else { continue };
        if metadata.uid() != own && metadata.uid() != 0 {
            let (place, uid) = (place.display(), metadata.uid());
            return Err(format!("{place} belongs to user {uid}, not to you or root"));
        }
        let (writable, sticky) = (metadata.mode() & 0o022 != 0, metadata.mode() & 0o1000 != 0);
        if metadata.is_dir() && writable && !sticky {
            return Err(format!("other users can write to the folder {}", place.display()));
        }
    }
    Ok(())
}

/// Refuses a process of another user at the other end.
fn check_peer(stream: &UnixStream) -> Result<(), String> {
    let own = rustix::process::geteuid().as_raw();
    let peer = stream.peer_cred().map_err(io_cause)?.uid();
    if own == 0 || peer == own || peer == 0 {
        return Ok(());
    }
    Err(format!("the process that listens is user {peer}'s, not yours or root's; nothing was sent"))
}

fn tls_cause(error: &std::io::Error) -> String {
    format!("{error}; name the daemon's certificate with --ca-file, or leave out TLS with http://")
}

async fn drive<S>(stream: S) -> Result<HttpSender, String>
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let (sender, connection) =
        handshake(TokioIo::new(stream)).await.map_err(|error| error.to_string())?;
    // Errors of the connection show in its requests.
    tokio::spawn(async move { drop(connection.await) });
    Ok(sender)
}

/// The cause without the OS error number.
#[allow(clippy::needless_pass_by_value)] // For map_err.
fn io_cause(error: std::io::Error) -> String {
    match error.kind() {
        std::io::ErrorKind::NotFound => NO_SOCKET.to_owned(),
        std::io::ErrorKind::ConnectionRefused => REFUSED.to_owned(),
        std::io::ErrorKind::PermissionDenied => "permission denied".to_owned(),
        _ => error.to_string(),
    }
}

fn http_cause(error: &hyper::Error) -> String {
    format!("the connection was lost ({error})")
}
