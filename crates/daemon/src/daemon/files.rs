//! Folders, lock and sockets of a daemon: created with the right owner and mode, or refused.

use super::{DaemonError, DaemonOptions, io_error};
use crate::api::{Tcp, UnixSocket, Web};
use crate::tls::CertificateFiles;
use rustix::process::{Flock, FlockOffsetType, FlockType};
use std::fs::{DirBuilder, File, Metadata, OpenOptions, Permissions};
use std::net::SocketAddr;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Runtime;

/// Creates a missing folder with this mode, whatever the umask is.
pub(super) fn make_folder(folder: &Path, mode: u32) -> Result<(), DaemonError> {
    if folder.is_dir() {
        return Ok(());
    }
    let failed = || format!("cannot make {}", folder.display());
    DirBuilder::new().recursive(true).mode(mode).create(folder).map_err(io_error(failed()))?;
    std::fs::set_permissions(folder, Permissions::from_mode(mode)).map_err(io_error(failed()))
}

/// Makes sure that an existing folder belongs to this user and has no more permissions than `mode`.
pub(super) fn make_private(folder: &Path, mode: u32) -> Result<(), DaemonError> {
    let shown = folder.display();
    let metadata =
        folder.symlink_metadata().map_err(io_error(format!("cannot look at {shown}")))?;
    let uid = rustix::process::getuid().as_raw();
    let is_ours = |metadata: &Metadata| metadata.is_dir() && metadata.uid() == uid;
    // A symbolic link of this user is allowed.
    let is_fine = is_ours(&metadata)
        || metadata.is_symlink()
            && metadata.uid() == uid
            && folder.metadata().is_ok_and(|metadata| is_ours(&metadata));
    if !is_fine {
        let message = format!("{shown}: is not a folder of user {uid}; give another one");
        return Err(DaemonError::Taken(message));
    }
    let failed = format!("cannot make {shown} private");
    std::fs::set_permissions(folder, Permissions::from_mode(mode)).map_err(io_error(failed))
}

/// Locks the state folder; a second daemon is refused.
pub(super) fn lock(state: &Path) -> Result<File, DaemonError> {
    let file = state.join("lock");
    let opened =
        OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(&file);
    let opened = opened.map_err(io_error(format!("cannot open {}", file.display())))?;
    // A lock that children do not inherit: a child that is about to become a supervisor must not keep the next
    // daemon out.
    let exclusive = rustix::fs::FlockOperation::NonBlockingLockExclusive;
    match rustix::fs::fcntl_lock(&opened, exclusive) {
        Ok(()) => Ok(opened),
        Err(rustix::io::Errno::WOULDBLOCK | rustix::io::Errno::ACCESS) => {
            let holder = holder(&opened).map(|pid| format!(", process {pid},")).unwrap_or_default();
            Err(DaemonError::Taken(format!(
                "{}: another daemon{holder} uses this state; stop it, or give another one with --state",
                state.display()
            )))
        }
        Err(error) => Err(io_error(format!("cannot lock {}", file.display()))(error.into())),
    }
}

/// The process that has the lock. The kernel knows it, so no file can be wrong about it.
fn holder(lock: &File) -> Option<u32> {
    let wanted = Flock {
        start: 0,
        length: 0,
        pid: None,
        typ: FlockType::WriteLock,
        offset_type: FlockOffsetType::Set,
    };
    let pid = rustix::process::fcntl_getlk(lock, &wanted).ok()??.pid?;
    u32::try_from(pid.as_raw_nonzero().get()).ok()
}

fn connects(socket: &Path) -> bool {
    std::os::unix::net::UnixStream::connect(socket).is_ok()
}

pub(super) fn listen(
    socket: &Path,
    uid: u32,
    runtime: &Runtime,
) -> Result<UnixSocket, DaemonError> {
    let folder = socket.parent().unwrap_or(Path::new("/"));
    make_folder(folder, if uid == 0 { 0o755 } else { 0o700 })?;
    let shown = socket.display();
    let metadata =
        folder.metadata().map_err(io_error(format!("cannot look at {}", folder.display())))?;
    let is_anyones = metadata.mode() & 0o1002 == 0o002;
    if is_anyones || (metadata.uid() != uid && metadata.uid() != 0) {
        return Err(DaemonError::Taken(format!(
            "{shown}: other users can write to it and could replace the socket; give another folder with --socket"
        )));
    }
    // A child of a killed daemon may hold the socket until it has become a supervisor, so try again for a
    // while.
    let answers = || {
        let again = std::iter::repeat_n(Duration::from_millis(50), 20);
        again.inspect(|&pause| std::thread::sleep(pause)).all(|_| connects(socket))
    };
    if connects(socket) && answers() {
        return Err(DaemonError::Taken(format!(
            "{shown}: another daemon listens here; stop it, or give another place with --socket"
        )));
    }
    let failed = format!("cannot listen at {shown}");
    match std::fs::symlink_metadata(socket) {
        // Left behind by a killed daemon.
        Ok(metadata) if metadata.file_type().is_socket() => {
            std::fs::remove_file(socket).map_err(io_error(failed.clone()))?;
        }
        Ok(_) => {
            let message =
                format!("{shown}: exists and is not a socket; give another path with --socket");
            return Err(DaemonError::Taken(message));
        }
        Err(_) => {}
    }
    // Any user may connect to a root daemon; the kernel identifies them.
    let mode = if uid == 0 { 0o666 } else { 0o600 };
    let _in_runtime = runtime.enter();
    UnixSocket::bind(socket, mode).map_err(io_error(failed))
}

pub(super) fn listen_tcp(
    options: &DaemonOptions,
    runtime: &Runtime,
) -> Result<Option<Tcp>, DaemonError> {
    let Some(address) = options.listen else { return Ok(None) };
    if !options.tls && !address.ip().is_loopback() {
        let message = format!(
            "daemon.listen: {address} without TLS would show tokens to the network; \
             leave daemon.tls on, or listen on 127.0.0.1"
        );
        return Err(DaemonError::Listen(message));
    }
    let tls = if options.tls { Some(tls(options, address)?) } else { None };
    let failed = format!("cannot listen at {address}");
    let listener =
        runtime.block_on(tokio::net::TcpListener::bind(address)).map_err(io_error(failed))?;
    Ok(Some(Tcp { listener, tls }))
}

/// The listener of the dashboard. Users send it tokens, so it always has TLS.
pub(super) fn listen_web(
    options: &DaemonOptions,
    runtime: &Runtime,
) -> Result<Option<Web>, DaemonError> {
    let Some(address) = options.web else { return Ok(None) };
    let tls = tls(options, address)?;
    let failed = format!("cannot serve the dashboard at {address}");
    let listener =
        runtime.block_on(tokio::net::TcpListener::bind(address)).map_err(io_error(failed))?;
    Ok(Some(Web { listener, tls }))
}

/// TLS with the configured certificate, or with one that the daemon makes.
fn tls(
    options: &DaemonOptions,
    address: SocketAddr,
) -> Result<Arc<rustls::ServerConfig>, DaemonError> {
    if let Some(files) = &options.certificate {
        return Ok(files.server()?);
    }
    let files = CertificateFiles::own(&options.state);
    let mut names = vec!["localhost".to_owned(), "127.0.0.1".to_owned(), "::1".to_owned()];
    names.push(crate::tls::host_name());
    if !address.ip().is_unspecified() {
        names.push(address.ip().to_string());
    }
    files.make(names)?;
    Ok(files.server()?)
}
