//! The web dashboard. `web/dist` holds the built pages, which are embedded here; [`Dashboard`] serves them
//! on the loopback interface to the user who started it, and carries their requests to the daemon as that
//! user. A daemon that serves the pages itself (`tandem daemon --web`) uses the same files, rules and headers.
//!
//! Every local user and every web page that runs on this machine can reach a loopback port. So a request is
//! answered only if its connection is one of the same user (`peer`), it names this server as its host (`guard`
//! refuses rebound names), comes from its own pages and carries the session cookie, which only the holder of
//! the one-time token gets.

#![forbid(unsafe_code)]

mod assets;
mod guard;
mod peer;
mod proxy;
mod secret;
mod server;

pub use assets::{Asset, asset};
pub use guard::{Rejection, check_origin};
pub use proxy::{Upstream, is_allowed};
pub use server::{Dashboard, DashboardError, add_headers};
