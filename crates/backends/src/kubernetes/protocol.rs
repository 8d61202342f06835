//! Ids derived from names of the cluster, so that the back end and node agents agree without talking to each other.

/// A 48-bit number for a pod, from its UID.
pub(super) fn pod_number(uid: &str) -> u64 {
    let digits: String = uid.chars().filter(char::is_ascii_hexdigit).take(12).collect();
    u64::from_str_radix(&digits, 16).unwrap_or(0)
}

/// A user id for the pods of a namespace, above the ids of system users. FNV-1a.
pub(super) fn namespace_number(name: &str) -> u32 {
    let hash = name
        .bytes()
        .fold(0x811c_9dc5u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    0x4000_0000 | (hash & 0x3fff_ffff)
}

/// The UUID of a pod's share of its n-th GPU: that of the pod with its last digits replaced.
pub(super) fn share_id(uid: &str, index: usize) -> String {
    let digits: Vec<char> = uid.chars().filter(char::is_ascii_hexdigit).collect();
    let mut digits: String = digits.into_iter().chain(std::iter::repeat('0')).take(32).collect();
    digits.replace_range(28.., &format!("{:04x}", index & 0xffff));
    let part = |range: std::ops::Range<usize>| digits[range].to_owned();
    [part(0..8), part(8..12), part(12..16), part(16..20), part(20..32)].join("-")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_follow_from_names() {
        let uid = "01234567-89ab-4def-8123-456789abcdef";
        assert_eq!(pod_number(uid), 0x0123_4567_89ab);
        assert_eq!(share_id(uid, 1), "01234567-89ab-4def-8123-456789ab0001");
        assert_ne!(namespace_number("ann"), namespace_number("ben"));
        assert!(namespace_number("ann") >= 1 << 30);
    }
}
