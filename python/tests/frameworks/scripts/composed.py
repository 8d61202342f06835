"""A script with Composer's Trainer; the import and two arguments are Tandem's."""

import csv
import sys
import time

import torch
from composer import ComposerModel, Trainer
from composer.utils import dist, reproducibility

from tandem.integrations.composer import TandemCallback, load_path

STEPS, PAUSE_S = int(sys.argv[1]), 0.02


class Model(ComposerModel):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(8, 16), torch.nn.Dropout(0.1), torch.nn.Linear(16, 1)
        )

    def forward(self, batch):
        return self.layers(batch[0])

    def loss(self, outputs, batch):
        loss = ((outputs - batch[0].sum(1, keepdim=True)) ** 2).mean()
        with open("losses.csv", "a") as file:
            csv.writer(file).writerow([trainer.state.timestamp.batch.value + 1, repr(loss.item())])
        time.sleep(PAUSE_S)
        return loss


torch.set_num_threads(1)
reproducibility.seed_all(1)
data = torch.utils.data.TensorDataset(torch.randn(400, 8))
model = Model()
trainer = Trainer(
    model=model,
    # Composer continues in the middle of an epoch with samplers of its own.
    train_dataloader=torch.utils.data.DataLoader(
        data, batch_size=8, sampler=dist.get_sampler(data, shuffle=True)
    ),
    max_duration=f"{STEPS}ba",
    optimizers=torch.optim.Adam(model.parameters(), lr=0.01),
    device="cpu",
    progress_bar=False,
    seed=1,
    callbacks=[TandemCallback("checkpoints")],
    load_path=load_path("checkpoints"),
)
trainer.fit()
open("finished", "w").close()
