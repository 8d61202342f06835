#!/usr/bin/env python3
"""A training script that shares its GPU well: trains a small network on generated data with torch.

    tandem submit -- python3 examples/python/train_torch.py --steps 500

Run by itself it is an ordinary script; `tandem.Job` then does nothing.
"""

import argparse
import os
import sys

try:
    import torch
except ImportError:
    sys.exit("train_torch.py: torch is not installed; pip install torch, or apt install python3-torch")
try:
    import tandem
except ImportError:
    sys.exit("train_torch.py: the module tandem is not installed; pip install ./python")

FEATURES, HIDDEN, CLASSES = 64, 256, 10


def batches(seed, size, first, last, device):
    """Generated data; the batch of a step follows from seed and step, so nothing has to be saved."""
    generator = torch.Generator().manual_seed(seed)
    typical = torch.randn(CLASSES, FEATURES, generator=generator)
    for step in range(first, last + 1):
        generator.manual_seed(seed * 1_000_003 + step)
        y = torch.randint(CLASSES, (size,), generator=generator)
        x = 0.5 * typical[y] + torch.randn(size, FEATURES, generator=generator)
        yield x.to(device), y.to(device)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--losses", metavar="FILE", help="CSV: step,loss,accum")
    parser.add_argument("--checkpoint", metavar="FILE", help="saved when stopped; continued if there")
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cpu":
        torch.set_num_threads(1)
    model = torch.nn.Sequential(
        torch.nn.Linear(FEATURES, HIDDEN), torch.nn.ReLU(), torch.nn.Linear(HIDDEN, CLASSES)
    ).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    loss_fn = torch.nn.CrossEntropyLoss()
    done = 0
    if args.checkpoint and os.path.exists(args.checkpoint):
        state = torch.load(args.checkpoint, map_location=device)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        done = state["step"]

    job = tandem.Job(batch_size=args.batch, steps_done=done)
    # A job that continues adds to its file.
    with open(args.losses or os.devnull, "a" if done else "w") as losses:
        if not done:
            losses.write("step,loss,accum\n")
        for x, y in job.batches(batches(args.seed, args.batch, done + 1, args.steps, device)):
            optimizer.zero_grad()
            total = 0.0
            for xs, ys, w in job.split(x, y):
                loss = loss_fn(model(xs), ys) * w
                loss.backward()
                total += loss.item()
            optimizer.step()
            losses.write(f"{job.steps + 1},{total!r},{job.accum}\n")
            if (job.steps + 1) % 50 == 0:
                print(f"step {job.steps + 1} loss {total:.6f}", flush=True)
    if job.stopping and args.checkpoint:
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        torch.save({**state, "step": job.steps}, args.checkpoint + ".new")
        os.replace(args.checkpoint + ".new", args.checkpoint)
    job.bye(done=job.steps >= args.steps)


if __name__ == "__main__":
    main()
