//! A Slurm history: recorded output of `sacct` 22.05.8 with slurmdbd, and rows written by hand for cases that
//! it lacks.

use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use tandem_core::{Span, Time};
use tandem_sim::trace::{ReadOptions, SacctCounts, Trace, TraceFormat, parse};

/// `SLURM_TIME_FORMAT=%s sacct -a -D -X -P`, users renamed.
const RECORDED: &str = include_str!("fixtures/sacct.txt");
/// The same without `-X`: a row per step.
const RECORDED_STEPS: &str = include_str!("fixtures/sacct-steps.txt");
/// The same with dates, in UTC, and `-p` for `-P`.
const RECORDED_DATES: &str = include_str!("fixtures/sacct-p-local.txt");

const HEADER: &str = "JobID|User|Partition|State|Submit|Eligible|Start|ElapsedRaw|ReqTRES|AllocTRES|TimelimitRaw|JobName";

fn read(text: &str) -> Trace {
    parse(text.as_bytes(), "h.txt", &ReadOptions::default()).expect("a good history")
}

fn refused(text: &str) -> String {
    let outcome = parse(text.as_bytes(), "h.txt", &ReadOptions::default());
    outcome.expect_err("a bad history").to_string()
}

/// Id, user, partition, arrival, GPUs, duration, limit and class of every job.
fn table(trace: &Trace) -> Vec<String> {
    let row = |(index, job): (usize, &tandem_sim::trace::TraceJob)| {
        let limit = job.estimate.map_or("-".to_owned(), |limit| (limit.0 / 60_000_000).to_string());
        let class = job.class.map_or("", |class| &trace.classes.get(class.0).model);
        format!(
            "{} {} {} {} {} {} {limit} {class}",
            trace.ids.get(index),
            trace.users.get(job.user.0),
            trace.partition_of(job).unwrap_or("-"),
            job.submit.0 / 1_000_000,
            job.gpus,
            job.duration.0 / 1_000_000,
        )
    };
    trace.jobs.iter().enumerate().map(row).collect()
}

#[test]
fn a_recorded_history_becomes_its_jobs() {
    let trace = read(RECORDED);
    assert_eq!(trace.format, TraceFormat::Sacct);
    expect_test::expect![[r#"
        1 ann train 1794816408 2 21 60 plain
        2 ben train 1794816408 1 3 10080 a|b|
        3 ben train 1794816408 1 2 10080 two
        7 ann train 1794816408 1 12 10080 shared
        8 ann spare 1794816408 1 151 525600 unlim
        9 ann train 1794816408 1 72 1 oneminute
        10 ben train 1794816408 1 27 10080 cancelled
        12 ann train 1794816408 2 9 10080 twonodes
        13 ann train 1794816408 1 25 10080 susp
        14 ann train 1794816408 2 5 10080 het
        16 ann train 1794816408 1 1 10080 allocation
        17 ann train 1794816408 1 1 10080 uml `q` ü, x=#
        4_0 ann train 1794816408 1 4 10080 arr
        4_1 ann train 1794816408 1 4 10080 arr
        4_2 ann train 1794816413 1 4 10080 arr
        4_3 ann train 1794816413 1 4 10080 arr
        22 ann hi 1794816436 4 6 - urgent
        23 ann train 1794816464 1 10 10080 susp#
        24 ann train 1794816464 1 123 10080 rq
        25 ann train 1794816464 1 74 1 tmo
        26 ann train 1794816464 1 2 10080 steps
        27 ann train 1794816464 2 1 10080 oom
        30 ann train 1794816556 1 1 10080 waits
        32 ann train 1794816703 1 5 10080 nodefail
        33 ann train 1794816703 1 3 10080 shards#
        34 ann train 1794816710 1 3 10080 left-running"#]]
    .assert_eq(&table(&trace).join("\n"));
    assert_eq!(trace.raised, 2);
    assert_eq!(
        trace.sacct,
        Some(SacctCounts {
            steps: 0,
            without_gpus: 1,
            never_started: 2,
            earlier_runs: 4,
            unfinished: 2,
            shares: 2,
        })
    );
}

#[test]
fn completion_times_are_those_of_the_records() {
    let header = "JobID|Submit|Start|ElapsedRaw|ReqTRES\n";
    let rows = "1|100|100|50|gres/gpu=1\n2|100|200|100|gres/gpu=1\n";
    // 50 and 200 seconds.
    assert_eq!(read(&format!("{header}{rows}")).recorded, Some(Span::from_secs(125)));
    let without = "JobID|Submit|ElapsedRaw|ReqTRES\n1|100|50|gres/gpu=1\n";
    assert_eq!(read(without).recorded, None);
}

#[test]
fn steps_dates_and_a_bar_at_the_end_change_nothing() {
    let expected = table(&read(RECORDED));
    let steps = read(RECORDED_STEPS);
    assert_eq!(table(&steps), expected);
    assert_eq!(steps.sacct.unwrap().steps, 35);
    assert_eq!(table(&read(RECORDED_DATES)), expected);
}

#[test]
fn columns_may_be_in_any_order_and_others_are_ignored() {
    let text = "JobName|ExitCode|AllocTRES|Elapsed|Timelimit|Submit|JobID\n\
                a|b|c|0:0|cpu=1,gres/gpu=2|1-02:03:04|7-00:00:00|2026-01-31T12:00:00|9\n";
    assert_eq!(table(&read(text)), ["9  - 1769860800 2 93784 10080 a|b|c"]);
    // It is undecidable which of two free texts the bar belongs to.
    let two = text.replace("ExitCode", "Comment");
    assert_eq!(refused(&two), "h.txt:2: row: row has 9 fields, the header has 7");
    let few = "JobIDRaw|Submit|ElapsedRaw|ReqTRES\n5|100|60|gres/gpu=1\n";
    assert_eq!(table(&read(few)), ["5  - 100 1 60 - "]);
    for delimiter in ["\u{1f}", ";", "\t", "||"] {
        assert_eq!(table(&read(&few.replace('|', delimiter))), ["5  - 100 1 60 - "]);
    }
}

#[test]
fn gpus_are_counted_in_all_notations_of_sites() {
    let gpus = |tres: &str| {
        let text = format!("{HEADER}\n1|u|p|COMPLETED|1|1|1|5||{tres}|5|n\n");
        parse(text.as_bytes(), "h.txt", &ReadOptions::default()).map(|trace| trace.jobs[0].gpus)
    };
    assert_eq!(gpus("cpu=8,gres/gpu:a100=2,gres/gpu:h100=1,gres/gpu=3,node=1").unwrap(), 3);
    assert_eq!(gpus("gres/gpu:a100=2,gres/gpu:h100=1").unwrap(), 3);
    assert_eq!(gpus("gres/shard=50,mem=32G,node=1").unwrap(), 1);
    assert_eq!(gpus("gres/mps=50,node=2").unwrap(), 2);
    let message = gpus("billing=8,cpu=8,mem=32G,node=1").unwrap_err().to_string();
    assert!(message.contains("AccountingStorageTRES=gres/gpu"), "{message}");
    for (tres, says) in [
        ("gres/gpu=x", "h.txt:2: AllocTRES: not a number: 'x'"),
        ("gres/gpu=-1", "h.txt:2: AllocTRES: negative: '-1'"),
        ("gres/gpu=4294967296", "h.txt:2: AllocTRES: number overflow: '4294967296'"),
    ] {
        assert_eq!(gpus(tres).unwrap_err().to_string(), says);
    }
}

#[test]
fn a_requeued_job_is_its_last_run_and_was_submitted_with_its_first() {
    let row = |submit: u64, state: &str, elapsed: u64| {
        format!("7|u|p|{state}|{submit}|{submit}|{submit}|{elapsed}||gres/gpu=1|5|n\n")
    };
    let runs = [row(10, "PREEMPTED", 30), row(50, "NODE_FAIL", 20), row(90, "COMPLETED", 40)];
    for order in [[0, 1, 2], [2, 1, 0], [1, 2, 0]] {
        let trace = read(&format!("{HEADER}\n{}", order.map(|run| runs[run].as_str()).concat()));
        assert_eq!(table(&trace), ["7 u p 10 1 40 5 n"]);
        assert_eq!(trace.sacct.unwrap().earlier_runs, 2);
    }
    // Pending again, it has run once so far.
    let waiting = "7|u|p|PENDING|50|Unknown|Unknown|0|gres/gpu=1||5|n\n";
    assert_eq!(table(&read(&format!("{HEADER}\n{}{waiting}", runs[0]))), ["7 u p 10 1 30 5 n"]);
}

#[test]
fn a_job_that_never_started_is_left_out() {
    let kept = "9|u|p|COMPLETED|1|1|1|5|gres/gpu=1|gres/gpu=1|5|n\n";
    for row in [
        "1_[5-9]|u|p|PENDING|1|1|Unknown|0|gres/gpu=1||5|n\n",
        "1|u|p|CANCELLED by 1000|1|1|None|0|gres/gpu=1||5|n\n",
        // Slurm writes the end as the start of some.
        "1|u|p|CANCELLED by 1000|1|1|7|0|gres/gpu=1||5|n\n",
        "1|u|p|FAILED|1|1|1|0|gres/gpu=9999||Partition_Limit|n\n",
    ] {
        let trace = read(&format!("{HEADER}\n{row}{kept}"));
        assert_eq!((trace.jobs.len(), trace.sacct.unwrap().never_started), (1, 1), "{row}");
    }
    let text = "JobID|State|Submit|ElapsedRaw|ReqTRES\n\
                1|CANCELLED by 0|1|0|gres/gpu=1\n2|COMPLETED|1|0|gres/gpu=1\n";
    let trace = read(text);
    assert_eq!((trace.jobs.len(), trace.raised, trace.sacct.unwrap().never_started), (1, 1, 1));
}

#[test]
fn a_job_is_submitted_when_it_becomes_eligible() {
    let text = format!("{HEADER}\n1|u|p|COMPLETED|100|250|300|5||gres/gpu=1|5|n\n");
    assert_eq!(read(&text).jobs[0].submit, Time::from_secs(250));
    let unknown = text.replace("|250|", "|Unknown|");
    assert_eq!(read(&unknown).jobs[0].submit, Time::from_secs(100));
}

#[test]
fn a_name_of_several_lines_is_not_a_row_but_a_truncated_file_is_detected() {
    let row = "1|u|p|COMPLETED|1|1|1|5||gres/gpu=1|5|n";
    let trace = read(&format!("{HEADER}\n{row}\nmore | of\r\n\nthe name\n2{}\n", &row[1..]));
    assert_eq!(trace.jobs.len(), 2);
    assert_eq!(trace.jobs[1].line, 6);
    let cut = format!("{HEADER}\n{row}\n2|u|p|COMPL");
    assert_eq!(refused(&cut), "h.txt:3: row: row has 4 fields, the header has 12");
    // Unless the name is the last column, no row can continue.
    let text = "JobID|Submit|ElapsedRaw|AllocTRES\n1|1|5|gres/gpu=1\nmore\n";
    assert_eq!(refused(text), "h.txt:3: row: row has 1 fields, the header has 4");
}

#[test]
fn unreadable_rows_are_reported() {
    let good = "1|u|p|COMPLETED|1|1|1|5||gres/gpu=1|5|n";
    for (from, to, says) in [
        ("|5||", "|x||", "ElapsedRaw: not a number: 'x'"),
        ("|5||", "|||", "ElapsedRaw: is empty"),
        (
            "|5||",
            "|1-2:x:1||",
            "ElapsedRaw: neither a number nor a duration such as 1-02:03:04: '1-2:x:1'",
        ),
        (
            "|5||",
            "|99999999999999-00:00:01||",
            "ElapsedRaw: number overflow: '99999999999999-00:00:01'",
        ),
        ("|5|n", "|soon|n", "TimelimitRaw: not a number: 'soon'"),
        ("|5|n", "|99999999999|n", "TimelimitRaw: number overflow: '99999999999'"),
        (
            "ED|1|",
            "ED|2026-02-30T00:00:00|",
            "Submit: neither seconds nor a date and time: '2026-02-30T00:00:00'",
        ),
        ("1|u", "|u", "JobID: is empty"),
    ] {
        let row = good.replacen(from, to, 1);
        assert_ne!(row, good);
        assert_eq!(refused(&format!("{HEADER}\n{row}\n")), format!("h.txt:2: {says}"));
    }
    let header = HEADER.replace("ElapsedRaw", "CPUTimeRAW");
    assert_eq!(
        refused(&format!("{header}\n{good}\n")),
        "h.txt: line 1: missing column ElapsedRaw, which format sacct needs"
    );
    assert_eq!(refused(HEADER), "h.txt: has no jobs");
}

/// Users must not control the operator's terminal.
#[test]
fn control_characters_of_names_are_replaced() {
    let text = format!("{HEADER}\n1|u|p|COMPLETED|1|1|1|5||gres/gpu=1|5|a\u{1b}[31m7\n");
    assert_eq!(read(&text).classes.get(0).model, "a?[#m#");
}

proptest! {
    // The same cases in every run: tests must be deterministic.
    #![proptest_config(ProptestConfig {
        failure_persistence: None,
        rng_seed: RngSeed::Fixed(7),
        ..ProptestConfig::with_cases(200)
    })]

    /// Jobs written as Slurm writes them, among other rows, are read back.
    #[test]
    fn what_slurm_prints_is_read_back(
        jobs in prop::collection::vec(
            (
                "[a-z]{1,5}", 0u64..1 << 33, 0u64..100_000, 1u64..10_000_000, 1u32..200,
                prop::option::of(1u64..1_000_000), "[a-z0-9 |\"ü,=]{0,9}[a-z]", 0u8..5,
            ),
            1..20,
        ),
    ) {
        let mut text = format!("{HEADER}\n");
        let mut expected = Vec::new();
        for (number, (user, submit, later, elapsed, gpus, limit, name, kind)) in jobs.iter().enumerate() {
            let eligible = submit + later;
            let minutes = limit.map_or("UNLIMITED".to_owned(), |limit| limit.to_string());
            let tres = format!("billing=8,cpu=8,gres/gpu:a100={gpus},gres/gpu={gpus},mem=32G,node=1");
            let row = |id: &str, user: &str, state: &str, elapsed: u64, tres: &str| {
                let times = format!("{submit}|{eligible}|{eligible}|{elapsed}");
                format!("{id}|{user}|p|{state}|{times}|{tres}|{tres}|{minutes}|{name}\n")
            };
            let id = if *kind == 0 { format!("{number}_4") } else { number.to_string() };
            text += &row(&id, user, "CANCELLED by 1000", *elapsed, &tres);
            let mut all = *gpus;
            match kind {
                1 => text += &row(&format!("{id}.batch"), "", "COMPLETED", *elapsed, &tres),
                2 => text += &row(&format!("{number}000"), user, "COMPLETED", *elapsed, "cpu=1,node=1"),
                3 => {
                    text += &row(&format!("{id}+1"), user, "COMPLETED", *elapsed, &tres);
                    all *= 2;
                }
                4 => text += "rest of a name | in two lines\n",
                _ => {}
            }
            expected.push((id, user.clone(), eligible, all, *elapsed, *limit));
        }
        let trace = read(&text);
        let found: Vec<_> = trace.jobs.iter().enumerate().map(|(index, job)| {
            prop_assert_eq!(job.duration, Span::from_secs(job.duration.0 / 1_000_000));
            let limit = job.estimate.map(|limit| limit.0 / 60_000_000);
            Ok((
                trace.ids.get(index).to_owned(), trace.users.get(job.user.0).clone(),
                job.submit.0 / 1_000_000, job.gpus, job.duration.0 / 1_000_000, limit,
            ))
        }).collect::<Result<_, TestCaseError>>()?;
        prop_assert_eq!(found, expected);
    }
}
