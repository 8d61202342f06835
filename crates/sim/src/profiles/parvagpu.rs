//! Throughput of several copies of one model on one GPU, in ParvaGPU's columns: by instance size, batch size
//! and number of processes; zero if they did not fit into memory.

use crate::interference::TableError;
use crate::sheet::{Sheet, error, read_bytes};

/// One measured point.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CopiesPoint {
    /// Sevenths of the GPU.
    pub instance: u32,
    /// Batch size.
    pub batch: u32,
    /// Concurrent processes.
    pub copies: u32,
    /// Throughput of each; zero if they did not fit.
    pub throughput: f64,
}

/// Reads a file.
pub fn read_copies(file: &str) -> Result<Vec<CopiesPoint>, TableError> {
    let bytes = read_bytes(file)?;
    parse(&Sheet::parse(&bytes, file)?, file)
}

pub(super) fn parse(sheet: &Sheet<'_>, file: &str) -> Result<Vec<CopiesPoint>, TableError> {
    let instance = sheet.column("Mig instance")?;
    let batch = sheet.column("Batch size")?;
    let copies = sheet.column("Workload Number")?;
    let throughput = sheet.column("Throughput")?;
    let mut points: Vec<CopiesPoint> = Vec::new();
    for row in sheet.rows() {
        let whole = |column, limit: u32| {
            let value: u32 = row.parsed(column, "not a whole number")?;
            let problem = "has to be above zero and not beyond what a GPU has";
            if (1..=limit).contains(&value) { Ok(value) } else { Err(row.bad(column, problem)) }
        };
        let point = CopiesPoint {
            instance: whole(instance, 7)?,
            batch: whole(batch, 1_000_000)?,
            copies: whole(copies, 1000)?,
            throughput: row.number(throughput)?,
        };
        let key = |point: &CopiesPoint| (point.instance, point.batch, point.copies);
        if points.iter().any(|other| key(other) == key(&point)) {
            return Err(row.bad(copies, "this point is there twice"));
        }
        points.push(point);
    }
    if points.is_empty() {
        return Err(error(file, 2, "row", "there are no points".to_owned()));
    }
    Ok(points)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: &str = "Mig instance,Batch size,Workload Number,Throughput,Latency\n";

    #[test]
    fn points_are_read_and_errors_name_the_field() {
        let read =
            |text: &str| Sheet::parse(text.as_bytes(), "p.csv").and_then(|s| parse(&s, "p.csv"));
        let points = read(&format!("{HEADER}7,1,2,52.42,0.019\n7,1,3,0,0\n")).unwrap();
        assert_eq!((points[0].copies, points[0].throughput, points[1].throughput), (2, 52.42, 0.0));
        let error = |rows: &str| read(&format!("{HEADER}{rows}")).unwrap_err().to_string();
        assert_eq!(error("7,1,1,-2,0\n"), "p.csv:2: Throughput: negative: '-2'");
        assert_eq!(error("7,1,1,nan,0\n"), "p.csv:2: Throughput: not a number: 'nan'");
        assert!(error("8,1,1,1,0\n").starts_with("p.csv:2: Mig instance: has to be"));
        assert!(error("7,0,1,1,0\n").starts_with("p.csv:2: Batch size: has to be"));
        assert_eq!(
            error("7,1,1,1,0\n7,1,1,1,0\n"),
            "p.csv:3: Workload Number: this point is there twice: '1'"
        );
        assert_eq!(error(""), "p.csv:2: row: there are no points");
    }
}
