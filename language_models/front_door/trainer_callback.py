"""The callback of an audit for the trainers of transformers and TRL."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dpaudit.errors import InputError, require

NAME = "DpauditCallback"
"""Name under which the trainer saves the state of the audit in `trainer_state.json` of each checkpoint."""


def trainer_callback(audit: Any) -> Any:
    """Return the `TrainerCallback` of an audit; see `TextAudit.callback`.

    The state of the audit is saved in each checkpoint, and a resumed training goes on from there.

    Args:
        audit: A `TextAudit`.
    Raises: InputError without transformers.
    """
    try:
        from transformers import TrainerCallback
        from transformers.trainer_callback import ExportableState
    except ImportError as err:
        raise InputError(
            "the callback needs the package transformers; install it with `pip install dpaudit[finetuning]`"
        ) from err

    class DpauditCallback(TrainerCallback, ExportableState):
        """Runs the audit at the events of a training."""

        def on_train_begin(
            self,
            args: Any,
            state: Any,
            control: Any,
            model: Any = None,
            processing_class: Any = None,
            train_dataloader: Any = None,
            optimizer: Any = None,
            **more: Any,
        ) -> None:
            require(
                not args.label_smoothing_factor,
                "label smoothing keeps the labels from the model, so that masks cannot be seen",
                do="set label_smoothing_factor=0",
                label_smoothing_factor=args.label_smoothing_factor,
            )
            saved = _saved(state.stateful_callbacks, audit.canaries.digest)
            if state.global_step > 0 and saved:
                audit.restore(saved)
            audit.begin(
                model,
                batches=train_dataloader,
                tokenizer=processing_class,
                optimizer=optimizer,
                resumed=state.global_step > 0,
            )
            # The trainer updates the states that a checkpoint had, and one without this audit had none.
            state.stateful_callbacks.setdefault(NAME, self.state())

        def on_step_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
            if control.should_save:
                audit.gather()

        def on_epoch_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
            if control.should_save:
                audit.gather()

        def on_evaluate(self, args: Any, state: Any, control: Any, **more: Any) -> None:
            audit.gather()  # the best model so far may be saved next

        def on_train_end(self, args: Any, state: Any, control: Any, model: Any = None, **more: Any) -> None:
            audit.end(model)

        def state(self) -> dict[str, Any]:
            return {"args": {}, "attributes": {"saved": audit.state}}

    return DpauditCallback()


def _saved(states: Mapping[str, Any], digest: str) -> Mapping[str, Any]:
    """Return the state of the audit of these canaries, the last one saved; that of any other, or {} without one.

    The trainer keeps a list where it has several callbacks of one name.
    """
    entries = states.get(NAME, [])
    entries = entries if isinstance(entries, list) else [entries]
    saved = [entry["attributes"]["saved"] for entry in entries]
    saved = [state for state in saved if state]
    matching = [state for state in saved if state["record"]["canaries"] == digest]
    return next(reversed(matching or saved), {})
