//! Lucid's solo measurements: `model,dataset,batchsize,amp,speed,gpu_util,gmem_util,gmem,label`.

use super::StepGroup;
use crate::interference::TableError;
use crate::sheet::{Sheet, SheetRow, read_bytes};
use crate::trace::{Class, Names};
use std::path::Path;
use tandem_core::{Memory, Utilisation};
use tandem_models::memory::MemoryFit;
use tandem_models::throughput::{Compute, Gang, StepTime, Throughput};

/// The column that identifies these files.
pub(super) const SPEED: &str = "speed";

/// Solo measurements of a class on a GPU.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SoloProfile {
    /// Examples per second.
    pub speed: f64,
    /// Share of time during which it keeps the GPU busy.
    pub gpu_util: Utilisation,
    /// Share of the memory bandwidth that it uses.
    pub bandwidth_util: Utilisation,
    /// Its memory.
    pub memory: Memory,
    /// Lucid's label, from 0 (light) to 2 (heavy), where the table has one.
    pub label: Option<u8>,
}

/// Fits for a model, data set and precision at several batch sizes.
#[derive(Clone, Debug, PartialEq)]
pub struct ClassFit {
    /// The class, without a batch size.
    pub class: Class,
    /// Number of measured batch sizes.
    pub batches: Vec<u32>,
    /// Its throughput on one GPU.
    pub throughput: Throughput,
    /// Its memory.
    pub memory: MemoryFit,
}

/// Solo measurements by class.
#[derive(Clone, Debug, Default)]
pub struct SoloProfiles {
    /// Their file.
    pub name: String,
    /// The classes, in order of appearance.
    pub classes: Names<Class>,
    profiles: Vec<SoloProfile>,
}

impl SoloProfiles {
    /// Reads a file. The first of several rows of a class counts.
    pub fn read(file: &str) -> Result<Self, TableError> {
        let name = Path::new(file).file_name().unwrap_or_default().to_string_lossy().into_owned();
        let bytes = read_bytes(file)?;
        Ok(Self { name, ..Self::parse(&Sheet::parse(&bytes, file)?)? })
    }

    pub(super) fn parse(sheet: &Sheet<'_>) -> Result<Self, TableError> {
        let model = sheet.column("model")?;
        let dataset = sheet.column("dataset")?;
        let batch = sheet.column("batchsize")?;
        let amp = sheet.column("amp")?;
        let speed = sheet.column(SPEED)?;
        let gpu_util = sheet.column("gpu_util")?;
        let bandwidth_util = sheet.column("gmem_util")?;
        let memory = sheet.column("gmem")?;
        let label = sheet.find("label");
        let utilisation = |row: &SheetRow<'_>, column| {
            let parts = row.scaled(column, 3)?;
            let parts = u32::try_from(parts).ok().filter(|&parts| parts <= Utilisation::FULL.0);
            parts.map(Utilisation).ok_or_else(|| row.bad(column, "above 100 percent"))
        };
        let mut solo = Self::default();
        for row in sheet.rows() {
            let class = Class {
                model: row.text(model).to_owned(),
                dataset: row.text(dataset).to_owned(),
                batch: Some(row.parsed(batch, "not a batch size")?),
                amp: row.flag(amp)?,
            };
            if class.batch == Some(0) {
                return Err(row.bad(batch, "not a batch size"));
            }
            let profile = SoloProfile {
                speed: row.positive(speed)?,
                gpu_util: utilisation(&row, gpu_util)?,
                bandwidth_util: utilisation(&row, bandwidth_util)?,
                memory: Memory(row.scaled(memory, 3)?),
                label: label.map(|label| row.parsed(label, "not a label")).transpose()?,
            };
            if solo.classes.intern(&class) as usize == solo.profiles.len() {
                solo.profiles.push(profile);
            }
        }
        Ok(solo)
    }

    /// The measurements of a class.
    pub fn get(&self, class: &Class) -> Option<&SoloProfile> {
        self.classes.find(class).map(|number| &self.profiles[number as usize])
    }

    /// All measurements, in order of appearance.
    pub fn iter(&self) -> impl Iterator<Item = (&Class, &SoloProfile)> {
        self.classes.iter().zip(&self.profiles)
    }

    /// Classes that differ only in batch size, under the class without one, in order of appearance.
    fn groups(&self) -> Vec<(Class, Vec<(u32, &SoloProfile)>)> {
        let mut keys: Names<Class> = Names::default();
        let mut members: Vec<Vec<(u32, &SoloProfile)>> = Vec::new();
        for (class, profile) in self.iter() {
            let Some(batch) = class.batch else { continue };
            let number = keys.intern(&Class { batch: None, ..class.clone() }) as usize;
            if number == members.len() {
                members.push(Vec::new());
            }
            members[number].push((batch, profile));
        }
        keys.iter().cloned().zip(members).collect()
    }

    /// Fits of every model, data set and precision with at least two batch sizes.
    pub fn fits(&self) -> Vec<ClassFit> {
        let fit = |(class, members): (Class, Vec<(u32, &SoloProfile)>)| {
            let times: Vec<_> = members.iter().map(|&(batch, solo)| seconds(batch, solo)).collect();
            let memory = members.iter().map(|&(batch, solo)| (batch.into(), solo.memory.mib()));
            Some(ClassFit {
                class,
                batches: members.iter().map(|&(batch, _)| batch).collect(),
                throughput: Throughput::alone(Compute::fit(&times)?),
                memory: MemoryFit::fit(&memory.collect::<Vec<_>>())?,
            })
        };
        self.groups().into_iter().filter_map(fit).collect()
    }

    /// The measurements as step times on one GPU.
    pub(super) fn step_groups(&self) -> Vec<StepGroup> {
        let step = |&(batch, solo): &(u32, &SoloProfile)| {
            let (batch, seconds) = seconds(batch, solo);
            StepTime { gang: Gang::ONE, batch, seconds, sync_seconds: 0.0 }
        };
        let group = |(class, members): (Class, Vec<_>)| StepGroup {
            name: class.to_string(),
            steps: members.iter().map(step).collect(),
        };
        self.groups().into_iter().map(group).collect()
    }
}

/// The batch size, and the time of a step.
fn seconds(batch: u32, solo: &SoloProfile) -> (f64, f64) {
    (batch.into(), f64::from(batch) / solo.speed)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "\
model,dataset,batchsize,amp,speed,gpu_util,gmem_util,gmem,label
BERT,SQuAD,32,0,84.872,99.689,62.484,20162.0,2
BERT,SQuAD,32,1,119.911,99.593,74.23,16334.5,2
BERT,SQuAD,32,0,1,1,1,1,0
";

    fn parse(text: &str) -> Result<SoloProfiles, TableError> {
        Sheet::parse(text.as_bytes(), "s.csv").and_then(|sheet| SoloProfiles::parse(&sheet))
    }

    #[test]
    fn profiles_are_found_by_class_and_the_first_row_counts() {
        let solo = parse(TABLE).unwrap();
        let class =
            Class { model: "BERT".into(), dataset: "SQuAD".into(), batch: Some(32), amp: false };
        let profile = SoloProfile {
            speed: 84.872,
            gpu_util: Utilisation(99_689),
            bandwidth_util: Utilisation(62_484),
            memory: Memory(20_162_000),
            label: Some(2),
        };
        assert_eq!(solo.get(&class), Some(&profile));
        assert_eq!(solo.get(&Class { amp: true, ..class }).unwrap().memory, Memory(16_334_500));
        assert_eq!(solo.iter().count(), 2);
    }

    #[test]
    fn classes_that_differ_in_batch_size_are_fitted_together() {
        let table = format!("{TABLE}BERT,SQuAD,64,1,130,99,74,26334.5,2\n");
        let fits = parse(&table).unwrap().fits();
        assert_eq!(fits.len(), 1, "one batch size is not enough");
        assert_eq!(
            (fits[0].class.to_string().as_str(), &fits[0].batches[..]),
            ("BERT SQuAD amp", &[32, 64][..])
        );
        assert_eq!(fits[0].memory.mib(16.0).round(), 11_335.0);
        assert!((fits[0].throughput.compute.seconds(64.0) - 64.0 / 130.0).abs() < 1e-12);
    }

    #[test]
    fn errors_name_file_line_and_field() {
        let error = |text: &str| parse(text).unwrap_err().to_string();
        assert_eq!(error(""), "s.csv:1: model: missing column");
        assert_eq!(error(&TABLE.replace("119.911", "nan")), "s.csv:3: speed: not a number: 'nan'");
        assert_eq!(
            error(&TABLE.replace("99.593", "101")),
            "s.csv:3: gpu_util: above 100 percent: '101'"
        );
        assert_eq!(
            error(&TABLE.replace("84.872", "0")),
            "s.csv:2: speed: has to be above zero: '0'"
        );
        assert_eq!(
            error(&TABLE.replace(",2\nB", "\nB")),
            "s.csv:2: row: is not UTF-8 or has another number of fields than the header"
        );
    }
}
