//! Files of fitted predictors: JSON with a version and a checksum, so that damaged files and other versions
//! are refused.

use crate::one_line::OneLine;
use serde::{Deserialize, Serialize};
use tandem_models::interference::{ClassProfile, Offline};
use thiserror::Error;

const FORMAT: &str = "tandem-interference-model";
const VERSION: u32 = 3;
/// Trained on Gavel's throughput table (MIT licence); see docs/models.md.
const SHIPPED: &str = include_str!("shipped_model.json");

/// Why a model file is refused.
#[derive(Debug, Error)]
pub enum ModelFileError {
    /// The file cannot be read.
    #[error("{}: cannot be read: {cause}", OneLine(file))]
    Io {
        /// The file.
        file: String,
        /// The cause.
        cause: std::io::Error,
    },
    /// It is another kind of file, or cut off.
    #[error(
        "{}:{line}: not a model file: {}; make one with tandem model fit",
        OneLine(file),
        OneLine(problem)
    )]
    NotAModel {
        /// The file.
        file: String,
        /// The line, from one.
        line: usize,
        /// What is wrong.
        problem: String,
    },
    /// It has another version.
    #[error(
        "{}: is of version {found}, this program reads version {VERSION}; fit it again with tandem model fit",
        OneLine(file)
    )]
    Version {
        /// The file.
        file: String,
        /// Its version.
        found: u64,
    },
    /// The contents do not match the checksum.
    #[error(
        "{}: is damaged: its checksum is not that of its contents; fit it again with tandem model fit",
        OneLine(file)
    )]
    Damaged {
        /// The file.
        file: String,
    },
    /// There is no predictor for a GPU type.
    #[error("{}: has no model for GPU '{}'; it has {known}", OneLine(file), OneLine(gpu))]
    UnknownGpu {
        /// The file.
        file: String,
        /// The requested type.
        gpu: String,
        /// The available types.
        known: String,
    },
}

/// A predictor for one GPU type and its training classes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GpuModel {
    /// The GPU type as the table names it; empty if the table has only one.
    pub gpu: String,
    /// Solo profiles of the classes.
    pub profiles: Vec<ClassProfile>,
    /// The predictor.
    pub offline: Offline,
}

/// Fitted predictors.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ModelFile {
    /// Its training data.
    pub trained_on: String,
    /// One per GPU type.
    pub gpus: Vec<GpuModel>,
}

#[derive(Serialize, Deserialize)]
struct Envelope {
    format: String,
    version: u32,
    checksum: String,
    model: ModelFile,
}

impl ModelFile {
    /// The predictors that ship with the program.
    pub fn shipped() -> Self {
        Self::parse(SHIPPED, "the shipped model").expect("the shipped model is of this version")
    }

    /// Reads a file.
    pub fn read(file: &str) -> Result<Self, ModelFileError> {
        let text = std::fs::read_to_string(file)
            .map_err(|cause| ModelFileError::Io { file: file.to_owned(), cause })?;
        Self::parse(&text, file)
    }

    pub(crate) fn parse(text: &str, file: &str) -> Result<Self, ModelFileError> {
        let file = || file.to_owned();
        let not_a_model = |cause: &serde_json::Error| ModelFileError::NotAModel {
            file: file(),
            line: cause.line().max(1),
            problem: cause.to_string(),
        };
        // The version comes first: other versions may have other fields.
        #[derive(Deserialize)]
        struct Header {
            format: String,
            version: u64,
        }
        let header: Header = serde_json::from_str(text).map_err(|cause| not_a_model(&cause))?;
        if header.format != FORMAT {
            let problem = format!("its format is '{}'", header.format);
            return Err(ModelFileError::NotAModel { file: file(), line: 1, problem });
        }
        if header.version != u64::from(VERSION) {
            return Err(ModelFileError::Version { file: file(), found: header.version });
        }
        let envelope: Envelope = serde_json::from_str(text).map_err(|cause| not_a_model(&cause))?;
        if envelope.checksum != checksum(&envelope.model) {
            return Err(ModelFileError::Damaged { file: file() });
        }
        Ok(envelope.model)
    }

    /// The text of the file.
    pub fn to_json(&self) -> String {
        let envelope = Envelope {
            format: FORMAT.to_owned(),
            version: VERSION,
            checksum: checksum(self),
            model: self.clone(),
        };
        serde_json::to_string(&envelope).expect("plain data always serialises")
    }

    /// The predictor for a GPU type; the first if none is named.
    pub fn for_gpu(&self, gpu: Option<&str>, file: &str) -> Result<&GpuModel, ModelFileError> {
        let found = match gpu {
            None => self.gpus.first(),
            Some(gpu) => self.gpus.iter().find(|model| model.gpu == gpu),
        };
        found.ok_or_else(|| {
            let known: Vec<&str> = self.gpus.iter().map(|model| model.gpu.as_str()).collect();
            ModelFileError::UnknownGpu {
                file: file.to_owned(),
                gpu: gpu.unwrap_or_default().to_owned(),
                known: known.join(", "),
            }
        })
    }
}

/// FNV-1a over the canonical text of the contents: it detects damage, not forgery.
fn checksum(model: &ModelFile) -> String {
    let text = serde_json::to_string(model).expect("plain data always serialises");
    let hash = text.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    format!("{hash:016x}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_models_are_read_back_and_damage_is_detected() {
        let model = ModelFile::shipped();
        let text = model.to_json();
        assert_eq!(ModelFile::parse(&text, "m.json").unwrap(), model);
        let error = |text: &str| ModelFile::parse(text, "m.json").unwrap_err().to_string();
        let other = text.replacen("\"version\":3", "\"version\":7", 1);
        assert!(error(&other).starts_with("m.json: is of version 7, this program reads version 3"));
        let at = text.find("\"mean\":0.").unwrap() + 9;
        let digit = if text.as_bytes()[at] == b'5' { "6" } else { "5" };
        let damaged = format!("{}{digit}{}", &text[..at], &text[at + 1..]);
        assert!(error(&damaged).starts_with("m.json: is damaged"));
        assert!(error(&text[..text.len() / 2]).starts_with("m.json:1: not a model file"));
        assert!(error("{\"a\":1}").contains("not a model file"));
    }

    #[test]
    fn the_shipped_model_knows_three_kinds_of_gpu() {
        let model = ModelFile::shipped();
        for gpu in ["v100", "p100", "k80"] {
            assert!(!model.for_gpu(Some(gpu), "shipped").unwrap().profiles.is_empty());
        }
        assert!(model.for_gpu(Some("tpu"), "shipped").is_err());
    }
}
