//! Lucid's co-location CSV: one row per pair, with speeds relative to running alone. A speed of zero means
//! that the pair did not fit into memory.

use super::{PairTable, TableEntry, TableError};
use crate::sheet::{Column, Sheet, SheetRow};
use crate::trace::Class;
use tandem_core::Ratio;

const FIRST: [&str; 5] = ["model1", "dataset1", "batchsize1", "amp1", "speed1"];
const SECOND: [&str; 5] = ["model2", "dataset2", "batchsize2", "amp2", "speed2"];

pub(super) fn parse(bytes: &[u8], file: &str) -> Result<PairTable, TableError> {
    let sheet = Sheet::parse(bytes, file)?;
    let (first, second) = (PairSide::find(&sheet, FIRST)?, PairSide::find(&sheet, SECOND)?);
    let mut table = PairTable::default();
    for row in sheet.rows() {
        let ((a, of_a), (b, of_b)) = (first.read(&row)?, second.read(&row)?);
        let fits = of_a > Ratio::ZERO && of_b > Ratio::ZERO;
        let entry = |rate| if fits { TableEntry::Rate(rate) } else { TableEntry::DoesNotFit };
        table.insert(&a, &b, entry(of_a), entry(of_b));
    }
    Ok(table)
}

/// The columns of one job of the pair.
struct PairSide {
    model: Column,
    dataset: Column,
    batch: Column,
    amp: Column,
    speed: Column,
}

impl PairSide {
    fn find(sheet: &Sheet<'_>, names: [&'static str; 5]) -> Result<Self, TableError> {
        let [model, dataset, batch, amp, speed] = names.map(|name| sheet.column(name));
        Ok(Self { model: model?, dataset: dataset?, batch: batch?, amp: amp?, speed: speed? })
    }

    fn read(&self, row: &SheetRow<'_>) -> Result<(Class, Ratio), TableError> {
        let class = Class {
            model: row.text(self.model).to_owned(),
            dataset: row.text(self.dataset).to_owned(),
            batch: Some(row.parsed(self.batch, "not a batch size")?),
            amp: row.flag(self.amp)?,
        };
        Ok((class, Ratio::new(row.scaled(self.speed, 12)?, 1_000_000_000_000)))
    }
}
