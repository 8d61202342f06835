//! Runs code with the rights of a job's user. A root daemon must open files of a user as that user, because
//! the path may have become a link or a device.

use crate::op::Owner;
use nix::unistd::{Gid, Uid, User, getgrouplist};
use std::ffi::CString;
use std::io;

/// Runs `work` as a user, on a thread of its own; unchanged if this process is not root's. The real user of
/// the thread stays root, so that no other user can send it signals.
pub fn as_user<T: Send>(owner: Option<Owner>, work: impl FnOnce() -> T + Send) -> io::Result<T> {
    let owner = owner.filter(|owner| owner.uid != 0);
    let Some(owner) = owner.filter(|_| rustix::process::geteuid().is_root()) else {
        return Ok(work());
    };
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("as-user".to_owned());
        let thread = thread.spawn_scoped(scope, move || {
            rustix::thread::set_thread_groups(&groups(owner))?;
            let gid = rustix::process::Gid::from_raw(owner.gid);
            rustix::thread::set_thread_res_gid(None, gid, None)?;
            let uid = rustix::process::Uid::from_raw(owner.uid);
            rustix::thread::set_thread_res_uid(None, uid, None)?;
            Ok(work())
        })?;
        thread.join().unwrap_or_else(|_| Err(io::Error::other("the thread panicked")))
    })
}

/// The groups of a user according to the system.
pub(super) fn groups(owner: Owner) -> Vec<rustix::process::Gid> {
    let (uid, gid) = (Uid::from_raw(owner.uid), Gid::from_raw(owner.gid));
    let name = User::from_uid(uid).ok().flatten().and_then(|user| CString::new(user.name).ok());
    let groups = name.and_then(|name| getgrouplist(&name, gid).ok()).unwrap_or_else(|| vec![gid]);
    groups.into_iter().map(|gid| rustix::process::Gid::from_raw(gid.as_raw())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_thread_changes_its_user() {
        let me = rustix::process::geteuid();
        let owner = Owner { uid: 65_534, gid: 65_534 };
        let seen = as_user(Some(owner), || {
            (rustix::process::geteuid().as_raw(), rustix::process::getuid().as_raw())
        });
        let expected = if me.is_root() { (65_534, 0) } else { (me.as_raw(), me.as_raw()) };
        assert_eq!(seen.expect("a thread can be started"), expected);
        assert_eq!(rustix::process::geteuid(), me);
        if me.is_root() {
            let opened = as_user(Some(owner), || std::fs::File::open("/etc/shadow").is_ok());
            assert!(!opened.expect("a thread can be started"));
        }
    }
}
