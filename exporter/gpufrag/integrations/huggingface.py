"""For Hugging Face's Trainer: `trainer.add_callback(checkpoint_callback(trainer))`, `log_memory(trainer)`.

The checkpoint is saved as the Trainer itself does it, so `train(resume_from_checkpoint=True)` continues from there.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gpufrag

from ..checkpoint.participant import CheckpointRequest
from .training_metrics import TrainingMetrics


def checkpoint_callback(trainer: Any) -> Any:
    """Return a TrainerCallback for this Trainer. Needs transformers."""
    from transformers import TrainerCallback

    def save(request: CheckpointRequest) -> str:
        trainer._save_checkpoint(trainer.model, trial=None)
        return str(Path(trainer.args.output_dir) / f"checkpoint-{request.step}")

    class CheckpointCallback(TrainerCallback):  # type: ignore[misc]
        def on_train_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
            gpufrag.on_checkpoint(save)

        def on_step_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
            """After the scheduler's and the optimizer's step, once for all accumulated batches."""
            gpufrag.step_ended(state.global_step)

    return CheckpointCallback()


def log_memory(trainer: Any, *, prefix: str = "gpufrag/", analyse: bool = True) -> None:
    """Add this process's memory metrics to every line that the Trainer logs. Needs transformers.

    The Trainer sends them where it reports to (W&B, TensorBoard, MLflow). TrainingMetrics.values lists the names.
    """
    from transformers import TrainerCallback

    metrics = TrainingMetrics(prefix, analyse)

    class MemoryCallback(TrainerCallback):  # type: ignore[misc]
        def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **more: Any) -> None:
            if logs is not None:
                logs.update(metrics.values())

        def on_train_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
            metrics.close()

    # before the callbacks that report what is logged
    trainer.callback_handler.callbacks.insert(0, MemoryCallback())
