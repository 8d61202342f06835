//! `tandem matching solve` and `tandem bench matching`.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

mod common;

use common::{finish, folder, listing, read, run_in, succeed_in, tandem, write};
use std::fs::File;

fn solve(costs: &str) -> String {
    let dir = folder();
    write(dir.path(), "costs.csv", costs);
    succeed_in(dir.path(), &["matching", "solve", "costs.csv"]).stdout
}

#[test]
fn pairs_are_printed_and_their_total() {
    assert_eq!(solve("4,1,3\n2,0,5\n3,2,2\n"), "0,1\n1,0\n2,2\ntotal 5\n");
    assert_eq!(solve("4,1,3\r\n2,0,5\r\n3,2,2"), "0,1\n1,0\n2,2\ntotal 5\n");
    assert_eq!(solve(" -7 , 1 \n"), "0,0\ntotal -7\n");
    assert_eq!(solve("5\n3\n4\n"), "1,0\ntotal 3\n");
    assert_eq!(solve(",\n,\n"), "total 0\n");
}

#[test]
fn as_many_pairs_as_possible_come_before_their_cost() {
    assert_eq!(solve("1,1000\n,\n1,\n"), "0,1\n2,0\ntotal 1001\n");
    assert_eq!(solve("1,2\n1,\n"), "0,1\n1,0\ntotal 3\n");
}

/// Few of the cells are allowed, so that the sparse solver is used.
#[test]
fn sparse_files_are_solved_too() {
    let row = |column: usize| {
        let cell = |at| if at == column { "7" } else { "" };
        (0..30).map(cell).collect::<Vec<_>>().join(",") + "\n"
    };
    let printed = solve(&(0..30).rev().map(row).collect::<String>());
    assert!(printed.starts_with("0,29\n1,28\n"), "{printed}");
    assert!(printed.ends_with("29,0\ntotal 210\n"), "{printed}");
}

#[test]
fn standard_input_is_a_file_like_others() {
    let dir = folder();
    write(dir.path(), "costs.csv", "2,1\n1,3\n");
    for name in ["-", "/dev/stdin"] {
        let input = File::open(dir.path().join("costs.csv")).unwrap();
        let ran = finish(tandem(&["matching", "solve", name]).stdin(input));
        assert_eq!((ran.code, ran.stdout.as_str()), (Some(0), "0,1\n1,0\ntotal 2\n"));
    }
}

#[test]
fn bad_files_are_refused_in_one_line() {
    let cases: &[(&str, &[u8], &str)] = &[
        ("empty", b"", "bad.csv: is empty"),
        ("words", b"1,2\n3,x\n", "bad.csv:2: field 2: not a 64-bit integer: 'x'"),
        ("fractions", b"1.5,2\n", "bad.csv:1: field 1: not a 64-bit integer: '1.5'"),
        ("quotes", b"\"1\",2\n", "bad.csv:1: field 1: not a 64-bit integer"),
        ("more than 64 bits", b"9223372036854775808\n", "bad.csv:1: field 1: not a 64-bit"),
        ("too large", b"1,2\n3,-4611686018427387904\n", "bad.csv:2: field 2: beyond"),
        ("what stands for forbidden", b"4611686018427387904\n", "bad.csv:1: field 1: beyond"),
        ("short row", b"1,2\n3\n", "bad.csv:2: row: 1 field, but line 1 has 2"),
        ("long row", b"1,2\n3,4,5\n", "bad.csv:2: row: 3 fields, but line 1 has 2"),
        ("blank row", b"1,2\n\n3,4\n", "bad.csv:2: row: 1 field, but line 1 has 2"),
        ("not UTF-8", b"1,\xff\n", "bad.csv:1: field 2: not a 64-bit integer"),
    ];
    for (case, content, says) in cases {
        let dir = folder();
        write(dir.path(), "bad.csv", content);
        let ran = run_in(dir.path(), &["matching", "solve", "bad.csv"]);
        assert_eq!((ran.code, ran.stdout.as_str()), (Some(2), ""), "{case}: {ran:?}");
        assert_eq!(ran.stderr.lines().count(), 1, "{case}: {ran:?}");
        assert!(ran.stderr.contains(says), "{case}: {ran:?}");
    }
    for name in ["absent.csv", "."] {
        let ran = run_in(folder().path(), &["matching", "solve", name]);
        assert_eq!(ran.code, Some(2), "{ran:?}");
        assert!(ran.stderr.contains(&format!("{name}: cannot be read")), "{ran:?}");
    }
}

#[test]
fn the_benchmark_states_its_fields_in_their_order() {
    let dir = folder();
    for kind in ["uniform", "rank1", "sparse"] {
        let args = ["bench", "matching", "--n", "50", "--kind", kind, "--seed", "3"];
        let result = succeed_in(dir.path(), &[&args[..], &["--json"]].concat()).json();
        let keys: Vec<&str> = result.as_object().unwrap().keys().map(String::as_str).collect();
        assert_eq!(keys, ["schema", "n", "kind", "ms", "cost", "optimal"]);
        assert_eq!((&result["schema"], &result["n"]), (&1.into(), &50.into()));
        assert_eq!((&result["kind"], &result["optimal"]), (&kind.into(), &true.into()));
        assert!(result["ms"].as_f64().unwrap() > 0.0);
        let line = succeed_in(dir.path(), &args).stdout;
        assert!(line.contains(&format!("cost {}, proven optimal", result["cost"])), "{line}");
    }
    assert!(listing(dir.path()).is_empty());
}

#[test]
fn what_the_benchmark_writes_is_what_it_solves() {
    let dir = folder();
    for kind in ["uniform", "rank1", "sparse"] {
        let args = ["bench", "matching", "--n", "40", "--kind", kind, "--json", "--write", "i.csv"];
        let cost = succeed_in(dir.path(), &args).json()["cost"].clone();
        let solved = succeed_in(dir.path(), &["matching", "solve", "i.csv"]).stdout;
        assert_eq!(solved.lines().last().unwrap(), format!("total {cost}"));
        let written = read(&dir.path().join("i.csv"));
        assert_eq!(written.lines().count(), 40);
        assert!(written.lines().all(|line| line.split(',').count() == 40));
    }
}

#[test]
fn bad_options_of_the_benchmark_are_refused() {
    let dir = folder();
    let cases: &[(&[&str], &str)] = &[
        (&["--n", "0", "--kind", "uniform"], "--n"),
        (&["--n", "x", "--kind", "uniform"], "--n"),
        (&["--n", "20001", "--kind", "rank1"], "--n"),
        (&["--n", "5", "--kind", "round"], "--kind"),
        (&["--n", "5"], "--kind"),
        (&["--n", "5", "--kind", "sparse", "--write", "no/i.csv"], "no/i.csv: cannot be written"),
    ];
    for (options, says) in cases {
        let ran = run_in(dir.path(), &[&["bench", "matching"][..], options].concat());
        assert_eq!((ran.code, ran.stdout.as_str()), (Some(2), ""), "{options:?}: {ran:?}");
        assert_eq!(ran.stderr.lines().count(), 1, "{options:?}: {ran:?}");
        assert!(ran.stderr.contains(says), "{options:?}: {ran:?}");
    }
}
