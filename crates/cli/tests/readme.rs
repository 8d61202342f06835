//! The first screen of the README is what the program prints: the same words, and numbers close to it, so that a better
//! policy does not make the README wrong at once.

mod common;

use common::{folder, succeed_in};

/// Largest relative difference of a mean completion time from the one in the README.
const CLOSE: f64 = 0.05;

/// The words of a line, and its second column as a number.
fn mean(line: &str) -> Option<(&str, f64)> {
    let mut words = line.split_whitespace();
    let policy = words.next()?;
    Some((policy, words.next()?.replace(',', "").parse().ok()?))
}

#[test]
fn the_demo_prints_the_table_of_the_readme_and_writes_the_report() {
    let dir = folder();
    let ran = succeed_in(dir.path(), &["demo"]);
    let readme = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../README.md"))
        .expect("the project has a README");
    let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    let header = words(ran.stdout.lines().next().expect("a table"));
    assert!(readme.lines().any(|line| words(line) == header), "README.md lacks: {header:?}");
    let said = ran.stderr.lines().next().expect("the demo says what it does");
    assert!(readme.contains(said), "README.md lacks: {said}");
    let printed: Vec<(&str, f64)> = ran.stdout.lines().skip(2).map_while(mean).collect();
    assert_eq!(printed.len(), 10, "{}", ran.stdout);
    for (policy, seconds) in printed {
        let shown = readme.lines().filter_map(mean).find(|(name, _)| *name == policy);
        let (_, shown) = shown.unwrap_or_else(|| panic!("README.md lacks a row of {policy}"));
        let off = (seconds / shown - 1.0).abs();
        assert!(off <= CLOSE, "README.md says {shown} s for {policy}, the demo {seconds} s");
    }
    let report = std::fs::read_to_string(dir.path().join("report.html")).expect("a report");
    assert!(report.contains("</html>"));
    compares_with_the_best_policy_that_does_not_share(&ran.stdout);
}

fn compares_with_the_best_policy_that_does_not_share(printed: &str) {
    let rows: Vec<&str> = printed.lines().skip(2).take(10).collect();
    let least = |rows: &mut dyn Iterator<Item = &&'_ str>| {
        let means = rows.filter_map(|row| mean(row));
        let (policy, seconds) =
            means.min_by(|one, other| one.1.total_cmp(&other.1)).expect("a policy");
        (policy.to_owned(), seconds)
    };
    // The last column is the share of GPU time with several tenants.
    let base = least(&mut rows.iter().filter(|row| row.ends_with(" 0.0 %")));
    let best = least(&mut rows.iter());
    assert!(printed.lines().next().is_some_and(|line| line.contains(&format!("vs {}", base.0))));
    let saved = (1.0 - best.1 / base.1) * 100.0;
    assert!(best.0 == "tandem" && saved > 10.0, "{printed}");
    let begin = format!("{} finishes jobs ", best.0);
    let said = printed.lines().find_map(|line| line.strip_prefix(&begin)).expect("it says so");
    let number: f64 = said.split(' ').next().and_then(|word| word.parse().ok()).expect("a number");
    assert!((number - saved).abs() < 0.11, "{printed}");
    assert!(said.contains(&format!("sooner on average than {}", base.0)), "{printed}");
}
