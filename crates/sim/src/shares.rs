//! Shares and limits between people as files state them: in the cluster file of a simulation, and in the
//! shares file of a daemon.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use tandem_core::{
    Account, AccountId, Cluster, FairShare, GpuId, Limits, Memory, Reservation, Shares, Span, Time,
    UserId, UserShare,
};

const HOUR_S: f64 = 3600.0;
/// Numbers beyond these are typing errors.
const HOURS_MAX: f64 = 1e9;
const WEIGHT_MAX: u32 = 1_000_000;

/// The tables of a file.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SharesFile {
    /// Classes of jobs that all users teach and use; a daemon keeps others apart by user.
    #[serde(default)]
    pub shared_classes: Vec<String>,
    /// `[fair_share]`
    #[serde(default)]
    pub fair_share: Option<FairShareEntry>,
    /// `[limits]`: of every user.
    #[serde(default)]
    pub limits: LimitsEntry,
    /// `[[account]]`
    #[serde(default)]
    pub account: Vec<AccountEntry>,
    /// `[[user]]`
    #[serde(default)]
    pub user: Vec<UserEntry>,
    /// `[[qos]]`
    #[serde(default)]
    pub qos: Vec<QosEntry>,
    /// `[[reservation]]`: of a simulation. Those of a daemon are made with `tandem reserve`.
    #[serde(default)]
    pub reservation: Vec<ReservationEntry>,
}

/// `[fair_share]`
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct FairShareEntry {
    /// Users divide GPUs by shares.
    pub enabled: bool,
    /// Jobs are stopped for the shares of others at most this often.
    pub slice_s: f64,
    /// Used GPU time counts half after this time.
    pub half_life_h: f64,
}

impl Default for FairShareEntry {
    fn default() -> Self {
        Self { enabled: true, slice_s: 300.0, half_life_h: 24.0 }
    }
}

/// Limits of a user or an account.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LimitsEntry {
    /// Jobs on GPUs.
    pub jobs: Option<u32>,
    /// GPUs.
    pub gpus: Option<u32>,
    /// GPU memory.
    pub memory_mib: Option<u64>,
    /// GPU-hours in each period.
    pub gpu_hours: Option<f64>,
    /// Pending jobs; a daemon refuses more.
    pub pending: Option<u64>,
    /// The length of a period; 720 hours if absent. Only in `[limits]`.
    pub period_h: Option<f64>,
}

/// `[[account]]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AccountEntry {
    /// Its name.
    pub name: String,
    /// Its share relative to other accounts.
    #[serde(default = "one")]
    pub weight: u32,
    /// Users whose jobs are charged to it.
    #[serde(default)]
    pub users: Vec<String>,
    /// Unix groups whose members' jobs are charged to it, by a daemon.
    #[serde(default)]
    pub groups: Vec<String>,
    /// What all its jobs may have.
    #[serde(default)]
    pub limits: LimitsEntry,
}

/// `[[user]]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UserEntry {
    /// The name.
    pub name: String,
    /// The share of a user without an account.
    #[serde(default = "one")]
    pub weight: u32,
    /// Instead of those in `[limits]`.
    #[serde(default)]
    pub limits: LimitsEntry,
}

/// `[[qos]]`: a quality of service, which a job asks for by name.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct QosEntry {
    /// Its name.
    pub name: String,
    /// Jobs of a higher tier run before those of lower tiers and may take their GPUs.
    #[serde(default)]
    pub tier: i8,
    /// The priority of its jobs, from −20 to 20.
    #[serde(default)]
    pub priority: i8,
    /// Users who may ask for it; all if empty.
    #[serde(default)]
    pub users: Vec<String>,
}

/// `[[reservation]]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReservationEntry {
    /// Its number, which jobs name.
    pub id: u32,
    /// Its GPUs, by their number in the cluster.
    pub gpus: Vec<u32>,
    /// When it starts, in seconds of the trace.
    pub start_s: f64,
    /// When it ends.
    pub end_s: f64,
    /// So long before its start no other job starts on its GPUs.
    #[serde(default)]
    pub lead_s: f64,
}

fn one() -> u32 {
    1
}

fn span(seconds: f64) -> Span {
    Span((seconds * 1e6) as u64)
}

fn time(seconds: f64) -> Time {
    Time((seconds * 1e6) as u64)
}

impl LimitsEntry {
    fn resolve(&self) -> Limits {
        Limits {
            jobs: self.jobs,
            gpus: self.gpus,
            memory: self.memory_mib.map(Memory::from_mib),
            gpu_time: self.gpu_hours.map(|hours| span(hours * HOUR_S)),
        }
    }

    fn problem(&self) -> Option<String> {
        let hours = [("gpu_hours", self.gpu_hours), ("period_h", self.period_h)];
        let wrong = |hours: &f64| !(0.0..=HOURS_MAX).contains(hours);
        let (name, hours) =
            hours.into_iter().find(|(_, hours)| hours.as_ref().is_some_and(wrong))?;
        Some(format!("{name} is {}; give hours", hours.unwrap_or_default()))
    }
}

impl SharesFile {
    /// What is wrong with it, if anything.
    pub fn problem(&self) -> Option<String> {
        let accounts = self.account.iter().map(|account| (&account.name, account.weight));
        let users = self.user.iter().map(|user| (&user.name, user.weight));
        for (name, weight) in accounts.chain(users) {
            if weight == 0 || weight > WEIGHT_MAX {
                return Some(format!("weight of '{name}' is {weight}; give 1 to {WEIGHT_MAX}"));
            }
        }
        let names: Vec<&String> = self.account.iter().map(|account| &account.name).collect();
        if let Some(twice) = names.iter().enumerate().find(|(at, name)| names[..*at].contains(name))
        {
            return Some(format!("account '{}' is there twice", twice.1));
        }
        if let Some(fair) = self.fair_share
            && (!(1.0..=1e9).contains(&fair.slice_s) || !(0.01..=1e6).contains(&fair.half_life_h))
        {
            return Some("fair_share: slice_s is at least 1, half_life_h at least 0.01".to_owned());
        }
        for one in &self.reservation {
            let times = [one.start_s, one.end_s, one.lead_s];
            if times.iter().any(|time| !(0.0..=1e12).contains(time)) || one.start_s >= one.end_s {
                return Some(format!("reservation {}: start_s is not before end_s", one.id));
            }
        }
        self.all_limits().find_map(LimitsEntry::problem)
    }

    fn all_limits(&self) -> impl Iterator<Item = &LimitsEntry> {
        let limits = self.account.iter().map(|account| &account.limits);
        limits.chain(self.user.iter().map(|user| &user.limits)).chain([&self.limits])
    }

    /// The account of a name.
    pub fn account_id(&self, name: &str) -> Option<AccountId> {
        let at = self.account.iter().position(|account| account.name == name)?;
        u32::try_from(at).ok().map(AccountId)
    }

    /// The account of a user by name.
    pub fn account_of(&self, user: &str) -> Option<AccountId> {
        let is_member = |account: &AccountEntry| account.users.iter().any(|member| member == user);
        let at = self.account.iter().position(is_member)?;
        u32::try_from(at).ok().map(AccountId)
    }

    /// The shares among users whose numbers `find` knows, on this cluster.
    pub fn resolve(
        &self,
        cluster: &Cluster,
        mut find: impl FnMut(&str) -> Option<UserId>,
    ) -> Shares {
        let mut users: BTreeMap<UserId, UserShare> = BTreeMap::new();
        for entry in &self.user {
            if let Some(user) = find(&entry.name) {
                let limits = entry.limits.resolve();
                let limits = limits.is_any().then_some(limits);
                users.insert(user, UserShare { account: None, weight: entry.weight, limits });
            }
        }
        for (id, account) in (0..).map(AccountId).zip(&self.account) {
            for user in account.users.iter().filter_map(|name| find(name)) {
                users.entry(user).or_default().account = Some(id);
            }
        }
        let account =
            |entry: &AccountEntry| Account { weight: entry.weight, limits: entry.limits.resolve() };
        let gpus = u32::try_from(cluster.gpus().len()).unwrap_or(u32::MAX);
        let reservation = |entry: &ReservationEntry| Reservation {
            id: entry.id,
            gpus: entry.gpus.iter().copied().filter(|&gpu| gpu < gpus).map(GpuId).collect(),
            closes: time((entry.start_s - entry.lead_s).max(0.0)),
            start: time(entry.start_s),
            end: time(entry.end_s),
        };
        let period = span(self.limits.period_h.unwrap_or(720.0) * HOUR_S);
        let has_hours = self.all_limits().any(|limits| limits.gpu_hours.is_some());
        Shares {
            fair: self.fair_share.filter(|fair| fair.enabled).map(|fair| FairShare {
                slice: span(fair.slice_s),
                half_life: span(fair.half_life_h * HOUR_S),
            }),
            accounts: self.account.iter().map(account).collect(),
            users,
            user_limits: self.limits.resolve(),
            period: if has_hours { period } else { Span::ZERO },
            used: BTreeMap::new(),
            history: BTreeMap::new(),
            reservations: self.reservation.iter().map(reservation).collect(),
        }
    }
}
