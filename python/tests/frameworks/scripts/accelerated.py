"""A loop with an Accelerator; two lines, and the name of the loader, are Tandem's."""

import csv
import sys
import time

import torch
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration, set_seed

from tandem.integrations.accelerate import Job

STEPS, PAUSE_S = int(sys.argv[1]), 0.02

torch.set_num_threads(1)
set_seed(1)
accelerator = Accelerator(
    cpu=True, dataloader_config=DataLoaderConfiguration(use_seedable_sampler=True)
)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Dropout(0.1), torch.nn.Linear(16, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
data = torch.utils.data.TensorDataset(torch.randn(320, 8))
loader = torch.utils.data.DataLoader(data, batch_size=8, shuffle=True)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
job = Job(accelerator, model, batch_size=8, accum=True, checkpoint="state")
for _ in range(STEPS // len(loader)):
    for (x,) in job.batches(loader):
        optimizer.zero_grad()
        total = 0.0
        for xs, w in job.split(x):
            loss = ((model(xs) - xs.sum(1, keepdim=True)) ** 2).mean() * w
            accelerator.backward(loss)
            total += loss.item()
        optimizer.step()
        if accelerator.is_main_process:
            with open("losses.csv", "a") as file:
                csv.writer(file).writerow([job.steps + 1, repr(total)])
        time.sleep(PAUSE_S)
open("finished", "w").close()
