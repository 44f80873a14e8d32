"""Logs four steps and prints the log; the first metrics of an analysis come some steps later."""

import json
import sys
import time

import torch
from transformers import Trainer, TrainerCallback, TrainingArguments

from gpufrag.integrations.huggingface import log_memory


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def forward(self, x):
        time.sleep(0.02)
        return {"loss": self.layer(x).sum()}


logged = []


class Reports(TrainerCallback):
    """As the callbacks of W&B and others, which the Trainer adds first."""

    def on_log(self, args, state, control, logs=None, **more):
        logged.append(dict(logs))
        if "gpufrag/needed_bytes" in logs:
            control.should_training_stop = True


arguments = TrainingArguments(
    sys.argv[1], max_steps=5000, per_device_train_batch_size=1, logging_steps=1, use_cpu=True, report_to=[],
    disable_tqdm=True, save_strategy="no",
)  # fmt: skip
data = [{"x": torch.ones(4)} for _ in range(5000)]
trainer = Trainer(Model(), arguments, train_dataset=data, callbacks=[Reports()])
log_memory(trainer)
trainer.train()
print(json.dumps([each for each in logged if "loss" in each]))
