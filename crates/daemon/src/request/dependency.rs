//! Dependencies as they are written: `afterok:1:2,afterany:3_4,afternotok:5_[1-3]`.

use super::{After, BadRequest, ListError, Selector, bad};

/// The most jobs that a request may name.
const NAMES_MAX: usize = 10_000;

/// Jobs that have to be over first, as they were named.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DependencyName {
    /// How they have to be over.
    pub after: After,
    /// Which.
    pub jobs: Selector,
}

pub(super) fn parse(text: &str) -> Result<Vec<DependencyName>, BadRequest> {
    let mut all = Vec::new();
    let mut count = 0;
    for part in split(text) {
        let (kind, names) = part.split_once(':').ok_or_else(|| wrong(part))?;
        let after = match kind {
            "afterok" => After::Ok,
            "afterany" => After::Any,
            "after" => After::Started,
            "afternotok" => After::NotOk,
            _ => return Err(wrong(part)),
        };
        for name in names.split(':') {
            let jobs = Selector::parse(name).map_err(|error| match error {
                ListError::Form => wrong(part),
                error => bad("dependency", Selector::problem(name, error)),
            })?;
            if jobs == Selector::All {
                return Err(wrong(part));
            }
            count += jobs.len();
            if count > NAMES_MAX {
                return Err(bad("dependency", format!("names more than {NAMES_MAX} jobs")));
            }
            all.push(DependencyName { after, jobs });
        }
    }
    Ok(all)
}

/// Splits at commas that are not in brackets.
fn split(text: &str) -> impl Iterator<Item = &str> {
    let mut depth = 0_u32;
    text.split(move |character| {
        match character {
            '[' => depth += 1,
            ']' => depth = depth.saturating_sub(1),
            _ => {}
        }
        character == ',' && depth == 0
    })
}

fn wrong(part: &str) -> BadRequest {
    let part: String = part.escape_debug().take(100).collect();
    let form = "after|afterok|afterany|afternotok:JOB[:JOB...], where JOB is 17, 17-19, 17_3, 17_* or last";
    bad("dependency", format!("'{part}' is not of the form {form}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dependencies_are_read() {
        let name = |after, jobs| DependencyName { after, jobs };
        let read = parse("afterok:1:2_3,afterany:4_[1,3]:5_*,afternotok:last:6-7,after:8").unwrap();
        let expected = [
            name(After::Ok, Selector::Jobs(vec![1])),
            name(After::Ok, Selector::Tasks(2, Some(vec![3]))),
            name(After::Any, Selector::Tasks(4, Some(vec![1, 3]))),
            name(After::Any, Selector::Tasks(5, None)),
            name(After::NotOk, Selector::Last),
            name(After::NotOk, Selector::Jobs(vec![6, 7])),
            name(After::Started, Selector::Jobs(vec![8])),
        ];
        assert_eq!(read, expected);
        for wrong in [
            "",
            "7",
            "afterok",
            "afterok:",
            "after:x",
            "x:1",
            "afterok:1,,",
            "afterok:all",
            "after:1+5",
            "afterok:1-20000",
        ] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
