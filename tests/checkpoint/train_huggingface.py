"""Two batches make one step. `python hosted.py train_huggingface.py FOLDER [CHECKPOINT]`."""

import sys
import time

import torch
from transformers import Trainer, TrainingArguments

from gpufrag.integrations.huggingface import checkpoint_callback


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def forward(self, x):
        time.sleep(0.005)
        return {"loss": self.layer(x).sum()}


resumed = sys.argv[2] if len(sys.argv) > 2 else None
steps = int(resumed.rpartition("-")[2]) + 2 if resumed else 10_000
arguments = TrainingArguments(
    sys.argv[1],
    max_steps=steps,
    per_device_train_batch_size=2,
    gradient_accumulation_steps=2,
    use_cpu=True,
    report_to=[],
    disable_tqdm=True,
    save_strategy="no",
    logging_strategy="no",
)
trainer = Trainer(Model(), arguments, train_dataset=[{"x": torch.ones(4)} for _ in range(1000)])
trainer.add_callback(checkpoint_callback(trainer))
trainer.train(resume_from_checkpoint=resumed)
print("ended at", trainer.state.global_step)
