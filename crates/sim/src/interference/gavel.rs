//! Gavel's throughput JSON: per GPU type, job types with solo and co-located steps per second. A co-located
//! speed of zero means that the pair did not fit into memory.

use super::{PairTable, TableEntry, TableError};
use crate::trace::Class;
use serde_json::{Map, Value};
use tandem_core::Ratio;

/// The GPU type if the file has several and none is named.
const DEFAULT_GPU: &str = "v100";

pub(super) fn parse(bytes: &[u8], file: &str, gpu: Option<&str>) -> Result<PairTable, TableError> {
    let error = |line: usize, field: &str, problem: String| TableError::Line {
        file: file.to_owned(),
        line: line as u64,
        field: field.to_owned(),
        problem,
    };
    let all: Map<String, Value> = serde_json::from_slice(bytes).map_err(|cause| {
        error(cause.line(), "json", format!("column {}: {cause}", cause.column()))
    })?;
    let only = all.keys().next().filter(|_| all.len() == 1).map(String::as_str);
    let gpu = gpu.or(only).unwrap_or(DEFAULT_GPU);
    let Some(Value::Object(rows)) = all.get(gpu) else {
        let known: Vec<&str> = all.keys().map(String::as_str).collect();
        let problem = format!("the table has no '{gpu}'; it has {}", known.join(", "));
        return Err(error(1, "gpu", problem));
    };
    // The parsed tree has no line numbers, so the quoted key of the row is searched in the text.
    let text = String::from_utf8_lossy(bytes);
    let bad = |key: &str, problem: &str| {
        let from = text.find(&format!("\"{gpu}\"")).unwrap_or(0);
        let at = text[from..].find(key).map_or(from, |at| from + at);
        error(text[..at].matches('\n').count() + 1, key, problem.to_owned())
    };
    let mut table = PairTable::default();
    for (key, row) in rows {
        let (class, gang) =
            job_type(key).ok_or_else(|| bad(key, "is not of the form ('TYPE', N)"))?;
        let solo = row.get("null").and_then(Value::as_f64).filter(|speed| *speed >= 0.0);
        let solo = solo.ok_or_else(|| bad(key, "has no solo speed (null)"))?;
        if gang == 1 {
            table.intern(&class);
        }
        table.speeds.insert((class, gang), solo);
    }
    for (key, row) in rows {
        let (a, gang_a) = job_type(key).expect("checked above");
        let Value::Object(row) = row else { continue };
        for (other, speeds) in row.iter().filter(|(other, _)| *other != "null") {
            let (b, gang_b) =
                job_type(other).ok_or_else(|| bad(other, "is not of the form ('TYPE', N)"))?;
            // The rates of gangs follow from the single-GPU pairs.
            if gang_a != 1 || gang_b != 1 {
                continue;
            }
            let solo = |class: &Class| table.speeds.get(&(class.clone(), 1)).copied();
            let shared = |index: usize| speeds.get(index).and_then(Value::as_f64);
            let (Some(solo_a), Some(solo_b), Some(of_a), Some(of_b)) =
                (solo(&a), solo(&b), shared(0), shared(1))
            else {
                return Err(bad(key, &format!("pair with {other} lacks a speed")));
            };
            // If one of the two makes no progress, they did not run together.
            let fits = [of_a, of_b, solo_a, solo_b].iter().all(|&speed| speed > 0.0);
            let entry = |shared: f64, solo: f64| match fits {
                true => TableEntry::Rate(Ratio::from_f64(shared / solo)),
                false => TableEntry::DoesNotFit,
            };
            table.insert(&a, &b, entry(of_a, solo_a), entry(of_b, solo_b));
        }
    }
    Ok(table)
}

/// `('ResNet-18 (batch size 16)', 1)` is a job type and a gang size.
fn job_type(key: &str) -> Option<(Class, u32)> {
    let inner = key.strip_prefix("('")?.strip_suffix(')')?;
    let (name, gang) = inner.rsplit_once("', ")?;
    Some((Class::from_job_type(name), gang.trim().parse().ok()?))
}
