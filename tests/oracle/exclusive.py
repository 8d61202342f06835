"""Reference simulator for the exclusive, non-preemptive policies `fifo` and `sjf`.

It replays a trace of gang jobs on a partitioned GPU cluster, event by event, and writes where and
when every job ran. It shares no code with the simulator of the project, so that the two can be
compared job by job, and it serves as the plain Python implementation in the speed benchmark.

    python3 exclusive.py --trace FILE.csv --cluster SPEC --policy fifo|sjf [--backfill]
                         [--placement strict|scatter] [--load F] --jobs-csv OUT

The trace has the columns job_id, vc, gpu_num, submit_s and duration; others are ignored. The
cluster is a `partition,nodes` CSV with 8 GPUs per node, or a shorthand such as `8x4` (nodes x GPUs
per node), one partition that takes every job. The `cpu_s` of the line printed is the CPU time of
the whole process, from the start of the interpreter until the jobs CSV has been written.
"""

import argparse
import csv
import heapq
import re
import sys
import time
from bisect import insort
from dataclasses import dataclass, field
from fractions import Fraction

SECOND = 1_000_000  # all times are whole microseconds
GPUS_PER_NODE = 8  # what a partition,nodes CSV implies
TRACE_COLUMNS = ("job_id", "vc", "gpu_num", "submit_s", "duration")


@dataclass
class Job:
    job_id: str
    vc: str
    gpus: int
    submit: int
    duration: int
    start: int = -1
    end: int = -1
    nodes: list = field(default_factory=list)  # (node, count) pairs in the order of allocation


class Partition:
    """Free GPUs per node and the queue of one partition.

    No output depends on which GPU of a node is taken, so counts are enough.
    """

    def __init__(self, nodes, node_size):
        self.node_size = node_size
        self.free = [node_size] * nodes
        self.total_free = nodes * node_size
        self.queue = []  # (sort key, position in the trace), ascending

    def allocate(self, nodes):
        for node, count in nodes:
            self.free[node] -= count
            self.total_free -= count

    def release(self, nodes):
        for node, count in nodes:
            self.free[node] += count
            self.total_free += count


def place_strict(partition, gpus):
    """Consolidated placement as (node, count) pairs, or None if there is none."""
    if partition.total_free < gpus:
        return None
    free, size = partition.free, partition.node_size
    if gpus <= size:
        best = None
        for node, count in enumerate(free):
            # A strict comparison leaves ties to the lowest index.
            if count >= gpus and (best is None or count < free[best]):
                best = node
        return None if best is None else [(best, gpus)]

    # The sort is stable, also in reverse, so ties stay in index order.
    order = sorted(range(len(free)), key=free.__getitem__, reverse=True)
    whole, rest = divmod(gpus, size)
    if free[order[whole - 1]] < size:  # the least free of those that must be idle
        return None
    nodes = [(node, size) for node in order[:whole]]
    if rest:
        if free[order[whole]] < rest:
            return None
        nodes.append((order[whole], rest))
    return nodes


def place_scatter(partition, gpus):
    """The first free GPUs in (node, GPU) order, or None if there are too few."""
    if partition.total_free < gpus:
        return None
    nodes = []
    for node, count in enumerate(partition.free):
        if count:
            nodes.append((node, min(count, gpus)))
            gpus -= nodes[-1][1]
            if gpus == 0:
                break
    return nodes


PLACEMENTS = {"strict": place_strict, "scatter": place_scatter}

# The queue holds (key, position in the trace): equal keys keep the order of arrival.
SORT_KEYS = {"fifo": lambda job: job.submit, "sjf": lambda job: job.duration}


def simulate(jobs, partition_of, sort_key, place, backfill):
    """Fill in start, end and nodes of `jobs`, which are sorted by submit time."""
    running = []  # heap of (end, position in the trace)
    arrived = 0
    while arrived < len(jobs) or running:
        if running and (arrived == len(jobs) or running[0][0] <= jobs[arrived].submit):
            now = running[0][0]
        else:
            now = jobs[arrived].submit

        # Everything that ends or arrives at this instant comes before any planning. Partitions are
        # isolated, so the order in which the touched ones are planned does not matter.
        touched = set()
        while running and running[0][0] == now:
            job = jobs[heapq.heappop(running)[1]]
            partition = partition_of(job)
            partition.release(job.nodes)
            touched.add(partition)
        while arrived < len(jobs) and jobs[arrived].submit == now:
            job = jobs[arrived]
            partition = partition_of(job)
            insort(partition.queue, (sort_key(job), arrived))
            touched.add(partition)
            arrived += 1

        for partition in touched:
            for index in plan(partition, jobs, place, backfill):
                job = jobs[index]
                job.start = now
                job.end = now + job.duration
                heapq.heappush(running, (job.end, index))


def plan(partition, jobs, place, backfill):
    """Move the jobs that fit from the queue to GPUs and return their positions in the trace."""
    queue = partition.queue
    started, skipped = [], []
    seen = 0
    # One pass is enough: free GPUs only become fewer, so a skipped job cannot fit later in it.
    while seen < len(queue) and partition.total_free:
        entry = queue[seen]
        job = jobs[entry[1]]
        nodes = place(partition, job.gpus)
        if nodes is not None:
            partition.allocate(nodes)
            job.nodes = nodes
            started.append(entry[1])
        elif backfill:
            skipped.append(entry)
        else:
            break
        seen += 1
    if started:
        queue[:seen] = skipped
    return started


def parse_seconds(text):
    """Seconds as whole microseconds, exactly; binary floating point would round."""
    if text.isdigit():
        return int(text) * SECOND
    micros = Fraction(text) * SECOND
    if micros < 0 or micros.denominator != 1:
        raise ValueError(f"negative or finer than a microsecond: {text}")
    return micros.numerator


def format_seconds(micros):
    whole, part = divmod(micros, SECOND)
    return f"{whole}.{part:06}".rstrip("0") if part else str(whole)


def read_trace(path, partition_of):
    """The jobs of the trace in file order."""
    jobs = []
    with open(path, newline="", encoding="utf-8") as file:
        rows = csv.reader(file)
        try:
            header = next(rows)
            columns = [header.index(name) for name in TRACE_COLUMNS]
            for row in rows:
                job_id, vc, gpus, submit, duration = [row[column] for column in columns]
                duration = max(parse_seconds(duration), SECOND)
                job = Job(job_id, vc, int(gpus), parse_seconds(submit), duration)
                # A job that can never start would block its queue for ever.
                if not 1 <= job.gpus <= partition_of(job).total_free:
                    raise ValueError(f"{gpus} GPUs do not fit partition {vc}")
                jobs.append(job)
        except (ValueError, ArithmeticError, LookupError, StopIteration) as error:
            sys.exit(f"{path}: line {rows.line_num}: {error!r}")
    if not jobs:
        sys.exit(f"{path}: no jobs")
    return jobs


def apply_load(jobs, load):
    """Divide the inter-arrival times by `load`, rounding the offsets down to whole seconds."""
    if load == 1:  # changes nothing, not even a fraction of a second
        return
    first = min(job.submit for job in jobs)
    for job in jobs:
        job.submit = first + (job.submit - first) // (load * SECOND) * SECOND


def read_cluster(spec):
    """A function from a job to its partition."""
    shorthand = re.fullmatch(r"(\d+)x(\d+)", spec)
    if shorthand:
        everything = Partition(int(shorthand[1]), int(shorthand[2]))
        return lambda job: everything
    with open(spec, newline="", encoding="utf-8") as file:
        partitions = {
            row["partition"]: Partition(int(row["nodes"]), GPUS_PER_NODE)
            for row in csv.DictReader(file)
        }
    return lambda job: partitions[job.vc]


def write_jobs(path, jobs):
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["job_id", "partition", "submit_s", "start_s", "end_s", "gpus", "nodes"])
        for job in jobs:
            times = [format_seconds(t) for t in (job.submit, job.start, job.end)]
            nodes = ";".join(f"{node}:{count}" for node, count in job.nodes)
            writer.writerow([job.job_id, job.vc, *times, job.gpus, nodes])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trace", required=True)
    parser.add_argument("--cluster", required=True)
    parser.add_argument("--policy", required=True, choices=SORT_KEYS)
    parser.add_argument("--backfill", action="store_true", help="skip jobs that do not fit")
    parser.add_argument("--placement", default="strict", choices=PLACEMENTS)
    parser.add_argument("--load", default="1", type=Fraction, help="divides inter-arrival times")
    parser.add_argument("--jobs-csv", required=True)
    args = parser.parse_args()
    if args.load <= 0:
        parser.error("--load must be positive")

    partition_of = read_cluster(args.cluster)
    jobs = read_trace(args.trace, partition_of)
    apply_load(jobs, args.load)
    jobs.sort(key=lambda job: job.submit)  # stable: ties stay in file order
    place = PLACEMENTS[args.placement]
    simulate(jobs, partition_of, SORT_KEYS[args.policy], place, args.backfill)
    write_jobs(args.jobs_csv, jobs)

    mean_jct = sum(job.end - job.submit for job in jobs) / len(jobs) / SECOND
    mean_wait = sum(job.start - job.submit for job in jobs) / len(jobs) / SECOND
    makespan = (max(job.end for job in jobs) - jobs[0].submit) / SECOND
    print(
        f"mean_jct_s={mean_jct:.3f} mean_wait_s={mean_wait:.3f} "
        f"makespan_s={makespan:.3f} cpu_s={time.process_time():.3f}"
    )


if __name__ == "__main__":
    main()
