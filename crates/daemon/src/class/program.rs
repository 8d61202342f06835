//! Which program a command runs: past what only starts it (`env`, `nice`, `timeout`, `uv run`), and past the
//! options of an interpreter or of a launcher such as `torchrun`.

use super::base;

/// Arguments beyond these are not looked at.
const ARGUMENTS_MAX: usize = 256;
/// Programs whose first argument is a script.
const INTERPRETERS: [&str; 10] =
    ["python", "python3", "python2", "bash", "sh", "zsh", "julia", "rscript", "perl", "node"];
/// Programs that start a script in several processes; their own options come first.
const LAUNCHERS: [&str; 8] = [
    "torchrun",
    "deepspeed",
    "accelerate",
    "horovodrun",
    "mpirun",
    "mpiexec",
    "srun",
    "colossalai",
];
/// The same as modules of Python.
const LAUNCHER_MODULES: [&str; 4] = [
    "torch.distributed.run",
    "torch.distributed.launch",
    "accelerate.commands.launch",
    "deepspeed.launcher.runner",
];
/// Programs that run the program after them.
const WRAPPERS: [&str; 12] = [
    "env", "nice", "ionice", "nohup", "time", "timeout", "stdbuf", "taskset", "numactl", "setsid",
    "unbuffer", "xvfb-run",
];
/// The same, followed by `run`.
const RUNNERS: [&str; 9] =
    ["uv", "poetry", "pipenv", "pdm", "hatch", "rye", "conda", "mamba", "micromamba"];
/// Options of them that take a value.
const WITH_VALUE: [&str; 9] = ["-n", "-c", "-p", "-u", "-s", "-k", "--name", "--prefix", "--with"];
/// What a shell would do more with than start a program.
const SHELL_SIGNS: [char; 21] = [
    ';', '|', '&', '$', '`', '(', ')', '<', '>', '*', '?', '{', '}', '[', ']', '\n', '\\', '\'',
    '"', '~', '#',
];

/// Program and script, and the arguments after them.
pub(super) fn program(command: &[String]) -> (String, Vec<&str>) {
    let words: Vec<&str> = command.iter().take(ARGUMENTS_MAX).map(String::as_str).collect();
    let words = without_wrappers(of_shell(&words).unwrap_or(words));
    let Some((&first, rest)) = words.split_first() else { return Default::default() };
    let name = base(first);
    let lower = name.to_lowercase();
    let stem =
        lower.trim_end_matches(|character: char| character.is_ascii_digit() || character == '.');
    if LAUNCHERS.contains(&lower.as_str()) {
        return of_launcher(name, rest);
    }
    if !(INTERPRETERS.contains(&lower.as_str()) || INTERPRETERS.contains(&stem)) {
        return (name, rest.to_vec());
    }
    // Options of the interpreter, then the script.
    let Some(at) =
        rest.iter().position(|word| matches!(*word, "-m" | "-c") || !word.starts_with('-'))
    else {
        return (name, Vec::new());
    };
    match (rest[at], rest.get(at + 1)) {
        ("-m", Some(module)) if LAUNCHER_MODULES.contains(module) => {
            of_launcher(format!("{name} {module}"), &rest[at + 2..])
        }
        ("-m" | "-c", Some(script)) => (format!("{name} {script}"), rest[at + 2..].to_vec()),
        ("-m" | "-c", None) => (name, Vec::new()),
        (script, _) => (format!("{name} {}", base(script)), rest[at + 1..].to_vec()),
    }
}

/// The script of a launcher: the first word that can be one. The options of the launcher count like those of
/// the script.
fn of_launcher<'a>(name: String, words: &[&'a str]) -> (String, Vec<&'a str>) {
    let words = match words.split_first() {
        Some((&"launch" | &"run", rest)) => rest,
        _ => words,
    };
    let is_script =
        |word: &&str| !word.starts_with('-') && (word.ends_with(".py") || word.ends_with(".sh"));
    let module = words.iter().position(|word| matches!(*word, "-m" | "--module"));
    let script = words.iter().position(is_script);
    let (options, at) = match (module, script) {
        (Some(module), script) if script.is_none_or(|script| module < script) => {
            (module, module + 1)
        }
        (_, Some(script)) => (script, script),
        _ => {
            let plain = words.iter().position(|word| is_plain(word)).unwrap_or(words.len());
            (plain, plain)
        }
    };
    let Some(script) = words.get(at) else { return (name, words.to_vec()) };
    let others = words[..options].iter().chain(&words[at + 1..]);
    (format!("{name} {}", base(script)), others.copied().collect())
}

/// Whether a word is neither an option nor a number.
fn is_plain(word: &str) -> bool {
    !word.starts_with('-') && word.chars().any(|character| character.is_alphabetic())
}

/// The command after programs that only start it.
fn without_wrappers(mut words: Vec<&str>) -> Vec<&str> {
    while let Some(&first) = words.first() {
        let name = base(first);
        let is_runner = RUNNERS.contains(&name.as_str()) && words.get(1) == Some(&"run");
        if !(is_runner || WRAPPERS.contains(&name.as_str())) {
            break;
        }
        let mut at = if is_runner { 2 } else { 1 };
        while let Some(&word) = words.get(at) {
            let takes_value = name != "time" && WITH_VALUE.contains(&word);
            let is_number = word.starts_with(|character: char| character.is_ascii_digit());
            match word {
                "--" => {
                    at += 1;
                    break;
                }
                _ if takes_value => at += 2,
                _ if word.starts_with('-') || is_number || word.contains('=') => at += 1,
                _ => break,
            }
        }
        if at >= words.len() {
            break;
        }
        words.drain(..at);
    }
    words
}

/// The program that `sh -c 'python train.py'` runs, if that is all that the shell does.
fn of_shell<'a>(words: &[&'a str]) -> Option<Vec<&'a str>> {
    let [shell, option, text] = *words else { return None };
    let is_shell = ["sh", "bash", "zsh", "dash"].contains(&base(shell).as_str());
    if !(is_shell && matches!(option, "-c" | "-lc")) || text.contains(SHELL_SIGNS) {
        return None;
    }
    let inner: Vec<&str> = text.split_whitespace().skip_while(|word| *word == "exec").collect();
    // A variable before the program belongs to the shell.
    let is_variable = inner.first().is_none_or(|first| first.contains('='));
    (!is_variable).then_some(inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(line: &str) -> (String, String) {
        let command: Vec<String> = line.split(' ').map(str::to_owned).collect();
        let (name, rest) = program(&command);
        (name, rest.join(" "))
    }

    fn is(line: &str, name: &str, rest: &str) {
        assert_eq!(of(line), (name.to_owned(), rest.to_owned()), "{line}");
    }

    #[test]
    fn interpreters_run_their_script() {
        is("/usr/bin/python3 -u /a/train.py --lr 1", "python3 train.py", "--lr 1");
        is("python -m a.train x", "python a.train", "x");
        is("./train --lr 1", "train", "--lr 1");
        is("python", "python", "");
        is("python -m", "python", "");
        assert_eq!(program(&[]), (String::new(), Vec::new()));
    }

    #[test]
    fn launchers_run_a_script_after_their_options() {
        let rest = "--nproc_per_node 2 --model a";
        is("torchrun --nproc_per_node 2 train.py --model a", "torchrun train.py", rest);
        is(
            "python -m torch.distributed.run --nproc_per_node 2 train.py --model a",
            "python torch.distributed.run train.py",
            rest,
        );
        is(
            "accelerate launch --mixed_precision fp16 x/train.py",
            "accelerate train.py",
            "--mixed_precision fp16",
        );
        is("torchrun -m pkg.train --lr 1", "torchrun pkg.train", "--lr 1");
        is("deepspeed train.py", "deepspeed train.py", "");
        is("mpirun -np 2 ./solve --size 3", "mpirun solve", "-np 2 --size 3");
    }

    #[test]
    fn wrappers_are_not_the_program() {
        is("env -u X A=1 B=2 python train.py --lr 1", "python train.py", "--lr 1");
        is("nice -n 10 python train.py", "python train.py", "");
        is("timeout -k 5 90m python train.py", "python train.py", "");
        is("nohup stdbuf -oL python train.py", "python train.py", "");
        is("conda run -n torch python train.py", "python train.py", "");
        is("uv run --with torch train.py", "train.py", "");
        is("taskset -c 0-3 ./train", "train", "");
        is("env", "env", "");
        is("time -p ./train", "train", "");
        is("uv pip install x", "uv", "pip install x");
    }

    #[test]
    fn a_shell_that_only_starts_a_program_is_not_the_program() {
        let of = |text: &str| {
            let command = ["bash", "-c", text].map(str::to_owned);
            program(&command).0
        };
        assert_eq!(of("python train.py --seed 1"), "python train.py");
        assert_eq!(of("exec python train.py"), "python train.py");
        assert_eq!(of("cd /tmp && python train.py"), "bash cd /tmp && python train.py");
        assert_eq!(of("A=1 python train.py"), "bash A=1 python train.py");
        assert_eq!(of(""), "bash ");
    }
}
