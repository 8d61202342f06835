//! User names.

use std::process::{Command, Stdio};

/// The name of a user, or the uid if it has none.
pub fn name(uid: u32) -> String {
    let local = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    name_in_passwd(&local, uid).or_else(|| name_from_id(uid)).unwrap_or_else(|| uid.to_string())
}

fn name_in_passwd(passwd: &str, uid: u32) -> Option<String> {
    passwd.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next().filter(|name| !name.is_empty())?;
        let number: u32 = fields.nth(1)?.parse().ok()?;
        (number == uid).then(|| name.to_owned())
    })
}

/// Users outside /etc/passwd, such as those in LDAP, are resolved by `id`.
fn name_from_id(uid: u32) -> Option<String> {
    let mut command = Command::new("id");
    command.args(["-un", "--", &uid.to_string()]).stdin(Stdio::null()).stderr(Stdio::null());
    let output = command.output().ok().filter(|output| output.status.success())?;
    let name = String::from_utf8(output.stdout).ok()?.trim().to_owned();
    (!name.is_empty()).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_by_number() {
        let passwd = "root:x:0:0:root:/root:/bin/sh\nbroken\n:x:7::\nann:x:1000:1000::/:\n";
        assert_eq!(name_in_passwd(passwd, 1000).as_deref(), Some("ann"));
        assert_eq!(name_in_passwd(passwd, 7), None);
        assert_eq!(name(4_000_000_000), "4000000000");
    }
}
