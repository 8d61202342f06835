//! Measurements of jobs that run alone, as the models take them: speed, utilisation and memory per
//! class, and step times per placement and batch size. What they mean is the models' business.

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

/// Steps of jobs that behave alike, at several batch sizes.
#[derive(Clone, Debug, PartialEq)]
pub struct StepGroup {
    /// What they are called: the file, or the class without its batch size.
    pub name: String,
    /// What was measured.
    pub steps: Vec<StepTime>,
}

/// Reads step times: one group from Pollux's table of placements, or one for each model, data set and
/// precision of Lucid's table of solo speeds.
pub fn read_steps(file: &str) -> Result<Vec<StepGroup>, TableError> {
    let bytes = read_bytes(file)?;
    let sheet = Sheet::parse(&bytes, file)?;
    // A file that is neither is told what the first kind lacks.
    if sheet.find(pollux::PLACEMENT).is_none() && sheet.find(lucid_solo::SPEED).is_some() {
        return Ok(SoloProfiles::parse(&sheet)?.step_groups());
    }
    Ok(vec![StepGroup { name: file.to_owned(), steps: pollux::parse(&sheet)? }])
}
