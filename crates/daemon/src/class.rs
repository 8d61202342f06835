//! The default class of a job.

use crate::request::JobRequest;

/// Jobs of one class are expected to behave alike. The class is the one that the user named, or the program
/// and a hash of program, script and batch size: classes are public, commands are not.
pub fn of_request(request: &JobRequest) -> String {
    if let Some(class) = &request.class {
        return class.clone();
    }
    let base = |text: &str| text.rsplit('/').next().unwrap_or(text).to_owned();
    let program = request.command.first().map_or_else(String::new, |program| base(program));
    let arguments = &request.command[1.min(request.command.len())..];
    // The script of an interpreter: the first argument that is not an option.
    let script = arguments.iter().find(|argument| !argument.starts_with('-'));
    let script = script.map_or_else(String::new, |script| base(script));
    let batch = batch(arguments).unwrap_or_default();
    let hash = fnv(format!("{program}\0{script}\0{batch}").as_bytes());
    let program: String =
        program.chars().filter(|character| !character.is_control()).take(40).collect();
    format!("{program}#{:08x}", hash >> 32)
}

/// The value of a batch-size option.
fn batch(arguments: &[String]) -> Option<&str> {
    const NAMES: [&str; 5] = ["--batch", "--batch-size", "--batch_size", "--bs", "-b"];
    for (index, argument) in arguments.iter().enumerate() {
        if let Some((name, value)) = argument.split_once('=')
            && NAMES.contains(&name)
        {
            return Some(value);
        }
        if NAMES.contains(&argument.as_str()) {
            return arguments.get(index + 1).map(String::as_str);
        }
    }
    None
}

/// FNV-1a: class names are stored, so the hash must not change between builds.
fn fnv(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn class(command: &[&str]) -> String {
        let command = command.iter().map(|&argument| argument.to_owned()).collect();
        of_request(&JobRequest { command, ..JobRequest::default() })
    }

    #[test]
    fn a_class_is_program_script_and_batch() {
        let named = class(&["/usr/bin/python3", "-u", "/a/train.py", "secret"]);
        assert_eq!(named, class(&["python3", "train.py", "--seed=2"]));
        assert!(named.starts_with("python3#") && !named.contains("train"), "{named}");
        assert_eq!(
            class(&["python", "t.py", "--batch=32"]),
            class(&["python", "x/t.py", "--bs", "32"])
        );
        assert_ne!(class(&["python", "t.py", "-b", "64"]), class(&["python", "t.py", "-b", "32"]));
        let long = "x".repeat(500);
        assert!(class(&["a", &long]).len() < 120);
        assert_ne!(class(&["a", &long]), class(&["a", &(long.clone() + "y")]));
        let named = JobRequest { class: Some("mine".to_owned()), ..JobRequest::default() };
        assert_eq!(of_request(&named), "mine");
    }
}
