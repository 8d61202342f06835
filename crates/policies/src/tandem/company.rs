//! Who shares with whom at one moment, and how fast that lets everyone run.
//!
//! A review asks of every job that shares what it and each of its neighbours would keep without the other.
//! A wide gang has many neighbours, so its GPUs are looked at once and not once for each of them.

use super::rates::{beside, slowed};
use std::ops::Range;
use tandem_core::{Draft, GpuId, JobId, PPM_ONE};

const ONE: i64 = PPM_ONE as i64;

/// The same tenants on GPUs of a job that follow each other.
struct Group {
    gpu: GpuId,
    tenants: Range<usize>,
    /// What the job keeps there.
    rate: i64,
}

/// A job that shares.
struct Member {
    job: JobId,
    /// The slowest first.
    groups: Range<usize>,
    /// Its neighbours and the groups where they sit, in order of neighbours.
    seats: Range<usize>,
    rate: i64,
}

/// The jobs that share, in order of submission.
pub(super) struct Company {
    members: Vec<Member>,
    groups: Vec<Group>,
    tenants: Vec<JobId>,
    seats: Vec<(JobId, usize)>,
}

impl Company {
    /// Looks at these jobs, in order of submission, under the plan so far.
    pub(super) fn of(draft: &Draft<'_>, jobs: &[JobId]) -> Self {
        let mut company = Self {
            members: Vec::with_capacity(jobs.len()),
            groups: Vec::new(),
            tenants: Vec::new(),
            seats: Vec::new(),
        };
        for &job in jobs {
            company.add(draft, job);
        }
        company
    }

    fn add(&mut self, draft: &Draft<'_>, job: JobId) {
        let (groups, seats) = (self.groups.len(), self.seats.len());
        let known = draft.job(job);
        let gpus = draft.placement(job).map_or(&[][..], |placement| &placement.gpus);
        let mut last: &[JobId] = &[];
        for &gpu in gpus {
            let tenants = draft.tenants(gpu);
            if tenants.len() < 2 || tenants == last {
                continue;
            }
            last = tenants;
            let others = tenants.iter().filter(|&&other| other != job);
            let rate = beside(draft, known, others.map(|&other| draft.job(other)), gpu);
            let from = self.tenants.len();
            self.tenants.extend_from_slice(tenants);
            let tenants = from..self.tenants.len();
            self.groups.push(Group { gpu, tenants, rate: rate.unwrap_or(0) });
        }
        let groups = groups..self.groups.len();
        self.groups[groups.clone()].sort_unstable_by_key(|group| group.rate);
        for index in groups.clone() {
            let tenants = &self.tenants[self.groups[index].tenants.clone()];
            let others = tenants.iter().filter(|&&other| other != job);
            self.seats.extend(others.map(|&other| (other, index)));
        }
        let seats = seats..self.seats.len();
        self.seats[seats.clone()].sort_unstable();
        let least = self.groups[groups.clone()].first().map_or(ONE, |group| group.rate.min(ONE));
        self.members.push(Member { job, groups, seats, rate: in_parts(draft, job, least) });
    }

    fn member(&self, job: JobId) -> &Member {
        let place = self.members.binary_search_by_key(&job, |member| member.job);
        &self.members[place.expect("a neighbour shares")]
    }

    /// What a job keeps.
    pub(super) fn rate(&self, job: JobId) -> i64 {
        self.member(job).rate
    }

    /// Everyone who shares a GPU with a job, by id.
    pub(super) fn neighbours(&self, job: JobId) -> impl Iterator<Item = JobId> + '_ {
        let seats = &self.seats[self.member(job).seats.clone()];
        seats.chunk_by(|a, b| a.0 == b.0).map(|seats| seats[0].0)
    }

    /// What a job would keep if `without`, a neighbour, were not there.
    pub(super) fn rate_without(&self, draft: &Draft<'_>, job: JobId, without: JobId) -> i64 {
        let member = self.member(job);
        let tenants = |group: &Group| &self.tenants[group.tenants.clone()];
        // The first of those that it does not affect is the slowest of them.
        let mut unaffected = self.groups[member.groups.clone()].iter();
        let slowest = unaffected.find(|group| !tenants(group).contains(&without));
        let mut rate = slowest.map_or(ONE, |group| group.rate.min(ONE));
        let seats = &self.seats[member.seats.clone()];
        let from = seats.partition_point(|seat| seat.0 < without);
        for &(_, index) in seats[from..].iter().take_while(|seat| seat.0 == without) {
            let group = &self.groups[index];
            let others =
                || tenants(group).iter().filter(|&&other| other != job && other != without);
            if others().next().is_some() {
                let jobs = others().map(|&other| draft.job(other));
                rate = rate.min(beside(draft, draft.job(job), jobs, group.gpu).unwrap_or(0));
            }
        }
        in_parts(draft, job, rate)
    }
}

/// Less if it computes its batches in parts.
fn in_parts(draft: &Draft<'_>, job: JobId, rate: i64) -> i64 {
    match draft.placement(job).map_or(1, |placement| placement.sub_batches) {
        1 => rate,
        parts => draft
            .job(job)
            .spec
            .sub_batch_option(parts)
            .map_or(rate, |way| slowed(rate, way.slowdown)),
    }
}
