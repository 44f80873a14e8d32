"""For Hugging Face's Trainer: `trainer.add_callback(checkpoint_callback(trainer))`.

It saves as the Trainer itself does, so `train(resume_from_checkpoint=True)` continues from there.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gpufrag

from ..checkpoint.participant import CheckpointRequest


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
