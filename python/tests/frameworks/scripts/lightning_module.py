"""A script with Lightning's Trainer; two lines are Tandem's."""

import csv
import logging
import sys
import time
import warnings

import lightning as L
import torch

from tandem.integrations.lightning import attach

STEPS, PAUSE_S = int(sys.argv[1]), 0.02
# With two ranks the random numbers of one of them are lost at a stop: no dropout then.
RANKS = int(sys.argv[2])
warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class Model(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(8, 16),
            torch.nn.Dropout(0.1 if RANKS == 1 else 0.0),
            torch.nn.Linear(16, 1),
        )

    def training_step(self, batch, index):
        (x,) = batch
        loss = ((self.layers(x) - x.sum(1, keepdim=True)) ** 2).mean()
        if self.trainer.is_global_zero:
            with open("losses.csv", "a") as file:
                csv.writer(file).writerow([self.global_step + 1, repr(loss.item())])
        time.sleep(PAUSE_S)
        return loss

    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.parameters(), lr=0.01)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.9)
        return [optimizer], [scheduler]


torch.set_num_threads(1)
L.seed_everything(1)
data = torch.utils.data.TensorDataset(torch.randn(400, 8))
loader = torch.utils.data.DataLoader(data, batch_size=8, shuffle=True)
trainer = L.Trainer(
    max_steps=STEPS,
    accelerator="cpu",
    devices=RANKS,
    strategy="ddp" if RANKS > 1 else "auto",
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
attach(trainer)
trainer.fit(Model(), loader)
open("finished", "w").close()
