//! `tandem dashboard`: the web pages for the user who calls it, until interrupted.

use super::configuration;
use crate::commands::{print, remark};
use crate::failure::Failure;
use crate::live_args::DashboardArgs;
use serde_json::json;
use std::io::Write;
use std::process::{Command, Stdio};
use tandem_daemon::client::{Address, Client};
use tandem_dashboard::{Dashboard, Upstream};
use tempfile::NamedTempFile;

pub(super) fn run(args: &DashboardArgs) -> Result<(), Failure> {
    let (config, origins) = configuration(&args.common)?;
    let (address, token) = (config.client_address(&origins)?, config.client_token()?);
    // A missing daemon is an error here, not an empty page.
    Client::new(address.clone(), token.clone())?.info()?;
    let upstream = match address {
        Address::Unix(path) => Upstream::Unix(path),
        Address::Tcp(host) => Upstream::Tcp { host, token, tls: None },
        Address::Tls { host, authorities } => {
            let tls = tandem_daemon::tls::client(authorities.as_deref());
            Upstream::Tcp { host, token, tls: Some(tls.map_err(Failure::bad_input)?) }
        }
    };
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.map_err(Failure::failed)?;
    let dashboard = runtime.block_on(Dashboard::bind(args.port, upstream));
    let dashboard = dashboard.map_err(Failure::failed)?;
    let url = dashboard.url();
    if args.common.json {
        print(&json!({ "schema": 1, "url": url, "port": dashboard.port() }).to_string())?;
    } else {
        print(&url)?;
    }
    // Kept until the end: a browser may take its time.
    let opened = if args.no_open { None } else { open(&url) };
    let quiet = args.common.json;
    match &opened {
        Some(_) => remark("opened in your browser; the address is good for one browser", quiet),
        None => remark("open this address in a browser; it is good for one browser", quiet),
    }
    remark("Ctrl+C ends the dashboard", quiet);
    runtime.block_on(async {
        tokio::select! {
            () = dashboard.serve() => {}
            _ = tokio::signal::ctrl_c() => {}
            () = terminated() => {}
        }
    });
    Ok(())
}

async fn terminated() {
    match tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate()) {
        Ok(mut signal) => drop(signal.recv().await),
        Err(_) => std::future::pending().await,
    }
}

/// Opens the address in the user's browser, if there is a screen. Everyone can read the arguments of a
/// process, so the browser is given a file that only this user can read, which leads to the address.
fn open(url: &str) -> Option<NamedTempFile> {
    let has_screen =
        ["DISPLAY", "WAYLAND_DISPLAY"].iter().any(|name| std::env::var_os(name).is_some());
    let program = if cfg!(target_os = "macos") { "open" } else { "xdg-open" };
    if !has_screen && !cfg!(target_os = "macos") {
        return None;
    }
    let mut file = tempfile::Builder::new().prefix("tandem-").suffix(".html").tempfile().ok()?;
    let page = format!(
        "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><meta name=\"referrer\" content=\"no-referrer\">\
         <meta http-equiv=\"refresh\" content=\"0;url={url}\"><title>Tandem</title></html>\n"
    );
    file.write_all(page.as_bytes()).and_then(|()| file.flush()).ok()?;
    let mut command = Command::new(program);
    command.arg(file.path()).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = command.spawn().ok()?;
    // Some end with the browser, most at once.
    std::thread::spawn(move || child.wait());
    Some(file)
}
