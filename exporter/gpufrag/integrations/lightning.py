"""For Lightning: `Trainer(…, callbacks=[checkpoint_callback("checkpoints"), memory_callback()])`.

The checkpoint is saved with `trainer.save_checkpoint`, under every strategy; `trainer.fit(…, ckpt_path=PATH)` continues
from there.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gpufrag

from ..checkpoint.participant import CheckpointRequest
from .training_metrics import TrainingMetrics


def checkpoint_callback(folder: str | Path) -> Any:
    """Return a Callback that saves into `folder`. Needs lightning."""
    from lightning.pytorch import Callback

    class CheckpointCallback(Callback):  # type: ignore[misc]
        def __init__(self) -> None:
            self.seen = -1

        def on_train_start(self, trainer: Any, pl_module: Any) -> None:
            def save(request: CheckpointRequest) -> str:
                path = str(Path(folder) / f"step-{request.step}.ckpt")
                trainer.save_checkpoint(path)
                return path

            gpufrag.on_checkpoint(save)

        def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
            """With accumulated gradients most batches end no step."""
            if trainer.global_step != self.seen:
                self.seen = trainer.global_step
                gpufrag.step_ended(self.seen)

    return CheckpointCallback()


def memory_callback(*, prefix: str = "gpufrag/", analyse: bool = True) -> Any:
    """Return a Callback that logs this process's memory metrics with the loss. Needs lightning.

    The Trainer's loggers get them every `log_every_n_steps`. TrainingMetrics.values lists the names.
    """
    from lightning.pytorch import Callback

    metrics = TrainingMetrics(prefix, analyse)

    class MemoryCallback(Callback):  # type: ignore[misc]
        def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
            values = metrics.values()
            if values:
                pl_module.log_dict(values, on_step=True, on_epoch=False)

        def on_train_end(self, trainer: Any, pl_module: Any) -> None:
            metrics.close()

    return MemoryCallback()
