# On a fresh Debian 12, as an ordinary user: the wheel is installed by pip, works, and leaves nothing but what is
# documented; then uv installs it.
set -euo pipefail
export NO_COLOR=1
source /check.sh
if [ "$(id -u)" = 0 ]; then
    useradd --create-home ann
    exec runuser -u ann -- env HOME=/home/ann VERSION="$VERSION" PATH="$PATH" bash /wheel.sh
fi
cd
[ -z "$(command -v cargo rustc)" ]
files >~/before
python3 -m venv ~/venv
path=$PATH
export PATH=~/venv/bin:$PATH
pip install --quiet --no-index --disable-pip-version-check /packages/tandem_gpu*.whl
mkdir ~/work && cd ~/work
version_is_quick
demo_works
tandem daemon start --provider cpu --devices 1 --policy tandem:slice_s=1
jobs_share_and_finish
daemon_ends

python -c 'import tandem, tandem.policy; assert tandem.__version__ == "'"$VERSION"'", tandem.__version__'
python - <<'PYTHON'
import tandem
rows = [{"job_id": n, "submit_s": 0, "gpus": 1, "duration_s": 100} for n in range(4)]
runs = tandem.compare(rows, ["fifo", "tandem"], cluster="1x2", frame="list")
assert [run["policy"] for run in runs] == ["fifo", "tandem"], runs
PYTHON
cat > first.py <<'PYTHON'
from tandem.policy import Policy


class First(Policy):
    def plan(self, draft):
        for job in draft.waiting:
            draft.place(job)
PYTHON
tandem trace generate --jobs 50 --gpus 8 --out jobs.csv
tandem sim --policy python:first.py:First --trace jobs.csv --cluster 1x8 --quiet >/dev/null

pip uninstall --quiet --yes tandem-gpu
[ -z "$(find ~/venv -name '*tandem*')" ]
hash -r
fails command -v tandem
cd
rm -rf ~/work ~/venv
files >~/after
# What is documented to stay: the state, and an empty folder for the socket.
left=$(comm -13 ~/before ~/after | grep -vE "^$HOME/(before|after)\$" || true)
if grep -vE "^$HOME/\.local(/state(/tandem.*)?)?\$|^/tmp/tandem-$(id -u)(/daemon.jobs)?\$|^\$" <<<"$left"; then
    echo "is left"
    exit 1
fi
rm -rf ~/.local/state

if [ -e /packages/uv ]; then
    export PATH=~/.local/bin:$path
    /packages/uv tool install --quiet --offline --no-index --no-python-downloads /packages/tandem_gpu*.whl
    [ "$(tandem --version)" = "tandem $VERSION" ]
    tandem-train --steps 2 >/dev/null
    /packages/uv tool uninstall --quiet tandem-gpu
    hash -r
    fails command -v tandem
    echo "uv installs and removes it"
fi
echo "removed; $fastest $demo"
