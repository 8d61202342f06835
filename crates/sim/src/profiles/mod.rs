//! Solo measurements as input of the models: speed, utilisation and memory per class, and step times per
//! placement and batch size.

mod generate;
mod lucid_solo;
mod operators;
mod parvagpu;
mod pollux;
mod shares;

pub use generate::{GenerateOperators, write_operators};
pub use lucid_solo::{ClassFit, SoloProfile, SoloProfiles};
pub use operators::{batch_in_name, read_operators};
pub use parvagpu::{CopiesPoint, read_copies};
pub use shares::read_shares;

use crate::interference::TableError;
use crate::sheet::{Sheet, read_bytes};
use tandem_models::throughput::StepTime;

/// Step times of equal jobs at several batch sizes.
#[derive(Clone, Debug, PartialEq)]
pub struct StepGroup {
    /// Their name: the file, or the class without its batch size.
    pub name: String,
    /// The measurements.
    pub steps: Vec<StepTime>,
}

/// Reads step times: one group from Pollux's table of placements, or one per model, data set and precision
/// from Lucid's solo measurements.
pub fn read_steps(file: &str) -> Result<Vec<StepGroup>, TableError> {
    parse_steps(&read_bytes(file)?, file)
}

fn parse_steps(bytes: &[u8], file: &str) -> Result<Vec<StepGroup>, TableError> {
    let sheet = Sheet::parse(bytes, file)?;
    // The error for any other file names what the first kind needs.
    if sheet.find(pollux::PLACEMENT).is_none() && sheet.find(lucid_solo::SPEED).is_some() {
        return Ok(SoloProfiles::parse(&sheet)?.step_groups());
    }
    Ok(vec![StepGroup { name: file.to_owned(), steps: pollux::parse(&sheet)? }])
}

/// Reads a table as each of its kinds.
pub(crate) fn parse_each(bytes: &[u8], file: &str) {
    let _ = parse_steps(bytes, file);
    let _ = operators::parse(bytes, file);
    if let Ok(sheet) = Sheet::parse(bytes, file) {
        let _ = SoloProfiles::parse(&sheet);
        let _ = parvagpu::parse(&sheet, file);
        let _ = shares::parse(&sheet);
    }
}
