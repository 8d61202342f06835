//! Who is at the other end of a connection from this machine. A browser sends the session cookie to every
//! port of this host, so that the server of another user, once visited, knows it: the cookie alone does not
//! say who asks.

use rustix::process::geteuid;
use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

/// The sockets of this machine, where the system tells of them.
const SOCKETS: [&str; 2] = ["/proc/net/tcp", "/proc/net/tcp6"];

/// The users who may connect.
pub(crate) struct Peers(BTreeSet<u32>);

impl Peers {
    /// The user of this process and root; for root also the user who became root by sudo.
    pub(crate) fn of_this_process() -> Self {
        let own = geteuid().as_raw();
        let caller = std::env::var("SUDO_UID").ok().filter(|_| own == 0);
        let caller = caller.and_then(|uid| uid.parse().ok());
        Self([own, 0].into_iter().chain(caller).collect())
    }

    /// Whether a connection is that of such a user. Where the system does not tell, it counts as one.
    pub(crate) fn have(&self, peer: SocketAddr, own: SocketAddr) -> bool {
        let tables: Vec<String> =
            SOCKETS.iter().filter_map(|path| std::fs::read_to_string(path).ok()).collect();
        let is_known =
            |table: &String| owner(table, peer, own).is_some_and(|uid| self.0.contains(&uid));
        tables.is_empty() || tables.iter().any(is_known)
    }
}

/// The user of a socket in a table of the system. A socket that its process has closed belongs to nobody.
fn owner(table: &str, local: SocketAddr, remote: SocketAddr) -> Option<u32> {
    let (local, remote) = (shown(local)?, shown(remote)?);
    table.lines().find_map(|line| {
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        // The addresses of an IPv6 socket that talks IPv4 end like those of one that does not.
        let is_it = fields.get(1)?.ends_with(&local) && fields.get(2)?.ends_with(&remote);
        let (uid, inode) = (fields.get(7)?, fields.get(9)?);
        (is_it && *inode != "0").then(|| uid.parse().ok())?
    })
}

/// An address as the tables show it: as the processor reads its bytes.
fn shown(address: SocketAddr) -> Option<String> {
    let IpAddr::V4(ip) = address.ip() else { return None };
    Some(format!("{:08X}:{:04X}", u32::from_ne_bytes(ip.octets()), address.port()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};

    const HEAD: &str = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n";

    fn line(prefix: &str, ports: (u16, u16), uid: u32, inode: u32) -> String {
        let ip = u32::from_ne_bytes([127, 0, 0, 1]);
        let (from, to) = ports;
        format!(
            "   0: {prefix}{ip:08X}:{from:04X} {prefix}{ip:08X}:{to:04X} 01 00000000:00000000 00:00000000 00000000  {uid}        0 {inode} 1 0 20\n"
        )
    }

    fn at(port: u16) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], port))
    }

    #[test]
    fn the_owner_of_a_socket_is_found_by_both_of_its_ends() {
        let table = HEAD.to_owned()
            + &line("", (4000, 5000), 1, 9)
            + &line("", (5000, 4000), 1001, 9)
            + &line("", (5001, 4000), 1002, 0)
            + &line("0000000000000000FFFF0000", (5002, 4000), 1003, 9);
        assert_eq!(owner(&table, at(5000), at(4000)), Some(1001));
        assert_eq!(owner(&table, at(5001), at(4000)), None, "closed: of nobody");
        assert_eq!(owner(&table, at(5002), at(4000)), Some(1003), "an IPv6 socket");
        assert_eq!(owner(&table, at(5003), at(4000)), None);
        assert_eq!(owner("nonsense\n\n", at(5000), at(4000)), None);
    }

    #[test]
    fn a_connection_of_this_process_is_known_and_one_of_others_is_not() {
        let listener = TcpListener::bind(at(0)).expect("a port");
        let client = TcpStream::connect(listener.local_addr().expect("bound")).expect("connected");
        let (peer, own) = (client.local_addr().expect("bound"), client.peer_addr().expect("bound"));
        assert!(Peers::of_this_process().have(peer, own));
        if std::path::Path::new(SOCKETS[0]).exists() {
            assert!(!Peers(BTreeSet::from([4_000_000])).have(peer, own));
        }
    }
}
