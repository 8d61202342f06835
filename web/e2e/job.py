"""A job that speaks the job protocol: part of its time it computes, part it waits, and it reports steps and a loss.

Usage: job.py STEPS [COMPUTE_S WAIT_S]
"""

import json
import math
import os
import socket
import sys
import time

steps = int(sys.argv[1])
compute_s, wait_s = (float(text) for text in sys.argv[2:4] or ("0.002", "0.008"))
print("begins <script>document.title='hacked'</script>", flush=True)
line = socket.socket(socket.AF_UNIX)
line.connect(os.environ["TANDEM_SOCK"])


def say(**message):
    line.sendall(json.dumps(message).encode() + b"\n")


say(op="hello", v=1, job=os.environ["TANDEM_JOB_ID"], pid=os.getpid(), batch=64, caps=[])
reported = 0.0
for step in range(1, steps + 1):
    until = time.process_time() + compute_s
    while time.process_time() < until:
        math.sqrt(step)
    time.sleep(wait_s)
    if time.monotonic() - reported > 0.05:
        reported = time.monotonic()
        say(op="step", n=step, loss=4 * math.exp(-step / 2000), scalars={"accuracy": 1 - math.exp(-step / 2000)})
    if step % 100 == 0:
        print(f"step {step}", flush=True)
say(op="step", n=steps)
say(op="bye", done=True)
