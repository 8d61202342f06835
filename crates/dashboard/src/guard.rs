//! Which requests are answered: those that name this server, come from its own pages and carry a session.

use crate::secret::Secret;
use hyper::header::{COOKIE, HOST, HeaderMap, HeaderName, ORIGIN};
use hyper::{Method, StatusCode};
use std::io;
use std::sync::{Mutex, PoisonError};

const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// Why a request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rejection {
    /// It comes from another user of this machine.
    User,
    /// It names another host: the name of somebody else was made to lead here.
    Host,
    /// It comes from the page of another site.
    Origin,
    /// It carries no session.
    Session,
    /// The token was used before, or is none.
    Token,
}

impl Rejection {
    /// The status of the answer.
    pub fn status(self) -> StatusCode {
        match self {
            Rejection::Host => StatusCode::MISDIRECTED_REQUEST,
            Rejection::User | Rejection::Origin => StatusCode::FORBIDDEN,
            Rejection::Session | Rejection::Token => StatusCode::UNAUTHORIZED,
        }
    }

    /// What is wrong and what to do.
    pub fn message(self) -> &'static str {
        match self {
            Rejection::User => {
                "this dashboard is that of another user; run 'tandem dashboard' as yourself"
            }
            Rejection::Host => "this server answers to its own address only",
            Rejection::Origin => "this request comes from another site",
            Rejection::Session => {
                "open the address that 'tandem dashboard' printed; run it again for a new one"
            }
            Rejection::Token => {
                "this address was used before; run 'tandem dashboard' for a new one"
            }
        }
    }
}

/// The rules of one server.
pub(crate) struct Guard {
    port: u16,
    /// Becomes nothing when it is used.
    token: Mutex<Option<Secret>>,
    session: Secret,
}

impl Guard {
    pub(crate) fn new(port: u16) -> io::Result<Self> {
        let (token, session) = (Secret::new()?, Secret::new()?);
        Ok(Self { port, token: Mutex::new(Some(token)), session })
    }

    /// The token, as long as nobody has used it.
    pub(crate) fn token(&self) -> Option<String> {
        let token = self.token.lock().unwrap_or_else(PoisonError::into_inner);
        token.as_ref().map(|token| token.text().to_owned())
    }

    /// A page of another host or site gets nothing, whatever it carries.
    pub(crate) fn check_source(
        &self,
        method: &Method,
        headers: &HeaderMap,
    ) -> Result<(), Rejection> {
        let host = text(headers, &HOST).ok_or(Rejection::Host)?;
        if !self.hosts().iter().any(|own| own == host) {
            return Err(Rejection::Host);
        }
        check_origin("http", method, headers)
    }

    /// Whether a request carries the session cookie.
    pub(crate) fn check_session(&self, headers: &HeaderMap) -> Result<(), Rejection> {
        let name = self.cookie_name();
        let given = headers
            .get_all(COOKIE)
            .iter()
            .filter_map(|value| value.to_str().ok())
            .flat_map(|value| value.split(';'))
            .filter_map(|pair| pair.trim().split_once('='));
        let matches =
            given.filter(|(given, value)| *given == name && self.session.is(value)).count() > 0;
        if matches { Ok(()) } else { Err(Rejection::Session) }
    }

    /// Gives the cookie for the token, once.
    pub(crate) fn redeem(&self, given: &str) -> Result<String, Rejection> {
        let mut token = self.token.lock().unwrap_or_else(PoisonError::into_inner);
        match token.take_if(|token| token.is(given)) {
            Some(_) => Ok(format!(
                "{}={}; Path=/; HttpOnly; SameSite=Strict",
                self.cookie_name(),
                self.session.text()
            )),
            None => Err(Rejection::Token),
        }
    }

    /// Cookies know no ports: another server on this host has another name for its own.
    fn cookie_name(&self) -> String {
        format!("tandem-{}", self.port)
    }

    fn hosts(&self) -> [String; 2] {
        [format!("127.0.0.1:{}", self.port), format!("localhost:{}", self.port)]
    }
}

/// Refuses a request that comes from the page of another site than the host which it names, except for a
/// link that leads to a page.
pub fn check_origin(scheme: &str, method: &Method, headers: &HeaderMap) -> Result<(), Rejection> {
    let host = text(headers, &HOST).ok_or(Rejection::Host)?;
    // A browser always names the origin of what changes something.
    let is_own = |origin: &str| origin.split_once("://") == Some((scheme, host));
    if !text(headers, &ORIGIN).map_or(*method == Method::GET, is_own) {
        return Err(Rejection::Origin);
    }
    match text(headers, &SEC_FETCH_SITE) {
        Some("same-origin" | "none") | None => Ok(()),
        // A link elsewhere may lead to the page, which then asks for itself.
        Some(_) if *method == Method::GET && is_navigation(headers) => Ok(()),
        Some(_) => Err(Rejection::Origin),
    }
}

fn is_navigation(headers: &HeaderMap) -> bool {
    text(headers, &HeaderName::from_static("sec-fetch-mode")) == Some("navigate")
}

/// The value of a header that occurs once.
fn text<'h>(headers: &'h HeaderMap, name: &HeaderName) -> Option<&'h str> {
    let mut values = headers.get_all(name).iter();
    let value = values.next()?.to_str().ok()?;
    values.next().is_none().then_some(value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use hyper::header::HeaderValue;

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        let value = |text: &str| HeaderValue::from_str(text).expect("a header");
        pairs.iter().map(|(name, text)| (HeaderName::from_static(name), value(text))).collect()
    }

    fn source(method: &Method, pairs: &[(&'static str, &str)]) -> Result<(), Rejection> {
        Guard::new(4000).expect("a guard").check_source(method, &headers(pairs))
    }

    #[test]
    fn only_its_own_names_are_answered() {
        for host in ["127.0.0.1:4000", "localhost:4000"] {
            assert_eq!(source(&Method::GET, &[("host", host)]), Ok(()));
        }
        let foreign =
            ["evil.example:4000", "127.0.0.1", "127.0.0.1:4001", "localhost", "", "[::1]:4000"];
        for host in foreign {
            assert_eq!(source(&Method::GET, &[("host", host)]), Err(Rejection::Host), "{host}");
        }
        assert_eq!(source(&Method::GET, &[]), Err(Rejection::Host));
    }

    #[test]
    fn what_changes_something_must_come_from_the_page() {
        let host = ("host", "127.0.0.1:4000");
        let own = ("origin", "http://127.0.0.1:4000");
        for method in [Method::POST, Method::DELETE, Method::PUT] {
            assert_eq!(source(&method, &[host, own]), Ok(()));
            assert_eq!(source(&method, &[host]), Err(Rejection::Origin), "no origin");
            for other in
                ["null", "http://evil.example", "http://127.0.0.1:4001", "https://127.0.0.1:4000"]
            {
                let given = [host, ("origin", other)];
                assert_eq!(source(&method, &given), Err(Rejection::Origin), "{other}");
            }
            let mixed =
                [host, own, ("sec-fetch-site", "cross-site"), ("sec-fetch-mode", "navigate")];
            assert_eq!(source(&method, &mixed), Err(Rejection::Origin));
        }
    }

    #[test]
    fn other_sites_may_link_to_the_page_but_not_read_from_it() {
        let host = ("host", "localhost:4000");
        let from_afar = ("sec-fetch-site", "cross-site");
        let link = [host, from_afar, ("sec-fetch-mode", "navigate")];
        assert_eq!(source(&Method::GET, &link), Ok(()));
        let read = [host, from_afar, ("sec-fetch-mode", "no-cors")];
        assert_eq!(source(&Method::GET, &read), Err(Rejection::Origin));
        let neighbour = [host, ("sec-fetch-site", "same-site"), ("sec-fetch-mode", "cors")];
        assert_eq!(source(&Method::GET, &neighbour), Err(Rejection::Origin), "another port");
    }

    #[test]
    fn a_token_is_good_for_one_session() {
        let guard = Guard::new(4000).expect("a guard");
        let token = guard.token().expect("a token");
        assert_eq!(guard.redeem("guess"), Err(Rejection::Token));
        let cookie = guard.redeem(&token).expect("the first time");
        assert!(cookie.ends_with("; Path=/; HttpOnly; SameSite=Strict"), "{cookie}");
        assert_eq!(guard.redeem(&token), Err(Rejection::Token), "the second time");
        assert_eq!(guard.token(), None);
        let pair = cookie.split(';').next().expect("a pair");
        assert_eq!(guard.check_session(&headers(&[("cookie", pair)])), Ok(()));
        let among = format!("other=1; {pair}; third=x");
        assert_eq!(guard.check_session(&headers(&[("cookie", &among)])), Ok(()));
        for wrong in ["", "tandem-4000=", "tandem-4000=00", &pair.replace("4000", "4001")] {
            let given = headers(&[("cookie", wrong)]);
            assert_eq!(guard.check_session(&given), Err(Rejection::Session), "{wrong}");
        }
    }
}
