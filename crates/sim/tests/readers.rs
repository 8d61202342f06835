//! Every reader against arbitrary and damaged input: a result or an error of one line, never a panic; and
//! written traces are read back.

use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use std::fmt::Display;
use std::path::Path;
use tandem_sim::clusters::cluster;
use tandem_sim::interference::PairTable;
use tandem_sim::profiles::{SoloProfiles, read_shares, read_steps};
use tandem_sim::trace::{
    GenerateOptions, ReadOptions, SoloSpeeds, Trace, TraceFormat, generate, parse, read, write,
};

const TANDEM: &str = "\
job_id,user,partition,submit_s,gpus,duration_s,estimate_s,model,dataset,batch,amp,memory_mib,gpu_util,bandwidth_util
1,ann,a,0,1,10.5,12,Net,set,32,1,1000.125,50.5,20
2,bob,b,1.25,8,3600,,Net,set,64,0,2000,60,30
\"x, y\",\"c \"\"d\"\"\",,7,2,1,5,,,,,,,
";
const VENUS: &str = "\
job_id,user,vc,gpu_num,cpu_num,state,submit_time,duration,model,dataset,batchsize,amp,speed,gpu_util,gmem_util,gmem
1,u,v,1,4,COMPLETED,2020-09-01 00:00:05,100,Net,set,32,0,1.5,40,20,3000.0
2,u,v,16,4,FAILED,2020-09-01 00:10:00,5,Net,set,32,1,1.5,40,20,3000.0
";
const PHILLY: &str = "\
timestamp,duration,num_gpus,gpu_time,cluster
2017-10-03 00:00:00,300,1,300,one
2017-10-03 00:05:00,20,8,160,two
";
const MURI: &str = "\
job_id,num_gpu,submit_time,iterations,model_name,batch_size,duration,priority
0,1,0,500,net,128,2868000,1
1,8,201694,700,gan,64,4472936,0
";
const POLLUX: &str = "\
name,time,application,num_replicas,batch_size
cifar10-0,107,cifar10,6,2048
bert-1,110,bert,4,64
";
const GAVEL: &str = "\
Net (batch size 32)\tpython3 main.py\tdir\t-n\t0\t5000\t1\t1\t-1.0\t0.0
Gan\tpython3 main.py\tdir\t-n\t0\t9000\t2\t1\t-1.0\t120.5
";
const ALIBABA2023: &str = "\
name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time
pod-0,12000,16384,1,1000,,LS,Running,0,12537496,0
pod-1,6000,12288,1,460,,LS,Running,427061,12902960,427062
";
const SACCT: &str = "\
JobID|User|Partition|State|Submit|Eligible|Start|ElapsedRaw|ReqTRES|AllocTRES|TimelimitRaw|JobName
1|ann|a|COMPLETED|1794816408|1794816410|1794816411|21|gres/gpu=2|cpu=1,gres/gpu:a100=2,gres/gpu=2,node=1|60|net|7
1.batch|||COMPLETED|1794816408|1794816410|1794816411|21||cpu=1,gres/gpu=2,node=1||batch
2|ben|a|RUNNING|2026-11-16T08:06:48|Unknown|2026-11-16T08:06:48|1-00:00:07|gres/gpu=1|cpu=1,gres/gpu=1,node=1|UNLIMITED|two
lines
3|ben|b|CANCELLED by 0|1794816408|1794816408|None|0|gres/gpu=1||Partition_Limit|x
";
const PARTITIONS: &str = "partition,nodes\na,2\nb,3\n";
const TOML: &str = "\
[[gpu_type]]
name = \"big\"
factor = 1.0
[[partition]]
name = \"a\"
nodes = [{ count = 2, gpus = 4, gpu_type = \"big\", memory_mib = 12000 }, { gpus = 8 }]
[[partition]]
name = \"ü\"
nodes = [{ gpus = 8 }]
";
const LUCID: &str = "\
,model1,dataset1,gpu_num1,batchsize1,amp1,speed1,model2,dataset2,gpu_num2,batchsize2,amp2,speed2,gpu_util
0,Net,set,1,32,0,0.9,Gan,set,1,32,1,1.05,60
1,Gan,set,1,32,1,0.7,Gan,set,1,32,1,0.8,60
";
const LUCID_SOLO: &str = "\
model,dataset,batchsize,amp,speed,gpu_util,gmem_util,gmem,label
Net,set,32,0,84.872,99.689,62.484,20162.0,2
Gan,set,64,1,1561.581,34.9,11.8,2730.0,0
";
const PLACEMENTS: &str = "\
placement,local_bsz,step_time,sync_time
1,4,0.45532354712486267,0.013738612174987792
24,6,0.5693899691104889,0.013729131996631623
";
const SHARES: &str = "model,share\nNet,0.25\n*,0.5\n";
const GAVEL_TABLE: &str = "{\"v100\": {
 \"('Net (batch size 32)', 1)\": {\"null\": 4.0, \"('Gan', 1)\": [3.0, 1.0]},
 \"('Gan', 1)\": {\"null\": 2.0, \"('Gan', 1)\": [0.0, 0.0]},
 \"('Gan', 2)\": {\"null\": 3.5}}}
";

fn sample(format: TraceFormat) -> &'static str {
    match format {
        TraceFormat::Tandem => TANDEM,
        TraceFormat::Venus => VENUS,
        TraceFormat::Philly => PHILLY,
        TraceFormat::Muri => MURI,
        TraceFormat::Pollux => POLLUX,
        TraceFormat::Gavel => GAVEL,
        TraceFormat::Alibaba2023 => ALIBABA2023,
        TraceFormat::Sacct => SACCT,
    }
}

fn speeds() -> SoloSpeeds {
    let class = tandem_sim::trace::Class::from_job_type;
    SoloSpeeds::from([((class("Net (batch size 32)"), 1), 4.0), ((class("Gan"), 2), 3.5)])
}

/// One edit of a text.
#[derive(Clone, Debug)]
enum Edit {
    Delete(usize),
    Double(usize),
    Replace(usize, char),
    Field(usize, String),
    DeleteLine(usize),
    DoubleLine(usize),
    Cut(usize),
}

fn edits() -> impl Strategy<Value = Vec<Edit>> {
    let odd = prop::sample::select(vec![
        ',', '\t', '\n', '\r', '"', '-', '.', 'e', '0', '9', ' ', '\0', 'ü', '\u{feff}', '{', '}',
        '[', ']', ':', '\'', '|', '+', '=',
    ]);
    let value = prop::sample::select(vec![
        "",
        " ",
        "-1",
        "0",
        "0.5",
        "1e400",
        "1e18",
        "1e-400",
        "18446744073709551616",
        "4294967296",
        "nan",
        "inf",
        "x",
        "2020-02-30 10:00:00",
        "9999-12-31 23:59:59",
        "\"",
        "\"a\nb\"",
        "ü",
        "0000-00-00",
        "null",
        "true",
        "1e308",
        "9223372036854775807",
    ]);
    let edit = prop_oneof![
        any::<usize>().prop_map(Edit::Delete),
        any::<usize>().prop_map(Edit::Double),
        (any::<usize>(), odd).prop_map(|(at, new)| Edit::Replace(at, new)),
        (any::<usize>(), value).prop_map(|(at, new)| Edit::Field(at, new.to_owned())),
        any::<usize>().prop_map(Edit::DeleteLine),
        any::<usize>().prop_map(Edit::DoubleLine),
        any::<usize>().prop_map(Edit::Cut),
    ];
    prop::collection::vec(edit, 1..5)
}

fn spoil(text: &str, edits: &[Edit]) -> String {
    let mut text = text.to_owned();
    for edit in edits {
        let mut chars: Vec<char> = text.chars().collect();
        let mut lines: Vec<&str> = text.split_inclusive('\n').collect();
        if chars.is_empty() {
            break;
        }
        text = match edit {
            Edit::Delete(at) => {
                chars.remove(at % chars.len());
                chars.into_iter().collect()
            }
            Edit::Double(at) => {
                let at = at % chars.len();
                chars.insert(at, chars[at]);
                chars.into_iter().collect()
            }
            Edit::Replace(at, new) => {
                let at = at % chars.len();
                chars[at] = *new;
                chars.into_iter().collect()
            }
            Edit::Field(at, new) => {
                // The text between two separators of any format.
                let ends = [',', '\t', '\n', ' ', '|'];
                let mut fields: Vec<&str> = text.split_inclusive(ends).collect();
                let at = at % fields.len();
                let end: String =
                    fields[at].chars().last().filter(|c| ends.contains(c)).into_iter().collect();
                let field = format!("{new}{end}");
                fields[at] = &field;
                fields.concat()
            }
            Edit::DeleteLine(at) => {
                lines.remove(at % lines.len());
                lines.concat()
            }
            Edit::DoubleLine(at) => {
                let at = at % lines.len();
                lines.insert(at, lines[at]);
                lines.concat()
            }
            Edit::Cut(at) => chars[..at % chars.len()].iter().collect(),
        };
    }
    text
}

fn assert_one_line(error: &impl Display) {
    let message = error.to_string();
    assert!(!message.is_empty() && !message.contains(['\n', '\r']), "not one line: {message:?}");
}

/// Reads `bytes` in every way; only row problems may be skipped.
fn read_as_trace(bytes: &[u8], format: Option<TraceFormat>) {
    let speeds = speeds();
    for speeds in [None, Some(&speeds)] {
        let strict = parse(bytes, "t", &ReadOptions { format, skip_bad: false, speeds });
        let lenient = parse(bytes, "t", &ReadOptions { format, skip_bad: true, speeds });
        match &strict {
            Ok(trace) => {
                assert_sound(trace);
                assert!(trace.skipped.is_empty());
                assert_eq!(lenient.as_ref().expect("no row was bad").jobs, trace.jobs);
            }
            Err(error) => assert_one_line(error),
        }
        match &lenient {
            Ok(trace) => {
                assert_sound(trace);
                assert_eq!(strict.is_err(), !trace.skipped.is_empty());
                trace.skipped.iter().for_each(assert_one_line);
            }
            Err(error) => {
                assert_one_line(error);
                let is_row = matches!(error, tandem_sim::trace::TraceError::Row { .. });
                assert!(!is_row, "a bad row was not skipped: {error}");
            }
        }
    }
}

fn assert_sound(trace: &Trace) {
    assert!(!trace.jobs.is_empty());
    assert_eq!(trace.jobs.len(), trace.ids.len());
    for job in &trace.jobs {
        assert!(job.gpus > 0 && job.duration.0 >= 1_000_000, "{job:?}");
    }
}

/// Clusters and tables are read from files.
fn read_file<T, E: Display>(name: &str, bytes: &[u8], read: impl FnOnce(&str) -> Result<T, E>) {
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join(name);
    std::fs::write(&path, bytes).expect("a file");
    if let Err(error) = read(&path.display().to_string()) {
        assert_one_line(&error);
    }
}

fn read_as_everything(bytes: &[u8]) {
    read_as_trace(bytes, None);
    for format in TraceFormat::ALL {
        read_as_trace(bytes, Some(format));
    }
    read_file("c.csv", bytes, cluster);
    read_file("c.toml", bytes, cluster);
    read_file("t", bytes, PairTable::read);
    read_file("s.csv", bytes, SoloProfiles::read);
    read_file("p.csv", bytes, read_steps);
    read_file("n.csv", bytes, read_shares);
}

/// The tests below need samples that readers accept.
#[test]
fn the_samples_are_good() {
    let speeds = speeds();
    for format in TraceFormat::ALL {
        for given in [None, Some(format)] {
            let options = ReadOptions { format: given, skip_bad: false, speeds: Some(&speeds) };
            let trace = parse(sample(format).as_bytes(), "t", &options).unwrap();
            assert_eq!(
                trace.jobs.len(),
                if format == TraceFormat::Tandem { 3 } else { 2 },
                "{format}"
            );
        }
    }
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path: &Path = &dir.path().join(name);
        std::fs::write(path, text).unwrap();
        path.display().to_string()
    };
    assert_eq!(cluster(&file("c.csv", PARTITIONS)).unwrap().gpus().len(), 40);
    assert_eq!(cluster(&file("c.toml", TOML)).unwrap().gpus().len(), 24);
    assert_eq!(PairTable::read(&file("t.csv", LUCID)).unwrap().classes.len(), 2);
    assert_eq!(PairTable::read(&file("t.json", GAVEL_TABLE)).unwrap().classes.len(), 2);
    assert_eq!(SoloProfiles::read(&file("s.csv", LUCID_SOLO)).unwrap().classes.len(), 2);
    assert_eq!(read_steps(&file("s.csv", LUCID_SOLO)).unwrap().len(), 2);
    assert_eq!(read_shares(&file("n.csv", SHARES)).unwrap().default_share, 0.5);
    assert_eq!(read_steps(&file("p.csv", PLACEMENTS)).unwrap()[0].steps.len(), 2);
}

proptest! {
    // The same cases in every run: tests must be deterministic.
    #![proptest_config(ProptestConfig {
        failure_persistence: None,
        rng_seed: RngSeed::Fixed(2),
        ..ProptestConfig::with_cases(200)
    })]

    #[test]
    fn arbitrary_bytes(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        read_as_everything(&bytes);
    }

    #[test]
    fn arbitrary_text(text in "(\\PC|[,\t\n\r\"'{}\\[\\]=:.0-9-]){0,120}") {
        read_as_everything(text.as_bytes());
    }

    #[test]
    fn spoiled_traces(edits in edits()) {
        for format in TraceFormat::ALL {
            let spoiled = spoil(sample(format), &edits);
            read_as_trace(spoiled.as_bytes(), Some(format));
            read_as_trace(spoiled.as_bytes(), None);
        }
    }

    #[test]
    fn spoiled_clusters_and_tables(edits in edits()) {
        read_file("c.csv", spoil(PARTITIONS, &edits).as_bytes(), cluster);
        read_file("c.toml", spoil(TOML, &edits).as_bytes(), cluster);
        read_file("t", spoil(LUCID, &edits).as_bytes(), PairTable::read);
        read_file("t", spoil(GAVEL_TABLE, &edits).as_bytes(), PairTable::read);
        read_file("s.csv", spoil(LUCID_SOLO, &edits).as_bytes(), SoloProfiles::read);
        read_file("s.csv", spoil(LUCID_SOLO, &edits).as_bytes(), read_steps);
        read_file("p.csv", spoil(PLACEMENTS, &edits).as_bytes(), read_steps);
        read_file("n.csv", spoil(SHARES, &edits).as_bytes(), read_shares);
        let text = spoil("8x8:49140", &edits);
        if let Err(error) = cluster(&text) {
            assert_one_line(&error.to_string().replace(&text, ""));
        }
    }

    #[test]
    fn what_is_written_is_read_back(
        rows in prop::collection::vec(
            (
                "[a-zA-Z0-9_-]{0,6}", "(|[a-z, \"üß]{1,5}[a-z])", 0u64..1 << 50, 1u32..200,
                1_000_000u64..1 << 50, prop::option::of(0u64..1 << 50), prop::option::of(0u64..1 << 40),
                prop::option::of(100u32..100_000),
            ),
            1..20,
        )
    ) {
        let mut text =
            "job_id,user,partition,submit_s,gpus,duration_s,estimate_s,model,memory_mib,gpu_util\n".to_owned();
        for (number, (id, name, submit, gpus, duration, estimate, memory, util)) in rows.iter().enumerate() {
            let quoted = format!("\"{}\"", name.replace('"', "\"\""));
            let micros = |value: u64| format!("{}.{:06}", value / 1_000_000, value % 1_000_000);
            let thousandths = |value: u64| format!("{}.{:03}", value / 1000, value % 1000);
            text += &format!(
                "{number}x{id},{quoted},{quoted},{},{gpus},{},{},{quoted},{},{}\n",
                micros(*submit), micros(*duration),
                estimate.map(micros).unwrap_or_default(),
                memory.map(thousandths).unwrap_or_default(),
                util.map(|util| thousandths(util.into())).unwrap_or_default(),
            );
        }
        let trace = parse(text.as_bytes(), "t", &ReadOptions::default()).unwrap();
        for format in TraceFormat::ALL.into_iter().filter(|format| format.is_writable()) {
            let mut written = Vec::new();
            write(&trace, format, &mut written).unwrap();
            let back = parse(&written, "t", &ReadOptions::default()).unwrap();
            prop_assert_eq!(back.jobs.len(), trace.jobs.len());
            for (index, (new, old)) in back.jobs.iter().zip(&trace.jobs).enumerate() {
                prop_assert_eq!(
                    (new.submit, new.gpus, new.duration), (old.submit, old.gpus, old.duration), "{}", format
                );
                if format != TraceFormat::Philly {
                    prop_assert_eq!(back.ids.get(index), trace.ids.get(index), "{}", format);
                }
                if matches!(format, TraceFormat::Tandem | TraceFormat::Venus | TraceFormat::Philly) {
                    prop_assert_eq!(back.partition_of(new), trace.partition_of(old), "{}", format);
                }
                if matches!(format, TraceFormat::Tandem | TraceFormat::Venus) {
                    prop_assert_eq!(back.users.get(new.user.0), trace.users.get(old.user.0));
                    prop_assert_eq!(
                        (new.estimate, new.memory, new.gpu_util, new.bandwidth_util),
                        (old.estimate, old.memory, old.gpu_util, old.bandwidth_util)
                    );
                }
                if matches!(format, TraceFormat::Tandem | TraceFormat::Venus | TraceFormat::Muri) {
                    let class = |trace: &Trace, job: &tandem_sim::trace::TraceJob| {
                        job.class.map(|class| trace.classes.get(class.0).clone())
                    };
                    prop_assert_eq!(class(&back, new), class(&trace, old), "{}", format);
                }
            }
        }
    }
}

/// A plain file is read in pieces, any other as a whole.
#[test]
fn a_long_file_reads_like_the_same_text_in_memory() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("long.csv");
    let mut plain = Vec::new();
    let options = GenerateOptions { jobs: 12_000, gpus: 64, load: 1.0, seed: 3 };
    write(&generate(&options), TraceFormat::Tandem, &mut plain).unwrap();
    assert!(plain.len() > 3 << 18, "several pieces: {} bytes", plain.len());
    let plain = String::from_utf8(plain).unwrap();
    let at = plain.char_indices().filter(|(_, c)| *c == '\n').nth(9000).unwrap().0 + 1;
    let spoiled = |row: &str| format!("{}{row}{}", &plain[..at], &plain[at..]);
    for text in [
        plain.trim_end().to_owned(),
        plain.replace('\n', "\r\n"),
        spoiled("\n\n"),
        spoiled("x,u,,1,1,-5,,,,,,,,\n"),
        spoiled("1,u,,1,1,5,,,,,,,,\n"),
        spoiled("\"x\",u,,1,1,5,,,,,,,,\n"),
        spoiled(&format!("{},u,,1,1,5,,,,,,,,\n", "y".repeat(1 << 19))),
        format!("\u{feff}{plain}"),
    ] {
        std::fs::write(&path, &text).unwrap();
        let file = path.display().to_string();
        let from_file = read(&path, &ReadOptions::default());
        match (from_file, parse(text.as_bytes(), &file, &ReadOptions::default())) {
            (Ok(piecewise), Ok(whole)) => {
                assert!(piecewise.jobs == whole.jobs, "jobs and their lines");
                assert_eq!(format!("{:?}", piecewise.ids), format!("{:?}", whole.ids));
            }
            (Err(piecewise), Err(whole)) => assert_eq!(piecewise.to_string(), whole.to_string()),
            (piecewise, whole) => panic!("{:?} / {:?}", piecewise.err(), whole.err()),
        }
    }
}
