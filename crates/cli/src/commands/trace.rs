//! `tandem trace`: inspects, converts and generates traces.

use super::simulate::read_trace;
use super::{print, remark};
use crate::args::TraceCommand;
use crate::failure::Failure;
use crate::files::OutputFile;
use std::io::{BufWriter, Write};
use std::path::Path;
use tandem_sim::trace::{
    GenerateOptions, SacctCounts, Trace, TraceFormat, add_services, generate, info, write,
};

pub(crate) fn run(command: TraceCommand) -> Result<(), Failure> {
    match command {
        TraceCommand::Info { file, input, json } => {
            let (trace, _) = read_trace(&file, &input)?;
            let info = info(&trace);
            if json {
                print(&serde_json::to_string(&info).expect("plain data always serialises"))
            } else {
                print(info.to_string().trim_end())
            }
        }
        TraceCommand::Convert { file, input, to, out } => {
            if !to.is_writable() {
                let problem = match to {
                    TraceFormat::Sacct => "is Slurm's own and is only read",
                    _ => "states no durations, so no trace can be written in it",
                };
                return Err(Failure::bad_input(format!("format {to} {problem}")));
            }
            let (trace, _) = read_trace(&file, &input)?;
            for text in trace.sacct.iter().flat_map(SacctCounts::remarks) {
                remark(&text, false);
            }
            write_to(&trace, to, out.as_deref())
        }
        TraceCommand::Generate { jobs, gpus, load, seed, services, out } => {
            let mut trace = generate(&GenerateOptions { jobs: jobs as usize, gpus, load, seed });
            if services > 0 {
                add_services(&mut trace, services as usize, seed);
            }
            write_to(&trace, TraceFormat::Tandem, out.as_deref())
        }
    }
}

fn write_to(trace: &Trace, format: TraceFormat, path: Option<&Path>) -> Result<(), Failure> {
    match path {
        Some(path) => OutputFile::open(path)?.write(|mut out| write(trace, format, &mut out)),
        None => {
            let mut out = BufWriter::with_capacity(1 << 16, std::io::stdout().lock());
            write(trace, format, &mut out)?;
            out.flush()?;
            Ok(())
        }
    }
}
