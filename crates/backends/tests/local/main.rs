//! The local back end with real processes. This binary is the tests; called with `supervise` or
//! `enter` it is what the back end starts, with `daemon` it is a daemon that can be killed, and with
//! `starved` a daemon that can open no files.

#![allow(clippy::unwrap_used)]

mod cgroups;
mod ends;
mod fixture;
mod harness;
mod pauses;
mod recovers;
mod starts;

use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.first().map(String::as_str) {
        Some("supervise") => tandem_backends::local::supervise(arguments[1].as_ref()),
        Some("enter") => tandem_backends::local::exec_stage(),
        Some("daemon") => recovers::daemon(arguments[1].as_ref(), arguments[2].parse().unwrap()),
        Some("starved") => recovers::starved(arguments[1].as_ref()),
        _ => {
            let tests =
                [starts::TESTS, ends::TESTS, pauses::TESTS, recovers::TESTS, cgroups::TESTS];
            harness::run(&arguments, &tests)
        }
    }
}
