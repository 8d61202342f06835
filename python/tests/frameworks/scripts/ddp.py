"""Two ranks with DistributedDataParallel over gloo, started by torchrun."""

import csv
import os
import sys
import time

import torch
import torch.distributed as dist

from tandem.integrations.torch import Job

STEPS, PAUSE_S = int(sys.argv[1]), 0.02

torch.set_num_threads(1)
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(1)
network = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
model = torch.nn.parallel.DistributedDataParallel(network)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
done = 0
if os.path.exists("state.pt"):
    state = torch.load("state.pt", weights_only=True)
    network.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    done = state["step"]


def batches():
    for step in range(done, STEPS):
        # Every rank has batches of its own, of a size that no number of parts divides evenly.
        generator = torch.Generator().manual_seed(step * 2 + rank)
        x = torch.randn(15, 8, generator=generator)
        yield x, x.sum(1, keepdim=True)


job = Job(batch_size=15, steps_done=done, model=model)
for x, y in job.batches(batches()):
    optimizer.zero_grad()
    total = torch.zeros(())
    for xs, ys, w in job.split(x, y):
        loss = ((model(xs) - ys) ** 2).mean() * w
        loss.backward()
        total += loss.detach()
    optimizer.step()
    dist.all_reduce(total)
    if rank == 0:
        with open("losses.csv", "a") as file:
            csv.writer(file).writerow([job.steps + 1, repr(total.item() / 2), job.accum])
    time.sleep(PAUSE_S)
if job.stopping and rank == 0:
    state = {"model": network.state_dict(), "optimizer": optimizer.state_dict()}
    torch.save({**state, "step": job.steps}, "state.new")
    os.replace("state.new", "state.pt")
dist.barrier()
job.bye(done=job.steps >= STEPS)
dist.destroy_process_group()
if rank == 0 and job.steps >= STEPS:
    open("finished", "w").close()
