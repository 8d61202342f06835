//! The world of Muri (SIGCOMM'22, section 4): an iteration is a sequence of stages, each on one resource, and
//! co-located jobs interleave their stages. All jobs of a group do one iteration per cycle of the group.
//!
//! Stage times are columns of Muri's traces. They depend on the number of GPUs, and so do the classes of this
//! world. The shape of a cycle and the overheads of groups are those of the published simulator; the fall-back
//! for jobs without stage times is ours.

use super::TableError;
use crate::sheet::{Sheet, read_bytes};
use crate::trace::{Class, Names, Trace};
use std::collections::BTreeMap;
use tandem_core::{
    ClassId, ClosedForm, GpuTypeId, Interference, MICROS_PER_SECOND, Profile, Ratio, Span, Tenant,
};

/// Resources, and so the most jobs of a group.
const GROUP_MAX: usize = 4;
/// What the published simulator multiplies the cycle of 1, 2, 3 and 4 jobs by: contention that stage times do
/// not show.
const OVERHEADS: [f64; GROUP_MAX] = [1.015, 1.33, 1.5, 1.37];

/// Times of one iteration in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Stages {
    /// Loading and preprocessing, on storage and CPU.
    load: f64,
    /// Forward and backward pass, on the GPU.
    compute: f64,
    /// Gradient exchange, on the network.
    exchange: f64,
    /// A whole iteration alone: stages of one job may overlap.
    iteration: f64,
}

/// Stage times by class.
#[derive(Clone, Debug)]
pub struct MuriStages {
    stages: Vec<Stages>,
    /// `pairs[a][b]`: the cycle of two classes.
    pairs: Vec<Vec<f64>>,
}

impl MuriStages {
    /// Its name on the command line.
    pub const NAME: &'static str = "muri-stages";

    /// Reads the stage times from the trace file itself. Gives every job a class by model, batch size and
    /// number of GPUs, and the duration of its iterations.
    pub fn read(trace: &mut Trace, file: &str) -> Result<Self, TableError> {
        Self::parse(trace, &read_bytes(file)?, file)
    }

    fn parse(trace: &mut Trace, bytes: &[u8], file: &str) -> Result<Self, TableError> {
        let sheet = Sheet::parse(bytes, file)?;
        let [id, model, batch] = ["job_id", "model_name", "batch_size"].map(|c| sheet.column(c));
        let (id, model, batch) = (id?, model?, batch?);
        let times = ["resource_time_0", "resource_time_1", "resource_time_2", "iteration_time"]
            .map(|column| sheet.column(column));
        let [load, compute, exchange, iteration] = times;
        let (load, compute, exchange, iteration) = (load?, compute?, exchange?, iteration?);
        let iterations = sheet.column("iterations")?;
        let mut classes: Names<Class> = Names::default();
        let mut stages = Vec::new();
        let mut of_job = BTreeMap::new();
        for row in sheet.rows() {
            let of_row = Stages {
                load: row.number(load)?,
                compute: row.number(compute)?,
                exchange: row.number(exchange)?,
                iteration: row.positive(iteration)?,
            };
            let duration_s = row.positive(iterations)? * of_row.iteration * OVERHEADS[0] / 1000.0;
            let batch = row.parsed(batch, "not a batch size")?;
            let named = (row.text(model).to_owned(), batch, of_row, duration_s);
            of_job.insert(row.text(id).to_owned(), named);
        }
        for (index, job) in trace.jobs.iter_mut().enumerate() {
            // A row that was left out as bad has no job, so every job has a row.
            let Some((model, batch, of_row, duration_s)) = of_job.get(trace.ids.get(index)) else {
                continue;
            };
            let gang =
                if job.gpus == 1 { "1 GPU".to_owned() } else { format!("{} GPUs", job.gpus) };
            let class =
                Class { model: model.clone(), dataset: gang, batch: Some(*batch), amp: false };
            let number = classes.intern(&class);
            if number as usize == stages.len() {
                stages.push(*of_row);
            }
            job.class = Some(ClassId(number));
            let micros = duration_s * MICROS_PER_SECOND as f64;
            job.duration = Span((micros.round() as u64).max(MICROS_PER_SECOND));
        }
        trace.classes = classes;
        Ok(Self::new(stages))
    }

    fn new(stages: Vec<Stages>) -> Self {
        let row = |a: &Stages| stages.iter().map(|b| cycle(&[*a, *b])).collect();
        let pairs = stages.iter().map(row).collect();
        Self { stages, pairs }
    }

    fn class(&self, profile: &Profile) -> Option<usize> {
        profile.class.map(ClassId::index).filter(|&class| class < self.stages.len())
    }

    /// The rate of a class in a group.
    fn rate(&self, job: usize, beside: &[usize]) -> Option<Ratio> {
        let overhead = OVERHEADS.get(beside.len())? / OVERHEADS[0];
        let cycle = match beside {
            [] => return Some(Ratio::ONE),
            [other] => self.pairs[job][*other],
            _ => {
                // In a fixed order, so that all members see the same cycle.
                let mut members: Vec<usize> = beside.iter().copied().chain([job]).collect();
                members.sort_unstable();
                let stages: Vec<Stages> = members.iter().map(|&class| self.stages[class]).collect();
                cycle(&stages)
            }
        };
        Some(Ratio::from_f64(self.stages[job].iteration * OVERHEADS[0] / (cycle * overhead)))
    }
}

impl Interference for MuriStages {
    fn pair_rate(&self, job: &Profile, beside: &Profile, gpu: GpuTypeId) -> Option<Ratio> {
        match self.class(job).zip(self.class(beside)) {
            Some((job, beside)) => self.rate(job, &[beside]),
            None => ClosedForm.pair_rate(job, beside, gpu),
        }
    }

    fn is_pairwise(&self) -> bool {
        false
    }

    /// `None` beyond four jobs: there are no more resources to interleave.
    fn group_rate(&self, job: Tenant<'_>, beside: &[Tenant<'_>], gpu: GpuTypeId) -> Option<Ratio> {
        let classes: Option<Vec<usize>> =
            beside.iter().map(|tenant| self.class(tenant.profile)).collect();
        match self.class(job.profile).zip(classes) {
            Some((job, beside)) => self.rate(job, &beside),
            None => ClosedForm.group_rate(job, beside, gpu),
        }
    }
}

/// The shortest time in which every job of a group does one iteration, over all orders of the jobs.
fn cycle(jobs: &[Stages]) -> f64 {
    let mut best = f64::INFINITY;
    if let [a, b] = jobs {
        // Half a cycle apart: each loads while the other computes and exchanges.
        best = a.load.max(b.compute + b.exchange) + b.load.max(a.compute + a.exchange);
    }
    let mut order = jobs.to_vec();
    permute(&mut order, 0, &mut |order| best = best.min(cycle_in_order(order)));
    best
}

/// The time between two equal slots once the jobs of this order have settled. Each job is a slot behind the one
/// before it; loading takes two slots, computing and exchanging one each.
fn cycle_in_order(order: &[Stages]) -> f64 {
    const SLOTS: usize = 2 * GROUP_MAX;
    let mut ends = [0.0_f64; SLOTS + 1];
    for slot in 0..SLOTS {
        let job = |offset: usize| order.get((slot + offset) % GROUP_MAX);
        let mut end = 0.0_f64;
        if let Some(job) = job(1) {
            end = end.max(ends[slot] + job.exchange);
        }
        if let Some(job) = job(2) {
            end = end.max(ends[slot] + job.compute);
        }
        if let (Some(job), 1..) = (job(3), slot) {
            end = end.max(ends[slot - 1] + job.load);
        }
        ends[slot + 1] = end;
    }
    ends[SLOTS] - ends[SLOTS - GROUP_MAX]
}

/// Calls `visit` with every order of `items`; the first stays, because a cycle has no beginning.
fn permute(items: &mut [Stages], from: usize, visit: &mut impl FnMut(&[Stages])) {
    if from + 1 >= items.len() {
        return visit(items);
    }
    for index in from..items.len() {
        items.swap(from, index);
        permute(items, from + 1, visit);
        items.swap(from, index);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::ReadOptions;

    const DQN: Stages = Stages { load: 446.0, compute: 8.0, exchange: 0.0, iteration: 490.0 };
    const BERT: Stages = Stages { load: 0.5, compute: 160.0, exchange: 0.0, iteration: 178.0 };

    #[test]
    fn a_pair_loads_and_computes_at_the_same_time() {
        // 446 while bert computes for 160, then 8 while bert loads for 0.5.
        assert_eq!(cycle(&[DQN, BERT]), 454.0);
        let world = MuriStages::new(vec![DQN, BERT]);
        let rate = |job, beside: &[usize]| world.rate(job, beside).unwrap().as_f64();
        let cycle = 454.0 * 1.33 / 1.015;
        assert!((rate(0, &[1]) - 490.0 * 1.015 / cycle).abs() < 1e-9);
        assert!((rate(1, &[0]) - 178.0 * 1.015 / cycle).abs() < 1e-9);
        assert_eq!(rate(0, &[]), 1.0);
    }

    #[test]
    fn four_equal_stages_interleave_without_loss_and_a_fifth_job_does_not_fit() {
        // Loading takes two slots of ten, computing and exchanging one each: every slot is in use.
        let even = Stages { load: 20.0, compute: 10.0, exchange: 10.0, iteration: 40.0 };
        assert_eq!(cycle(&[even; 4]), 40.0);
        let world = MuriStages::new(vec![even]);
        let four = world.rate(0, &[0, 0, 0]).unwrap().as_f64();
        assert!((four - 1.015 * 1.015 / 1.37).abs() < 1e-9);
        assert_eq!(world.rate(0, &[0; 4]), None);
    }

    #[test]
    fn classes_and_durations_come_from_the_stage_columns() {
        let header = "job_id,num_gpu,submit_time,iterations,model_name,batch_size,duration,interval,\
                      iteration_time,resource_time_0,resource_time_1,resource_time_2,priority\n";
        let rows =
            "0,1,0,1000,dqn,128,490000,0,490,446,8,0,1\n1,8,0,1000,dqn,128,1,0,509,435,8,0.5,1\n";
        let text = format!("{header}{rows}");
        let mut trace =
            crate::trace::parse(text.as_bytes(), "t.csv", &ReadOptions::default()).unwrap();
        let world = MuriStages::parse(&mut trace, text.as_bytes(), "t.csv").unwrap();
        assert_eq!((world.stages.len(), trace.classes.len()), (2, 2));
        assert_eq!(trace.jobs[0].duration, Span(497_350_000));
        let missing = MuriStages::parse(&mut trace, b"job_id\n1\n", "t.csv").unwrap_err();
        assert_eq!(missing.to_string(), "t.csv:1: model_name: missing column");
    }
}
