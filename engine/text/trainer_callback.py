"""A callback for the Trainer of transformers that records which canaries receive loss."""

from __future__ import annotations

from typing import Any

from dpaudit.engine.games.text.loss_record import LossRecord
from dpaudit.errors import InputError


def trainer_callback(record: LossRecord) -> Any:
    """Return a `TrainerCallback` that records every batch of the training in `record`.

        record = dpaudit.LossRecord(canaries)
        trainer = Trainer(model, args, train_dataset=dataset, callbacks=[dpaudit.trainer_callback(record)])
        trainer.train()
        dpaudit.estimate_text(model, base, canaries, training=record)

    The labels must be arguments of the model, as the collators of transformers make them. Each process of a distributed
    training records its own batches only.

    Raises: InputError without transformers.
    """
    try:
        from transformers import TrainerCallback
    except ImportError as err:
        raise InputError("this needs the package transformers; install it with `pip install dpaudit[text]`") from err

    class RecordLoss(TrainerCallback):
        """Records the batches between the begin and the end of a training."""

        handle: Any = None

        def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **more: Any) -> None:
            self.handle = record.attach(model)

        def on_train_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
            if self.handle is not None:
                self.handle.remove()
                self.handle = None

    return RecordLoss()
