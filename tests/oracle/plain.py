"""`fifo` and `sjf` as one writes them first: every column of the trace, one heap of events, GPUs by
number, a queue that is sorted when it is looked at, statistics at the end.

It does the work of `tandem sim` without a thought of speed and is the yardstick of
scripts/bench-speed; `exclusive.py`, which counts GPUs and reads five columns, is the oracle of the
tests.

    python3 plain.py --trace FILE.csv --cluster PARTITIONS.csv|NODESxGPUS --policy fifo|sjf --jobs-csv OUT
"""

import argparse
import csv
import heapq
import re
import statistics
from dataclasses import dataclass, field

ENDS, ARRIVES = 0, 1  # at one instant GPUs are given back before jobs arrive


@dataclass
class Job:
    number: int
    job_id: str
    user: str
    vc: str
    gpus: int
    submit: float
    duration: float
    job_class: tuple
    gpu_util: float
    memory_util: float
    memory_mib: float
    start: float = 0.0
    end: float = 0.0
    placement: list = field(default_factory=list)  # (node, GPU)


class Partition:
    def __init__(self, nodes, node_size):
        self.node_size = node_size
        self.free = {node: list(range(node_size)) for node in range(nodes)}
        self.queue = []

    def place(self, gpus):
        """The GPUs for a gang, on as few nodes as possible, or None."""
        if gpus <= self.node_size:
            fitting = [(len(free), node) for node, free in self.free.items() if len(free) >= gpus]
            if not fitting:
                return None
            _, node = min(fitting)
            return [(node, gpu) for gpu in self.free[node][:gpus]]
        placement = []
        for node, free in sorted(self.free.items(), key=lambda item: (-len(item[1]), item[0])):
            wanted = min(self.node_size, gpus - len(placement))
            if len(free) < wanted:
                return None
            placement += [(node, gpu) for gpu in free[:wanted]]
            if len(placement) == gpus:
                return placement
        return None

    def take(self, placement):
        for node, gpu in placement:
            self.free[node].remove(gpu)

    def give_back(self, placement):
        for node, gpu in placement:
            self.free[node].append(gpu)
            self.free[node].sort()


KEYS = {"fifo": lambda job: job.submit, "sjf": lambda job: job.duration}


def simulate(jobs, partition_of, key):
    events = []
    for job in jobs:
        heapq.heappush(events, (job.submit, ARRIVES, job.number, job))
    while events:
        now = events[0][0]
        touched = {}
        while events and events[0][0] == now:
            _, kind, _, job = heapq.heappop(events)
            partition = partition_of(job)
            touched[id(partition)] = partition
            if kind == ENDS:
                partition.give_back(job.placement)
            else:
                partition.queue.append(job)
        for partition in touched.values():
            partition.queue.sort(key=key)
            while partition.queue:
                job = partition.queue[0]
                placement = partition.place(job.gpus)
                if placement is None:
                    break
                partition.queue.pop(0)
                partition.take(placement)
                job.placement = placement
                job.start, job.end = now, now + job.duration
                heapq.heappush(events, (job.end, ENDS, job.number, job))


def read_cluster(spec):
    """A function from a job to its partition."""
    shorthand = re.fullmatch(r"(\d+)x(\d+)", spec)
    if shorthand:
        everything = Partition(int(shorthand[1]), int(shorthand[2]))
        return lambda job: everything
    with open(spec, newline="") as file:
        partitions = {row["partition"]: Partition(int(row["nodes"]), 8) for row in csv.DictReader(file)}
    return lambda job: partitions[job.vc]


def number(text):
    return float(text) if text else 0.0


def read_trace(path):
    jobs = []
    with open(path, newline="") as file:
        for row in csv.DictReader(file):
            jobs.append(
                Job(
                    len(jobs),
                    row["job_id"],
                    row["user"],
                    row["vc"],
                    int(row["gpu_num"]),
                    number(row["submit_s"]),
                    max(number(row["duration"]), 1.0),
                    (row["model"], row["dataset"], row["batchsize"], row["amp"]),
                    number(row["gpu_util"]),
                    number(row["gmem_util"]),
                    number(row["gmem"]),
                )
            )
    jobs.sort(key=lambda job: job.submit)
    for place, job in enumerate(jobs):
        job.number = place
    return jobs


def write_jobs(path, jobs):
    with open(path, "w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["job_id", "partition", "submit_s", "start_s", "end_s", "gpus", "nodes"])
        for job in jobs:
            counts = {}
            for node, _ in job.placement:
                counts[node] = counts.get(node, 0) + 1
            nodes = ";".join(f"{node}:{count}" for node, count in counts.items())
            times = [f"{time:.6f}".rstrip("0").rstrip(".") for time in (job.submit, job.start, job.end)]
            writer.writerow([job.job_id, job.vc, *times, job.gpus, nodes])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name in ["--trace", "--cluster", "--jobs-csv"]:
        parser.add_argument(name, required=True)
    parser.add_argument("--policy", required=True, choices=KEYS)
    arguments = parser.parse_args()
    jobs = read_trace(arguments.trace)
    simulate(jobs, read_cluster(arguments.cluster), KEYS[arguments.policy])
    write_jobs(arguments.jobs_csv, jobs)
    jcts = [job.end - job.submit for job in jobs]
    percentiles = statistics.quantiles(jcts, n=100)
    print(f"mean {statistics.fmean(jcts):.0f} s, median {percentiles[49]:.0f}, p99 {percentiles[98]:.0f}")
    print(f"mean wait {statistics.fmean(job.start - job.submit for job in jobs):.0f} s")
    print(f"makespan {max(job.end for job in jobs) - jobs[0].submit:.0f} s")


if __name__ == "__main__":
    main()
