#!/usr/bin/env python3
"""Tenants of one GPU, an independent event-driven evaluation in plain Python.

Written from the rules alone (docs/device.md) and slow on purpose: every quantity is computed anew at
every event. Compared with `tandem device compare` by crates/cli/tests/device_oracle.rs.

    device.py --sms 80 --scheduler fifo --v 0.6,0.67,0.67 FILE:b0:b:h_us:H_us ...

prints one JSON object with y of every tenant, STP and the window in seconds.
"""
import json
import sys

BETA = {1: 0.35, 0: 0.85, -1: 0.20}
SIGMA = 0.6
KAPPA = 0.10
# Instants closer than a picosecond are one.
SAME = 1e-3


def read(spec, sms):
    path, batch_from, batch_to, launch_us, host_us = spec.rsplit(":", 4)
    scale = float(batch_to) / float(batch_from)
    operators = []
    with open(path, encoding="utf-8") as lines:
        next(lines)
        for line in lines:
            line = line.strip()
            if not line:
                continue
            _, profile, _, wanted, duration = line.rsplit(",", 4)
            wanted, duration = float(wanted), float(duration)
            more = max(1.0, wanted * scale)
            duration *= max(1.0, more / sms) / max(1.0, wanted / sms)
            operators.append((duration, more, int(profile)))
    return {"operators": operators, "h": float(launch_us) * 1e3, "H": float(host_us) * 1e3}


def rates(flying, caps, sms, scheduler):
    """Speeds of the operators in flight, given as (tenant, sms wanted, class) in order of issue."""
    if scheduler == "slice":
        return [1.0 / len(flying)] * len(flying)
    demand = [min(wanted, caps[tenant]) for tenant, wanted, _ in flying]
    if scheduler == "fifo":
        given, left = [], sms
        for wish in demand:
            given.append(min(wish, left))
            left -= given[-1]
    else:
        fair = min(1.0, sms / sum(demand))
        given = [wish * fair for wish in demand]
    speed = []
    for (_, wanted, kind), part in zip(flying, given):
        width = min(wanted, sms)
        if kind == 0 and width >= SIGMA * sms:
            speed.append(min(1.0, part / (SIGMA * width)))
        else:
            speed.append(part / width)
    used = sum(BETA[kind] * r for (_, _, kind), r in zip(flying, speed))
    if used > 1.0:
        speed = [r * ((1 - BETA[kind]) + BETA[kind] / used) for (_, _, kind), r in zip(flying, speed)]
    running = sum(1 for r in speed if r > 0)
    return [r / (1 + KAPPA * min(running - (1 if r > 0 else 0), 2)) for r in speed]


def simulate(tenants, caps, sms, scheduler):
    """Operators completed by every tenant at the end of the window, and its length in ns."""
    count = len(tenants)
    done = [0] * count
    issue_at = [tenant["H"] for tenant in tenants]
    flying = {}
    now, window = 0.0, 1e9
    while True:
        order = sorted(flying, key=lambda i: (flying[i]["issued"], i))
        ops = []
        for i in order:
            duration, wanted, kind = flying[i]["op"]
            ops.append((i, wanted, kind))
        speed = dict(zip(order, rates(ops, caps, sms, scheduler))) if order else {}
        ends = {i: now + flying[i]["left"] * flying[i]["op"][0] / speed[i] for i in order if speed[i] > 0}
        waiting = {i: issue_at[i] for i in range(count) if i not in flying}
        nearest = min(list(ends.values()) + list(waiting.values()))
        while nearest > window + SAME:
            if min(d / len(t["operators"]) for d, t in zip(done, tenants)) >= 10:
                return done, window
            window *= 2
        for i in order:
            flying[i]["left"] -= (nearest - now) * speed[i] / flying[i]["op"][0]
        now = nearest
        for i in [i for i in order if i in ends and ends[i] <= now + SAME]:
            issued = flying.pop(i)["issued"]
            done[i] += 1
            last = done[i] % len(tenants[i]["operators"]) == 0
            issue_at[i] = now + tenants[i]["H"] if last else max(issued + tenants[i]["h"], now)
        for i in range(count):
            if i not in flying and issue_at[i] <= now + SAME:
                operators = tenants[i]["operators"]
                op = operators[done[i] % len(operators)]
                flying[i] = {"issued": now, "left": 1.0, "op": op}


def alone(tenant, window):
    """Operators completed alone on the whole GPU."""
    now, done = 0.0, 0
    while True:
        now += tenant["H"]
        for index, (duration, _, _) in enumerate(tenant["operators"]):
            if now + duration > window + SAME:
                return done
            done += 1
            last = index + 1 == len(tenant["operators"])
            now += duration if last else max(tenant["h"], duration)


def main():
    options = {"--sms": "80", "--scheduler": "fifo", "--v": ""}
    args, specs = sys.argv[1:], []
    while args:
        if args[0] in options:
            options[args[0]] = args[1]
            args = args[2:]
        else:
            specs.append(args.pop(0))
    sms = int(options["--sms"])
    tenants = [read(spec, sms) for spec in specs]
    budgets = [float(v) for v in options["--v"].split(",")] if options["--v"] else [1.0] * len(tenants)
    # A budget is given in millionths; half a millionth is forgiven, so that 0.333333 is a third.
    caps = [int((round(v * 1e6) * 2 + 1) * sms // 2_000_000) for v in budgets]
    caps = [min(cap, sms) for cap in caps]
    done, window = simulate(tenants, caps, sms, options["--scheduler"])
    y = [d / alone(tenant, window) for d, tenant in zip(done, tenants)]
    print(json.dumps({"y": y, "stp": sum(y), "window_s": window / 1e9}))


if __name__ == "__main__":
    main()
