//! The class of a job of which the user named none.

use crate::request::JobRequest;

/// Jobs of one class behave alike: the class that was named, or else program, script and batch size.
pub fn of(request: &JobRequest) -> String {
    if let Some(class) = &request.class {
        return class.clone();
    }
    let base = |text: &str| text.rsplit('/').next().unwrap_or(text).to_owned();
    let program = request.command.first().map_or_else(String::new, |program| base(program));
    let arguments = &request.command[1.min(request.command.len())..];
    // The script: the first argument that is no option, where the program is an interpreter or a tool.
    let script = arguments.iter().find(|argument| !argument.starts_with('-'));
    let mut class = program;
    if let Some(script) = script {
        class = format!("{class} {}", base(script));
    }
    if let Some(batch) = batch(arguments) {
        class = format!("{class} batch {batch}");
    }
    let class: String = class.chars().filter(|character| !character.is_control()).collect();
    // Long ones are told apart by a hash of the whole.
    match class.char_indices().nth(80) {
        Some((end, _)) => format!("{}#{:016x}", &class[..end], fnv(class.as_bytes())),
        None => class,
    }
}

/// The value of an option that names the batch size.
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

/// FNV-1a: the same in every build, as names that are kept must be.
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
        of(&JobRequest { command, ..JobRequest::default() })
    }

    #[test]
    fn a_class_is_program_script_and_batch() {
        assert_eq!(class(&["/usr/bin/python3", "-u", "/a/train.py"]), "python3 train.py");
        assert_eq!(class(&["python", "t.py", "--batch=32"]), class(&["python", "x/t.py", "--bs", "32"]));
        assert_ne!(class(&["python", "t.py", "-b", "64"]), class(&["python", "t.py", "-b", "32"]));
        let long = "x".repeat(500);
        assert!(class(&["a", &long]).len() < 120);
        assert_ne!(class(&["a", &long]), class(&["a", &(long.clone() + "y")]));
        let named = JobRequest { class: Some("mine".to_owned()), ..JobRequest::default() };
        assert_eq!(of(&named), "mine");
    }
}
