//! Job scripts: options in `#TANDEM` and `#SBATCH` lines, and the interpreter.

use crate::commands::remark;
use crate::failure::Failure;
use crate::job_options::JobOptions;
use crate::output::clean;
use clap::Parser;

/// Limit of the size of a script.
const SCRIPT_MAX_BYTES: u64 = 16 << 20;

/// The options and the interpreter of a script.
#[derive(Debug, PartialEq)]
pub(super) struct Script {
    /// The interpreter and its one argument, from the first line.
    pub(super) interpreter: Vec<String>,
    pub(super) options: JobOptions,
    /// It has options of Slurm, and may expect Slurm's variables.
    pub(super) is_slurm: bool,
    /// Threads of the script, for the variable that it may read them from.
    pub(super) cpus_per_task: Option<String>,
    /// Options of Slurm that Tandem ignores.
    ignored: Vec<String>,
}

/// Options in a line of a script.
#[derive(Parser)]
#[command(
    name = "#TANDEM",
    no_binary_name = true,
    disable_help_flag = true,
    args_override_self = true
)]
struct ScriptLine {
    #[command(flatten)]
    options: JobOptions,
}

/// Reads a script and reports the ignored options once.
pub(super) fn read(path: &str) -> Result<Script, Failure> {
    let shown = clean(path);
    let metadata = std::fs::metadata(path).map_err(|cause| match cause.kind() {
        std::io::ErrorKind::NotFound => Failure::bad_input(format!(
            "{shown}: there is no such script; a command follows --, as in: tandem submit -- python train.py"
        )),
        _ => Failure::bad_input(format!("{shown}: cannot be read: {cause}")),
    })?;
    if !metadata.is_file() || metadata.len() > SCRIPT_MAX_BYTES {
        return Err(Failure::bad_input(format!("{shown}: is no script, or larger than 16 MiB")));
    }
    let bytes = std::fs::read(path)
        .map_err(|cause| Failure::bad_input(format!("{shown}: cannot be read: {cause}")))?;
    let script = parse(&shown, &String::from_utf8_lossy(&bytes))?;
    if !script.ignored.is_empty() {
        let ignored = script.ignored.join(" ");
        remark(
            &format!("tandem: {shown}: these #SBATCH options are not used here: {ignored}"),
            false,
        );
    }
    Ok(script)
}

fn parse(shown: &str, text: &str) -> Result<Script, Failure> {
    let first = text.lines().next().unwrap_or_default();
    let Some(interpreter) =
        first.strip_prefix("#!").map(interpreter).filter(|words| !words.is_empty())
    else {
        let problem =
            "has no first line such as #!/bin/sh; a program follows --, as in: tandem submit --";
        return Err(Failure::bad_input(format!("{shown}: {problem} {shown}")));
    };
    let mut script = Script {
        interpreter,
        options: JobOptions::default(),
        is_slurm: false,
        cpus_per_task: None,
        ignored: Vec::new(),
    };
    for (index, line) in text.lines().enumerate().skip(1) {
        let bad = |problem: String| Failure::bad_input(format!("{shown}:{}: {problem}", index + 1));
        let trimmed = line.trim();
        // As in Slurm, options end at the first command.
        if !trimmed.is_empty() && !trimmed.starts_with('#') {
            break;
        }
        let (words, is_slurm) = if let Some(rest) = directive(line, "#TANDEM") {
            (words(rest), false)
        } else if let Some(rest) = directive(line, "#SBATCH") {
            (words(rest), true)
        } else {
            continue;
        };
        let mut words = words.ok_or_else(|| bad("a quotation mark is not closed".to_owned()))?;
        if is_slurm {
            script.is_slurm = true;
            script.cpus_per_task = cpus_per_task(&words).or(script.cpus_per_task);
            let (used, ignored) = translate(words);
            script.ignored.extend(ignored);
            words = used;
        }
        let line =
            ScriptLine::try_parse_from(words).map_err(|error| match Failure::usage(&error) {
                Failure::Said { message, .. } => bad(message),
                other => other,
            })?;
        // The later of two lines takes precedence.
        script.options = line.options.over(script.options);
    }
    Ok(script)
}

/// The rest of a line after its first word.
fn directive<'a>(line: &'a str, word: &str) -> Option<&'a str> {
    line.strip_prefix(word).filter(|rest| rest.is_empty() || rest.starts_with([' ', '\t']))
}

/// As the kernel does: a program, and the rest as one argument.
fn interpreter(line: &str) -> Vec<String> {
    let line = line.trim();
    let (program, rest) = line.split_once([' ', '\t']).unwrap_or((line, ""));
    [program, rest.trim()].into_iter().filter(|word| !word.is_empty()).map(str::to_owned).collect()
}

/// Words as a shell would read them, up to a comment; `None` if a quotation is not closed.
pub(super) fn words(line: &str) -> Option<Vec<String>> {
    let (mut words, mut word) = (Vec::new(), None::<String>);
    let mut characters = line.chars();
    while let Some(character) = characters.next() {
        match character {
            ' ' | '\t' => words.extend(word.take()),
            '#' if word.is_none() => break,
            '\'' | '"' => {
                let quoted = word.get_or_insert_default();
                loop {
                    match characters.next()? {
                        end if end == character => break,
                        '\\' if character == '"' => quoted.push(characters.next()?),
                        inside => quoted.push(inside),
                    }
                }
            }
            '\\' => word.get_or_insert_default().push(characters.next()?),
            plain => word.get_or_insert_default().push(plain),
        }
    }
    words.extend(word);
    Some(words)
}

/// Options of Slurm with a value that are the same here, by their short and long names.
const SAME: [(&str, &str); 11] = [
    ("-J", "--job-name"),
    ("-G", "--gpus"),
    ("-t", "--time"),
    ("-a", "--array"),
    ("-d", "--dependency"),
    ("-b", "--begin"),
    ("-o", "--output"),
    ("-e", "--error"),
    ("-D", "--chdir"),
    ("-p", "--partition"),
    ("", "--export"),
];
/// Those without one.
const SAME_SWITCHES: [(&str, &str); 3] = [("", "--exclusive"), ("", "--requeue"), ("-H", "--hold")];

/// The number after `-c` or `--cpus-per-task`.
fn cpus_per_task(words: &[String]) -> Option<String> {
    let of = |(at, word): (usize, &String)| {
        let value = match word.strip_prefix("--cpus-per-task").or(word.strip_prefix("-c"))? {
            "" => words.get(at + 1)?,
            attached => attached.strip_prefix('=').unwrap_or(attached),
        };
        value.parse::<u32>().is_ok().then(|| value.to_owned())
    };
    words.iter().enumerate().find_map(of)
}

/// Translates options of Slurm; lists those that are ignored.
fn translate(words: Vec<String>) -> (Vec<String>, Vec<String>) {
    let (mut used, mut ignored) = (Vec::new(), Vec::new());
    let mut words = words.into_iter().peekable();
    while let Some(word) = words.next() {
        let (name, attached) = match word.split_once('=') {
            Some((name, value)) if word.starts_with("--") => {
                (name.to_owned(), Some(value.to_owned()))
            }
            _ if word.starts_with("--") || word.len() <= 2 => (word.clone(), None),
            _ if word.starts_with('-') && word.is_char_boundary(2) => {
                (word[..2].to_owned(), Some(word[2..].to_owned()))
            }
            _ => (word.clone(), None),
        };
        let named = |(short, long): &&(&str, &str)| *short == name || *long == name;
        if let Some((_, long)) = SAME_SWITCHES.iter().find(named) {
            used.push((*long).to_owned());
            continue;
        }
        let is_value = |next: &String| !next.starts_with('-');
        let value = attached.or_else(|| words.next_if(is_value));
        let long = match SAME.iter().find(named) {
            Some((_, long)) => Some(*long),
            None if ["--gpus-per-node", "--gres"].contains(&name.as_str()) => Some("--gpus"),
            None => None,
        };
        match (long, value) {
            (Some("--gpus"), Some(value)) => match gpus(&value) {
                Some(number) => used.push(format!("--gpus={number}")),
                None => ignored.push(clean(&word)),
            },
            (Some(long), Some(value)) => used.push(format!("{long}={value}")),
            (Some(long), None) => used.push(long.to_owned()),
            (None, _) => ignored.push(clean(&name)),
        }
    }
    (used, ignored)
}

/// The number of `2`, `a100:2`, `gpu:2` and `gpu:a100:2`.
fn gpus(text: &str) -> Option<&str> {
    match text.rsplit_once(':') {
        None if text == "gpu" => Some("1"),
        None => Some(text).filter(|text| text.parse::<f64>().is_ok()),
        Some((_, number)) if number.parse::<f64>().is_ok() => Some(number),
        Some(("gpu", _)) => Some("1"),
        Some(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn complaint(text: &str) -> String {
        match parse("job.sh", text) {
            Err(Failure::Said { message, code: 2 }) => message,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn lines_before_the_first_command_count() {
        let text = "#!/bin/bash -e\n# a remark\n#TANDEM -J 'my job' -G 0.5 # half\n#TANDEM --param lr=1,2\n\n\
                    #TANDEM --gpu-memory=2G --exclusive\n#TANDEMX -G 9\necho\n#TANDEM -G 8\n";
        let script = parse("job.sh", text).unwrap();
        assert_eq!(script.interpreter, ["/bin/bash", "-e"]);
        let options = &script.options;
        assert_eq!((options.name.as_deref(), options.gpus), (Some("my job"), Some(0.5)));
        assert_eq!((options.gpu_memory, options.exclusive), (Some(2 << 30), true));
        assert_eq!(options.params[0].values, ["1", "2"]);
    }

    #[test]
    fn options_of_slurm() {
        let text = "#!/bin/sh\n#SBATCH --job-name=train --mem=4G -N1\n#SBATCH -c 4 --gres=gpu:a100:2\n\
                    #SBATCH -t 1-00:00:00 -o out/%j.log --requeue\n#SBATCH --mail-user me@x --no-kill\n#TANDEM -t 90\n";
        let script = parse("job.sh", text).unwrap();
        let options = &script.options;
        assert_eq!((options.name.as_deref(), options.gpus), (Some("train"), Some(2.0)));
        assert_eq!((options.time, options.requeue), (Some(5400.0), true));
        assert_eq!(options.output.as_deref(), Some(Path::new("out/%j.log")));
        assert_eq!(script.ignored, ["--mem", "-N", "-c", "--mail-user", "--no-kill"]);
    }

    #[test]
    fn the_command_line_wins() {
        let script =
            parse("job.sh", "#!/bin/sh\n#TANDEM -G 2 -J a --param x=1 --param y=2\n").unwrap();
        let own = ScriptLine::try_parse_from(["-G", "1", "--param", "x=3"]).unwrap().options;
        let both = own.over(script.options);
        assert_eq!((both.gpus, both.name.as_deref()), (Some(1.0), Some("a")));
        let names: Vec<_> = both
            .params
            .iter()
            .map(|param| (param.name.as_str(), param.values[0].as_str()))
            .collect();
        assert_eq!(names, [("y", "2"), ("x", "3")]);
    }

    #[test]
    fn what_is_wrong_is_named_with_its_line() {
        assert!(complaint("#!/bin/sh\n#TANDEM --gpuz 1\n").starts_with("job.sh:2: "));
        assert!(complaint("#!/bin/sh\n\n#TANDEM -t never\n").starts_with("job.sh:3: "));
        assert!(complaint("#!/bin/sh\n#SBATCH -t never\n").starts_with("job.sh:2: "));
        assert!(complaint("#!/bin/sh\n#TANDEM -J 'x\n").contains("quotation"));
        assert!(complaint("#!/bin/sh\n#TANDEM train.py\n").starts_with("job.sh:2: "));
        assert!(complaint("echo\n").contains("#!/bin/sh"));
        assert!(complaint("").contains("tandem submit -- job.sh"));
    }

    #[test]
    fn words_of_a_line() {
        assert_eq!(
            words(r#" a "b \" c"d 'e  f' g\ h # i"#).unwrap(),
            ["a", "b \" cd", "e  f", "g h"]
        );
        assert_eq!(words("''").unwrap(), [""]);
        assert_eq!(words("\"a"), None);
        assert_eq!(interpreter(" /usr/bin/env  -S python3 -u "), ["/usr/bin/env", "-S python3 -u"]);
    }
}
