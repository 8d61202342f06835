//! The tools: name, description, parameters and call of each.

use super::super::{request, select};
use super::arguments::{JsonObject, job_options, text, texts, whole};
use crate::failure::Failure;
use crate::units;
use rmcp::model::{Tool, ToolAnnotations};
use serde_json::{Value, json};
use std::sync::Arc;
use tandem_daemon::client::{Client, JobQuery};
use tandem_daemon::job::JobState;
use tandem_daemon::request::JobRequest;

/// Jobs that a list holds if nothing else is asked for, and at most.
const LIST: u64 = 50;
const LIST_MAX: u64 = 1000;

pub(super) struct ToolEntry {
    pub(super) name: &'static str,
    description: &'static str,
    /// Whether it changes something.
    pub(super) changes: bool,
    /// The properties, and the names of those that are required.
    parameters: fn() -> (Value, &'static [&'static str]),
    pub(super) call: fn(&mut Client, &JsonObject) -> Result<String, Failure>,
}

pub(super) const TOOLS: &[ToolEntry] = &[
    ToolEntry {
        name: "queue",
        description: "List jobs: state, user, GPUs, co-located jobs, rate. Without states: jobs that have not ended.",
        changes: false,
        parameters: || {
            let properties = json!({
                "states": { "type": "array", "items": { "type": "string" }, "description": "such as PD, R, CD or pending, running; all: every state" },
                "user": { "type": "string", "description": "only jobs of this user" },
                "limit": { "type": "integer", "minimum": 1, "maximum": LIST_MAX, "description": "the latest N jobs, 50 by default" },
            });
            (properties, &[])
        },
        call: queue,
    },
    ToolEntry {
        name: "info",
        description: "Show a job: command, GPUs, co-located jobs, predicted and measured slow-down, reason, exit code.",
        changes: false,
        parameters: || (json!({ "job": job_schema() }), &["job"]),
        call: info,
    },
    ToolEntry {
        name: "explain",
        description: "Say why a job is pending, device by device, which jobs must end first, and when it is expected to start and end.",
        changes: false,
        parameters: || (json!({ "job": job_schema(), "policy": policy_schema() }), &["job"]),
        call: |client, arguments| {
            let id = job(client, arguments)?;
            Ok(client.explain(id, text(arguments, "policy")?)?.raw)
        },
    },
    ToolEntry {
        name: "what_if",
        description: "Forecast a job without submitting it: start, end, co-located jobs, slow-down, and the delay that it causes others.",
        changes: false,
        parameters: || {
            let mut properties = command_schema();
            properties["policy"] = policy_schema();
            (properties, &["command"])
        },
        call: |client, arguments| {
            Ok(client.dry_run(&job_request(arguments)?, text(arguments, "policy")?)?.raw)
        },
    },
    ToolEntry {
        name: "gpus",
        description: "List devices with their tenants, rates and throughput.",
        changes: false,
        parameters: || (json!({}), &[]),
        call: |client, _| Ok(client.devices()?.raw),
    },
    ToolEntry {
        name: "usage",
        description: "Show GPU hours by user.",
        changes: false,
        parameters: || {
            let since =
                "start of the period: 7d is a week ago, 2026-12-24; the beginning if absent";
            (json!({ "since": { "type": "string", "description": since } }), &[])
        },
        call: |client, arguments| {
            let since = text(arguments, "since")?.map(units::since).transpose();
            Ok(client.usage(since.map_err(Failure::bad_input)?, None)?.raw)
        },
    },
    ToolEntry {
        name: "classes",
        description: "Show what was learned about classes of jobs: memory, speed alone, rates beside each other.",
        changes: false,
        parameters: || (json!({}), &[]),
        call: |client, _| Ok(client.classes()?.raw),
    },
    ToolEntry {
        name: "submit",
        description: "Submit a job and return its number. It runs with the permissions of the user who started tandem mcp.",
        changes: true,
        parameters: || (command_schema(), &["command"]),
        call: |client, arguments| Ok(client.submit(&job_request(arguments)?)?.raw),
    },
    ToolEntry {
        name: "cancel",
        description: "Cancel a pending or running job.",
        changes: true,
        parameters: || (json!({ "job": job_schema() }), &["job"]),
        call: |client, arguments| {
            let id = job(client, arguments)?;
            Ok(client.cancel(id)?.raw)
        },
    },
];

impl ToolEntry {
    /// The tool as clients see it.
    pub(super) fn describe(&self) -> Tool {
        let (properties, required) = (self.parameters)();
        let schema = json!({
            "type": "object",
            "properties": properties,
            "required": required,
            "additionalProperties": false,
        });
        let schema = schema.as_object().cloned().unwrap_or_default();
        let mut tool = Tool::new(self.name, self.description, Arc::new(schema));
        tool.annotations = Some(ToolAnnotations::from_raw(
            None,
            Some(!self.changes),
            Some(self.name == "cancel"),
            None,
            Some(false),
        ));
        tool
    }

    /// Refuses arguments that the tool does not have, and lacks none that it needs.
    pub(super) fn check(&self, arguments: &JsonObject) -> Result<(), Failure> {
        let (properties, required) = (self.parameters)();
        if let Some(unknown) = arguments.keys().find(|name| properties.get(name.as_str()).is_none())
        {
            let (tool, unknown) = (self.name, unknown.escape_debug());
            return Err(Failure::bad_input(format!("{tool} has no argument '{unknown}'")));
        }
        match required.iter().find(|name| !arguments.contains_key(**name)) {
            Some(missing) => Err(Failure::bad_input(format!("{} needs '{missing}'", self.name))),
            None => Ok(()),
        }
    }
}

fn job_schema() -> Value {
    json!({ "type": ["integer", "string"], "description": "number of the job, 17_3 for task 3 of array 17, or last" })
}

fn policy_schema() -> Value {
    json!({ "type": "string", "description": "as if this policy decided: NAME[:key=value,...]" })
}

/// A command and the options of `tandem submit`.
fn command_schema() -> Value {
    let mut properties = super::arguments::option_schemas();
    let command = "the program and its arguments, run without a shell";
    properties["command"] = json!({ "type": "array", "items": { "type": "string" }, "minItems": 1, "description": command });
    properties
}

fn queue(client: &mut Client, arguments: &JsonObject) -> Result<String, Failure> {
    let mut states = Vec::new();
    let names = texts(arguments, "states")?;
    for name in names.iter().filter(|name| name.as_str() != "all") {
        let state = JobState::parse(&name.to_ascii_lowercase())
            .or_else(|| JobState::parse(&name.to_ascii_uppercase()));
        let wrong = || Failure::bad_input(format!("'{}' is no state", name.escape_debug()));
        states.push(state.ok_or_else(wrong)?);
    }
    if names.is_empty() {
        states.extend(JobState::ALL.iter().copied().filter(|state| !state.is_over()));
    }
    let limit = whole(arguments, "limit")?.unwrap_or(LIST).clamp(1, LIST_MAX);
    let query = JobQuery {
        states,
        user: text(arguments, "user")?.map(str::to_owned),
        after: None,
        limit: u32::try_from(limit).ok(),
        latest_first: true,
    };
    Ok(client.jobs(&query)?.raw)
}

/// A job without its environment, which holds keys and passwords that no assistant needs.
fn info(client: &mut Client, arguments: &JsonObject) -> Result<String, Failure> {
    let id = job(client, arguments)?;
    let mut answer: Value = serde_json::from_str(&client.job(id)?.raw).map_err(Failure::failed)?;
    if let Some(private) = answer.pointer_mut("/job/private").and_then(Value::as_object_mut) {
        private.remove("env");
    }
    Ok(answer.to_string())
}

fn job(client: &mut Client, arguments: &JsonObject) -> Result<u64, Failure> {
    match arguments.get("job") {
        Some(Value::Number(number)) => number
            .as_u64()
            .ok_or_else(|| Failure::bad_input(format!("'{number}' is no number of a job"))),
        Some(Value::String(name)) => select::job(client, name),
        _ => Err(Failure::bad_input("'job' is a number or a string")),
    }
}

fn job_request(arguments: &JsonObject) -> Result<JobRequest, Failure> {
    let command = texts(arguments, "command")?;
    if command.is_empty() {
        return Err(Failure::bad_input("'command' is empty; give the program and its arguments"));
    }
    request::of_command(job_options(arguments)?, command)
}
