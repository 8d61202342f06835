//! Bad traces, clusters and tables: the line names file, line and field, and `--skip-bad` counts.

#![allow(clippy::too_many_lines, reason = "tables of cases")]

mod common;

use common::refusal::{Complaints, PAIRS, TRACE, good_files, sim_args};
use common::{listing, run_in, succeed_in, write};

#[test]
fn traces() {
    let mut complaints = Complaints::default();
    // What is wrong, the file, and what the message says.
    let cases: &[(&str, &[u8], &[&str])] = &[
        ("empty", b"", &["bad.csv: is empty"]),
        ("blank", b"\n\n  \n", &["bad.csv: is empty"]),
        ("no rows", b"job_id,submit_s,gpus,duration_s\n", &["bad.csv: has no jobs"]),
        ("unknown header", b"a,b,c\n1,2,3\n", &["bad.csv: line 1", "header", "--format"]),
        (
            "missing submit",
            b"job_id,user,partition,gpus,duration_s\n1,a,left,1,1\n",
            &["bad.csv: line 1: missing column submit_s"],
        ),
        (
            "missing duration",
            b"job_id,user,partition,submit_s,gpus\n1,a,left,1,1\n",
            &["bad.csv: line 1: missing column duration_s"],
        ),
        (
            "missing GPUs of another format",
            b"job_id,user,vc,submit_time,duration\n1,a,left,1,1\n",
            &["bad.csv: line 1: missing column gpu_num"],
        ),
        (
            "not UTF-8 in a field",
            b"job_id,submit_s,gpus,duration_s\n1,0,1,5\n\xff\xfe,0,1,5\n",
            &["bad.csv: line 3 is not UTF-8"],
        ),
        ("not UTF-8 in the header", b"\xc3\x28,submit_s\n", &["bad.csv: line 1 is not UTF-8"]),
        ("binary", &[0, 159, 146, 150, 0, 0], &["bad.csv: line 1 is not UTF-8"]),
        (
            "too few fields",
            b"job_id,submit_s,gpus,duration_s\n1,0,1,5\n2,0,1\n",
            &["bad.csv:3: row: ", "3 fields", "4"],
        ),
        (
            "too many fields",
            b"job_id,submit_s,gpus,duration_s\n1,0,1,5,9\n",
            &["bad.csv:2: row: ", "5 fields", "4"],
        ),
        (
            "negative submit",
            b"job_id,submit_s,gpus,duration_s\n1,-1,1,5\n",
            &["bad.csv:2: submit_s: negative: '-1'"],
        ),
        (
            "negative duration",
            b"job_id,submit_s,gpus,duration_s\n1,0,1,-0.5\n",
            &["bad.csv:2: duration_s: negative: '-0.5'"],
        ),
        (
            "negative memory",
            b"job_id,submit_s,gpus,duration_s,memory_mib\n1,0,1,5,-3\n",
            &["bad.csv:2: memory_mib: negative: '-3'"],
        ),
        (
            "submit is no number",
            b"job_id,submit_s,gpus,duration_s\n1,soon,1,5\n",
            &["bad.csv:2: submit_s: ", "'soon'"],
        ),
        (
            "submit is no date",
            b"job_id,submit_s,gpus,duration_s\n1,2020-13-01 00:00:00,1,5\n",
            &["bad.csv:2: submit_s: ", "'2020-13-01 00:00:00'"],
        ),
        (
            "duration is NaN",
            b"job_id,submit_s,gpus,duration_s\n1,0,1,nan\n",
            &["bad.csv:2: duration_s: not a number: 'nan'"],
        ),
        (
            "duration is infinite",
            b"job_id,submit_s,gpus,duration_s\n1,0,1,inf\n",
            &["bad.csv:2: duration_s: not a number: 'inf'"],
        ),
        (
            "duration is empty",
            b"job_id,submit_s,gpus,duration_s\n1,0,1,\n",
            &["bad.csv:2: duration_s: is empty"],
        ),
        ("id is empty", b"job_id,submit_s,gpus,duration_s\n,0,1,5\n", &["bad.csv:2: job_id: "]),
        (
            "zero GPUs",
            b"job_id,submit_s,gpus,duration_s\n1,0,1,5\n2,0,0,5\n",
            &["bad.csv:3: gpus: zero GPUs"],
        ),
        (
            "half a GPU",
            b"job_id,submit_s,gpus,duration_s\n1,0,0.5,5\n",
            &["bad.csv:2: gpus: not a whole number: '0.5'"],
        ),
        (
            "GPUs overflow",
            b"job_id,submit_s,gpus,duration_s\n1,0,4294967296,5\n",
            &["bad.csv:2: gpus: number overflow"],
        ),
        (
            "submit overflows",
            b"job_id,submit_s,gpus,duration_s\n1,99999999999999999999,1,5\n",
            &["bad.csv:2: submit_s: number overflow"],
        ),
        (
            "duration overflows",
            b"job_id,submit_s,gpus,duration_s\n1,0,1,1e300\n",
            &["bad.csv:2: duration_s: number overflow"],
        ),
        (
            "memory overflows",
            b"job_id,submit_s,gpus,duration_s,memory_mib\n1,0,1,5,1e17\n",
            &["bad.csv:2: memory_mib: number overflow"],
        ),
        (
            "utilisation is no number",
            b"job_id,submit_s,gpus,duration_s,gpu_util\n1,0,1,5,high\n",
            &["bad.csv:2: gpu_util: ", "'high'"],
        ),
        (
            "batch is no number",
            b"job_id,submit_s,gpus,duration_s,model,batch\n1,0,1,5,A,big\n",
            &["bad.csv:2: batch: ", "'big'"],
        ),
        (
            "flag is neither on nor off",
            b"job_id,submit_s,gpus,duration_s,model,amp\n1,0,1,5,A,2\n",
            &["bad.csv:2: amp: neither 0 nor 1: '2'"],
        ),
        (
            "duplicate id",
            b"job_id,partition,submit_s,gpus,duration_s\n7,left,0,1,5\n8,left,0,1,5\n7,left,9,1,5\n",
            &["bad.csv:4: job_id: duplicate id '7'"],
        ),
        (
            "unknown partition",
            b"job_id,partition,submit_s,gpus,duration_s\n1,left,0,1,5\n2,middle,0,1,5\n",
            &["bad.csv:3: partition: unknown partition 'middle'", "left", "right"],
        ),
        (
            "no partition in a cluster of several",
            b"job_id,submit_s,gpus,duration_s\n1,0,1,5\n",
            &["bad.csv:2: partition: "],
        ),
        (
            "larger than its partition",
            b"job_id,partition,submit_s,gpus,duration_s\n1,left,0,9,5\n",
            &["bad.csv:2: gpus: ", "9 GPUs", "'left'", "8 GPUs"],
        ),
        (
            "memory above a GPU's",
            b"job_id,partition,submit_s,gpus,duration_s,memory_mib\n1,left,0,1,5,24576.001\n",
            &["bad.csv:2: memory", "24576", "'left'"],
        ),
        (
            "a problem in a quoted file",
            b"job_id,partition,submit_s,gpus,duration_s\n\"1\",left,0,1,5\n\"2\n2\",left,0,1,5\n3,left,x,1,5\n",
            &["bad.csv:5: submit_s: ", "'x'"],
        ),
        (
            "an id of two lines, twice",
            b"job_id,partition,submit_s,gpus,duration_s\n\"1\n1\",left,0,1,5\n\"1\n1\",left,0,1,5\n",
            &["bad.csv:4: job_id: duplicate id"],
        ),
        (
            "a date before 1970",
            b"job_id,partition,submit_s,gpus,duration_s\n1,left,1969-12-31 23:59:59,1,5\n",
            &["bad.csv:2: submit_s: "],
        ),
    ];
    let dir = good_files();
    for (case, content, says) in cases {
        write(dir.path(), "bad.csv", content);
        let args = sim_args(&["--trace", "bad.csv", "--cluster", "partitions.csv"]);
        complaints.refused(dir.path(), case, &args, says);
    }
}

#[test]
fn traces_of_other_formats() {
    let mut complaints = Complaints::default();
    let cases: &[(&str, &str, &[u8], &[&str])] = &[
        (
            "steps without speeds",
            "gavel",
            b"A\tcmd\tdir\t-n\t0\t100\t1\t1\t-1\t0\n",
            &["bad.csv: ", "--interference"],
        ),
        (
            "unknown application",
            "pollux",
            b"name,time,application,num_replicas,batch_size\na,0,chess,1,32\n",
            &["bad.csv:2: application: ", "'chess'"],
        ),
        (
            "ends before it starts",
            "alibaba2023",
            b"name,num_gpu,gpu_milli,creation_time,deletion_time,scheduled_time\na,1,500,0,5,9\n",
            &["bad.csv:2: deletion_time: ", "scheduled_time"],
        ),
        (
            "negative milliseconds",
            "muri",
            b"job_id,num_gpu,submit_time,model_name,batch_size,duration\n1,1,-5,A,32,1000\n",
            &["bad.csv:2: submit_time: negative"],
        ),
        (
            "a date that is none",
            "philly",
            b"timestamp,duration,num_gpus,gpu_time,cluster\n2017-02-30 00:00:00,5,1,5,left\n",
            &["bad.csv:2: timestamp: "],
        ),
        (
            "a Slurm history without GPUs",
            "sacct",
            b"JobID|Submit|ElapsedRaw|AllocTRES\n1|0|5|cpu=1,node=1\n",
            &["bad.csv: ", "AccountingStorageTRES=gres/gpu"],
        ),
        (
            "a Slurm history with a bar too many",
            "sacct",
            b"JobID|Submit|ElapsedRaw|AllocTRES\n1|0|5|gres/gpu=1|x\n",
            &["bad.csv:2: row: ", "5 fields"],
        ),
        (
            "a Slurm history that is cut off",
            "sacct",
            b"JobID|Submit|ElapsedRaw|AllocTRES|JobName\n1|0|5|gres/gpu=1|x\n2|0",
            &["bad.csv:3: row: ", "2 fields"],
        ),
        (
            "a Slurm history with a date for a duration",
            "sacct",
            b"JobID|Submit|Elapsed|AllocTRES\n1|0|2026-01-01T00:00:00|gres/gpu=1\n",
            &["bad.csv:2: Elapsed: ", "2026-01-01T00:00:00"],
        ),
        (
            "not sacct's columns",
            "sacct",
            b"JobID|Submit|AllocTRES\n1|0|gres/gpu=1\n",
            &["bad.csv: line 1", "column ElapsedRaw"],
        ),
        (
            "another format's header",
            "venus",
            TRACE.as_bytes(),
            &["bad.csv: line 1", "column gpu_num"],
        ),
    ];
    let dir = good_files();
    for (case, format, content, says) in cases {
        write(dir.path(), "bad.csv", content);
        let trace = ["--trace", "bad.csv", "--format", format, "--cluster", "8x8"];
        complaints.refused(dir.path(), case, &sim_args(&trace), says);
        complaints.refused(
            dir.path(),
            case,
            &["trace", "info", "bad.csv", "--format", format],
            says,
        );
    }
    let convert = ["trace", "convert", "bad.csv", "--format", "venus", "--out", "new.csv"];
    // `trace convert` has no --json of its own, so only the plain line is looked at.
    let before = listing(dir.path());
    let ran = run_in(dir.path(), &convert);
    assert_eq!((ran.code, ran.stderr.lines().count()), (Some(2), 1), "{ran:?}");
    assert_eq!(listing(dir.path()), before);
}

#[test]
fn clusters() {
    let mut complaints = Complaints::default();
    let cases: &[(&str, &str, &[u8], &[&str])] = &[
        ("empty CSV", "bad.csv", b"", &["bad.csv:1: header"]),
        ("wrong header", "bad.csv", b"name,count\nleft,1\n", &["bad.csv:1: header", "name,count"]),
        ("no partition", "bad.csv", b"partition,nodes\n", &["bad.csv", "no GPUs"]),
        ("not a count", "bad.csv", b"partition,nodes\nleft,x\n", &["bad.csv:2: nodes: ", "'x'"]),
        ("negative count", "bad.csv", b"partition,nodes\nleft,-1\n", &["bad.csv:2: nodes: "]),
        ("no nodes", "bad.csv", b"partition,nodes\nleft,0\n", &["bad.csv:2: nodes: ", "'0'"]),
        ("too many", "bad.csv", b"partition,nodes\nleft,4294967295\n", &["bad.csv:2: nodes: "]),
        ("overflow", "bad.csv", b"partition,nodes\nleft,99999999999\n", &["bad.csv:2: nodes: "]),
        ("one field", "bad.csv", b"partition,nodes\nleft\n", &["bad.csv:2: "]),
        ("three fields", "bad.csv", b"partition,nodes\nleft,1,2\n", &["bad.csv:2: "]),
        ("no name", "bad.csv", b"partition,nodes\n,1\n", &["bad.csv:2: partition: "]),
        (
            "a name twice",
            "bad.csv",
            b"partition,nodes\nleft,1\nright,1\nleft,1\n",
            &["bad.csv:4: partition: ", "'left'"],
        ),
        ("CSV not UTF-8", "bad.csv", b"partition,nodes\n\xff,1\n", &["bad.csv", "not UTF-8"]),
        ("TOML not UTF-8", "bad.toml", b"\xff\xfe", &["bad.toml", "not UTF-8"]),
        ("empty TOML", "bad.toml", b"", &["bad.toml:", "partition"]),
        ("not TOML", "bad.toml", b"[[partition]]\nnodes = [\n", &["bad.toml:"]),
        (
            "unknown key",
            "bad.toml",
            b"[[partition]]\nnodes = [{ gpu = 8 }]\n",
            &["bad.toml:2: ", "gpu"],
        ),
        (
            "no GPUs in a node",
            "bad.toml",
            b"[[partition]]\nnodes = [{ gpus = 0 }]\n",
            &["bad.toml:2: gpus: "],
        ),
        (
            "negative GPUs",
            "bad.toml",
            b"[[partition]]\nnodes = [\n  { gpus = -8 },\n]\n",
            &["bad.toml:3: "],
        ),
        (
            "text for a number",
            "bad.toml",
            b"[[partition]]\nnodes = [{ gpus = \"8\" }]\n",
            &["bad.toml:2: "],
        ),
        (
            "too many GPUs",
            "bad.toml",
            b"[[partition]]\nnodes = [{ count = 4000000000, gpus = 4000000000 }]\n",
            &["bad.toml:2: gpus: "],
        ),
        (
            "memory overflow",
            "bad.toml",
            b"[[partition]]\nnodes = [{ gpus = 8, memory_mib = 9000000000000000000 }]\n",
            &["bad.toml:2: memory_mib: "],
        ),
        (
            "unknown GPU type",
            "bad.toml",
            b"[[partition]]\nnodes = [{ gpus = 8, gpu_type = \"x\" }]\n",
            &["bad.toml:2: gpu_type: 'x'"],
        ),
        (
            "factor zero",
            "bad.toml",
            b"[[gpu_type]]\nname = \"x\"\nfactor = 0.0\n[[partition]]\nnodes = [{ gpus = 8 }]\n",
            &["bad.toml", "factor", "'x'"],
        ),
        (
            "factor NaN",
            "bad.toml",
            b"[[gpu_type]]\nname = \"x\"\nfactor = nan\n[[partition]]\nnodes = [{ gpus = 8 }]\n",
            &["bad.toml", "factor", "'x'"],
        ),
        (
            "partition twice",
            "bad.toml",
            b"[[partition]]\nname = \"a\"\nnodes = [{ gpus = 8 }]\n[[partition]]\nname = \"a\"\nnodes = [{ gpus = 8 }]\n",
            &["bad.toml", "'a'"],
        ),
        (
            "two partitions, one without name",
            "bad.toml",
            b"[[partition]]\nname = \"a\"\nnodes = [{ gpus = 8 }]\n[[partition]]\nnodes = [{ gpus = 8 }]\n",
            &["bad.toml", "name"],
        ),
        (
            "partition without nodes",
            "bad.toml",
            b"[[partition]]\nname = \"left\"\nnodes = []\n",
            &["bad.toml"],
        ),
    ];
    for (case, file, content, says) in cases {
        let dir = good_files();
        write(dir.path(), file, content);
        let args = sim_args(&["--trace", "trace.csv", "--cluster", file]);
        complaints.refused(dir.path(), case, &args, says);
    }
    let dir = good_files();
    for spec in ["", "8", "x8", "8x", "0x8", "8x0", "8x8:", "8x8:x", "8x8:-1", "9999999x9"] {
        // A shorthand that is none is taken for the name of a file, which is not there either.
        let args = ["sim", "--trace", "trace.csv", "--policy", "fifo", "--cluster", spec];
        complaints.refused(dir.path(), spec, &args, &["cluster '", spec]);
    }
    let args = sim_args(&["--trace", "trace.csv", "--cluster", "folder"]);
    complaints.refused(dir.path(), "a folder", &args, &["cluster 'folder'"]);
    let args = sim_args(&["--trace", "trace.csv", "--cluster", "absent.toml"]);
    complaints.refused(dir.path(), "an absent file", &args, &["cluster 'absent.toml'"]);
}

#[test]
fn tables() {
    let mut complaints = Complaints::default();
    let head = PAIRS.lines().next().expect("a header");
    let row = |row: &str| format!("{head}\n{row}\n").into_bytes();
    let cases: Vec<(&str, Vec<u8>, &[&str])> = vec![
        ("empty", Vec::new(), &["bad.table:1: model1: missing column"]),
        ("other columns", b"a,b\n1,2\n".to_vec(), &["bad.table:1: model1: missing column"]),
        (
            "a column less",
            PAIRS.replace("speed2", "pace2").into_bytes(),
            &["bad.table:1: speed2: missing column"],
        ),
        ("a field less", row("0,A,,1,32,0,0.9,B,,1,64,1"), &["bad.table:2: row: "]),
        ("no batch", row("0,A,,1,x,0,0.9,B,,1,64,1,0.8"), &["bad.table:2: batchsize1: ", "'x'"]),
        ("no flag", row("0,A,,1,32,0,0.9,B,,1,64,7,0.8"), &["bad.table:2: amp2: ", "'7'"]),
        ("no speed", row("0,A,,1,32,0,,B,,1,64,1,0.8"), &["bad.table:2: speed1: "]),
        (
            "speed below zero",
            row("0,A,,1,32,0,-1,B,,1,64,1,0.8"),
            &["bad.table:2: speed1: ", "'-1'"],
        ),
        ("speed overflows", row("0,A,,1,32,0,1e99,B,,1,64,1,0.8"), &["bad.table:2: speed1: "]),
        (
            "not UTF-8",
            [head.as_bytes(), b"\n0,\xff,,1,32,0,1,B,,1,64,1,1\n"].concat(),
            &["bad.table:2: row: "],
        ),
        ("JSON cut short", b"{\"v100\":\n {".to_vec(), &["bad.table:2: json: "]),
        (
            "no such GPU",
            b"{\"k80\": {}, \"p100\": {}}".to_vec(),
            &["bad.table:1: gpu: ", "'v100'", "k80"],
        ),
        ("no job type", b"{\"v100\": {\n\"A\": {\"null\": 1.0}}}".to_vec(), &["bad.table:2: A: "]),
        (
            "no solo speed",
            b"{\"v100\": {\n\"('A', 1)\": {}}}".to_vec(),
            &["bad.table:2: ('A', 1): "],
        ),
        (
            "half a pair",
            b"{\"v100\": {\n\"('A', 1)\": {\"null\": 1.0, \"('A', 1)\": [0.5]}}}".to_vec(),
            &["bad.table:2: ('A', 1): "],
        ),
        (
            "a pair with a stranger",
            b"{\"v100\": {\n\"('A', 1)\": {\"null\": 1.0, \"('B', 1)\": [0.5, 0.5]}}}".to_vec(),
            &["bad.table:2: ('A', 1): ", "'B'"],
        ),
        (
            "knows no class",
            row("0,X,,1,32,0,0.9,Y,,1,64,1,0.8"),
            &["bad.table", "0 of 2 jobs", "--classes table:SEED"],
        ),
    ];
    for (case, content, says) in cases {
        let dir = good_files();
        write(dir.path(), "bad.table", &content);
        let input = ["--trace", "trace.csv", "--cluster", "8x8", "--interference", "bad.table"];
        complaints.refused(dir.path(), case, &sim_args(&input), says);
    }
}

#[test]
fn skip_bad_counts_the_bad_rows_and_runs_the_good_ones() {
    let mut complaints = Complaints::default();
    let dir = good_files();
    let trace = "\
job_id,partition,submit_s,gpus,duration_s,memory_mib
good1,left,0,1,10,100
zero,left,0,0,10,100
negative,left,-4,1,10,100
short,left
unknown,middle,0,1,10,100
large,left,0,99,10,100
fat,left,0,1,10,99999
good1,left,3,1,10,100
overflow,left,0,1,1e99,100
good2,right,5,16,0.5,100
";
    write(dir.path(), "mixed.csv", trace);
    let args = ["sim", "--trace", "mixed.csv", "--cluster", "partitions.csv", "--policy", "fifo"];
    complaints.refused(dir.path(), "without the option", &args, &["mixed.csv:3: gpus: "]);

    let skipping = [&args[..], &["--skip-bad", "--json", "--jobs-csv", "jobs.csv"]].concat();
    let ran = succeed_in(dir.path(), &skipping);
    assert_eq!(ran.json()["jobs"], 2);
    assert!(ran.stderr.contains("8 bad rows"), "{}", ran.stderr);
    assert!(ran.stderr.contains("line 3: gpus"), "{}", ran.stderr);
    assert!(ran.stderr.contains("1 duration below one second"), "{}", ran.stderr);
    let jobs = common::read(&dir.path().join("jobs.csv"));
    let header = common::JOBS_HEADER;
    let expected =
        format!("{header}\ngood1,left,0,0,10,1,0:1,0,0\ngood2,right,5,5,6,16,0:8;1:8,0,0\n");
    assert_eq!(jobs, expected);

    // Nothing but bad rows is still no trace.
    write(dir.path(), "bad.csv", "job_id,submit_s,gpus,duration_s\n1,0,0,5\n");
    let args = ["sim", "--trace", "bad.csv", "--cluster", "8x8", "--policy", "fifo", "--skip-bad"];
    complaints.refused(dir.path(), "only bad rows", &args, &["bad.csv: has no jobs"]);
}
