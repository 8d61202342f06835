//! Arguments of a call, and the options of a job as such arguments.

use crate::failure::Failure;
use crate::job_options::JobOptions;
use clap::{ArgAction, CommandFactory, FromArgMatches, Parser};
use serde_json::{Map, Value, json};

pub(super) type JsonObject = Map<String, Value>;

/// The options of `tandem submit` alone.
#[derive(Parser)]
#[command(name = "options", no_binary_name = true, disable_help_flag = true)]
struct Options {
    #[command(flatten)]
    job: JobOptions,
}

/// A text that may be absent.
pub(super) fn text<'a>(arguments: &'a JsonObject, name: &str) -> Result<Option<&'a str>, Failure> {
    match arguments.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(_) => Err(Failure::bad_input(format!("'{name}' is a string"))),
    }
}

/// A list of texts; empty if absent.
pub(super) fn texts(arguments: &JsonObject, name: &str) -> Result<Vec<String>, Failure> {
    let wrong = || Failure::bad_input(format!("'{name}' is a list of strings"));
    match arguments.get(name) {
        None | Some(Value::Null) => Ok(Vec::new()),
        Some(Value::Array(items)) => {
            items.iter().map(|item| item.as_str().map(str::to_owned).ok_or_else(wrong)).collect()
        }
        Some(_) => Err(wrong()),
    }
}

/// A whole number that may be absent.
pub(super) fn whole(arguments: &JsonObject, name: &str) -> Result<Option<u64>, Failure> {
    match arguments.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => value
            .as_u64()
            .map(Some)
            .ok_or_else(|| Failure::bad_input(format!("'{name}' is a whole number"))),
    }
}

/// Every option of a job with its help, as the properties of a JSON schema: the long name with `_` for `-`.
pub(super) fn option_schemas() -> Value {
    let mut properties = Map::new();
    for option in Options::command().get_arguments() {
        let Some(long) = option.get_long() else { continue };
        let help = option.get_help().map(ToString::to_string).unwrap_or_default();
        let schema = match option.get_action() {
            ArgAction::SetTrue => json!({ "type": "boolean", "description": help }),
            ArgAction::Append => {
                json!({ "type": "array", "items": { "type": "string" }, "description": help })
            }
            _ => json!({ "type": ["string", "number"], "description": help }),
        };
        properties.insert(long.replace('-', "_"), schema);
    }
    Value::Object(properties)
}

/// The options of a job among the arguments, read as the command line reads them.
pub(super) fn job_options(arguments: &JsonObject) -> Result<JobOptions, Failure> {
    let mut words = Vec::new();
    for option in Options::command().get_arguments() {
        let Some(long) = option.get_long() else { continue };
        let name = long.replace('-', "_");
        let wrong = |kind: &str| Failure::bad_input(format!("'{name}' is {kind}"));
        match arguments.get(&name) {
            None | Some(Value::Null | Value::Bool(false)) => {}
            Some(Value::Bool(true)) => words.push(format!("--{long}")),
            Some(Value::String(text)) => words.push(format!("--{long}={text}")),
            Some(Value::Number(number)) => words.push(format!("--{long}={number}")),
            Some(Value::Array(items)) => {
                for item in items {
                    let text = item.as_str().ok_or_else(|| wrong("a list of strings"))?;
                    words.push(format!("--{long}={text}"));
                }
            }
            Some(Value::Object(_)) => return Err(wrong("no object")),
        }
    }
    let parsed = Options::command().try_get_matches_from(words);
    let parsed = parsed.and_then(|matches| Options::from_arg_matches(&matches));
    parsed.map(|options| options.job).map_err(|error| Failure::usage(&error))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arguments(value: &Value) -> JsonObject {
        value.as_object().cloned().unwrap()
    }

    #[test]
    fn options_are_those_of_the_command_line() {
        let given = json!({
            "job_name": "first", "gpus": 0.5, "time": "2h", "exclusive": false, "hold": true,
            "param": ["lr=1,2"], "max_slowdown": 1.2, "priority": -3, "class": "--hold",
        });
        let options = job_options(&arguments(&given)).unwrap();
        assert_eq!(options.name.as_deref(), Some("first"));
        assert_eq!((options.gpus, options.time), (Some(0.5), Some(7200.0)));
        assert!(options.hold && !options.exclusive);
        assert_eq!((options.params.len(), options.priority), (1, Some(-3)));
        // A value is never an option.
        assert_eq!(options.class.as_deref(), Some("--hold"));
    }

    #[test]
    fn bad_values_are_refused_in_one_line() {
        for bad in [json!({ "gpus": "many" }), json!({ "hold": "x" }), json!({ "gpus": {} })] {
            let Err(Failure::Said { message, .. }) = job_options(&arguments(&bad)) else {
                panic!("{bad} was accepted");
            };
            assert!(!message.contains('\n'), "{message}");
        }
        assert!(text(&arguments(&json!({ "a": 1 })), "a").is_err());
        assert!(texts(&arguments(&json!({ "a": [1] })), "a").is_err());
    }
}
