//! Requests of users that wait for a turn. A turn takes them user by user and for a limited time, so that nobody
//! waits for more than a request or two of anybody else.

use super::message::{Reply, StateQuery};
use crate::command::{Caller, UserCommand};
use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound::{Excluded, Unbounded};

/// A request of a user.
pub(super) enum UserRequest {
    /// A command.
    Command { caller: Caller, command: UserCommand, reply: Reply },
    /// A request to read the present state.
    Ask(StateQuery),
}

/// Requests by user, each user's in order.
#[derive(Default)]
pub(super) struct FairQueue {
    of_users: BTreeMap<u32, VecDeque<UserRequest>>,
    /// The user who was served last.
    last: u32,
}

impl FairQueue {
    pub(super) fn push(&mut self, uid: u32, request: UserRequest) {
        self.of_users.entry(uid).or_default().push_back(request);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.of_users.is_empty()
    }

    /// The next request, of the next user.
    pub(super) fn pop(&mut self) -> Option<UserRequest> {
        let next = self.of_users.range((Excluded(self.last), Unbounded)).next();
        let uid = *next.or_else(|| self.of_users.first_key_value())?.0;
        self.last = uid;
        let own = self.of_users.get_mut(&uid)?;
        let request = own.pop_front();
        if own.is_empty() {
            self.of_users.remove(&uid);
        }
        request
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_are_served_in_turn() {
        let mut queue = FairQueue::default();
        let (told, served) = std::sync::mpsc::channel();
        let push = |queue: &mut FairQueue, uid: u32| {
            let told = told.clone();
            let ask: StateQuery = Box::new(move |_| {
                let _ = told.send(uid);
            });
            queue.push(uid, UserRequest::Ask(ask));
        };
        (0..100).for_each(|_| push(&mut queue, 7));
        push(&mut queue, 3);
        push(&mut queue, 9);
        let lengths = |queue: &FairQueue| -> Vec<(u32, usize)> {
            queue.of_users.iter().map(|(&uid, own)| (uid, own.len())).collect()
        };
        for _ in 0..3 {
            assert!(queue.pop().is_some());
        }
        assert_eq!(lengths(&queue), [(7, 99)]);
        push(&mut queue, 3);
        (0..2).for_each(|_| drop(queue.pop()));
        assert_eq!(lengths(&queue), [(7, 98)]);
        while queue.pop().is_some() {}
        assert!(queue.is_empty() && served.try_recv().is_err());
    }
}
