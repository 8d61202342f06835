//! The options of `tandem bench quality`.

use crate::args::{parse_estimates, parse_load, parse_penalty};
use clap::{Args, ValueEnum};
use std::path::PathBuf;

#[derive(Args)]
pub(crate) struct QualityArgs {
    /// Folder with venus/ (window.csv, partitions.csv), muri/ (trace1.csv, trace3.csv), lucid/
    /// (colocate_info.csv, single_data.csv) and gavel/ (simulation_throughputs.json); only what is
    /// asked for is read
    #[arg(long, value_name = "DIR", default_value = "../shared/data")]
    pub(crate) data: PathBuf,
    /// Results in Markdown; the chart goes beside it, as .svg
    #[arg(long, value_name = "FILE", default_value = "docs/results.md")]
    pub(crate) out: PathBuf,
    /// Policies: A,B:key=value,...; all of them if not given
    #[arg(long, value_name = "LIST")]
    pub(crate) policies: Option<String>,
    /// Traces, in the order given; none for only that of --trace
    #[arg(
        long,
        value_name = "LIST",
        value_enum,
        value_delimiter = ',',
        default_value = "window,muri1,muri3,pollux1,pollux2,pollux3,generated"
    )]
    pub(crate) traces: Vec<TraceName>,
    /// A further trace
    #[arg(long, value_name = "FILE", requires = "cluster")]
    pub(crate) trace: Option<PathBuf>,
    /// Cluster of the further trace: NODESxGPUS[:MIB], a partition,nodes CSV, or a TOML file
    #[arg(long, value_name = "SPEC", requires = "trace")]
    pub(crate) cluster: Option<String>,
    /// Loads: the inter-arrival times are divided by them
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "1,1.25,1.5,2", value_parser = load_text)]
    pub(crate) loads: Vec<String>,
    /// Tables of pair rates
    #[arg(
        long,
        value_name = "LIST",
        value_enum,
        value_delimiter = ',',
        default_value = "lucid,v100,k80"
    )]
    pub(crate) tables: Vec<TableName>,
    /// Shares of its rate that a gang on more nodes than needed loses
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "0,0.2", value_parser = spread_text)]
    pub(crate) spread: Vec<String>,
    /// What policies are told about durations in the grid: true, trace, history, noisy:SIGMA
    #[arg(long, value_name = "KIND", default_value = "true", value_parser = estimates_text)]
    pub(crate) estimates: String,
    /// What policies are told about pair rates in the grid
    #[arg(long, value_enum, default_value = "true")]
    pub(crate) beliefs: crate::args::BeliefsArg,
    /// Policy that the criteria are for; without it among the policies there are no verdicts
    #[arg(long, value_name = "POLICY", default_value = "tandem")]
    pub(crate) judge: String,
    /// Policies whose flags are switched off in turn; that of --judge if not given
    #[arg(long, value_name = "LIST")]
    pub(crate) ablate: Option<String>,
    /// Seed of the generated trace, of classes drawn from a table, and of whatever else is random
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// What has been simulated, one line each, so that an interrupted run goes on where it was;
    /// lines of another program or of other inputs do not count
    #[arg(long, value_name = "FILE", default_value = "target/quality.jsonl")]
    pub(crate) state: PathBuf,
    /// Print one JSON object instead of the verdicts
    #[arg(long)]
    pub(crate) json: bool,
    /// Threads; 0 is one per core
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) threads: usize,
    /// No progress bar and no remarks
    #[arg(long)]
    pub(crate) quiet: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum TraceName {
    /// SenseTime's 26 days
    Window,
    /// Muri's first trace, on 8x8
    Muri1,
    /// Muri's third trace, on 8x8
    Muri3,
    /// Pollux's first workload, on 16x4
    Pollux1,
    /// Pollux's second workload, on 16x4
    Pollux2,
    /// Pollux's third workload, on 16x4
    Pollux3,
    /// 4,000 generated jobs of load 1, on 8x8
    Generated,
    /// No trace but that of --trace
    None,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum TableName {
    /// Lucid's, measured on an RTX 3090
    Lucid,
    /// Gavel's of the V100
    V100,
    /// Gavel's of the P100
    P100,
    /// Gavel's of the K80, on which sharing hardly ever pays
    K80,
}

fn load_text(text: &str) -> Result<String, String> {
    parse_load(text).map(|_| text.to_owned())
}

fn spread_text(text: &str) -> Result<String, String> {
    parse_penalty(text).map(|_| text.to_owned())
}

fn estimates_text(text: &str) -> Result<String, String> {
    parse_estimates(text).map(|_| text.to_owned())
}
