"""A loop of one's own with tandem.Job."""

import csv
import os
import sys
import time

import torch

import tandem

STEPS, PAUSE_S = int(sys.argv[1]), 0.02

torch.set_num_threads(1)
torch.manual_seed(1)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
done = 0
if os.path.exists("state.pt"):
    state = torch.load("state.pt", weights_only=True)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    torch.set_rng_state(state["random"])
    done = state["step"]
job = tandem.Job(batch_size=32, steps_done=done)
for x in job.batches(torch.randn(32, 8) for _ in range(done, STEPS)):
    optimizer.zero_grad()
    random = torch.get_rng_state()
    total = 0.0
    for xs, w in job.split(x):
        loss = ((model(xs) - xs.sum(1, keepdim=True)) ** 2).mean() * w
        loss.backward()
        total += loss.item()
    optimizer.step()
    with open("losses.csv", "a") as file:
        csv.writer(file).writerow([job.steps + 1, repr(total), job.accum])
    time.sleep(PAUSE_S)
if job.stopping:
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    torch.save({**state, "random": random, "step": job.steps}, "state.new")
    os.replace("state.new", "state.pt")
job.bye(done=job.steps >= STEPS)
