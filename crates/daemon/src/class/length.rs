//! How much a job has to do, by its arguments: `--steps 300`, `--epochs=90`. Jobs of a class that differ in it
//! behave alike and take longer or shorter.

use super::arguments::canonical;
use serde::{Deserialize, Serialize};

/// What is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LengthUnit {
    /// Steps or iterations.
    Steps,
    /// Rounds over the data.
    Epochs,
}

/// How much a job has to do.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct JobLength {
    /// Of what.
    pub unit: LengthUnit,
    /// How much.
    pub count: f64,
}

/// Words before the unit in the name of an argument that counts all of it. Others count something else, such
/// as `--eval-steps` and `--warmup-epochs`.
const ALL: [&str; 7] = ["", "max", "num", "n", "total", "train", "num-train"];
/// The section of `trainer.max_epochs=9`.
const SECTIONS: [&str; 4] = ["", "train", "trainer", "training"];
/// Arguments beyond these are not looked at.
const ARGUMENTS_MAX: usize = 256;

impl JobLength {
    /// Of a command; `None` if it does not tell, or more than once.
    pub fn of_command(command: &[String]) -> Option<Self> {
        let mut words = super::start_of(command).iter().skip(1).take(ARGUMENTS_MAX).peekable();
        let mut found = None;
        while let Some(word) = words.next() {
            let (name, value) = match word.split_once('=') {
                Some((name, value)) => (name, Some(value)),
                None => (word.as_str(), None),
            };
            // `key=value` without a dash is how hydra takes it.
            let is_option = name.starts_with('-') || value.is_some();
            let Some(unit) = unit(name).filter(|_| is_option) else { continue };
            let value =
                value.or_else(|| words.next_if(|next| !next.starts_with('-')).map(|x| &**x));
            let count = value.and_then(|value| value.replace('_', "").parse::<f64>().ok());
            let Some(count) = count.filter(|count| *count > 0.0 && count.is_finite()) else {
                continue;
            };
            if found.replace(Self { unit, count }).is_some() {
                return None;
            }
        }
        found
    }

    /// How many times as long as another, if both count the same.
    pub fn ratio(self, other: Self) -> Option<f64> {
        (self.unit == other.unit).then(|| self.count / other.count)
    }
}

/// The unit in the name of an argument.
fn unit(name: &str) -> Option<LengthUnit> {
    // Most arguments are none; they cost no allocation.
    if !(name.contains("step") || name.contains("iter") || name.contains("epoch")) {
        return None;
    }
    let name = canonical(name);
    let (section, name) = name.rsplit_once('.').unwrap_or(("", &name));
    let (before, last) = name.rsplit_once('-').unwrap_or(("", name));
    let unit = match last {
        "step" | "steps" | "iter" | "iters" | "iteration" | "iterations" => LengthUnit::Steps,
        "epoch" | "epochs" | "nepochs" => LengthUnit::Epochs,
        _ => return None,
    };
    (SECTIONS.contains(&section) && ALL.contains(&before)).then_some(unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn length(arguments: &[&str]) -> Option<JobLength> {
        let command: Vec<String> =
            ["python", "train.py"].iter().chain(arguments).map(|&text| text.to_owned()).collect();
        JobLength::of_command(&command)
    }

    #[test]
    fn arguments_that_count_all_steps_are_found() {
        let steps = |count| Some(JobLength { unit: LengthUnit::Steps, count });
        let epochs = |count| Some(JobLength { unit: LengthUnit::Epochs, count });
        assert_eq!(length(&["--steps", "300", "--lr", "0.1"]), steps(300.0));
        assert_eq!(length(&["--max_steps=1_000"]), steps(1000.0));
        assert_eq!(length(&["--num-iterations", "1e4"]), steps(10_000.0));
        assert_eq!(length(&["--num_train_epochs", "3.0"]), epochs(3.0));
        assert_eq!(length(&["epochs=90"]), epochs(90.0));
        assert_eq!(length(&["trainer.max_epochs=9"]), epochs(9.0));
        for none in [
            &["--eval-steps", "50"][..],
            &["--warmup_epochs=5"],
            &["--gradient-accumulation-steps", "4"],
            &["--steps"],
            &["--steps", "-1"],
            &["--steps", "many"],
            &["steps", "300"],
            &["--steps", "100", "--epochs", "3"],
            &["--stepsize", "7"],
            &["warmup.steps=10"],
        ] {
            assert_eq!(length(none), None, "{none:?}");
        }
    }

    #[test]
    fn lengths_are_compared_where_they_count_the_same() {
        let of = |unit, count| JobLength { unit, count };
        let (steps, epochs) = (of(LengthUnit::Steps, 300.0), of(LengthUnit::Epochs, 3.0));
        assert_eq!(steps.ratio(of(LengthUnit::Steps, 100.0)), Some(3.0));
        assert_eq!(steps.ratio(epochs), None);
    }
}
