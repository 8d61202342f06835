# On a fresh Debian 12, as root: the .deb is installed, works, and leaves nothing but what is documented.
# With QUICK=1 without the demo and the shared pair.
set -euo pipefail
export HOME=/root NO_COLOR=1
source /check.sh
[ -z "$(command -v cargo rustc)" ]
useradd --create-home ann
files >/before
dpkg --install /packages/*.deb >/dev/null
[ "$(dpkg-query -W -f '${Version}' tandem-gpu)" = "$VERSION-1" ]
listed=$(dpkg-query --listfiles tandem-gpu)
for file in /usr/bin/tandem /usr/bin/tandem-train /usr/share/man/man1/tandem.1.gz /usr/share/man/man1/tandem-submit.1.gz \
    /usr/share/bash-completion/completions/tandem /usr/share/zsh/vendor-completions/_tandem /usr/share/fish/vendor_completions.d/tandem.fish \
    /usr/share/doc/tandem-gpu/examples/config.toml /usr/share/doc/tandem-gpu/copyright; do
    grep -qx "$file" <<<"$listed" || { echo "$file is missing"; exit 1; }
done
unit=$(grep 'systemd/system/tandem.service$' <<<"$listed")
[ -x "$(command -v "$(sed -n 's/^ExecStart=\([^ ]*\).*/\1/p' "$unit")")" ]
# The example is a configuration that the program accepts.
mkdir -p /etc/tandem && cp /usr/share/doc/tandem-gpu/examples/config.toml /etc/tandem/config.toml
tandem config show >/dev/null
rm /etc/tandem/config.toml

cd "$(mktemp -d)"
version_is_quick
[ -n "${QUICK:-}" ] || demo_works
tandem daemon start --provider cpu --devices 1 --policy tandem:slice_s=1
[ -n "${QUICK:-}" ] || jobs_share_and_finish
# Another user of the machine finds the daemon, and the job runs as that user.
runuser -u ann -- sh -c 'cd && tandem submit -W -o who.txt -- id -un && grep -qx ann who.txt'
daemon_ends

# The store of the previous release opens with its jobs; one of a later release is refused in one line.
store() { python3 -c 'import sqlite3, sys; sqlite3.connect("/var/lib/tandem/state.db").executescript(sys.stdin.read())'; }
rm /var/lib/tandem/state.db*
store </state-0.1.0.sql
tandem daemon start --provider cpu --devices 1
[ "$(tandem queue --all -o csv | grep -cE 'done1|done2|bad|kept')" = 4 ]
daemon_ends
store <<<'PRAGMA user_version = 1000'
if said=$(tandem daemon --provider cpu 2>&1); then echo "a later store is opened"; exit 1; fi
[ "$(wc -l <<<"$said")" = 1 ] && grep -q 'newer than .*; upgrade tandem$' <<<"$said"

dpkg --remove tandem-gpu >/dev/null
[ ! -e /usr/bin/tandem ]
[ -s /var/lib/tandem/state.db ]
dpkg --purge tandem-gpu >/dev/null 2>&1
[ ! -e /var/lib/tandem ]
files >/after
# Besides dpkg's own records and what the commands above wrote, nothing is left.
if comm -13 /before /after | grep -vE '^/(before|after|home/ann/who.txt)$|^/tmp/tmp\.|^/var/(lib/dpkg|log|cache)/'; then
    echo "is left"
    exit 1
fi
hash -r
fails command -v tandem
echo "removed; ${fastest:-0} ${demo:-0}"
