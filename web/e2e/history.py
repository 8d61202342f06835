"""Gives the store of a stopped daemon a long past: copies of a job that ended, two at a time on each GPU.

Usage: history.py STATE.DB JOBS DEVICES
"""

import json
import sqlite3
import sys
import time

path, jobs, devices = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
# Each runs for twice this time, the first half beside its predecessor, the second beside its successor.
SPAN_US = 50_000_000
end_us = int(time.time() * 1e6)

store = sqlite3.connect(path)
ended = "SELECT id, request, uid, user, record FROM jobs WHERE state = 'completed' ORDER BY id LIMIT 1"
template, request, uid, user, text = store.execute(ended).fetchone()
(body,) = store.execute("SELECT body FROM placements WHERE job = ?", (template,)).fetchone()
record, placement = json.loads(text), json.loads(body)


def begin(job):
    """When a job of long ago begins: the last ones end now."""
    rounds_left = (jobs - 1) // devices - (job - 1) // devices
    return end_us - (rounds_left + 2) * SPAN_US


def job_row(job):
    start = begin(job)
    times = {"submit_us": start - 1_000_000, "start_us": start, "end_us": start + 2 * SPAN_US}
    own = {**record, **times, "id": job, "devices": [(job - 1) % devices]}
    gpu_us = 2 * SPAN_US
    return job, request, uid, user, "completed", 1, times["end_us"], gpu_us, gpu_us, json.dumps(own)


def placement_rows(job):
    for half, beside in enumerate((job - devices, job + devices)):
        start = begin(job) + half * SPAN_US
        done = half * SPAN_US * 8 // 10
        own = {
            **placement, "job": job, "name": f"old-{job}", "devices": [(job - 1) % devices],
            "beside": [beside] if 0 < beside <= jobs else [], "from_us": start, "to_us": start + SPAN_US,
            "done_us": done, "rate": 0.6 + job % 5 / 10, "measured": True,
        }
        yield 2 * job + half - 1, job, start, start + SPAN_US, json.dumps(own)


with store:
    for table in ("jobs", "placements"):
        store.execute(f"DELETE FROM {table}")
    numbers = range(1, jobs + 1)
    store.executemany("INSERT INTO jobs VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", map(job_row, numbers))
    rows = (row for job in numbers for row in placement_rows(job))
    store.executemany("INSERT INTO placements VALUES (?, ?, ?, ?, ?)", rows)
