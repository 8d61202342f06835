//! Measured pair rates: the true rates of co-located jobs, as far as they were measured.

mod beliefs;
mod gavel;
mod lucid;
mod model_file;
mod muri_stages;
mod pair_data;

pub use beliefs::{BeliefsError, Learning, trace_beliefs};
pub use model_file::{GpuModel, ModelFile, ModelFileError};
pub use muri_stages::MuriStages;
pub use tandem_models::interference::Beliefs;

use pair_data::class_profile;

use crate::one_line::OneLine;
use crate::sheet::read_bytes;
use crate::trace::{Class, Names, SoloSpeeds, Trace};
use std::path::Path;
use tandem_core::{ClassId, ClosedForm, GpuTypeId, Interference, Ppm, Profile, Ratio, Tenant};
use tandem_models::device::DutyShares;
use thiserror::Error;

/// What is wrong with a table.
#[derive(Debug, Error)]
pub enum TableError {
    /// The file cannot be read.
    #[error("{}: cannot be read: {cause}", OneLine(file))]
    Io {
        /// The file.
        file: String,
        /// The cause.
        cause: std::io::Error,
    },
    /// Something in it.
    #[error("{}:{line}: {}: {}", OneLine(file), OneLine(field), OneLine(problem))]
    Line {
        /// The file.
        file: String,
        /// The line, from one.
        line: u64,
        /// The field.
        field: String,
        /// What is wrong.
        problem: String,
    },
    /// The option after the file name is wrong.
    #[error("--interference '{}': {}", OneLine(text), OneLine(problem))]
    Option {
        /// The text.
        text: String,
        /// What is wrong.
        problem: String,
    },
    /// The table knows too few of the trace's classes.
    #[error(
        "table {} knows the classes of {known} of {jobs} jobs, fewer than half; \
         use --classes table:SEED to give every job a class of the table",
        OneLine(table)
    )]
    TooFewKnown {
        /// The table.
        table: String,
        /// Jobs whose class it knows.
        known: usize,
        /// All jobs.
        jobs: usize,
    },
}

/// The entry of an ordered pair of classes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TableEntry {
    /// Not measured.
    Missing,
    /// The two do not fit into memory.
    DoesNotFit,
    /// Speed of the first beside the second.
    Rate(Ratio),
}

/// A table of measured pair rates.
#[derive(Clone, Debug, Default)]
pub struct PairTable {
    /// Its file.
    pub name: String,
    /// Its classes.
    pub classes: Names<Class>,
    /// `rates[a][b]`: speed of `a` beside `b`.
    rates: Vec<Vec<TableEntry>>,
    /// Solo speeds in steps per second, where the table has them.
    pub speeds: SoloSpeeds,
    /// Pairs that ran together: both classes by number, and their rates.
    measured: Vec<([u32; 2], [Ratio; 2])>,
}

impl PairTable {
    /// Reads `FILE[:gpu=NAME]`: Lucid's CSV or Gavel's JSON.
    pub fn read(text: &str) -> Result<Self, TableError> {
        let (file, gpu) = match text.rsplit_once(':') {
            // A colon may be part of the path; only a known option is split off.
            Some((file, option)) if option.contains('=') => {
                let gpu = option.strip_prefix("gpu=").ok_or_else(|| TableError::Option {
                    text: text.to_owned(),
                    problem: format!("unknown option '{option}'; known is gpu=NAME"),
                })?;
                (file, Some(gpu))
            }
            _ => (text, None),
        };
        let table = Self::parse(&read_bytes(file)?, file, gpu)?;
        let name = Path::new(file).file_name().unwrap_or_default().to_string_lossy().into_owned();
        Ok(Self { name, ..table })
    }

    pub(crate) fn parse(bytes: &[u8], file: &str, gpu: Option<&str>) -> Result<Self, TableError> {
        let is_json = bytes.iter().find(|byte| !byte.is_ascii_whitespace()) == Some(&b'{');
        if is_json {
            gavel::parse(bytes, file, gpu)
        } else if let Some(gpu) = gpu {
            let problem = format!("gpu={gpu} is for tables of several GPU types; a CSV has one");
            Err(TableError::Option { text: format!("{file}:gpu={gpu}"), problem })
        } else {
            lucid::parse(bytes, file)
        }
    }

    fn intern(&mut self, class: &Class) -> usize {
        let number = self.classes.intern(class) as usize;
        if number == self.rates.len() {
            self.rates.push(Vec::new());
            let count = self.rates.len();
            self.rates.iter_mut().for_each(|row| row.resize(count, TableEntry::Missing));
        }
        number
    }

    /// Adds a measured pair, both directions. The first value of a pair counts. A class beside itself gets
    /// the mean of its two speeds.
    fn insert(&mut self, a: &Class, b: &Class, of_a: TableEntry, of_b: TableEntry) {
        let (a, b) = (self.intern(a), self.intern(b));
        if self.rates[a][b] != TableEntry::Missing {
            return;
        }
        if let (TableEntry::Rate(rate_a), TableEntry::Rate(rate_b)) = (of_a, of_b) {
            let number = |class: usize| u32::try_from(class).expect("classes are counted in u32");
            self.measured.push(([number(a), number(b)], [rate_a, rate_b]));
        }
        if a == b {
            self.rates[a][a] = match (of_a, of_b) {
                (TableEntry::Rate(one), TableEntry::Rate(other)) => {
                    TableEntry::Rate(one.mean(other))
                }
                _ => of_a,
            };
        } else {
            self.rates[a][b] = of_a;
            self.rates[b][a] = of_b;
        }
    }

    /// Whether a pair of classes, by their numbers, was not measured.
    fn lacks(&self, a: Option<u32>, b: Option<u32>) -> bool {
        let entry = a.zip(b).map(|(a, b)| self.rates[a as usize][b as usize]);
        entry.is_none_or(|entry| entry == TableEntry::Missing)
    }

    /// The table for the classes of `trace`.
    pub fn for_trace(&self, trace: &Trace) -> Result<MeasuredRates, TableError> {
        let numbers: Vec<Option<u32>> =
            trace.classes.iter().map(|class| self.classes.find(class)).collect();
        let is_known =
            |class: Option<ClassId>| class.is_some_and(|class| numbers[class.index()].is_some());
        let known = trace.jobs.iter().filter(|job| is_known(job.class)).count();
        if known * 2 < trace.jobs.len() {
            let (table, jobs) = (self.name.clone(), trace.jobs.len());
            return Err(TableError::TooFewKnown { table, known, jobs });
        }
        Ok(MeasuredRates { numbers, rates: self.rates.clone(), device: None })
    }
}

/// Measured rates for the classes of one trace, with the closed form for pairs that were not measured.
#[derive(Clone, Debug)]
pub struct MeasuredRates {
    /// From the trace's classes to the table's.
    numbers: Vec<Option<u32>>,
    rates: Vec<Vec<TableEntry>>,
    /// A model for pairs that were not measured, and for budgets.
    device: Option<DutyShares>,
}

impl MeasuredRates {
    /// The same with the device model: for pairs that were not measured, for groups with such a pair, and for
    /// the effect of budgets.
    #[must_use]
    pub fn with_device(self, device: DutyShares) -> Self {
        Self { device: Some(device), ..self }
    }

    /// The measured rate of the trace's class `a` beside `b`; zero if the two do not fit.
    pub(crate) fn measured(&self, a: ClassId, b: ClassId) -> Option<Ratio> {
        let (a, b) = (self.numbers[a.index()]?, self.numbers[b.index()]?);
        match self.rates[a as usize][b as usize] {
            TableEntry::Missing => None,
            TableEntry::DoesNotFit => Some(Ratio::ZERO),
            TableEntry::Rate(rate) => Some(rate),
        }
    }

    fn entry(&self, job: &Profile, beside: &Profile) -> TableEntry {
        let number = |profile: &Profile| self.numbers[profile.class?.index()];
        match (number(job), number(beside)) {
            (Some(a), Some(b)) => self.rates[a as usize][b as usize],
            _ => TableEntry::Missing,
        }
    }
}

impl Interference for MeasuredRates {
    fn pair_rate(&self, job: &Profile, beside: &Profile, gpu: GpuTypeId) -> Option<Ratio> {
        match self.entry(job, beside) {
            TableEntry::Rate(rate) => Some(rate),
            TableEntry::DoesNotFit => None,
            TableEntry::Missing => match &self.device {
                Some(device) => device.pair_rate(job, beside, gpu),
                None => ClosedForm.pair_rate(job, beside, gpu),
            },
        }
    }

    fn is_pairwise(&self) -> bool {
        self.device.is_none()
    }

    fn group_rate(&self, job: Tenant<'_>, beside: &[Tenant<'_>], gpu: GpuTypeId) -> Option<Ratio> {
        let mut product = Ratio::ONE;
        let mut all_measured = true;
        for other in beside {
            product = product.times(self.pair_rate(job.profile, other.profile, gpu)?);
            all_measured &= self.entry(job.profile, other.profile) != TableEntry::Missing;
        }
        let Some(device) = &self.device else { return Some(product) };
        let within = device.group_rate(job, beside, gpu)?;
        if !all_measured {
            return Some(within);
        }
        // Rates were measured without caps; the model gives the effect of caps.
        let whole = Ppm::ONE;
        let beside: Vec<Tenant<'_>> =
            beside.iter().map(|tenant| Tenant { budget: whole, ..*tenant }).collect();
        let without = device.group_rate(Tenant { budget: whole, ..job }, &beside, gpu)?;
        Some(if within == without {
            product
        } else {
            product.times(Ratio::from_f64(within.as_f64() / without.as_f64()))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::ReadOptions;

    const LUCID: &str = "\
,model1,dataset1,gpu_num1,batchsize1,amp1,speed1,model2,dataset2,gpu_num2,batchsize2,amp2,speed2,gpu_util,gmem_util,gmem
0,A,d,1,32,0,0.9,B,d,1,32,1,1.05,60,30,5000
1,B,d,1,32,1,0.1,A,d,1,32,0,0.2,60,30,5000
2,A,d,1,32,0,0.8,A,d,1,32,0,0.9,60,30,5000
";
    const TRACE: &str = "\
job_id,submit_s,gpus,duration_s,model,dataset,batch,amp,gpu_util
1,0,1,10,A,d,32,0,80
2,0,1,10,B,d,32,1,80
3,0,1,10,C,d,32,0,80
";

    fn ppm(measured: &MeasuredRates, trace: &Trace, a: usize, b: usize) -> Option<u32> {
        let profile = |index: usize| Profile {
            class: trace.jobs[index].class,
            gpu_util: trace.jobs[index].gpu_util,
            ..Profile::default()
        };
        measured.pair_rate(&profile(a), &profile(b), GpuTypeId(0)).map(|rate| rate.ppm().0)
    }

    #[test]
    fn lucids_table_gives_the_rates_of_the_first_row_and_the_closed_form_for_other_pairs() {
        let table = lucid::parse(LUCID.as_bytes(), "t.csv").unwrap();
        let trace =
            crate::trace::parse(TRACE.as_bytes(), "trace.csv", &ReadOptions::default()).unwrap();
        let measured = table.for_trace(&trace).unwrap();
        assert_eq!(ppm(&measured, &trace, 0, 1), Some(900_000));
        assert_eq!(ppm(&measured, &trace, 1, 0), Some(1_050_000));
        assert_eq!(ppm(&measured, &trace, 0, 0), Some(850_000));
        assert_eq!(ppm(&measured, &trace, 0, 2), Some(625_000));
    }

    #[test]
    fn a_speed_of_zero_in_lucids_table_means_that_the_pair_does_not_fit() {
        let text = LUCID.replace("0.9,B", "0,B").replace("0.8,A", "0.0,A");
        let table = lucid::parse(text.as_bytes(), "t.csv").unwrap();
        let trace =
            crate::trace::parse(TRACE.as_bytes(), "trace.csv", &ReadOptions::default()).unwrap();
        let measured = table.for_trace(&trace).unwrap();
        for (a, b) in [(0, 1), (1, 0), (0, 0)] {
            assert_eq!(ppm(&measured, &trace, a, b), None, "{a} beside {b}");
        }
    }

    #[test]
    fn gavels_table_divides_by_solo_speed_and_marks_pairs_that_do_not_fit() {
        let json = r#"{"v100": {
            "('A (batch size 32)', 1)": {"null": 4.0, "('B', 1)": [3.0, 1.0], "('A (batch size 32)', 1)": [2.0, 3.0]},
            "('B', 1)": {"null": 2.0, "('A (batch size 32)', 1)": [1.0, 3.0], "('B', 1)": [0.0, 0.0]},
            "('B', 2)": {"null": 3.5},
            "('C', 1)": {"null": 1.0, "('B', 1)": [1.0, 0.0]},
            "('D', 1)": {"null": 1.0}}}"#;
        let table = gavel::parse(json.as_bytes(), "t.json", None).unwrap();
        let trace = "job_id,submit_s,gpus,duration_s,model,batch,gpu_util\n\
                     1,0,1,9,A,32,\n2,0,1,9,B,,50\n3,0,1,9,C,,\n4,0,1,9,D,,50\n";
        let trace =
            crate::trace::parse(trace.as_bytes(), "trace.csv", &ReadOptions::default()).unwrap();
        let measured = table.for_trace(&trace).unwrap();
        assert_eq!(ppm(&measured, &trace, 0, 1), Some(750_000));
        assert_eq!(ppm(&measured, &trace, 1, 0), Some(500_000));
        assert_eq!(ppm(&measured, &trace, 0, 0), Some(625_000));
        assert_eq!(ppm(&measured, &trace, 1, 1), None);
        assert_eq!((ppm(&measured, &trace, 1, 2), ppm(&measured, &trace, 2, 1)), (None, None));
        assert_eq!(ppm(&measured, &trace, 1, 3), Some(1_000_000), "a class known alone only");
        assert_eq!(table.speeds[&(Class::from_job_type("B"), 2)], 3.5);
    }

    #[test]
    fn the_device_model_gives_unmeasured_pairs_and_the_effect_of_budgets() {
        let table = lucid::parse(LUCID.as_bytes(), "t.csv").unwrap();
        let trace =
            crate::trace::parse(TRACE.as_bytes(), "trace.csv", &ReadOptions::default()).unwrap();
        let law = DutyShares::default();
        let measured = table.for_trace(&trace).unwrap();
        assert!(measured.is_pairwise());
        let measured = measured.with_device(law);
        assert!(!measured.is_pairwise());
        assert_eq!(ppm(&measured, &trace, 0, 1), Some(900_000));
        let known = Ratio::from_f64(law.kept((0.8, 1.0), [(0.8, 1.0)])).ppm();
        assert_eq!(ppm(&measured, &trace, 0, 2), Some(known.0));
        let profiles: Vec<Profile> = trace
            .jobs
            .iter()
            .map(|job| Profile { class: job.class, gpu_util: job.gpu_util, ..Profile::default() })
            .collect();
        let tenant =
            |job: usize, budget| Tenant { budget: Ppm(budget), ..Tenant::uncapped(&profiles[job]) };
        let rate = |job, beside: &[Tenant<'_>]| {
            measured.group_rate(job, beside, GpuTypeId(0)).unwrap().as_f64()
        };
        let whole = 1_000_000;
        // Measured pairs as measured, their product for groups, and the model for a group with an unmeasured
        // pair.
        assert_eq!(rate(tenant(0, whole), &[tenant(1, whole)]), 0.9);
        let three = rate(tenant(0, whole), &[tenant(1, whole), tenant(0, whole)]);
        assert!((three - 0.9 * 0.85).abs() < 1e-9, "{three}");
        let unmeasured = rate(tenant(0, whole), &[tenant(1, whole), tenant(2, whole)]);
        assert!((unmeasured - law.kept((0.8, 1.0), [(0.8, 1.0); 2])).abs() < 1e-9, "{unmeasured}");
        // A capped partner slows the job less, and the job's own cap slows it.
        assert!(rate(tenant(0, whole), &[tenant(1, 300_000)]) > 0.9);
        assert!(rate(tenant(0, 400_000), &[tenant(1, whole)]) < 0.9 * 0.75);
    }

    #[test]
    fn a_table_that_knows_too_few_of_the_jobs_is_refused() {
        let table = lucid::parse(LUCID.as_bytes(), "t.csv").unwrap();
        let trace = "job_id,submit_s,gpus,duration_s,model\n1,0,1,9,A\n2,0,1,9,B\n";
        let trace =
            crate::trace::parse(trace.as_bytes(), "trace.csv", &ReadOptions::default()).unwrap();
        let message = table.for_trace(&trace).unwrap_err().to_string();
        assert!(message.contains("0 of 2 jobs"), "{message}");
    }

    #[test]
    fn bad_tables_are_one_line_with_file_line_and_field() {
        let lucid = |text: &str| lucid::parse(text.as_bytes(), "t.csv").unwrap_err().to_string();
        assert_eq!(lucid(""), "t.csv:1: model1: missing column");
        let row = LUCID.replace("1.05", "x");
        assert_eq!(lucid(&row), "t.csv:2: speed2: not a number: 'x'");
        let gavel =
            |text: &str, gpu| gavel::parse(text.as_bytes(), "t.json", gpu).unwrap_err().to_string();
        assert_eq!(
            gavel(r#"{"v100":{},"k80":{}}"#, Some("h100")),
            "t.json:1: gpu: the table has no 'h100'; it has v100, k80"
        );
        assert!(gavel("{\n\"v100\":", None).starts_with("t.json:2: json: "));
        let no_solo = r#"{"v100":{"('A', 1)":{"('A', 1)":[1,1]}}}"#;
        assert_eq!(gavel(no_solo, None), "t.json:1: ('A', 1): has no solo speed (null)");
    }
}
