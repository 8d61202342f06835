//! Scalars that a job reports with its steps: the loss, and other values by name.

use serde_json::Value;
use std::collections::BTreeMap;

/// The most names per job.
pub(super) const SCALARS_MAX: usize = 8;
/// The longest name, in bytes.
const NAME_MAX: usize = 32;

/// Values that a job reports, by name.
pub type Scalars = BTreeMap<String, f64>;

/// The scalars of a step report: `loss`, and others by name. Invalid ones are ignored, so that the step still
/// counts.
pub fn scalars_of(loss: &Value, others: &Value) -> Scalars {
    let loss = loss.as_f64().map(|loss| ("loss".to_owned(), loss));
    let others = others.as_object().into_iter().flatten();
    let others = others.filter_map(|(name, value)| Some((name.clone(), value.as_f64()?)));
    let is_valid = |name: &str| {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_-./".contains(&byte);
        (1..=NAME_MAX).contains(&name.len()) && name.bytes().all(plain)
    };
    let valid =
        loss.into_iter().chain(others).filter(|(name, value)| is_valid(name) && value.is_finite());
    let mut scalars: Scalars = valid.collect();
    while scalars.len() > SCALARS_MAX {
        scalars.pop_last();
    }
    scalars
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read(loss: &Value, others: &Value) -> Vec<(String, f64)> {
        scalars_of(loss, others).into_iter().collect()
    }

    #[test]
    fn loss_and_named_numbers_are_taken_and_the_rest_ignored() {
        let named = |name: &str, value| (name.to_owned(), value);
        let both = read(&json!(2), &json!({"acc": 0.5, "loss": 1.5}));
        assert_eq!(both, [named("acc", 0.5), named("loss", 1.5)]);
        let odd = json!({"a b": 1, "ok": 1, "x": "y", "": 2, "n": [1], "<b>": 3});
        assert_eq!(read(&Value::Null, &odd), [named("ok", 1.0)]);
        assert_eq!(read(&json!("low"), &json!([1])), []);
        let long = json!({"n".repeat(NAME_MAX + 1): 1, "n".repeat(NAME_MAX): 2});
        assert_eq!(read(&Value::Null, &long), [named(&"n".repeat(NAME_MAX), 2.0)]);
    }

    #[test]
    fn a_report_has_a_bounded_number_of_values() {
        let many: serde_json::Map<String, Value> =
            (0..99).map(|n| (format!("s{n:02}"), json!(n))).collect();
        assert_eq!(read(&json!(1), &many.into()).len(), SCALARS_MAX);
    }
}
