//! Who asks: the user of a request, so that what users ask is served in turn, and what each of them may have
//! under way at a time.

use super::auth::Credentials;
use super::{ApiError, StatusCode};
use crate::command::Caller;
use axum::extract::{ConnectInfo, Request, State};
use axum::middleware::Next;
use axum::response::Response;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Reads of the store and of files of one user at a time. A read that hangs, as on a dead file system, holds one.
const READS_MAX: usize = 6;
/// Event streams of one user that are open.
const STREAMS_MAX: usize = 64;
/// Users who are remembered before those who ask nothing are forgotten.
const USERS_MAX: usize = 256;

tokio::task_local! {
    static ASKER: Asker;
}

/// The user of a request, and what may be under way for this user.
#[derive(Clone)]
struct Asker {
    uid: u32,
    own: Arc<Own>,
}

struct Own {
    reads: Arc<Semaphore>,
    streams: Arc<Semaphore>,
}

/// All who have asked.
#[derive(Clone, Default)]
pub struct Askers(Arc<Mutex<BTreeMap<u32, Arc<Own>>>>);

impl Askers {
    fn find(&self, uid: u32) -> Asker {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= USERS_MAX {
            let is_busy = |own: &Own| {
                own.reads.available_permits() < READS_MAX
                    || own.streams.available_permits() < STREAMS_MAX
            };
            known.retain(|_, own| Arc::strong_count(own) > 1 || is_busy(own));
        }
        let new = || {
            let permits = |count| Arc::new(Semaphore::new(count));
            Arc::new(Own { reads: permits(READS_MAX), streams: permits(STREAMS_MAX) })
        };
        Asker { uid, own: known.entry(uid).or_insert_with(new).clone() }
    }
}

/// The user of a request: of its token, or of its connection.
pub(super) fn uid_of(request: &Request) -> Option<u32> {
    let caller = request.extensions().get::<Caller>().map(|caller| caller.uid);
    caller.or_else(|| {
        let credentials = request.extensions().get::<ConnectInfo<Credentials>>();
        credentials.and_then(|ConnectInfo(credentials)| credentials.uid())
    })
}

/// Handles a request as one of its user.
pub(super) async fn with_asker(
    State(askers): State<Askers>,
    request: Request,
    next: Next,
) -> Response {
    let asker = askers.find(uid_of(&request).unwrap_or(u32::MAX));
    ASKER.scope(asker, next.run(request)).await
}

/// The user of the request that is handled; root for what the daemon itself asks.
pub(super) fn uid() -> u32 {
    ASKER.try_with(|asker| asker.uid).unwrap_or(0)
}

/// Does work on a blocking thread: few works of a user at a time, however many requests the user has sent.
pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, ApiError> {
    reads().blocking(work).await
}

/// The reads of the user of the request that is handled, for what goes on after its answer has begun.
pub(super) fn reads() -> Reads {
    Reads(ASKER.try_with(|asker| asker.own.reads.clone()).ok())
}

/// The reads of a user.
#[derive(Clone)]
pub(super) struct Reads(Option<Arc<Semaphore>>);

impl Reads {
    /// Does work on a blocking thread, when it is its turn.
    pub(super) async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, ApiError> {
        let permit = match &self.0 {
            Some(reads) => reads.clone().acquire_owned().await.ok(),
            None => None,
        };
        let work = move || {
            // Held until the work is over, also if nobody waits for it any more.
            let _permit = permit;
            work()
        };
        let result = tokio::task::spawn_blocking(work).await;
        result.map_err(|error| ApiError::internal(error.to_string()))
    }
}

/// The right to an event stream for as long as it is open.
pub(super) fn stream() -> Result<Option<OwnedSemaphorePermit>, ApiError> {
    let Ok(streams) = ASKER.try_with(|asker| asker.own.streams.clone()) else { return Ok(None) };
    streams.try_acquire_owned().map(Some).map_err(|_| {
        let message = format!("you have {STREAMS_MAX} event streams open; close some");
        ApiError::new(StatusCode::TOO_MANY_REQUESTS, "limit", message)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;
    use std::time::Duration;

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn reads_of_a_user_that_hang_do_not_keep_others_waiting() {
        let askers = Askers::default();
        let (release, hang) = mpsc::channel::<()>();
        let hang = Arc::new(Mutex::new(hang));
        for _ in 0..600 {
            let hang = hang.clone();
            let work = move || drop(hang.lock().map(|hang| hang.recv()));
            tokio::spawn(ASKER.scope(askers.find(7), async move { blocking(work).await.is_ok() }));
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
        let other = ASKER.scope(askers.find(8), blocking(|| 5));
        let read = tokio::time::timeout(Duration::from_secs(10), other).await;
        assert_eq!(read.expect("it does not wait").expect("it is read"), 5);
        drop(release);
    }

    #[tokio::test]
    async fn streams_of_a_user_are_bounded() {
        let askers = Askers::default();
        let mut open = Vec::new();
        for _ in 0..STREAMS_MAX {
            open.push(ASKER.sync_scope(askers.find(7), stream).expect("there is room"));
        }
        assert!(ASKER.sync_scope(askers.find(7), stream).is_err());
        assert!(ASKER.sync_scope(askers.find(8), stream).is_ok());
        open.pop();
        assert!(ASKER.sync_scope(askers.find(7), stream).is_ok());
    }
}
