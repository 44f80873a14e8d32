"""Logs steps with a logger of its own and prints what it got."""

import json
import time

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.loggers.logger import DummyLogger

from gpufrag.integrations.lightning import memory_callback

logged = []


class Model(LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def training_step(self, batch, index):
        time.sleep(0.02)
        loss = self.layer(batch).sum()
        self.log("loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.01)


class Logger(DummyLogger):
    def log_metrics(self, metrics, step=None):
        logged.append(metrics)
        if "gpufrag/needed_bytes" in metrics:
            trainer.should_stop = True


data = torch.utils.data.DataLoader(torch.ones(5000, 4), batch_size=1)
quiet = {"enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False}
trainer = Trainer(
    accelerator="cpu", max_epochs=1, log_every_n_steps=1, logger=Logger(), callbacks=[memory_callback()], **quiet
)
trainer.fit(Model(), data)
print(json.dumps(logged))
