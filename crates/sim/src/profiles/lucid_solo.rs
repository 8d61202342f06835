//! Lucid's table of jobs that run alone: `model,dataset,batchsize,amp,speed,gpu_util,gmem_util,gmem,label`.

use super::sheet::{Row, Sheet, read_bytes};
use crate::interference::TableError;
use crate::trace::{Class, Names};
use std::path::Path;
use tandem_core::{Memory, Utilisation};

/// What was measured of a class that runs alone on a GPU.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SoloProfile {
    /// Examples per second.
    pub speed: f64,
    /// Share of time in which it keeps the GPU busy.
    pub gpu_util: Utilisation,
    /// Share of the memory bandwidth it uses.
    pub bandwidth_util: Utilisation,
    /// Memory it takes.
    pub memory: Memory,
    /// Lucid's label, from 0 (light) to 2 (heavy), where the table has one.
    pub label: Option<u8>,
}

/// Solo measurements by class.
#[derive(Clone, Debug, Default)]
pub struct SoloProfiles {
    /// The file they came from.
    pub name: String,
    /// The classes, in order of appearance.
    pub classes: Names<Class>,
    profiles: Vec<SoloProfile>,
}

impl SoloProfiles {
    /// Reads a file. The first of several rows of a class counts.
    pub fn read(file: &str) -> Result<Self, TableError> {
        let name = Path::new(file).file_name().unwrap_or_default().to_string_lossy().into_owned();
        Ok(Self { name, ..Self::parse(&read_bytes(file)?, file)? })
    }

    fn parse(bytes: &[u8], file: &str) -> Result<Self, TableError> {
        let sheet = Sheet::parse(bytes, file)?;
        let model = sheet.column("model")?;
        let dataset = sheet.column("dataset")?;
        let batch = sheet.column("batchsize")?;
        let amp = sheet.column("amp")?;
        let speed = sheet.column("speed")?;
        let gpu_util = sheet.column("gpu_util")?;
        let bandwidth_util = sheet.column("gmem_util")?;
        let memory = sheet.column("gmem")?;
        let label = sheet.find("label");
        let utilisation = |row: &Row<'_>, column| {
            let parts = row.thousandths(column)?;
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
                memory: Memory(row.thousandths(memory)?),
                label: label.map(|label| row.parsed(label, "not a label")).transpose()?,
            };
            if solo.classes.intern(&class) as usize == solo.profiles.len() {
                solo.profiles.push(profile);
            }
        }
        Ok(solo)
    }

    /// What was measured of a class.
    pub fn get(&self, class: &Class) -> Option<&SoloProfile> {
        self.classes.find(class).map(|number| &self.profiles[number as usize])
    }

    /// All of them, in order of appearance.
    pub fn iter(&self) -> impl Iterator<Item = (&Class, &SoloProfile)> {
        self.classes.iter().zip(&self.profiles)
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.profiles.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.profiles.is_empty()
    }
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

    #[test]
    fn profiles_are_found_by_class_and_the_first_row_counts() {
        let solo = SoloProfiles::parse(TABLE.as_bytes(), "solo.csv").unwrap();
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
    fn errors_name_file_line_and_field() {
        let error =
            |text: &str| SoloProfiles::parse(text.as_bytes(), "s.csv").unwrap_err().to_string();
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
