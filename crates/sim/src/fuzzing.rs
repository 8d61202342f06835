//! Reads any bytes as files that others write: an error or a result, never a panic.

use crate::interference::{GpuModel, ModelFile, PairTable};
use crate::trace::{self, ReadOptions};

/// A trace in any format; its own format can be read back.
pub fn trace(bytes: &[u8]) {
    for skip_bad in [false, true] {
        let options = ReadOptions { skip_bad, ..ReadOptions::default() };
        if let Ok(read) = trace::parse(bytes, "trace", &options) {
            let _ = trace::info(&read);
        }
    }
}

/// A table of pairs or of solo measurements.
pub fn table(bytes: &[u8]) {
    let _ = PairTable::parse(bytes, "table", None);
    let _ = PairTable::parse(bytes, "table", Some("v100"));
    crate::profiles::parse_each(bytes, "table_4_fwd.csv");
}

/// A cluster as TOML with shares, or as CSV.
pub fn cluster(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let _ = crate::clusters::parse(text, "cluster.toml");
    let _ = crate::clusters::parse(text, "cluster.csv");
}

/// A model of interference; what its checksum would refuse is read, too.
pub fn model(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    if let Ok(model) = ModelFile::parse(text, "model") {
        let _ = model.for_gpu(None, "model");
    }
    let document = serde_json::from_str::<serde_json::Value>(text);
    let gpu = document.ok().and_then(|document| document.pointer("/model/gpus/0").cloned());
    let _ = gpu.map(serde_json::from_value::<GpuModel>);
}
