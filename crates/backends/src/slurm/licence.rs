//! The licences for which jobs wait until Tandem places them. The plugin adds one to a job; the daemon keeps all of
//! them reserved (see `gate`), so that no job gets one; a job is admitted by taking the licence from its request.

use super::admin_comment::JobForm;

/// That of jobs with their own request. Its reservation ends soon after the daemon does.
pub(super) const GATE: &str = "tandem_gate";
/// That of jobs without their GPU request, which must never start by themselves.
pub(super) const STRIPPED: &str = "tandem_stripped";
/// How many of each slurm.conf has.
pub(super) const COUNT: u32 = 1_000_000;

/// Whether a job waits for one of the licences.
pub(super) fn is_gated(licenses: &str) -> bool {
    licenses.split(',').any(is_ours)
}

/// The licences that its user asked for.
pub(super) fn of_user(licenses: &str) -> String {
    let others: Vec<&str> =
        licenses.split(',').filter(|one| !one.is_empty() && !is_ours(one)).collect();
    others.join(",")
}

/// The licences of a job that waits.
pub(super) fn gated(licenses: &str, form: JobForm) -> String {
    let ours = if form == JobForm::Stripped { STRIPPED } else { GATE };
    let of_user = of_user(licenses);
    let comma = if of_user.is_empty() { "" } else { "," };
    format!("{of_user}{comma}{ours}:1")
}

fn is_ours(licence: &str) -> bool {
    matches!(licence.split([':', '@']).next(), Some(GATE | STRIPPED))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_licences_of_users_are_kept() {
        let all = "matlab:2,tandem_gate:1,ansys@server:1";
        assert!(is_gated(all) && is_gated("tandem_stripped:1"));
        assert!(!is_gated("") && !is_gated("tandem_gates:1") && !is_gated("matlab"));
        assert_eq!(of_user(all), "matlab:2,ansys@server:1");
        assert_eq!(gated(all, JobForm::Share), "matlab:2,ansys@server:1,tandem_gate:1");
        assert_eq!(gated("", JobForm::Stripped), "tandem_stripped:1");
        assert_eq!(gated("tandem_gate:1", JobForm::Whole), "tandem_gate:1");
    }
}
