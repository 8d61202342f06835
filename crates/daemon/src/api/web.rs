//! The dashboard over TLS, for browsers on other machines. A user signs in with a token and gets a session
//! cookie. The token is checked again with every request, so that a session ends when its token does.

use super::{Api, ApiError};
use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, Method, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tandem_dashboard::{add_headers, asset, check_origin, is_allowed};

/// Bound to this host and this scheme by its name.
const COOKIE: &str = "__Host-tandem";
/// A session without requests ends after this.
const IDLE_MAX: Duration = Duration::from_secs(12 * 3600);
/// Sessions at a time; beyond that the one that was idle longest ends.
const SESSIONS_MAX: usize = 1000;
/// The largest sign-in form.
const FORM_MAX: usize = 4096;
/// As for the pages, but the form may be sent.
const SIGN_IN_POLICY: &str = "default-src 'none'; style-src 'self'; img-src data:; \
    base-uri 'none'; form-action 'self'; frame-ancestors 'none'";

/// The listener of the dashboard.
pub struct Web {
    /// The address.
    pub listener: tokio::net::TcpListener,
    /// How it encrypts.
    pub tls: Arc<rustls::ServerConfig>,
}

/// The API behind the pages of the dashboard and their sessions.
pub(super) fn with_sessions(router: Router, api: Api) -> Router {
    let site = Site { api, sessions: Arc::default() };
    router.layer(middleware::from_fn_with_state(site, answer))
}

#[derive(Clone)]
struct Site {
    api: Api,
    sessions: Arc<Mutex<Sessions>>,
}

/// Sessions by the hash of their cookie.
#[derive(Default)]
struct Sessions(BTreeMap<[u8; 32], Session>);

struct Session {
    /// The token that was given.
    secret: String,
    used: Instant,
}

impl Sessions {
    fn add(&mut self, cookie: &str, secret: String, now: Instant) {
        self.0.retain(|_, session| now.duration_since(session.used) < IDLE_MAX);
        if self.0.len() >= SESSIONS_MAX
            && let Some((&oldest, _)) = self.0.iter().min_by_key(|(_, session)| session.used)
        {
            self.0.remove(&oldest);
        }
        self.0.insert(hash(cookie), Session { secret, used: now });
    }

    /// The token of a session.
    fn find(&mut self, cookie: &str, now: Instant) -> Option<String> {
        let session = self.0.get_mut(&hash(cookie))?;
        if now.duration_since(session.used) >= IDLE_MAX {
            return None;
        }
        session.used = now;
        Some(session.secret.clone())
    }
}

fn hash(cookie: &str) -> [u8; 32] {
    Sha256::digest(cookie.as_bytes()).into()
}

/// Answers a request with a page, the sign-in form or what the API says.
async fn answer(State(site): State<Site>, request: Request, next: Next) -> Response {
    let mut response = match site.decide(request, next).await {
        Ok(response) => response,
        Err(error) => error.into_response(),
    };
    let own = response.headers().clone();
    add_headers(response.headers_mut());
    for name in [header::CONTENT_SECURITY_POLICY, header::REFERRER_POLICY] {
        if let Some(value) = own.get(&name) {
            response.headers_mut().insert(name, value.clone());
        }
    }
    response
}

impl Site {
    async fn decide(&self, mut request: Request, next: Next) -> Result<Response, ApiError> {
        let (method, path) = (request.method().clone(), request.uri().path().to_owned());
        check_origin("https", &method, request.headers()).map_err(|refusal| {
            ApiError::new(refusal.status(), "unauthorized", refusal.message())
        })?;
        if method == Method::POST && path == "/sign-in" {
            return Ok(self.sign_in(request.into_body()).await);
        }
        // The form has the look of the pages.
        let is_public = method == Method::GET && path == "/dashboard.css";
        let caller = self.token_of(request.headers()).and_then(|t| self.api.authenticate(&t));
        let Some(caller) = caller else {
            return match path.as_str() {
                "/" if method == Method::GET => Ok(form(StatusCode::OK, "")),
                _ if is_public => Ok(page(&path).unwrap_or_default()),
                _ => Err(ApiError::new(
                    StatusCode::UNAUTHORIZED,
                    "unauthorized",
                    "the session has ended; load the page again and sign in with a token",
                )),
            };
        };
        if is_allowed(&method, &path) {
            request.extensions_mut().insert(caller);
            return Ok(next.run(request).await);
        }
        let found = page(&path).filter(|_| method == Method::GET);
        found.ok_or_else(|| ApiError::new(StatusCode::NOT_FOUND, "not_found", "no such path"))
    }

    /// The token of the session that a request carries.
    fn token_of(&self, headers: &HeaderMap) -> Option<String> {
        let cookies = headers.get_all(header::COOKIE).iter();
        let pairs = cookies.filter_map(|value| value.to_str().ok()).flat_map(|all| all.split(';'));
        let mut named = pairs.filter_map(|pair| pair.trim().split_once('='));
        let (_, cookie) = named.find(|(name, _)| *name == COOKIE)?;
        self.sessions().find(cookie, Instant::now())
    }

    fn sessions(&self) -> std::sync::MutexGuard<'_, Sessions> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens a session for a valid token.
    async fn sign_in(&self, body: Body) -> Response {
        let form_body = to_bytes(body, FORM_MAX).await.unwrap_or_default();
        let text = String::from_utf8_lossy(&form_body);
        // A token holds no character that a form escapes.
        let token = text.split('&').find_map(|pair| pair.strip_prefix("token="));
        let token = token.unwrap_or_default().trim_matches('+');
        if self.api.authenticate(token).is_none() {
            let problem = "This token is wrong or has expired. Make one with: tandem token create";
            return form(StatusCode::UNAUTHORIZED, problem);
        }
        let Ok(cookie) = random() else {
            return form(StatusCode::INTERNAL_SERVER_ERROR, "The system gives no random numbers.");
        };
        self.sessions().add(&cookie, token.to_owned(), Instant::now());
        let cookie = format!("{COOKIE}={cookie}; Path=/; Secure; HttpOnly; SameSite=Strict");
        let headers = [(header::SET_COOKIE, cookie), (header::LOCATION, "/".to_owned())];
        (StatusCode::SEE_OTHER, headers).into_response()
    }
}

/// 256 random bits in hexadecimal.
fn random() -> std::io::Result<String> {
    let mut bytes = [0_u8; 32];
    std::io::Read::read_exact(&mut std::fs::File::open("/dev/urandom")?, &mut bytes)?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

fn page(path: &str) -> Option<Response> {
    let asset = asset(path)?;
    Some(([(header::CONTENT_TYPE, asset.kind)], asset.bytes).into_response())
}

/// The sign-in form; `problem` is one of the texts above.
fn form(status: StatusCode, problem: &str) -> Response {
    let alert = match problem {
        "" => String::new(),
        _ => format!("<p role=\"alert\">{problem}</p>"),
    };
    let page = format!(
        "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><title>Sign in · Tandem</title>\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\
         <link rel=\"icon\" href=\"data:,\"><link rel=\"stylesheet\" href=\"/dashboard.css\"></head>\
         <body><main id=\"main\"><section><h1>Tandem</h1>{alert}\
         <p>Sign in with a token. <code>tandem token create</code> makes one on the machine of the daemon.</p>\
         <form class=\"form\" method=\"post\" action=\"/sign-in\">\
         <input name=\"user\" autocomplete=\"username\" hidden><label>Token \
         <input type=\"password\" name=\"token\" size=\"48\" required autofocus autocomplete=\"current-password\">\
         </label> <button class=\"btn primary\">Sign in</button></form></section></main></body></html>\n"
    );
    let headers = [
        (header::CONTENT_TYPE, "text/html; charset=utf-8"),
        (header::CONTENT_SECURITY_POLICY, SIGN_IN_POLICY),
        // Without a referrer browsers name no origin when they send a form.
        (header::REFERRER_POLICY, "same-origin"),
    ];
    (status, headers, page).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_is_found_by_its_cookie_until_it_was_idle_too_long() {
        let (mut sessions, start) = (Sessions::default(), Instant::now());
        sessions.add("one", "token".to_owned(), start);
        let later = start + IDLE_MAX / 2;
        assert_eq!(sessions.find("one", later).as_deref(), Some("token"));
        assert_eq!(sessions.find("other", later), None);
        assert!(sessions.find("one", later + IDLE_MAX / 2).is_some(), "it was used meanwhile");
        assert_eq!(sessions.find("one", later + IDLE_MAX * 2), None);
    }

    #[test]
    fn sessions_are_bounded_and_the_one_idle_longest_ends() {
        let (mut sessions, start) = (Sessions::default(), Instant::now());
        for n in 0..=SESSIONS_MAX {
            let at = start + Duration::from_millis(n as u64);
            sessions.add(&n.to_string(), "token".to_owned(), at);
        }
        let end = start + Duration::from_secs(60);
        assert_eq!(sessions.0.len(), SESSIONS_MAX);
        assert_eq!(sessions.find("0", end), None);
        assert!(sessions.find("1", end).is_some());
    }
}
