//! The list of policies.

use crate::spec::{Param, Settings};
use crate::{fifo, gshare, lucid, sjf, sjf_bsbf, sjf_ffs, srtf, tandem, tiresias};
use tandem_core::Policy;

/// One policy of the registry.
#[derive(Debug)]
pub struct Entry {
    /// Its name on the command line.
    pub name: &'static str,
    /// One line for `--help`.
    pub summary: &'static str,
    /// What it can be told.
    pub params: &'static [Param],
    /// How many jobs it may put on one GPU.
    pub tenants_max: usize,
    /// Makes an instance for one partition.
    pub build: fn(&Settings) -> Box<dyn Policy>,
}

/// All policies, in the order in which they are listed.
pub const REGISTRY: &[Entry] = &[
    fifo::ENTRY,
    sjf::ENTRY,
    srtf::SRTF,
    srtf::SRSF,
    tiresias::ENTRY,
    sjf_ffs::ENTRY,
    sjf_bsbf::ENTRY,
    gshare::ENTRY,
    lucid::ENTRY,
    tandem::ENTRY,
];
