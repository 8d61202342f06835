//! Reads the shares file of the administrator and finds the users and groups that it names.

use crate::scheduler::People;
use crate::users;
use std::collections::BTreeMap;
use std::path::Path;
use tandem_sim::shares::{FairShareEntry, SharesFile};

/// The shares of a file; without one, users have equal shares.
pub fn read(file: Option<&Path>) -> Result<People, String> {
    let mut shares = match file {
        Some(path) => {
            let text = std::fs::read_to_string(path);
            let text = text.map_err(|error| format!("{}: {error}", path.display()))?;
            parse(&text).map_err(|problem| format!("{}: {problem}", path.display()))?
        }
        None => SharesFile::default(),
    };
    shares.fair_share.get_or_insert_with(FairShareEntry::default);
    let groups = std::fs::read_to_string("/etc/group").unwrap_or_default();
    find_members(shares, &groups)
}

fn parse(text: &str) -> Result<SharesFile, String> {
    let shares: SharesFile = toml::from_str(text).map_err(|error| {
        let line = error.span().map_or(1, |span| text[..span.start].matches('\n').count() + 1);
        format!("line {line}: {}", error.message().replace('\n', "; "))
    })?;
    if !shares.reservation.is_empty() {
        return Err("reservations are made with tandem reserve".to_owned());
    }
    if let Some(qos) = shares.qos.iter().find(|qos| !(-20..=20).contains(&qos.priority)) {
        return Err(format!("priority of qos '{}' is not from -20 to 20", qos.name));
    }
    shares.problem().map_or(Ok(shares), Err)
}

/// Adds the members of groups to the users of accounts, and the numbers of all users.
fn find_members(mut shares: SharesFile, groups: &str) -> Result<People, String> {
    let mut gids = BTreeMap::new();
    for account in &mut shares.account {
        for name in &account.groups {
            let group = groups.lines().find_map(|line| {
                let mut fields = line.split(':');
                (fields.next() == Some(name)).then(|| (fields.nth(1), fields.next()))
            });
            let Some((Some(gid), members)) = group else {
                return Err(format!("account '{}': there is no group '{name}'", account.name));
            };
            if let Ok(gid) = gid.parse() {
                gids.insert(gid, account.name.clone());
            }
            let members = members.unwrap_or_default().split(',').filter(|name| !name.is_empty());
            account.users.extend(members.map(str::to_owned));
        }
    }
    let mut uids = BTreeMap::new();
    let of_accounts = shares.account.iter().flat_map(|account| &account.users);
    let named = shares.user.iter().map(|user| &user.name).chain(of_accounts);
    for name in named.chain(shares.qos.iter().flat_map(|qos| &qos.users)) {
        match users::find(name) {
            Some(user) => drop(uids.insert(name.clone(), user.uid)),
            None => return Err(format!("there is no user '{}'", name.escape_debug())),
        }
    }
    Ok(People { file: shares, uids, gids })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_of_groups_belong_to_accounts() {
        let text = "[[account]]\nname = \"lab\"\ngroups = [\"vision\"]\nweight = 2\n";
        let groups = "x:x:1:\nvision:x:4242:root\n";
        let people = find_members(parse(text).unwrap(), groups).unwrap();
        assert_eq!(people.account_of("root", 7), Some("lab"));
        assert_eq!(people.account_of("somebody", 4242), Some("lab"));
        assert_eq!(people.account_of("somebody", 1), None);
        assert!(people.may_charge("root", 0, "lab") && !people.may_charge("other", 0, "lab"));
    }

    #[test]
    fn mistakes_are_named() {
        let problem = |text: &str| parse(text).unwrap_err();
        assert!(problem("[limits]\ngpu = 4\n").starts_with("line 2: unknown field `gpu`"));
        assert!(problem("[[account]]\nname = \"a\"\nweight = 0\n").contains("weight of 'a' is 0"));
        let unknown = parse("[[user]]\nname = \"no-such-user\"\n").unwrap();
        assert!(find_members(unknown, "").unwrap_err().contains("no user 'no-such-user'"));
        let unknown = parse("[[account]]\nname = \"a\"\ngroups = [\"none\"]\n").unwrap();
        assert!(find_members(unknown, "").unwrap_err().contains("no group 'none'"));
    }
}
