//! The file of losses: a row per step, complete up to every checkpoint.

use crate::error::TrainError;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

const HEADER: &str = "step,loss,accum";

pub(crate) struct Losses {
    path: PathBuf,
    out: BufWriter<File>,
}

impl Losses {
    /// Opens the file for the steps after `done`. Rows of the steps up to there stay.
    pub(crate) fn open(path: &Path, done: u64) -> Result<Self, TrainError> {
        let before = match std::fs::read_to_string(path) {
            Ok(text) if done > 0 => text,
            Ok(_) => String::new(),
            Err(cause) if cause.kind() == io::ErrorKind::NotFound => String::new(),
            Err(_) if done == 0 => String::new(),
            Err(cause) => return Err(TrainError::unreadable(path)(cause)),
        };
        let file = File::create(path).map_err(TrainError::unwritable(path))?;
        let mut losses = Self { path: path.to_owned(), out: BufWriter::new(file) };
        losses.line(HEADER)?;
        for row in before.lines().filter(|row| step_of(row).is_some_and(|step| step <= done)) {
            losses.line(row)?;
        }
        losses.flush()?;
        Ok(losses)
    }

    /// Numbers are written with as many digits as it takes to read the same number back.
    pub(crate) fn add(&mut self, step: u64, loss: f64, accum: usize) -> Result<(), TrainError> {
        self.line(&format!("{step},{loss:?},{accum}"))
    }

    pub(crate) fn flush(&mut self) -> Result<(), TrainError> {
        self.out.flush().map_err(TrainError::unwritable(&self.path))
    }

    fn line(&mut self, text: &str) -> Result<(), TrainError> {
        writeln!(self.out, "{text}").map_err(TrainError::unwritable(&self.path))
    }
}

/// The step of a whole row.
fn step_of(row: &str) -> Option<u64> {
    let mut fields = row.split(',');
    let step = fields.next()?.parse().ok()?;
    fields.next()?.parse::<f64>().ok()?;
    fields.next()?.parse::<u64>().ok()?;
    fields.next().is_none().then_some(step)
}
