//! The scheduling policies, one file or folder each, and the registry that lists them.
//!
//! A policy is a small file on the steps of the [`kit`]. To add one, write the file with an [`Entry`] and
//! name it below. The command line, its help and the contract tests follow the registry.
//! `docs/developers/add-a-policy.md` walks through an example.
//!
//! ```
//! use tandem_policies::PolicySpec;
//!
//! let spec = PolicySpec::parse("tiresias:interval_s=300")?;
//! assert_eq!(spec.entry.name, "tiresias");
//! // One instance per partition, for `tandem_core::Engine`.
//! let policy: Box<dyn tandem_core::Policy> = spec.build();
//! # Ok::<(), tandem_policies::SpecError>(())
//! ```

mod entry;
pub mod kit;
mod spec;
#[cfg(test)]
mod testing;

mod antman;
mod fifo;
mod gavel;
mod gshare;
mod lucid;
mod muri;
mod sjf;
mod sjf_bsbf;
mod sjf_ffs;
mod srtf;
mod tandem;
mod tesserae;
mod themis;
mod tiresias;

pub use entry::Entry;
pub use spec::{PolicyParam, PolicySpec, Settings, SpecError, Value};

/// All policies, in the order in which they are listed.
///
/// ```
/// use tandem_policies::REGISTRY;
///
/// for entry in REGISTRY {
///     println!("{:<10} {}", entry.name, entry.summary);
/// }
/// let sharing = REGISTRY.iter().filter(|entry| entry.tenants_max > 1);
/// assert!(sharing.map(|entry| entry.name).any(|name| name == "tandem"));
/// ```
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
    muri::MURI_S,
    muri::MURI_L,
    antman::ENTRY,
    themis::ENTRY,
    gavel::ENTRY,
    tesserae::ENTRY,
    tandem::ENTRY,
];
