//! `tandem matching` and `tandem bench matching`: assignments from a file, and how fast they are.

use super::print;
use crate::args::{BenchMatchingArgs, MatchingCommand, MatchingKind};
use crate::costs_csv;
use crate::failure::Failure;
use crate::files::OutputFile;
use std::io::{BufWriter, Write};
use tandem_matching::{
    AssignOutcome, Assignment, Dense, Matrix, Sparse, assign, certify, instance,
};
use tandem_sim::thread_cpu_ns;

/// Solved this often; the median counts.
const RUNS: usize = 3;
/// Rows of a dense instance, which then takes 3 GiB.
const DENSE_MOST: usize = 20_000;

pub(crate) fn run(command: &MatchingCommand) -> Result<(), Failure> {
    let MatchingCommand::Solve { file } = command;
    let matrix = costs_csv::read(file)?;
    let found = match matrix {
        costs_csv::Costs::Dense(matrix) => assign(&matrix),
        costs_csv::Costs::Sparse(matrix) => assign(&matrix),
    };
    let mut out = BufWriter::with_capacity(1 << 16, std::io::stdout().lock());
    for (row, column) in &found.pairs {
        writeln!(out, "{row},{column}")?;
    }
    writeln!(out, "total {}", found.total)?;
    out.flush()?;
    Ok(())
}

pub(crate) fn bench(args: &BenchMatchingArgs) -> Result<(), Failure> {
    let n = args.n as usize;
    if !matches!(args.kind, MatchingKind::Sparse) && n > DENSE_MOST {
        let problem = format!("--n {n}: a dense instance may have {DENSE_MOST} rows; lower --n");
        return Err(Failure::bad_input(problem));
    }
    match args.kind {
        MatchingKind::Uniform => bench_dense(&instance::uniform(n, args.seed), args),
        MatchingKind::Rank1 => bench_dense(&instance::rank1(n, args.seed), args),
        MatchingKind::Sparse => bench_sparse(&instance::sparse(n, args.seed), args),
    }
}

fn bench_dense(matrix: &Dense, args: &BenchMatchingArgs) -> Result<(), Failure> {
    if let Some(path) = &args.write {
        OutputFile::open(path)?.write(|out| costs_csv::write_dense(matrix, out))?;
    }
    measure(matrix, args)
}

fn bench_sparse(matrix: &Sparse, args: &BenchMatchingArgs) -> Result<(), Failure> {
    if let Some(path) = &args.write {
        OutputFile::open(path)?.write(|out| costs_csv::write_sparse(matrix, out))?;
    }
    measure(matrix, args)
}

fn measure(matrix: &impl Matrix, args: &BenchMatchingArgs) -> Result<(), Failure> {
    let mut runs: Vec<(u64, Assignment)> = (0..RUNS)
        .map(|_| {
            let begun_ns = thread_cpu_ns();
            let found = assign(matrix);
            (thread_cpu_ns() - begun_ns, found)
        })
        .collect();
    runs.sort_by_key(|&(ns, _)| ns);
    let (ns, found) = &runs[RUNS / 2];
    let ms = *ns as f64 / 1e6;
    let optimal = found.outcome == AssignOutcome::Optimal && certify(matrix, None, found).is_ok();
    let (n, kind, cost) = (args.n, args.kind.name(), found.total);
    if args.json {
        let result = serde_json::json!({
            "schema": 1, "n": n, "kind": kind, "ms": ms, "cost": cost, "optimal": optimal,
        });
        return print(&result.to_string());
    }
    let proof = if optimal { "proven optimal" } else { "not proven optimal" };
    print(&format!("{kind}, {n} x {n}: {ms:.2} ms of CPU time, cost {cost}, {proof}"))
}
