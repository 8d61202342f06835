"""A training script that knows nothing of Tandem: saves a checkpoint on SIGUSR1, continues from it."""

import csv
import os
import signal
import sys
import time

import torch

STEPS, PAUSE_S = int(sys.argv[1]), 0.02
stopping = []
signal.signal(signal.SIGUSR1, lambda *_: stopping.append(1))

torch.set_num_threads(1)
torch.manual_seed(1)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Dropout(0.1), torch.nn.Linear(16, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
done = 0
if os.path.exists("state.pt"):
    state = torch.load("state.pt", weights_only=True)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    torch.set_rng_state(state["random"])
    done = state["step"]
with open("losses.csv", "a") as file:
    for step in range(done + 1, STEPS + 1):
        x = torch.randn(32, 8)
        loss = ((model(x) - x.sum(1, keepdim=True)) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        csv.writer(file).writerow([step, repr(loss.item())])
        file.flush()
        if stopping:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save({**state, "random": torch.get_rng_state(), "step": step}, "state.new")
            os.replace("state.new", "state.pt")
            sys.exit()
        time.sleep(PAUSE_S)
