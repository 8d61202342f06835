//! `tandem config`.

use super::configuration;
use crate::commands::print;
use crate::failure::Failure;
use crate::live_args::ConfigCommand;
use crate::output::{self, clean};
use serde_json::{Value, json};

pub(super) fn run(command: &ConfigCommand) -> Result<(), Failure> {
    let (origin, common) = match command {
        ConfigCommand::Show { origin, common } => (origin, common),
        ConfigCommand::Example => return print(tandem_daemon::config::example().trim_end()),
    };
    let (_, origins) = configuration(common)?;
    if common.json {
        return print(&json!({ "schema": 1, "settings": origins }).to_string());
    }
    let shown = |value: &Value| match value {
        Value::Null => String::new(),
        Value::String(text) => clean(text),
        other => other.to_string(),
    };
    let mut header = vec!["key", "value"];
    header.extend(origin.then_some("origin"));
    let rows = origins.0.iter().map(|setting| {
        let mut row = vec![setting.key.into(), shown(&setting.value).into()];
        row.extend(origin.then(|| clean(&setting.origin.to_string()).into()));
        row
    });
    print(&output::table(&header, rows.collect(), false))
}
