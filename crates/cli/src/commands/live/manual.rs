//! `tandem completions` and `tandem man`.

use crate::args::Cli;
use crate::commands::{print, remark};
use crate::failure::Failure;
use crate::files::Folder;
use clap::CommandFactory;
use clap_complete::Shell;
use std::path::Path;

pub(super) fn completions(shell: Shell) -> Result<(), Failure> {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "tandem", &mut text);
    print(String::from_utf8_lossy(&text).trim_end())
}

pub(super) fn pages(out: &Path) -> Result<(), Failure> {
    let folder = Folder::open(out)?;
    clap_mangen::generate_to(Cli::command(), out)
        .map_err(|cause| Failure::bad_input(format!("{}: {cause}", out.display())))?;
    folder.keep();
    remark(&format!("wrote manual pages to {}", out.display()), false);
    Ok(())
}
