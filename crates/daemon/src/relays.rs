//! Jobs on other machines: their relays connect over TCP, prove that they know the secret, and are
//! connected to the socket of their job.

use crate::cycle::{Message, Present};
use crate::scheduler::socket;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::Duration;
use tandem_backends::RunHandle;
use tandem_backends::relay::{Challenge, HANDSHAKE, LINE_MAX, RelayProof, WELCOME};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::sync::{Semaphore, oneshot};

/// Concurrent relay handshakes.
const HANDSHAKES_MAX: usize = 64;

/// Where and how relays connect.
#[derive(Clone, Debug)]
pub struct RelayOptions {
    /// The TCP address to listen on.
    pub listen: SocketAddr,
    /// The secret that relays share with the daemon.
    pub secret: Vec<u8>,
}

struct RelayServer {
    secret: Vec<u8>,
    sockets: PathBuf,
    inbox: Sender<Message>,
}

/// Accepts relays and forwards their connections to the sockets of their jobs.
pub(crate) async fn serve(
    listener: TcpListener,
    secret: Vec<u8>,
    sockets: PathBuf,
    inbox: Sender<Message>,
) {
    let server = Arc::new(RelayServer { secret, sockets, inbox });
    let handshakes = Arc::new(Semaphore::new(HANDSHAKES_MAX));
    loop {
        let Ok((stream, from)) = listener.accept().await else {
            // Out of file descriptors: retry.
            tokio::time::sleep(Duration::from_secs(1)).await;
            continue;
        };
        let Ok(permit) = handshakes.clone().acquire_owned().await else { return };
        let server = server.clone();
        tokio::spawn(async move {
            let accepted = tokio::time::timeout(HANDSHAKE, server.handshake(stream)).await;
            drop(permit);
            match accepted {
                Ok(Ok((mut relay, mut job))) => {
                    let _ = tokio::io::copy_bidirectional(&mut relay, &mut job).await;
                }
                Ok(Err(reason)) => tracing::warn!("relay at {from}: rejected: {reason}"),
                Err(_) => tracing::warn!("relay at {from}: handshake timed out"),
            }
        });
    }
}

impl RelayServer {
    async fn handshake(
        &self,
        stream: TcpStream,
    ) -> Result<(BufReader<TcpStream>, UnixStream), String> {
        let fails = |error: std::io::Error| error.to_string();
        let nonce = nonce().map_err(fails)?;
        let challenge = Challenge { v: 1, nonce: nonce.clone() };
        let challenge = serde_json::to_string(&challenge).map_err(|error| error.to_string())?;
        let mut stream = BufReader::new(stream);
        stream.write_all((challenge + "\n").as_bytes()).await.map_err(fails)?;
        let mut line = String::new();
        (&mut stream).take(LINE_MAX).read_line(&mut line).await.map_err(fails)?;
        let proof: RelayProof =
            serde_json::from_str(&line).map_err(|_| "malformed handshake".to_owned())?;
        if !proof.verify(&self.secret, &nonce) {
            return Err("wrong secret; compare slurm.secret_file on both machines".to_owned());
        }
        let job = self
            .find(&proof)
            .await
            .ok_or_else(|| format!("no Slurm job {} of that user runs here", proof.job))?;
        let job = UnixStream::connect(socket(&self.sockets, job)).await.map_err(fails)?;
        stream.write_all(format!("{WELCOME}\n").as_bytes()).await.map_err(fails)?;
        Ok((stream, job))
    }

    /// The job with that Slurm job id and user.
    async fn find(&self, proof: &RelayProof) -> Option<u64> {
        let (reply, found) = oneshot::channel();
        let RelayProof { job, uid, .. } = *proof;
        let question = Box::new(move |present: &Present<'_>| {
            let matches = |active: &&crate::scheduler::Active| {
                active.handle == Some(RunHandle::ClusterJob(job)) && active.job.uid == uid
            };
            let _ = reply.send(present.scheduler.jobs().find(matches).map(|active| active.job.id));
        });
        self.inbox.send(Message::Ask { uid: 0, question }).ok()?;
        found.await.ok().flatten()
    }
}

fn nonce() -> std::io::Result<String> {
    use std::io::Read;
    let mut bytes = [0u8; 16];
    std::fs::File::open(Path::new("/dev/urandom"))?.read_exact(&mut bytes)?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}
