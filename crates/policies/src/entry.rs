//! What the registry knows about a policy.

use crate::spec::{PolicyParam, Settings};
use tandem_core::Policy;

/// One policy of the registry.
#[derive(Debug)]
pub struct Entry {
    /// Its name on the command line.
    pub name: &'static str,
    /// One line for `--help`.
    pub summary: &'static str,
    /// Its parameters.
    pub params: &'static [PolicyParam],
    /// Numbers that were chosen by experiment, set with `tuning.NAME=VALUE`. They exist so that the
    /// experiments can be repeated: `--help` does not list them and they may change at any time.
    pub tuning: &'static [PolicyParam],
    /// The most jobs that it puts on one GPU.
    pub tenants_max: usize,
    /// Makes an instance for one partition.
    pub build: fn(&Settings) -> Box<dyn Policy>,
}
