//! Shares, limits and reservations between people, as the engine is told of them.

use super::{Now, Scheduler};
use crate::job::StoredJob;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;
use tandem_core::{Event, GpuId, JobShare, PRIORITY_MAX, Reservation, Shares, Span, Time};
use tandem_sim::shares::{QosEntry, SharesFile};

/// Who belongs to what, as found when the daemon started, and what the administrator has set.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct People {
    /// Shares and limits. Members of groups are among the users of accounts.
    pub file: SharesFile,
    /// User ids of the names in the file.
    pub uids: BTreeMap<String, u32>,
    /// Accounts by primary group.
    pub gids: BTreeMap<u32, String>,
}

impl People {
    /// The account that a user's jobs are charged to if they name none.
    pub fn account_of(&self, user: &str, gid: u32) -> Option<&str> {
        let of_user = self.file.account_of(user);
        let of_user = of_user.map(|account| self.file.account[account.index()].name.as_str());
        of_user.or_else(|| self.gids.get(&gid).map(String::as_str))
    }

    /// Whether a user may charge jobs to an account.
    pub fn may_charge(&self, user: &str, gid: u32, account: &str) -> bool {
        let entry = self.file.account.iter().find(|entry| entry.name == account);
        let is_member = entry.is_some_and(|entry| entry.users.iter().any(|member| member == user));
        is_member || self.gids.get(&gid).is_some_and(|of_group| of_group == account)
    }

    /// A quality of service by name.
    pub fn qos(&self, name: &str) -> Option<&QosEntry> {
        self.file.qos.iter().find(|qos| qos.name == name)
    }

    /// The most pending jobs of a user.
    pub fn pending_max(&self, user: &str) -> Option<u64> {
        let own = self.file.user.iter().find(|entry| entry.name == user);
        own.and_then(|entry| entry.limits.pending).or(self.file.limits.pending)
    }
}

/// GPUs that are kept for some users, or closed to all, for some time. Times are in microseconds since 1970.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Booking {
    /// Its number.
    pub id: u32,
    /// Its devices.
    pub devices: Vec<u32>,
    /// From then on no other job starts there.
    pub closes_us: u64,
    /// From then on only jobs of its users run there.
    pub start_us: u64,
    /// Until then.
    pub end_us: u64,
    /// Users whose jobs may name it; nobody's for maintenance.
    pub users: Vec<String>,
    /// Why.
    pub reason: String,
    /// Who made it.
    pub by: String,
}

impl Booking {
    /// Whether it only keeps new jobs away and stops none.
    pub fn is_drain(&self) -> bool {
        self.start_us >= self.end_us
    }
}

/// Shares and what belongs to them.
pub(super) struct Sharing {
    pub(super) bookings: Vec<Booking>,
    /// As the engine was told last.
    pub(super) told: Arc<Shares>,
    /// GPU time of users by uid before the daemon started: in this period, and lately.
    pub(super) used: BTreeMap<u32, (u64, u64)>,
}

impl Scheduler {
    /// Tells the engine of the shares as they are.
    pub(super) fn tell_shares(&mut self) {
        let now = self.now;
        let people = &self.setup.people;
        let jobs = &mut self.jobs;
        let cluster = self.planner.engine().state().cluster();
        let find = |name: &str| people.uids.get(name).map(|&uid| jobs.user(uid));
        let mut shares = people.file.resolve(cluster, find);
        for (&uid, &(period_us, lately_us)) in &self.sharing.used {
            let user = self.jobs.user(uid);
            shares.used.insert(user, Span(period_us));
            shares.history.insert(user, Span(lately_us));
        }
        let ahead = self.sharing.bookings.iter().filter(|booking| booking.end_us > now.unix_us);
        shares.reservations = ahead.map(|booking| reservation(booking, now)).collect();
        self.sharing.told = Arc::new(shares);
        self.planner.tell(Event::SharesChanged(self.sharing.told.clone()));
    }

    pub(super) fn book(&mut self, booking: &Booking) {
        self.sharing.bookings.retain(|other| other.end_us > self.now.unix_us);
        self.sharing.bookings.push(booking.clone());
        self.tell_shares();
    }

    pub(super) fn unbook(&mut self, id: u32) {
        self.sharing.bookings.retain(|booking| booking.id != id);
        self.tell_shares();
    }

    /// A device is no longer drained for a time.
    pub(super) fn end_drains(&mut self, device: u32) {
        let bookings = &mut self.sharing.bookings;
        let is_its = |one: &Booking| one.is_drain() && one.devices.contains(&device);
        if !bookings.iter().any(is_its) {
            return;
        }
        for booking in bookings.iter_mut().filter(|one| is_its(one)) {
            booking.devices.retain(|other| *other != device);
        }
        bookings.retain(|booking| !booking.devices.is_empty());
        self.tell_shares();
    }

    /// Reservations that are not over.
    pub fn bookings(&self) -> impl Iterator<Item = &Booking> {
        self.sharing.bookings.iter().filter(|booking| booking.end_us > self.now.unix_us)
    }

    /// The shares that the engine respects.
    pub fn shares(&self) -> &Arc<Shares> {
        &self.sharing.told
    }

    /// What a job counts for, and its priority with that of its quality of service.
    pub(super) fn share_of(&self, job: &StoredJob) -> (JobShare, i8) {
        let (people, request) = (&self.setup.people, &job.request);
        let account = request.account.as_deref().or_else(|| people.account_of(&job.user, job.gid));
        let qos = request.qos.as_deref().and_then(|name| people.qos(name));
        let share = JobShare {
            account: account.and_then(|name| people.file.account_id(name)),
            tier: qos.map_or(0, |qos| qos.tier),
            reservation: request.reservation,
        };
        let priority = request.priority.saturating_add(qos.map_or(0, |qos| qos.priority));
        (share, priority.clamp(-PRIORITY_MAX, PRIORITY_MAX))
    }
}

/// A booking on the clock of the scheduler.
fn reservation(booking: &Booking, now: Now) -> Reservation {
    let at = |unix_us: u64| match unix_us.checked_sub(now.unix_us) {
        Some(ahead) => Time(now.at_us.saturating_add(ahead)),
        None => Time(now.at_us.saturating_sub(now.unix_us - unix_us)),
    };
    Reservation {
        id: booking.id,
        gpus: booking.devices.iter().copied().map(GpuId).collect(),
        closes: at(booking.closes_us),
        start: at(booking.start_us),
        end: at(booking.end_us),
    }
}
