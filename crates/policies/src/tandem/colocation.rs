//! The co-located jobs under a plan, and their rates.
//!
//! A review needs the rate of every co-located job with and without each of its neighbours. A wide gang
//! has many neighbours, so its GPUs are grouped by tenants once instead of once for each neighbour.

use super::rates::{in_sub_batches, rate_beside};
use std::ops::Range;
use tandem_core::{Draft, GpuId, JobId, Ratio};

/// Consecutive GPUs of a job with the same tenants.
struct Group {
    gpu: GpuId,
    tenants: Range<usize>,
    /// The rate of the job there; zero if the job does not tolerate it.
    rate: Ratio,
}

/// A co-located job.
struct Member {
    job: JobId,
    /// The slowest first.
    groups: Range<usize>,
    /// Its neighbours and the groups that they are in, in order of neighbours.
    neighbours: Range<usize>,
    /// In parts per million.
    rate: i64,
}

/// The co-located jobs, in order of submission.
pub(super) struct Colocation {
    members: Vec<Member>,
    groups: Vec<Group>,
    tenants: Vec<JobId>,
    neighbours: Vec<(JobId, usize)>,
}

impl Colocation {
    /// Of `jobs`, in order of submission, under the plan so far.
    pub(super) fn of(draft: &Draft<'_>, jobs: &[JobId]) -> Self {
        let mut colocation = Self {
            members: Vec::with_capacity(jobs.len()),
            groups: Vec::with_capacity(jobs.len()),
            tenants: Vec::with_capacity(2 * jobs.len()),
            neighbours: Vec::with_capacity(jobs.len()),
        };
        for &job in jobs {
            colocation.add(draft, job);
        }
        colocation
    }

    fn add(&mut self, draft: &Draft<'_>, job: JobId) {
        let groups = self.add_groups(draft, job);
        let first = self.neighbours.len();
        for index in groups.clone() {
            let tenants = &self.tenants[self.groups[index].tenants.clone()];
            let others = tenants.iter().filter(|&&other| other != job);
            self.neighbours.extend(others.map(|&other| (other, index)));
        }
        let neighbours = first..self.neighbours.len();
        self.neighbours[neighbours.clone()].sort_unstable();
        let slowest = self.groups[groups.clone()].first();
        let least = slowest.map_or(Ratio::ONE, |group| group.rate.min(Ratio::ONE));
        let rate = in_sub_batches(draft, job, least);
        self.members.push(Member { job, groups, neighbours, rate });
    }

    fn add_groups(&mut self, draft: &Draft<'_>, job: JobId) -> Range<usize> {
        let first = self.groups.len();
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
            let rate = rate_beside(draft, known, others.map(|&other| draft.job(other)), gpu);
            let from = self.tenants.len();
            self.tenants.extend_from_slice(tenants);
            let tenants = from..self.tenants.len();
            self.groups.push(Group { gpu, tenants, rate: rate.unwrap_or(Ratio::ZERO) });
        }
        let groups = first..self.groups.len();
        self.groups[groups.clone()].sort_unstable_by_key(|group| group.rate);
        groups
    }

    fn member(&self, job: JobId) -> &Member {
        let place = self.members.binary_search_by_key(&job, |member| member.job);
        &self.members[place.expect("a neighbour is co-located, too")]
    }

    /// The rate of a job, in parts per million.
    pub(super) fn rate(&self, job: JobId) -> i64 {
        self.member(job).rate
    }

    /// The jobs that share a GPU with a job, by id.
    pub(super) fn neighbours(&self, job: JobId) -> impl Iterator<Item = JobId> + '_ {
        let neighbours = &self.neighbours[self.member(job).neighbours.clone()];
        neighbours.chunk_by(|a, b| a.0 == b.0).map(|same| same[0].0)
    }

    /// The rate that a job would have if `without`, a neighbour, were not there, in parts per million.
    pub(super) fn rate_without(&self, draft: &Draft<'_>, job: JobId, without: JobId) -> i64 {
        let member = self.member(job);
        let tenants = |group: &Group| &self.tenants[group.tenants.clone()];
        // Groups are in order of rate: the first one without the neighbour is the slowest of these.
        let mut unaffected = self.groups[member.groups.clone()].iter();
        let slowest = unaffected.find(|group| !tenants(group).contains(&without));
        let mut rate = slowest.map_or(Ratio::ONE, |group| group.rate.min(Ratio::ONE));
        let neighbours = &self.neighbours[member.neighbours.clone()];
        let from = neighbours.partition_point(|neighbour| neighbour.0 < without);
        let shared = neighbours[from..].iter().take_while(|neighbour| neighbour.0 == without);
        for &(_, index) in shared {
            let group = &self.groups[index];
            let others =
                || tenants(group).iter().filter(|&&other| other != job && other != without);
            if others().next().is_some() {
                let jobs = others().map(|&other| draft.job(other));
                let here = rate_beside(draft, draft.job(job), jobs, group.gpu);
                rate = rate.min(here.unwrap_or(Ratio::ZERO));
            }
        }
        in_sub_batches(draft, job, rate)
    }
}
