# On a fresh Debian 12: the .deb is installed, works, and leaves nothing but what is documented.
set -euo pipefail
export HOME=/root NO_COLOR=1
find / -xdev -path /proc -prune -o -path /tmp -prune -o -type f -print | sort >/before
dpkg --install /packages/*.deb >/dev/null
[ "$(dpkg-query -W -f '${Version}' tandem-gpu)" = "$VERSION-1" ]
for file in /usr/bin/tandem /usr/bin/tandem-train /usr/share/man/man1/tandem.1.gz /usr/share/man/man1/tandem-submit.1.gz \
    /usr/share/bash-completion/completions/tandem /usr/share/zsh/vendor-completions/_tandem /usr/share/fish/vendor_completions.d/tandem.fish \
    /usr/share/doc/tandem-gpu/examples/config.toml /usr/share/doc/tandem-gpu/copyright; do
    [ -s "$file" ] || { echo "$file is missing"; exit 1; }
done
ls /lib/systemd/system/tandem.service /usr/lib/systemd/system/tandem.service 2>/dev/null | grep -q .
# The example is a configuration that the program accepts.
mkdir -p /etc/tandem && cp /usr/share/doc/tandem-gpu/examples/config.toml /etc/tandem/config.toml
tandem config show >/dev/null
rm /etc/tandem/config.toml
cd "$(mktemp -d)"
source /check.sh
before_removal
dpkg --remove tandem-gpu >/dev/null
[ ! -e /usr/bin/tandem ]
[ -s /var/lib/tandem/state.db ]
dpkg --purge tandem-gpu >/dev/null 2>&1
[ ! -e /var/lib/tandem ]
rm -rf /root/.local
find / -xdev -path /proc -prune -o -path /tmp -prune -o -type f -print | sort >/after
# Besides dpkg's own records nothing is left.
fails eval "comm -13 /before /after | grep -vE '^/(before|after)\$|^/var/(lib/dpkg|log|cache)/|^/etc/\.|^/run/'"
after_removal
