//! Shares and limits between users and accounts, as the administrator has set them.

use super::Api;
use super::routes::JsonResult;
use super::types::{ErrorAnswer, SCHEMA};
use crate::command::Caller;
use crate::cycle::Present;
use crate::scheduler::People;
use axum::Json;
use axum::extract::State;
use serde::{Deserialize, Serialize};
use tandem_sim::shares::LimitsEntry;
use utoipa::ToSchema;

/// Hours of a period unless the file names others.
const PERIOD_H: f64 = 720.0;

/// How users divide the GPUs, and what they may have.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct SharesInfo {
    /// Version of this JSON.
    pub schema: u32,
    /// GPUs are divided by weight, and used GPU time counts half after so many hours; absent if the policy alone decides.
    pub half_life_h: Option<f64>,
    /// Hours of a period, in which GPU-hours are limited.
    pub period_h: f64,
    /// What every user may have who is not among `users` with limits of their own.
    pub limits: LimitsInfo,
    /// The accounts.
    pub accounts: Vec<ShareInfo>,
    /// Users with a weight or limits of their own.
    pub users: Vec<ShareInfo>,
}

/// The share of an account or a user.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ShareInfo {
    /// Its name.
    pub name: String,
    /// Its share relative to others.
    pub weight: u32,
    /// Users whose jobs are charged to the account; empty for a user.
    pub members: Vec<String>,
    /// What its jobs may have.
    pub limits: LimitsInfo,
}

/// What jobs may have at once; no limit where absent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct LimitsInfo {
    /// Jobs on GPUs.
    pub jobs: Option<u32>,
    /// GPUs.
    pub gpus: Option<u32>,
    /// GPU memory.
    pub memory_bytes: Option<u64>,
    /// GPU-hours in each period.
    pub gpu_hours: Option<f64>,
    /// Pending jobs.
    pub pending: Option<u64>,
}

impl From<&LimitsEntry> for LimitsInfo {
    fn from(entry: &LimitsEntry) -> Self {
        Self {
            jobs: entry.jobs,
            gpus: entry.gpus,
            memory_bytes: entry.memory_mib.map(|mib| mib << 20),
            gpu_hours: entry.gpu_hours,
            pending: entry.pending,
        }
    }
}

/// Shares and limits of users and accounts
#[utoipa::path(get, path = "/v1/shares", operation_id = "list_shares", responses(
    (status = 200, body = SharesInfo), (status = "default", body = ErrorAnswer)))]
pub(super) async fn list(State(api): State<Api>, _: Caller) -> JsonResult<SharesInfo> {
    let read = |present: &Present<'_>| shown(&present.scheduler.setup().people);
    Ok(Json(api.query(read).await?))
}

fn shown(people: &People) -> SharesInfo {
    let file = &people.file;
    let accounts = file.account.iter().map(|account| ShareInfo {
        name: account.name.clone(),
        weight: account.weight,
        members: account.users.clone(),
        limits: (&account.limits).into(),
    });
    let users = file.user.iter().map(|user| ShareInfo {
        name: user.name.clone(),
        weight: user.weight,
        members: Vec::new(),
        limits: (&user.limits).into(),
    });
    SharesInfo {
        schema: SCHEMA,
        half_life_h: file.fair_share.filter(|fair| fair.enabled).map(|fair| fair.half_life_h),
        period_h: file.limits.period_h.unwrap_or(PERIOD_H),
        limits: (&file.limits).into(),
        accounts: accounts.collect(),
        users: users.collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tandem_sim::shares::SharesFile;

    #[test]
    fn the_file_is_told_with_its_defaults() {
        let text = r#"
            [fair_share]
            half_life_h = 12.0
            [limits]
            gpus = 4
            [[account]]
            name = "vision"
            weight = 3
            users = ["ann"]
            [[user]]
            name = "bob"
            weight = 2
            [user.limits]
            memory_mib = 1024
        "#;
        let file: SharesFile = toml::from_str(text).expect("a file");
        let told = shown(&People { file, ..People::default() });
        assert_eq!(
            (told.half_life_h, told.period_h, told.limits.gpus),
            (Some(12.0), 720.0, Some(4))
        );
        assert_eq!(
            (told.accounts[0].weight, &told.accounts[0].members[..]),
            (3, &["ann".to_owned()][..])
        );
        assert_eq!((told.users[0].weight, told.users[0].limits.memory_bytes), (2, Some(1 << 30)));
        let absent = shown(&People::default());
        assert_eq!((absent.half_life_h, absent.limits), (None, LimitsInfo::default()));
    }
}
