# On a fresh Debian 12: the wheel is installed, works, and leaves nothing but what is documented.
set -euo pipefail
export HOME=/root NO_COLOR=1
[ -z "$(command -v cargo rustc)" ]
python3 -m venv /opt/tandem
/opt/tandem/bin/pip install --quiet --no-index --disable-pip-version-check /packages/*.whl
export PATH=/opt/tandem/bin:$PATH
cd "$(mktemp -d)"
source /check.sh
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
before_removal
/opt/tandem/bin/pip uninstall --quiet --yes tandem-gpu
[ -z "$(ls /opt/tandem/bin | grep tandem)" ]
[ -z "$(find /opt/tandem -path '*tandem_gpu*' -o -path '*site-packages/tandem*')" ]
after_removal
