//! The sample job, `tandem-train`: a program of its own, so that no deep-learning framework is part of the
//! scheduler.

use crate::failure::Failure;
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

const NAME: &str = "tandem-train";

/// The program of the sample job: beside this one, else on the search path.
pub(super) fn find() -> Result<PathBuf, Failure> {
    let program = std::env::current_exe()?;
    let folder = program.parent().unwrap_or(Path::new("/"));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::iter::once(folder.to_owned()).chain(std::env::split_paths(&path));
    folders.map(|folder| folder.join(NAME)).find(|file| file.is_file()).ok_or_else(|| {
        Failure::failed(format!(
            "the sample job {NAME} is neither in {} nor on the PATH; in the source folder, build it with \
             cargo build --release -p {NAME}, or install it with cargo install --path crates/train",
            folder.display()
        ))
    })
}

/// Becomes the sample job.
pub(super) fn exec(args: &[OsString]) -> Result<(), Failure> {
    let program = find()?;
    let error = Command::new(&program).args(args).exec();
    Err(Failure::failed(format!("{}: cannot be started: {error}", program.display())))
}
