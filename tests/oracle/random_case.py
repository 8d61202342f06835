"""Writes a small random case for `sharing.py`: a trace, a cluster and a table of pair rates.

    python3 random_case.py --seed N --out DIR

The same seed gives the same files. `DIR` receives `trace.csv` (Venus columns), `colocate.csv`
(Lucid's columns), `partitions.csv` where the cluster has partitions, and `args.txt`: the options of
a simulator for this case, one word per line, with file names relative to `DIR`. All values are
made up. They are drawn so that ties and limits are common: equal submit times and durations, pairs
for which sharing and waiting are equally good, pairs that fill the memory of a GPU exactly, rates
halfway between two parts per million, work that outlasts its estimate.
"""

import argparse
import csv
import random
from pathlib import Path

GPUS_PER_NODE = 8  # what a partitions.csv implies
GPU_MIB = 24_576  # the same
MAX_NODES = 18
MAX_JOBS = 400
MAX_GANG = 24
TRACE_COLUMNS = (
    *("job_id", "user", "vc", "gpu_num", "cpu_num", "state", "submit_s", "duration", "estimate_s"),
    *("model", "dataset", "batchsize", "amp", "speed", "gpu_util", "gmem_util", "gmem"),
)
TABLE_COLUMNS = (
    *("", "model1", "dataset1", "gpu_num1", "batchsize1", "amp1", "speed1"),
    *("model2", "dataset2", "gpu_num2", "batchsize2", "amp2", "speed2"),
    *("gpu_util", "gmem_util", "gmem"),
)


def decimal(value, places):
    """`value` counts units of the last of `places` decimals."""
    whole, part = divmod(value, 10**places)
    return f"{whole}.{part:0{places}}"


def make_cluster(rng):
    """The cluster specification, GPUs per partition, GPUs per node and MiB per GPU."""
    if rng.random() < 0.5:
        nodes, size = rng.randint(1, MAX_NODES), rng.choice([1, 2, 3, 4, 8, 8])
        memory = rng.choice([8_000, 16_384, 24_576])
        return f"{nodes}x{size}:{memory}", {"all": nodes * size}, size, memory
    left = rng.randint(1, MAX_NODES)
    gpus = {}
    while left:
        nodes = rng.randint(1, left)
        gpus[f"part{len(gpus)}"] = nodes * GPUS_PER_NODE
        left -= nodes
    return "partitions.csv", gpus, GPUS_PER_NODE, GPU_MIB


def make_classes(rng, memory):
    """Classes with what a job of that class needs; a class may differ from another in one field."""
    names = set()
    while len(names) < 10:
        names.add(
            (
                f"net{rng.randrange(3)}",
                f"set{rng.randrange(2)}",
                rng.choice([32, 64]),
                rng.randrange(2),
            )
        )
    classes = []
    for name in sorted(names):
        util = rng.choice([0, rng.randint(1, 100_000), rng.randint(30_000, 100_000), 50_000])
        half = memory * 1000 // 2
        need = rng.choice([0, half, half, half + 1, rng.randint(1, half), rng.randint(1, 2 * half)])
        classes.append((name, decimal(util, 3), decimal(need, 3)))
    return classes


def make_speeds(rng):
    """The two speeds of a measured pair."""
    kind = rng.randrange(6)
    if kind == 0:
        return "0.0", "0.0"  # out of memory
    if kind == 1:
        # 1 - a/2 = b: beside a longer guest at speed a, a resident at speed b gains nothing.
        half = rng.randint(200, 500)
        return decimal(2 * half, 3), decimal(1000 - half, 3)
    if kind == 2:
        return decimal(rng.randint(900, 1300), 3), decimal(rng.randint(900, 1300), 3)
    if kind == 3:
        # Seven decimals that end in 5 lie halfway between two parts per million.
        return tuple(decimal(rng.randint(300_000, 1_000_000) * 10 + 5, 7) for _ in "12")
    return decimal(rng.randint(300, 1000), 3), decimal(rng.randint(300, 1000), 3)


def make_table(rng, names):
    """Rows of (class, speed, class, speed): some pairs missing, some twice, in either order."""
    rows = []
    missing = rng.choice([0.1, 0.3, 0.6])
    for i, first in enumerate(names):
        for second in names[i:]:
            if rng.random() < missing:
                continue
            for _ in range(rng.choice([1, 1, 1, 1, 2])):
                pair = [first, second]
                rng.shuffle(pair)
                speeds = make_speeds(rng)
                if rng.random() < 0.5:
                    speeds = speeds[::-1]
                rows.append((pair[0], speeds[0], pair[1], speeds[1]))
    rng.shuffle(rows)
    return rows


def make_gang(rng, limit, size):
    """Gang sizes with an emphasis on one GPU, whole nodes and a little more than that."""
    any_size = rng.randint(1, MAX_GANG)
    gang = rng.choice([1, 1, rng.randint(1, size), size, size + 1, 2 * size, any_size])
    return min(gang, limit, MAX_GANG)


def make_jobs(rng, gpus, size, classes, known):
    count = rng.randint(1, MAX_JOBS)
    longest = rng.choice([10, 300, 20_000])
    durations = [rng.randint(1, longest) for _ in range(8)]
    # The mean gap is such that the load of the cluster is between light and overwhelming.
    mean_gang = min(max(gpus.values()), size) / 2 + 1
    gap = longest / 2 * mean_gang / sum(gpus.values()) * rng.choice([0.2, 0.5, 1, 2])
    shape = rng.choice(["burst", "steady"])
    submit = rng.randrange(1_000_000)
    listed = [entry for entry in classes if entry[0] in known]
    jobs = []
    for number in range(count):
        if shape == "steady" or rng.random() < 0.1:
            submit += round(rng.expovariate(1) * gap * (10 if shape == "burst" else 1))
        vc = rng.choice(sorted(gpus))
        duration = rng.choice([*durations, rng.randint(1, longest)])
        estimate = rng.choice([duration, max(1, duration // 3), rng.choice(durations), 1])
        if rng.random() < 0.05:
            duration = rng.choice(["0", "0.5", f"{duration}.25", f"{duration}.000001"])
        # A simulator may refuse a table that knows the classes of fewer than half of the jobs.
        unlisted_so_far = sum(job["class"][0] not in known for job in jobs)
        pool = classes if 2 * (unlisted_so_far + 1) <= number else listed
        jobs.append(
            {
                "id": f"job{number}",
                "vc": vc,
                "gang": make_gang(rng, gpus[vc], size),
                "submit": submit,
                "duration": duration,
                "estimate": estimate,
                "class": rng.choice(pool),
            }
        )
    if rng.random() < 0.3:
        rng.shuffle(jobs)  # a trace need not be sorted
    return jobs


def write_csv(path, header, rows):
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(header)
        writer.writerows(rows)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", required=True, type=int)
    parser.add_argument("--out", required=True, type=Path)
    args = parser.parse_args()
    rng = random.Random(args.seed)

    spec, gpus, size, memory = make_cluster(rng)
    classes = make_classes(rng, memory)
    table = make_table(rng, [name for name, _, _ in classes[:7]])
    known = {row[0] for row in table} | {row[2] for row in table}
    jobs = make_jobs(rng, gpus, size, classes, known)

    args.out.mkdir(parents=True, exist_ok=True)
    if spec == "partitions.csv":
        rows = [(name, count // GPUS_PER_NODE) for name, count in gpus.items()]
        write_csv(args.out / spec, ("partition", "nodes"), rows)
    trace_rows = []
    for job in jobs:
        name, util, need = job["class"]
        trace_rows.append(
            (job["id"], "user", job["vc"], job["gang"], 1, "COMPLETED", job["submit"])
            + (job["duration"], job["estimate"], *name, "1.0", util, "0.0", need)
        )
    write_csv(args.out / "trace.csv", TRACE_COLUMNS, trace_rows)
    table_rows = []
    for number, (first, speed1, second, speed2) in enumerate(table):
        sides = (*first[:2], 1, *first[2:], speed1, *second[:2], 1, *second[2:], speed2)
        table_rows.append((number, *sides, "0.0", "0.0", "0"))
    write_csv(args.out / "colocate.csv", TABLE_COLUMNS, table_rows)

    options = {
        "--trace": "trace.csv",
        "--cluster": spec,
        "--interference": "colocate.csv",
        "--load": rng.choice(["1", "1", "0.7", "1.5", "3.1"]),
        "--estimates": rng.choice(["true", "trace"]),
    }
    words = [word for option in options.items() for word in option]
    (args.out / "args.txt").write_text("\n".join(words) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
