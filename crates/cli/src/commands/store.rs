//! `tandem store`: looks after the store of a daemon that does not run.

use super::{print, remark};
use crate::failure::Failure;
use crate::store_args::{StoreCommand, StorePlace};
use std::fs::File;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use tandem_daemon::config::Config;
use tandem_daemon::daemon::{database, hold_state};
use tandem_daemon::store::{Store, StoreError, tools};

pub(super) fn run(command: &StoreCommand) -> Result<(), Failure> {
    match command {
        StoreCommand::Check { place, json } => check(&existing(place)?, *json),
        StoreCommand::Backup { file, place } => {
            let store = existing(place)?;
            tools::backup(&store, file).map_err(|error| match error {
                StoreError::BadCopy(what) => {
                    Failure::bad_input(format!("{}: {what}", file.display()))
                }
                error => failure(&store, &error),
            })?;
            print(&format!("copied to {}", file.display()))
        }
        StoreCommand::Restore { file, place } => {
            let state = state(place)?;
            let _held = hold_state(&state)?;
            let store = database(&state);
            let now = tandem_daemon::clock::unix_us();
            let kept = tools::restore(&store, file, now)
                .map_err(|error| Failure::bad_input(format!("{}: {error}", file.display())))?;
            if let Some(kept) = kept {
                remark(&format!("tandem: the store before is {}", kept.display()), false);
            }
            print(&format!("restored {}", store.display()))
        }
        StoreCommand::Drop { job, place } => {
            let (mut store, file, _held) = open(place)?;
            if !store.drop_job(*job).map_err(|error| failure(&file, &error))? {
                return Err(Failure::not_found(format!("there is no job {job}")));
            }
            print(&format!("removed job {job}"))
        }
        StoreCommand::Adopt { place } => {
            let (mut store, file, _held) = open(place)?;
            let machine = tandem_daemon::machine::id();
            let adopted = store.write(|writing| writing.meta("machine", &machine));
            adopted.map_err(|error| failure(&file, &error))?;
            print(&format!("{} is now the state of machine {machine}", file.display()))
        }
    }
}

fn state(place: &StorePlace) -> Result<PathBuf, Failure> {
    match &place.state {
        Some(state) => Ok(state.clone()),
        None => Ok(Config::load(&[])?.0.daemon.state),
    }
}

/// The file of a store that is there.
fn existing(place: &StorePlace) -> Result<PathBuf, Failure> {
    let file = database(&state(place)?);
    let shown = file.display();
    match file.metadata() {
        Ok(_) => Ok(file),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            Err(Failure::not_found(format!("{shown}: there is no store; give --state")))
        }
        Err(error) => Err(Failure::failed(format!("{shown}: {error}"))),
    }
}

/// The store, and what keeps daemons from it meanwhile.
fn open(place: &StorePlace) -> Result<(Store, PathBuf, File), Failure> {
    let file = existing(place)?;
    let held = hold_state(&state(place)?)?;
    let store = Store::open(&file).map_err(|error| failure(&file, &error))?;
    Ok((store, file, held))
}

fn check(file: &Path, json: bool) -> Result<(), Failure> {
    let report = tools::check(file).map_err(|error| failure(file, &error))?;
    if json {
        print(
            &serde_json::to_string(&report).map_err(|error| Failure::failed(error.to_string()))?,
        )?;
    } else {
        let tools::StoreReport { version, active, ended, bytes, free_bytes, .. } = &report;
        let mib = |bytes: &u64| *bytes as f64 / f64::from(1 << 20);
        print(&format!(
            "{}: schema {version}, {active} jobs active, {ended} ended, {:.1} MiB, {:.1} MiB free",
            file.display(),
            mib(bytes),
            mib(free_bytes)
        ))?;
        report.problems.iter().try_for_each(|problem| print(problem))?;
    }
    match report.problems.len() {
        0 => Ok(()),
        count => Err(Failure::failed(format!(
            "{count} problems; tandem store drop JOB removes a job, tandem store restore FILE puts a copy back"
        ))),
    }
}

/// A damaged store has the same exit code everywhere: that of the daemon, which does not start with it.
fn failure(file: &Path, error: &StoreError) -> Failure {
    let message = format!("{}: {error}", file.display());
    if error.is_damaged() { Failure::failed(message) } else { Failure::bad_input(message) }
}
