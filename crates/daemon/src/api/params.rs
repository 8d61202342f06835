//! Parameters of a query within the bounds that the description gives.

use serde::de::{Deserialize, Deserializer, Error};

/// A number of the store, whose integers are signed.
pub(super) fn number<'de, D, T>(from: D) -> Result<Option<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de> + Copy + TryInto<i64>,
{
    let number = Option::<T>::deserialize(from)?;
    match number {
        Some(number) if number.try_into().is_err() => {
            Err(D::Error::custom(format!("a number is above {}; give less", i64::MAX)))
        }
        number => Ok(number),
    }
}

/// Seconds, or seconds since 1970.
pub(super) fn seconds<'de, D: Deserializer<'de>>(from: D) -> Result<Option<f64>, D::Error> {
    let seconds = Option::<f64>::deserialize(from)?;
    match seconds {
        Some(number) if !(number.is_finite() && number >= 0.0) => {
            Err(D::Error::custom(format!("{number} are no seconds; give 0 or more")))
        }
        seconds => Ok(seconds),
    }
}
