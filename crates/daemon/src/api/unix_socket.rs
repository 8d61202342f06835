//! The unix socket of the daemon. A socket whose file was deleted is made again: without it nobody reaches a daemon
//! that still has the state.

use std::fs::Permissions;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Mutex;

/// How often the file is looked for.
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// A listening socket and its file.
pub struct UnixSocket {
    path: PathBuf,
    mode: u32,
    listener: Mutex<UnixListener>,
}

impl UnixSocket {
    /// Makes the file and listens. To be called in a runtime.
    pub fn bind(path: &Path, mode: u32) -> io::Result<Self> {
        let listener = Mutex::new(bind(path, mode)?);
        Ok(Self { path: path.to_owned(), mode, listener })
    }

    /// The next connection.
    pub(super) async fn accept(&self) -> io::Result<UnixStream> {
        let mut listener = self.listener.lock().await;
        loop {
            if let Ok(accepted) = tokio::time::timeout(LOOK_EVERY, listener.accept()).await {
                return accepted.map(|(stream, _)| stream);
            }
            let found = self.path.symlink_metadata();
            if found.is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
                && let Ok(again) = bind(&self.path, self.mode)
            {
                tracing::warn!("{} was deleted and is made again", self.path.display());
                *listener = again;
            }
        }
    }
}

fn bind(path: &Path, mode: u32) -> io::Result<UnixListener> {
    let listener = std::os::unix::net::UnixListener::bind(path)?;
    std::fs::set_permissions(path, Permissions::from_mode(mode))?;
    listener.set_nonblocking(true)?;
    UnixListener::from_std(listener)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_deleted_socket_is_made_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("t.sock");
        let socket = UnixSocket::bind(&path, 0o600).unwrap();
        std::fs::remove_file(&path).unwrap();
        let accepting = tokio::spawn(async move { socket.accept().await });
        let connected = tokio::time::timeout(Duration::from_secs(60), async {
            while UnixStream::connect(&path).await.is_err() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        });
        connected.await.expect("it is there again");
        accepting.await.unwrap().expect("a connection");
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    }
}
