"""Two batches make one step. `python hosted.py train_lightning.py FOLDER [CHECKPOINT]`."""

import sys
import time

import torch
from lightning.pytorch import LightningModule, Trainer

from gpufrag.integrations.lightning import checkpoint_callback


class Model(LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def training_step(self, batch, index):
        time.sleep(0.005)
        return self.layer(batch).sum()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.01)


data = torch.utils.data.DataLoader(torch.ones(100_000, 4), batch_size=2)
quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False}
resumed = sys.argv[2] if len(sys.argv) > 2 else None
callback = checkpoint_callback(sys.argv[1])
steps = {"max_steps": torch.load(resumed, weights_only=False)["global_step"] + 2} if resumed else {"max_epochs": 1}
trainer = Trainer(accelerator="cpu", accumulate_grad_batches=2, callbacks=[callback], **steps, **quiet)
trainer.fit(Model(), data, ckpt_path=resumed)
print("ended at", trainer.global_step)
