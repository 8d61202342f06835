//! `tandem token`.

use super::change::several;
use super::connect;
use super::learned::list;
use crate::commands::{print, remark};
use crate::failure::Failure;
use crate::live_args::{ListArgs, TokenCommand};
use crate::output::{self, TableCell, name};
use crate::units;
use tandem_daemon::api::{TokenInfo, TokenRequest};
use tandem_daemon::tokens::Scope;

const COLUMNS: [&str; 7] = ["id", "user", "name", "scopes", "created", "expires", "expired"];

pub(super) fn run(command: &TokenCommand) -> Result<(), Failure> {
    match command {
        TokenCommand::Create { name, user, scope, expires, common } => {
            let request = TokenRequest {
                name: name.clone(),
                user: user.clone(),
                scopes: (!scope.is_empty()).then(|| scope.clone()),
                expires_s: expires.map(|seconds| seconds.ceil() as u64),
            };
            let answer = connect(common)?.create_token(&request)?;
            if common.json {
                return print(answer.raw.trim_end());
            }
            let info = &answer.info;
            let until = units::local(&info.expires);
            let (user, scopes) = (crate::output::name(&info.user), scopes(&info.scopes));
            remark(&format!("token {} of {user} ({scopes}), valid until {until}", info.id), false);
            print(&answer.token)
        }
        TokenCommand::List(args) => show(args),
        TokenCommand::Revoke { tokens, common } => {
            let mut client = connect(common)?;
            several("token", tokens, "revoked", common.json, |id| {
                client.revoke_token(id).map(|_| ())
            })
        }
    }
}

fn show(args: &ListArgs) -> Result<(), Failure> {
    let format = args.output.format(args.common.json)?;
    let answer = connect(&args.common)?.tokens()?;
    let header = [">token", "user", "name", "scopes", "made", "valid until"];
    list(format, &answer.raw, "tokens", &COLUMNS, || {
        output::table(&header, answer.tokens.iter().map(row).collect(), args.common.color.is_on())
    })
}

fn row(token: &TokenInfo) -> Vec<TableCell> {
    let ended = if token.expired { " (over)" } else { "" };
    vec![
        token.id.to_string().into(),
        name(&token.user).into(),
        name(&token.name).into(),
        scopes(&token.scopes).into(),
        units::local(&token.created).into(),
        format!("{}{ended}", units::local(&token.expires)).into(),
    ]
}

fn scopes(scopes: &[Scope]) -> String {
    let word = |scope: &Scope| match scope {
        Scope::Read => "read",
        Scope::Submit => "submit",
        Scope::Operate => "operate",
    };
    scopes.iter().map(word).collect::<Vec<_>>().join(",")
}
