//! The arguments of a command by their names, and which of them matter.

use super::ClassRules;

/// An argument.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Argument {
    pub(super) name: String,
    /// Empty for a flag.
    pub(super) value: String,
}

/// What an argument means for a class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Weight {
    Matters,
    Ignored,
    Undecided,
}

/// Names that mean the same.
const BATCH: [&str; 8] = [
    "batch",
    "batch-size",
    "bs",
    "b",
    "train-batch-size",
    "per-device-train-batch-size",
    "micro-batch-size",
    "batchsize",
];
/// An argument whose name has one of these parts tells which model is trained, unless it is about files.
const MODELS: [&str; 6] = ["model", "arch", "architecture", "backbone", "config", "cfg"];
const FILES: [&str; 9] =
    ["save", "out", "output", "log", "dir", "directory", "cache", "resume", "checkpoint"];
/// Parts of names that do not matter: which run it is, where its files are, how long it goes on and how it
/// learns.
const IGNORED: [&str; 66] = [
    "seed",
    "path",
    "dir",
    "directory",
    "file",
    "filename",
    "name",
    "run",
    "exp",
    "experiment",
    "tag",
    "tags",
    "id",
    "log",
    "logs",
    "logging",
    "logger",
    "output",
    "out",
    "save",
    "ckpt",
    "checkpoint",
    "resume",
    "wandb",
    "project",
    "entity",
    "group",
    "notes",
    "comment",
    "port",
    "host",
    "addr",
    "url",
    "token",
    "key",
    "rank",
    "verbose",
    "quiet",
    "debug",
    "print",
    "interval",
    "every",
    "freq",
    "frequency",
    "lr",
    "rate",
    "decay",
    "wd",
    "momentum",
    "warmup",
    "epoch",
    "epochs",
    "steps",
    "iters",
    "iterations",
    "patience",
    "device",
    "gpu",
    "gpus",
    "root",
    "cache",
    "losses",
    "report",
    "fold",
    "folds",
    "tensorboard",
];
/// Parts of names that matter: how much is computed, on what and with which precision.
const MATTERS: [&str; 48] = [
    "batch",
    "bs",
    "seq",
    "sequence",
    "length",
    "len",
    "context",
    "block",
    "hidden",
    "width",
    "depth",
    "layers",
    "layer",
    "heads",
    "head",
    "embd",
    "embed",
    "dim",
    "size",
    "resolution",
    "img",
    "image",
    "crop",
    "channels",
    "vocab",
    "dtype",
    "precision",
    "fp16",
    "bf16",
    "amp",
    "tf32",
    "half",
    "quantize",
    "bits",
    "lora",
    "checkpointing",
    "compile",
    "optimizer",
    "optim",
    "dataset",
    "data",
    "task",
    "accum",
    "accumulation",
    "workers",
    "gap",
    "allocate",
    "params",
];

/// A name in its usual form: `--max_seq_length` is `max-seq-length`.
pub(super) fn canonical(name: &str) -> String {
    let name = name.trim().trim_start_matches('-').replace('_', "-").to_lowercase();
    if BATCH.contains(&name.as_str()) { "batch".to_owned() } else { name }
}

/// Program and script, and the arguments after them.
pub(super) fn arguments(command: &[String]) -> (String, Vec<Argument>) {
    let (name, rest) = super::program::program(command);
    let mut rest = rest.into_iter().peekable();
    let mut all = Vec::new();
    let mut position = 0;
    while let Some(argument) = rest.next() {
        let is_option = argument.starts_with('-') && argument.len() > 1;
        let value = |text: &&str| !text.starts_with('-') || text.parse::<f64>().is_ok();
        let (name, value) = match argument.split_once('=') {
            Some((name, value)) if is_option || is_word(name) => (canonical(name), value),
            _ if is_option => (canonical(argument), rest.next_if(value).unwrap_or_default()),
            _ => {
                position += 1;
                (position.to_string(), argument)
            }
        };
        all.push(Argument { name, value: value.to_owned() });
    }
    (name, all)
}

/// `key` of `key=value`, as hydra takes it.
fn is_word(text: &str) -> bool {
    let part =
        |character: char| character.is_alphanumeric() || matches!(character, '_' | '.' | '+' | '-');
    !text.is_empty() && text.chars().all(part)
}

/// Whether an argument matters.
pub(super) fn weight(name: &str, value: &str, rules: &ClassRules) -> Weight {
    if rules.ignore.iter().any(|ignored| ignored == name) {
        return Weight::Ignored;
    }
    if rules.matter.iter().any(|matters| matters == name) {
        return Weight::Matters;
    }
    let parts: Vec<&str> = name.split(['-', '.']).collect();
    let has = |words: &[&str]| parts.iter().any(|part| words.contains(part));
    if has(&MODELS) && !has(&FILES) {
        Weight::Matters
    } else if has(&IGNORED) || is_path(value) {
        Weight::Ignored
    } else if has(&MATTERS) {
        Weight::Matters
    } else {
        Weight::Undecided
    }
}

/// Whether a value names a file or a folder.
fn is_path(value: &str) -> bool {
    const ENDINGS: [&str; 12] = [
        ".txt", ".csv", ".json", ".jsonl", ".log", ".pt", ".pth", ".ckpt", ".npz", ".h5", ".bin",
        ".parquet",
    ];
    let lower = value.to_lowercase();
    value.contains('/') || ENDINGS.iter().any(|ending| lower.ends_with(ending))
}
