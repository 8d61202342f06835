//! `tandem replay`: decides the journal of a daemon again and compares.

use crate::failure::Failure;
use std::io::{Write, stdout};
use std::path::Path;
use tandem_daemon::journal;

/// Differences that are shown.
const SHOWN: usize = 10;

pub(super) fn replay(file: &Path, json: bool) -> Result<(), Failure> {
    let replay = journal::replay(file).map_err(Failure::bad_input)?;
    let mut out = stdout().lock();
    if json {
        let differences: Vec<_> = replay
            .differences
            .iter()
            .map(|(record, written, now)| {
                serde_json::json!({ "record": record, "written": written, "now": now })
            })
            .collect();
        let object = serde_json::json!({
            "schema": 1,
            "starts": replay.starts,
            "cycles": replay.cycles,
            "inputs": replay.inputs,
            "actions": replay.actions,
            "differences": differences,
        });
        writeln!(out, "{object}")?;
    } else {
        let journal::ReplayReport { starts, cycles, inputs, actions, differences } = &replay;
        writeln!(
            out,
            "{cycles} cycles, {inputs} inputs, {actions} actions since {starts} starts: {}",
            if differences.is_empty() { "identical" } else { "different" }
        )?;
        for (record, written, now) in differences.iter().take(SHOWN) {
            writeln!(out, "record {record}: written {written:?}, now {now:?}")?;
        }
    }
    match replay.differences.len() {
        0 => Ok(()),
        count => Err(Failure::failed(format!("{count} cycles differ"))),
    }
}
