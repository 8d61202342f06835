//! Tandem on real Slurm daemons on this machine, with fake GPUs. Needs root and Debian's Slurm packages
//! (`scripts/slurm-cluster packages`); without them every test says that it is skipped.

mod cluster;
#[path = "../common/mod.rs"]
mod common;
mod faults;
mod forms;
mod gate;
mod install;
mod matrix;
mod pages;
mod reports;
mod scale;
mod stream;
mod users;
