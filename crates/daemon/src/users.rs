//! User names.

use std::process::{Command, Stdio};

/// A user as the system knows one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    /// User id.
    pub uid: u32,
    /// Primary group.
    pub gid: u32,
    /// Name.
    pub name: String,
}

/// The user of a name or a number. May ask a name service, which may take long.
pub fn find(name: &str) -> Option<User> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "._-@\\$".contains(c);
    if name.is_empty() || name.starts_with('-') || !name.chars().all(is_plain) {
        return None;
    }
    let local = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    find_in_passwd(&local, name).or_else(|| {
        let uid = ask_id("-u", name)?.parse().ok()?;
        Some(User { uid, gid: ask_id("-g", name)?.parse().ok()?, name: ask_id("-un", name)? })
    })
}

fn find_in_passwd(passwd: &str, wanted: &str) -> Option<User> {
    passwd.lines().find_map(|line| {
        let mut fields = line.split(':');
        let (name, uid) = (fields.next().filter(|name| !name.is_empty())?, fields.nth(1)?);
        let gid = fields.next()?.parse().ok()?;
        let is_it = name == wanted || uid == wanted;
        is_it.then_some(User { uid: uid.parse().ok()?, gid, name: name.to_owned() })
    })
}

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
    ask_id("-un", &uid.to_string())
}

fn ask_id(what: &str, user: &str) -> Option<String> {
    let mut command = Command::new("id");
    command.args([what, "--", user]).stdin(Stdio::null()).stderr(Stdio::null());
    let output = command.output().ok().filter(|output| output.status.success())?;
    let answer = String::from_utf8(output.stdout).ok()?.trim().to_owned();
    (!answer.is_empty()).then_some(answer)
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

    #[test]
    fn users_are_found_by_name_and_number() {
        let passwd = "broken\n:x:7:7::\nann:x:1000:100::/:\n";
        let ann = User { uid: 1000, gid: 100, name: "ann".to_owned() };
        assert_eq!(find_in_passwd(passwd, "ann"), Some(ann.clone()));
        assert_eq!(find_in_passwd(passwd, "1000"), Some(ann));
        assert_eq!(find_in_passwd(passwd, "bob"), None);
        assert_eq!(find("--help"), None);
        assert_eq!(find("a b"), None);
        assert_eq!(find("root").map(|root| root.uid), Some(0));
    }
}
