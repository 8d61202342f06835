//! Slurm's notations for lists of nodes, of array tasks and of generic resources.

/// The longest list that is read.
const LIST_MAX: usize = 100_000;
/// The most digits of a node's number, leading zeros included.
const DIGITS_MAX: usize = 40;

/// The nodes of `n[0-3,7],gpu-a`, in that order; `None` if it cannot be read.
pub(super) fn nodes(text: &str) -> Option<Vec<String>> {
    let mut names = Vec::new();
    for part in outside_brackets(text) {
        let Some((prefix, rest)) = part.split_once('[') else {
            names.push(part.to_owned());
            continue;
        };
        let (ranges, suffix) = rest.split_once(']')?;
        // Names with several brackets are not supported.
        if suffix.contains('[') {
            return None;
        }
        for range in ranges.split(',') {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            let (from, to): (u64, u64) = (first.parse().ok()?, last.parse().ok()?);
            let width = first.len();
            if width > DIGITS_MAX {
                return None;
            }
            for number in from..=to {
                if names.len() >= LIST_MAX {
                    return None;
                }
                names.push(format!("{prefix}{number:0width$}{suffix}"));
            }
        }
    }
    Some(names)
}

fn outside_brackets(text: &str) -> impl Iterator<Item = &str> {
    let mut depth = 0u32;
    text.split(move |character: char| {
        match character {
            '[' => depth += 1,
            ']' => depth = depth.saturating_sub(1),
            _ => {}
        }
        character == ',' && depth == 0
    })
    .filter(|part| !part.is_empty())
}

/// The tasks of `0-3,8-20:4%2`; the limit after % is ignored. `None` if it cannot be read, for example
/// because Slurm truncated it.
pub(super) fn tasks(text: &str) -> Option<Vec<u32>> {
    let text = text.split('%').next()?;
    let text = text.trim_start_matches('[').trim_end_matches(']');
    let mut tasks = Vec::new();
    for part in text.split(',').filter(|part| !part.is_empty()) {
        let (range, step) = part.split_once(':').unwrap_or((part, "1"));
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (u32, u32) = (first.parse().ok()?, last.parse().ok()?);
        let step = step.parse::<usize>().ok().filter(|&step| step > 0)?;
        for task in (first..=last).step_by(step) {
            if tasks.len() >= LIST_MAX {
                return None;
            }
            tasks.push(task);
        }
    }
    Some(tasks)
}

/// One generic resource of a list such as `gpu:g1:1(IDX:1),shard:60(IDX:2)`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Gres {
    pub(super) name: String,
    pub(super) gres_type: Option<String>,
    pub(super) count: u64,
    /// Indices of the devices on the node, if given.
    pub(super) indices: Vec<u32>,
    /// How much of each device of the node, if given instead.
    pub(super) amounts: Vec<u64>,
}

impl Gres {
    /// Indices of the devices on the node.
    pub(super) fn used_indices(&self) -> Vec<usize> {
        let given = self.indices.iter().map(|&index| index as usize);
        let used = self.amounts.iter().enumerate().filter(|(_, amount)| **amount > 0);
        given.chain(used.map(|(index, _)| index)).collect()
    }
}

/// The generic resources of a list. Items that cannot be read are skipped, because versions differ.
pub(super) fn gres(text: &str) -> Vec<Gres> {
    let mut depth = 0u32;
    let parts = text.split(move |character: char| {
        match character {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            _ => {}
        }
        character == ',' && depth == 0
    });
    parts.filter_map(gres_item).collect()
}

fn gres_item(part: &str) -> Option<Gres> {
    let part = part.trim();
    let part = part.strip_prefix("gres:").or_else(|| part.strip_prefix("gres/")).unwrap_or(part);
    let (head, detail) = part.split_once('(').unwrap_or((part, ""));
    let detail = detail.trim_end_matches(')');
    let words: Vec<&str> = head.split([':', '=']).collect();
    let (name, gres_type, count) = match words[..] {
        [name] => (name, None, 1),
        [name, last] => match last.parse() {
            Ok(count) => (name, None, count),
            Err(_) => (name, Some(last), 1),
        },
        [name, of, count] => (name, Some(of), count.parse().ok()?),
        _ => return None,
    };
    if name.is_empty() {
        return None;
    }
    let mut indices = Vec::new();
    let mut amounts = Vec::new();
    if let Some(list) = detail.strip_prefix("IDX:") {
        indices = tasks(list).unwrap_or_default();
    } else if detail.contains('/') {
        amounts = detail.split(',').filter_map(|of| of.split('/').next()?.parse().ok()).collect();
    }
    let gres_type = gres_type.map(str::to_owned);
    Some(Gres { name: name.to_owned(), gres_type, count, indices, amounts })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Text with characters that have a meaning in one of the notations.
    const TEXT: &str = "([a-zA-Z]{0,3}|[0-9]{0,12}|[\\[\\](),:=/%*+-]|gres:|IDX:|\\PC){0,12}";

    #[test]
    fn reads_lists_of_nodes() {
        assert_eq!(nodes("n[0-2,07],gpu-a").unwrap(), ["n0", "n1", "n2", "n07", "gpu-a"]);
        assert_eq!(nodes("").unwrap(), Vec::<String>::new());
        assert_eq!(nodes("n[008-010]x").unwrap(), ["n008x", "n009x", "n010x"]);
        assert_eq!(nodes("n[a-b]"), None);
        assert_eq!(nodes("n[0-99999999999]"), None);
        assert_eq!(nodes(&format!("n[{}1]", "0".repeat(70_000))), None);
    }

    #[test]
    fn reads_lists_of_tasks() {
        assert_eq!(tasks("0-3,8-20:4%2").unwrap(), [0, 1, 2, 3, 8, 12, 16, 20]);
        assert_eq!(tasks("[5]").unwrap(), [5]);
        assert_eq!(tasks("1-3,..."), None);
        assert_eq!(tasks("0-4294967295"), None);
    }

    #[test]
    fn reads_resources_of_old_and_new_versions() {
        let read = gres("gpu:g1:1(IDX:1),gpu:g3:0(IDX:),shard:60(IDX:2)");
        assert_eq!(read.len(), 3);
        assert_eq!(
            (read[0].gres_type.as_deref(), read[0].count, &read[0].indices[..]),
            (Some("g1"), 1, &[1][..])
        );
        assert_eq!(
            (read[2].name.as_str(), read[2].count, &read[2].indices[..]),
            ("shard", 60, &[2][..])
        );
        let newer = gres("gres:shard:20(0/100,20/100,0/100,0/100)");
        assert_eq!((newer[0].count, &newer[0].amounts[..]), (20, &[0, 20, 0, 0][..]));
        assert_eq!(gres("gres/gpu=2")[0].count, 2);
        assert!(gres("a:b:c:d,,gpu:x:y").is_empty());
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_rejected(text in TEXT) {
            let listed = nodes(&text).unwrap_or_default().len();
            prop_assert!(listed <= LIST_MAX + text.len());
            prop_assert!(tasks(&text).unwrap_or_default().len() <= LIST_MAX);
            for one in gres(&text) {
                prop_assert!(!one.name.is_empty());
            }
        }

        #[test]
        fn ranges_are_expanded(first in 0u32..1000, more in 0u32..50, step in 1u32..9) {
            let last = first + more;
            let expected: Vec<u32> = (first..=last).step_by(step as usize).collect();
            prop_assert_eq!(tasks(&format!("{first}-{last}:{step}%7")), Some(expected));
            let names: Vec<String> = (first..=last).map(|number| format!("n{number:04}")).collect();
            prop_assert_eq!(nodes(&format!("n[{first:04}-{last:04}]")), Some(names));
        }
    }
}
