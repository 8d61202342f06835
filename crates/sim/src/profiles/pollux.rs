//! Pollux's step times: `placement,local_bsz,step_time,sync_time`. A placement has one digit per node, its
//! GPUs there: `24` is a gang of six on two nodes.

use crate::interference::TableError;
use crate::sheet::{Column, Sheet, SheetRow};
use tandem_models::throughput::{Gang, StepTime};

/// The column that identifies these files.
pub(super) const PLACEMENT: &str = "placement";

pub(super) fn parse(sheet: &Sheet<'_>) -> Result<Vec<StepTime>, TableError> {
    let placement = sheet.column(PLACEMENT)?;
    let batch = sheet.column("local_bsz")?;
    let step_time = sheet.column("step_time")?;
    let sync_time = sheet.column("sync_time")?;
    let step = |row: SheetRow<'_>| {
        let (seconds, sync_seconds) = (row.positive(step_time)?, row.number(sync_time)?);
        if sync_seconds > seconds {
            return Err(row.bad(sync_time, "longer than step_time"));
        }
        Ok(StepTime {
            gang: gang(&row, placement)?,
            batch: row.positive(batch)?,
            seconds,
            sync_seconds,
        })
    };
    sheet.rows().map(step).collect()
}

fn gang(row: &SheetRow<'_>, column: Column) -> Result<Gang, TableError> {
    let digits = row.text(column).chars().map(|c| c.to_digit(10).filter(|&gpus| gpus > 0));
    let counts: Option<Vec<u32>> = digits.collect();
    let counts = counts.filter(|counts| !counts.is_empty());
    let counts = counts.ok_or_else(|| row.bad(column, "not one digit per node, from 1 to 9"))?;
    let nodes = u32::try_from(counts.len()).expect("a field is shorter than that");
    Ok(Gang { gpus: counts.iter().sum(), nodes })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "placement,local_bsz,step_time,sync_time\n1,4,0.45,0.01\n24,8,1.5,0.7\n";

    fn read(text: &str) -> Result<Vec<StepTime>, String> {
        let sheet = Sheet::parse(text.as_bytes(), "p.csv");
        sheet.and_then(|sheet| parse(&sheet)).map_err(|error| error.to_string())
    }

    #[test]
    fn a_placement_is_a_digit_per_node() {
        let steps = read(TABLE).unwrap();
        assert_eq!(steps[0].gang, Gang::ONE);
        let gang = Gang { gpus: 6, nodes: 2 };
        assert_eq!(steps[1], StepTime { gang, batch: 8.0, seconds: 1.5, sync_seconds: 0.7 });
    }

    #[test]
    fn errors_name_file_line_and_field() {
        let error = |from: &str, to: &str| read(&TABLE.replace(from, to)).unwrap_err();
        assert_eq!(
            error("24", "2x"),
            "p.csv:3: placement: not one digit per node, from 1 to 9: '2x'"
        );
        assert_eq!(error("0.7", "1.7"), "p.csv:3: sync_time: longer than step_time: '1.7'");
        assert_eq!(error("local_bsz", "b"), "p.csv:1: local_bsz: missing column");
        assert_eq!(error("0.45", ""), "p.csv:2: step_time: not a number: ''");
    }
}
