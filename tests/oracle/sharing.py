"""Reference simulator for the sharing policies `sjf-ffs` and `sjf-bsbf`, without sub-batches.

It replays a trace of gang jobs on a partitioned GPU cluster, event by event, where two jobs may
share a GPU at the rates of a measured table, and writes where and when every job ran. It shares no
code with the simulator of the project, so that the two can be compared job by job.

    python3 sharing.py --trace FILE.csv --cluster SPEC --policy sjf-ffs|sjf-bsbf
                       --interference LUCID.csv [--load F] [--estimates true|trace]
                       [--order tcon|benefit] [--consolidate] [--memory-mib N] [--jobs-csv OUT]

The trace has the columns of TRACE_COLUMNS, and estimate_s if the estimates come from the trace;
others are ignored. The cluster is a `partition,nodes` CSV with 8 GPUs per node, or a shorthand such
as `8x4` or `8x4:16384` (nodes x GPUs per node, MiB per GPU), one partition that takes every job.
The policy knows the true pair rates. The arithmetic is in integers and fractions throughout.
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

from exclusive import GPUS_PER_NODE, SECOND, apply_load, format_seconds, parse_seconds

FULL = 1_000_000  # the rate of a job alone: rates are whole parts per million
MIB = 1000  # memory is in whole thousandths of a MiB
GPU_MIB = 24_576  # what a cluster that states no memory implies
CLASS_COLUMNS = ("model", "dataset", "batchsize", "amp")
JOB_COLUMNS = ("job_id", "vc", "gpu_num", "submit_s", "duration", "gpu_util", "gmem")
TRACE_COLUMNS = JOB_COLUMNS + CLASS_COLUMNS

OUTPUT_COLUMNS = (
    *("job_id", "partition", "submit_s", "start_s", "end_s"),
    *("gpus", "nodes", "shared_s", "preemptions"),
)


@dataclass(eq=False)
class Job:
    job_id: str
    vc: str
    gpus: int
    submit: int
    duration: int
    estimate: int
    kind: tuple  # the class: model, data set, batch size, mixed precision
    util: Fraction  # in percent
    memory: int
    index: int = -1  # position in the trace, which breaks ties
    start: int = -1
    end: int = -1
    place: list = field(default_factory=list)  # GPUs in the order of allocation
    # Work is in microseconds x parts per million, so that progress is never rounded.
    done: int = 0
    rate: int = FULL
    since: int = -1  # the time up to which `done` and `shared` are counted
    running: bool = False
    sharing: bool = False
    shared: int = 0  # time during which at least one GPU had a second tenant

    def advance(self, now):
        elapsed = now - self.since
        self.done += elapsed * self.rate
        if self.sharing:
            self.shared += elapsed
        self.since = now

    def twice_remaining(self, now):
        """Twice the estimated remaining work, which stays whole when the estimate is overrun."""
        done = self.done + (now - self.since) * self.rate if self.running else 0
        left = self.estimate * FULL - done
        return 2 * left if left > 0 else done


class Partition:
    """The tenants of every GPU and the queue of one partition. GPU i belongs to node i // size."""

    def __init__(self, nodes, node_size, memory):
        self.node_size = node_size
        self.nodes = nodes
        self.memory = memory
        self.tenants = [[] for _ in range(nodes * node_size)]
        self.queue = []  # (estimate, position in the trace, job), ascending

    def free_gpus(self):
        return [gpu for gpu, tenants in enumerate(self.tenants) if not tenants]

    def room(self):
        """The number of GPUs that could take one more tenant."""
        return sum(len(tenants) < 2 for tenants in self.tenants)


class Rates:
    """True rates of two classes on one GPU."""

    def __init__(self, table):
        self.table = table  # (class, class) to the rates of both in ppm, each pair in both orders
        self.cache = {}

    def pair(self, a, b):
        """The rates of jobs a and b beside each other, or None if they do not fit together."""
        key = (a.kind, a.util, b.kind, b.util)
        if key not in self.cache:
            rates = self.table.get((a.kind, b.kind))
            if rates is None:
                both = a.util + b.util
                closed_form = to_ppm(min(Fraction(1), 100 / both) if both else Fraction(1))
                rates = (closed_form, closed_form)
            self.cache[key] = rates if min(rates) > 0 else None
        return self.cache[key]


def to_ppm(value):
    """The nearest whole number of parts per million, halves up."""
    return (2 * value * FULL + 1) // 2


def place_strict(partition, free, gpus):
    """Consolidated GPUs out of `free`, or None if there are none."""
    if len(free) < gpus:
        return None
    size = partition.node_size
    by_node = [[] for _ in range(partition.nodes)]
    for gpu in free:
        by_node[gpu // size].append(gpu)
    if gpus <= size:
        fitting = [node for node in by_node if len(node) >= gpus]
        # The first of the shortest lists: ties go to the lowest index.
        return min(fitting, key=len)[:gpus] if fitting else None

    # The sort is stable, also in reverse, so ties stay in index order.
    by_node.sort(key=len, reverse=True)
    whole, rest = divmod(gpus, size)
    if len(by_node[whole - 1]) < size:  # the least free of those that must be idle
        return None
    if rest and len(by_node[whole]) < rest:
        return None
    return [gpu for node in by_node[: whole + 1] for gpu in node][:gpus]


def hosts(partition, job, rates):
    """The GPUs with exactly one tenant beside whom `job` fits, in order."""
    room = partition.memory - job.memory
    return [
        gpu
        for gpu, tenants in enumerate(partition.tenants)
        if len(tenants) == 1 and tenants[0].memory <= room and rates.pair(job, tenants[0])
    ]


def twice_shared_finish(twice_a, twice_b, rate_a, rate_b):
    """Twice t_con, the mean finish time of both jobs if A starts beside B now."""
    rate_a, rate_b = min(rate_a, FULL), min(rate_b, FULL)  # xi = FULL / rate is at least 1
    if twice_a * rate_b >= twice_b * rate_a:  # xi_a * T_a >= xi_b * T_b
        return Fraction(twice_a, 2) + Fraction((2 * FULL - rate_a) * twice_b, 2 * rate_b)
    return Fraction(twice_b, 2) + Fraction((2 * FULL - rate_b) * twice_a, 2 * rate_a)


def choose_first(_now, _partition, _job, shareable, _rates):
    """FFS: hosts in the order of their GPUs."""
    return shareable


def choose_shortest(now, partition, job, shareable, rates):
    """BSBF: GPUs of the residents with whom sharing beats waiting, by mean finish time."""
    return choose_willing(now, partition, job, shareable, rates, lambda together, _: together)


def choose_best(now, partition, job, shareable, rates):
    """BSBF with order=benefit: the same residents, by what sharing gains over waiting."""
    return choose_willing(
        now, partition, job, shareable, rates, lambda together, in_turn: together - in_turn
    )


def choose_willing(now, partition, job, shareable, rates, rank):
    twice_a = job.twice_remaining(now)
    gpus_of = {}
    for gpu in shareable:
        gpus_of.setdefault(partition.tenants[gpu][0], []).append(gpu)
    willing = []
    for resident, gpus in gpus_of.items():
        twice_b = resident.twice_remaining(now)
        together = twice_shared_finish(twice_a, twice_b, *rates.pair(job, resident))
        in_turn = twice_b + Fraction(twice_a, 2)
        if together < in_turn:
            willing.append((rank(together, in_turn), resident.index, gpus))
    willing.sort()  # no two residents have the same index, so GPUs are never compared
    return [gpu for _, _, gpus in willing for gpu in gpus]


def on_fewest_nodes(partition, gpus, wanted):
    """The first of `gpus` that hold a gang on the fewest nodes, or None if there are none."""
    size = partition.node_size
    whole, rest = divmod(wanted, size)
    for length in range(wanted, len(gpus) + 1):
        positions = {}  # node to the positions of its GPUs
        for position, gpu in enumerate(gpus[:length]):
            positions.setdefault(gpu // size, []).append(position)
        # The nodes that are complete first, and the other one that holds the rest first.
        complete = sorted((at[-1], node) for node, at in positions.items() if len(at) == size)
        taken = [node for _, node in complete[:whole]]
        if len(taken) < whole:
            continue
        chosen = [position for node in taken for position in positions[node]]
        if rest:
            parts = [at[:rest] for node, at in positions.items() if node not in taken]
            parts = [at for at in parts if len(at) == rest]
            if not parts:
                continue
            chosen += min(parts, key=lambda at: at[-1])
        return [gpus[position] for position in sorted(chosen)]
    return None


POLICIES = {
    ("sjf-ffs", "tcon"): choose_first,
    ("sjf-bsbf", "tcon"): choose_shortest,
    ("sjf-bsbf", "benefit"): choose_best,
}


def place(now, partition, job, choose, rates, consolidate):
    """The GPUs for `job` in the order in which they are taken, or None if it has to wait."""
    free = partition.free_gpus()
    exclusive = place_strict(partition, free, job.gpus)
    if exclusive is not None:
        return exclusive
    if len(free) >= job.gpus and not consolidate:
        return free[: job.gpus]
    shareable = hosts(partition, job, rates)
    if len(free) + len(shareable) < job.gpus:
        return None
    gpus = free + choose(now, partition, job, shareable, rates)
    if consolidate:
        return on_fewest_nodes(partition, gpus, job.gpus)
    return gpus[: job.gpus] if len(gpus) >= job.gpus else None


def plan(now, partition, choose, rates, consolidate):
    """Move the jobs that can start from the queue to GPUs and return them."""
    started, waiting = [], []
    room = partition.room()
    # One pass is enough: a job that starts leaves no GPU usable that was not so before it.
    for entry in partition.queue:
        job = entry[2]
        # Most waiting jobs find no room at all, which is seen without looking at memory.
        gpus = None
        if job.gpus <= room:
            gpus = place(now, partition, job, choose, rates, consolidate)
        if gpus is None:
            waiting.append(entry)
            continue
        job.start = job.since = now
        job.running = True
        job.place = gpus
        for gpu in gpus:
            partition.tenants[gpu].append(job)
        started.append(job)
        room = partition.room()
    partition.queue = waiting
    return started


def world_rate(partition, job, rates):
    """The rate of a running job, that of its slowest GPU, and whether it shares any."""
    slowest, sharing = None, False
    for gpu in job.place:
        rate = FULL
        for other in partition.tenants[gpu]:
            if other is not job:
                rate = rates.pair(job, other)[0]
                sharing = True
        slowest = rate if slowest is None else min(slowest, rate)
    return slowest, sharing


def is_stale(jobs, entry):
    """Whether an end was superseded, or is a second entry for a job that has ended."""
    end, index = entry
    return not jobs[index].running or jobs[index].end != end


def simulate(jobs, partition_of, choose, rates, consolidate):
    """Fill in start, end and GPUs of `jobs`, which are sorted by submit time."""
    ends = []  # heap of (end, position in the trace), with stale entries of changed ends
    arrived = 0
    while True:
        while ends and is_stale(jobs, ends[0]):
            heapq.heappop(ends)
        if ends and (arrived == len(jobs) or ends[0][0] <= jobs[arrived].submit):
            now = ends[0][0]
        elif arrived < len(jobs):
            now = jobs[arrived].submit
        else:
            return

        # Everything that ends or arrives at this instant comes before any planning. Partitions are
        # isolated, so the order in which the touched ones are planned does not matter.
        touched = {}  # partition to the GPUs whose tenants changed
        while ends and ends[0][0] == now:
            entry = heapq.heappop(ends)
            if is_stale(jobs, entry):
                continue
            job = jobs[entry[1]]
            partition = partition_of(job)
            job.advance(now)
            job.running = False
            for gpu in job.place:
                partition.tenants[gpu].remove(job)
            touched.setdefault(partition, set()).update(job.place)
        while arrived < len(jobs) and jobs[arrived].submit == now:
            job = jobs[arrived]
            partition = partition_of(job)
            insort(partition.queue, (job.estimate, arrived, job))
            touched.setdefault(partition, set())
            arrived += 1

        for partition, gpus in touched.items():
            for job in plan(now, partition, choose, rates, consolidate):
                gpus.update(job.place)
            # Only the tenants of these GPUs can have a new rate, in whatever order they come.
            for job in {tenant for gpu in gpus for tenant in partition.tenants[gpu]}:
                job.advance(now)
                job.rate, job.sharing = world_rate(partition, job, rates)
                # A completion is rounded up to the next microsecond.
                job.end = now - (job.done - job.duration * FULL) // job.rate
                heapq.heappush(ends, (job.end, job.index))


def parse_scaled(text, scale):
    """A decimal number times `scale`, which has to be whole and not negative."""
    value = Fraction(text) * scale
    if value < 0 or value.denominator != 1:
        raise ValueError(f"negative or finer than 1/{scale}: {text}")
    return value.numerator


def parse_class(fields):
    model, dataset, batch, amp = fields
    return model, dataset, int(batch), int(amp)


def read_rows(path, columns, parse):
    """What `parse` makes of the fields of `columns` of each row, in file order."""
    items = []
    with open(path, newline="", encoding="utf-8") as file:
        rows = csv.reader(file)
        try:
            header = next(rows)
            wanted = [header.index(name) for name in columns]
            for row in rows:
                items.append(parse(*[row[column] for column in wanted]))
        except (ValueError, ArithmeticError, LookupError, StopIteration) as error:
            sys.exit(f"{path}: line {rows.line_num}: {error!r}")
    if not items:
        sys.exit(f"{path}: no rows")
    return items


def read_trace(path, partition_of, estimates):
    """The jobs of the trace in file order."""

    def parse(job_id, vc, gpus, submit, duration, util, memory, *rest):
        kind, estimate = parse_class(rest[:4]), rest[4:]
        duration = max(parse_seconds(duration), SECOND)
        job = Job(
            job_id,
            vc,
            int(gpus),
            parse_seconds(submit),
            duration,
            parse_seconds(estimate[0]) if estimate else duration,
            kind,
            Fraction(util),
            parse_scaled(memory, MIB),
        )
        partition = partition_of(job)
        # A job that can never start would wait for ever.
        if not 1 <= job.gpus <= len(partition.tenants) or job.memory > partition.memory:
            raise ValueError(f"{gpus} GPUs of {memory} MiB do not fit partition {vc}")
        return job

    extra = ("estimate_s",) if estimates == "trace" else ()
    return read_rows(path, TRACE_COLUMNS + extra, parse)


def read_interference(path):
    """The rates in ppm of each pair of classes in Lucid's table, under both orders."""

    def parse(*fields):
        first, second = parse_class(fields[:4]), parse_class(fields[4:8])
        speeds = Fraction(fields[8]), Fraction(fields[9])
        if min(speeds) < 0:
            raise ValueError(f"negative speed: {min(speeds)}")
        return first, second, speeds

    sides = [[name + side for name in CLASS_COLUMNS] for side in "12"]
    table = {}
    for first, second, speeds in read_rows(path, [*sides[0], *sides[1], "speed1", "speed2"], parse):
        if (first, second) in table:  # the first of duplicate rows counts, whatever their order
            continue
        if first == second:
            # Nothing tells the two jobs apart, so both get the mean; 0 still means no fit.
            mean = sum(speeds) / 2 if min(speeds) > 0 else Fraction(0)
            speeds = (mean, mean)
        rate1, rate2 = to_ppm(speeds[0]), to_ppm(speeds[1])
        table[first, second] = (rate1, rate2)
        table[second, first] = (rate2, rate1)
    return table


def read_cluster(spec, memory_mib):
    """A function from a job to its partition. `memory_mib` overrides the memory of the GPUs."""
    shorthand = re.fullmatch(r"(\d+)x(\d+)(?::(\d+))?", spec)
    if shorthand:
        memory = memory_mib or int(shorthand[3] or GPU_MIB)
        everything = Partition(int(shorthand[1]), int(shorthand[2]), memory * MIB)
        return lambda job: everything
    memory = memory_mib or GPU_MIB
    with open(spec, newline="", encoding="utf-8") as file:
        partitions = {
            row["partition"]: Partition(int(row["nodes"]), GPUS_PER_NODE, memory * MIB)
            for row in csv.DictReader(file)
        }
    return lambda job: partitions[job.vc]


def write_jobs(path, jobs, partition_of):
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(OUTPUT_COLUMNS)
        for job in jobs:
            times = [format_seconds(t) for t in (job.submit, job.start, job.end)]
            counts = {}  # keeps the order in which the allocation touches the nodes
            for gpu in job.place:
                node = gpu // partition_of(job).node_size
                counts[node] = counts.get(node, 0) + 1
            nodes = ";".join(f"{node}:{count}" for node, count in counts.items())
            shared = format_seconds(job.shared)
            writer.writerow([job.job_id, job.vc, *times, job.gpus, nodes, shared, 0])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trace", required=True)
    parser.add_argument("--cluster", required=True)
    parser.add_argument("--policy", required=True, choices=("sjf-ffs", "sjf-bsbf"))
    parser.add_argument("--order", default="tcon", choices=("tcon", "benefit"))
    parser.add_argument("--consolidate", action="store_true", help="share on the fewest nodes")
    parser.add_argument("--interference", required=True)
    parser.add_argument("--load", default="1", type=Fraction, help="divides inter-arrival times")
    parser.add_argument("--estimates", default="true", choices=("true", "trace"))
    parser.add_argument("--memory-mib", type=int, help="memory of every GPU")
    parser.add_argument("--jobs-csv")
    args = parser.parse_args()
    if args.load <= 0:
        parser.error("--load must be positive")
    choose = POLICIES.get((args.policy, args.order))
    if choose is None:
        parser.error(f"{args.policy} has no --order {args.order}")

    partition_of = read_cluster(args.cluster, args.memory_mib)
    jobs = read_trace(args.trace, partition_of, args.estimates)
    table = read_interference(args.interference)
    known = {kind for pair in table for kind in pair}
    if 2 * sum(job.kind in known for job in jobs) < len(jobs):
        sys.exit(f"{args.interference}: knows the classes of fewer than half of the jobs")
    apply_load(jobs, args.load)
    jobs.sort(key=lambda job: job.submit)  # stable: ties stay in file order
    for index, job in enumerate(jobs):
        job.index = index
    simulate(jobs, partition_of, choose, Rates(table), args.consolidate)
    if args.jobs_csv:
        write_jobs(args.jobs_csv, jobs, partition_of)

    mean_jct = Fraction(sum(job.end - job.submit for job in jobs), len(jobs) * SECOND)
    print(f"mean_jct_s={float(mean_jct):.3f} cpu_s={time.process_time():.3f}")


if __name__ == "__main__":
    main()
