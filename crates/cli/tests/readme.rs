//! The first screen of the README is what the program prints.

mod common;

use common::{folder, succeed_in};

#[test]
fn the_demo_prints_the_table_of_the_readme_and_writes_the_report() {
    let dir = folder();
    let ran = succeed_in(dir.path(), &["demo"]);
    let readme = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../README.md"))
        .expect("the project has a README");
    assert!(readme.contains(ran.stdout.trim_end()), "README.md lacks:\n{}", ran.stdout);
    let said = ran.stderr.lines().next().expect("the demo says what it does");
    assert!(readme.contains(said), "README.md lacks: {said}");
    let report = std::fs::read_to_string(dir.path().join("report.html")).expect("a report");
    assert!(report.contains("</html>"));
}
