//! Every reader of what others write, with mutated recordings: none panics, none takes long.
//!
//! `TANDEM_FUZZ_INPUTS=10000000` runs so many inputs per target, `TANDEM_FUZZ_TARGET=squeue` one target,
//! `TANDEM_FUZZ_SEED=5` other inputs.

use std::time::{Duration, Instant};
use tandem_fuzz::{FuzzTarget, Mutator, TARGETS};

/// Inputs for each target in an ordinary run.
const INPUTS: u64 = 2000;
/// No reader works longer on 64 KiB, also not on a busy machine without optimisation.
const LONGEST: Duration = Duration::from_secs(10);

/// Says which input it was.
struct Reading<'a> {
    target: &'a FuzzTarget,
    seed: u64,
    input: &'a [u8],
}

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let Self { target, seed, input } = self;
            let input = String::from_utf8_lossy(input);
            eprintln!("{}, input of seed {seed}: {input:?}", target.name);
        }
    }
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// Reads so many inputs; gives the longest time.
fn drive(target: &FuzzTarget, first_seed: u64, inputs: u64) -> Duration {
    let mut longest = Duration::ZERO;
    for input in target.corpus {
        (target.read)(input);
    }
    for seed in first_seed..first_seed + inputs {
        let input = Mutator::new(seed).input(target.corpus);
        let reading = Reading { target, seed, input: &input };
        let began = Instant::now();
        (target.read)(&input);
        let took = began.elapsed();
        assert!(took < LONGEST, "took {took:?}");
        longest = longest.max(took);
        drop(reading);
    }
    longest
}

#[test]
fn no_reader_panics() {
    let inputs = number("TANDEM_FUZZ_INPUTS").unwrap_or(INPUTS);
    let seed = number("TANDEM_FUZZ_SEED").unwrap_or(0) << 40;
    let only = std::env::var("TANDEM_FUZZ_TARGET").ok();
    let chosen = |target: &&FuzzTarget| only.as_ref().is_none_or(|only| only == target.name);
    let mut count = 0;
    for target in TARGETS.iter().filter(chosen) {
        let longest = drive(target, seed, inputs);
        count += inputs;
        println!("{}: {inputs} inputs, the slowest in {longest:?}", target.name);
    }
    assert!(count > 0, "there is no target {only:?}");
}
