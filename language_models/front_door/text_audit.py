"""An audit that accompanies one training of a language model: the class `dpaudit.TextAudit`."""

from __future__ import annotations

import contextlib
import inspect
import random
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from dpaudit.claims import Claim
from dpaudit.engine.request.build import build, build_dataclass
from dpaudit.errors import InputError, require
from dpaudit.estimators.extraction.sampling import Sampling
from dpaudit.field_checks import checked_argument, checked_methods, checked_path, refused_if_failing, type_hints
from dpaudit.language_models.canary_texts.canaries import Canaries
from dpaudit.language_models.canary_texts.loss_record import LossRecord, preflight
from dpaudit.language_models.front_door.estimating import ATTACKS, TextEstimate, estimate_text, text_statistics
from dpaudit.language_models.mechanisms.token_statistics import BATCH_TOKENS, TokenStatistics

CANARIES = "canaries.jsonl"
"""File of the canaries in the output folder."""
BEFORE = ("log_probability", "mean", "deviation")
"""Fields of the log-probabilities before training that a checkpoint holds."""
PREFLIGHT_BATCH = 64
"""Examples that the check before training collates at once."""
LATE = (
    "the training was resumed from a checkpoint that was saved without this audit: the loss before it is not recorded, "
    "and the model before training is {}"
)


@checked_methods
class TextAudit:
    """An audit of one training: it checks that canaries are trained on, scores them before and after, and answers.

        audit = dpaudit.TextAudit(canaries, claim=(8, 1e-5), output="runs/lora")
        trainer = SFTTrainer(model, args, train_dataset=canaries.into(dataset), callbacks=[audit.callback()])
        trainer.train()
        print(audit.result)

    Without a trainer: `with audit.of(model): train(model)`.

    Attributes:
        canaries: The canaries.
        record: Loss that the canaries received in this process so far.
        base: Log-probabilities of the secrets before training; None before it began.
        output: Folder for the canaries, their scores, the answer as JSON and the page; None for no folder.
    """

    def __init__(
        self,
        canaries: Canaries,
        *,
        claim: Claim | float | tuple[float, float] | str | None = None,
        output: str | Path | None = None,
        check_data: bool = True,
        sampling_rate: float | None = None,
        **options: Any,
    ) -> None:
        """Prepare the audit; nothing is written yet.

        Args:
            canaries: The canaries, which are planted with `canaries.into`. A resumed training, and each process of a
                distributed one, must load the same file of canaries.
            claim: As in `estimate_text`.
            output: Folder that is created. It must be new or empty, unless the training is resumed.
            check_data: Before training, look for all canaries in the batches of the data set, and stop if one of them
                would not be trained on as planned. It takes one pass over the data.
            sampling_rate: Rate of Poisson sampling that the accountant assumes, in (0, 1]; see `LossRecord`.
            options: Further arguments of `estimate_text`, such as `order` and `reference`.
        """
        inspect.signature(estimate_text).bind(None, None, canaries, claim=claim, training=None, **options)
        hints = type_hints(estimate_text)
        options = {name: checked_argument(name, value, hints[name]) for name, value in options.items()}
        self.canaries = canaries
        self._sampling_rate = sampling_rate
        self.record = LossRecord(canaries, sampling_rate=sampling_rate)
        self.base: TokenStatistics | None = None
        self.output = None if output is None else Path(checked_path("output", output))
        self._check_data = check_data
        if isinstance(options.get("sampling"), Mapping):
            options["sampling"] = build_dataclass(Sampling, options["sampling"], location="sampling")
        self._claim, self._options = claim, options
        self._handle: Any = None
        self._trained_model: Any = None
        self._result: TextEstimate | None = None
        self._whole: LossRecord | None = None
        self._late = ""

    @property
    def result(self) -> TextEstimate:
        """The answer. Raises: InputError before the training ended; the error that prevented the scoring."""
        if self._result is None:
            require(self._trained_model is not None, "the answer exists after the training", do="train first")
            self._score()
        assert self._result is not None
        return self._result

    @contextlib.contextmanager
    def of(
        self, model: Any, *, batches: Any = None, tokenizer: Any = None, optimizer: Any = None
    ) -> Iterator[TextAudit]:
        """Audit the training of a torch module inside the block; its labels must be arguments of the model.

        Args:
            model: The model that is trained in place.
            batches: A data loader of torch that is checked before the training; None for no check.
            tokenizer: As in `preflight`.
            optimizer: The optimizer that clips and adds noise, as in `LossRecord.of`.
        """
        self.begin(model, batches=batches, tokenizer=tokenizer, optimizer=optimizer)
        try:
            yield self
        except BaseException:
            self._stop_recording()
            raise
        self.end(model)

    def begin(
        self,
        model: Any,
        *,
        batches: Any = None,
        tokenizer: Any = None,
        optimizer: Any = None,
        resumed: bool = False,
    ) -> None:
        """Check the data, score the canaries before training, and record the batches from now on.

        Args:
            model: As in `of`.
            batches: As in `of`.
            tokenizer: As in `of`.
            optimizer: As in `of`.
            resumed: True if the training continues from a checkpoint; its `state` must have been restored.
        Raises: InputError if canaries would not be trained on as planned, or for an argument that does not fit.
        """
        require(
            len(set(from_all_processes(self.canaries.digest))) == 1,
            "all processes of a training must have the same canaries",
            do="save them once, and load the file in each process",
        )
        if _is_first_process():
            self._require_free_output(resumed)
        if self._check_data and batches is not None:
            self._require_trained_on(batches, tokenizer)
        if self._options.get("reference") is not None:
            self._options["reference"] = self._statistics(self._options["reference"])
        if self.base is None and not resumed:
            self.base = self._statistics(model)
            self._rehearse(self.base)
        elif self.base is None:
            self._late = LATE.format("that with the adapter off" if hasattr(model, "disable_adapter") else "unknown")
        self._stop_recording()  # a trainer that begins again with smaller batches has one already
        self._result = self._trained_model = self._whole = None
        self._handle = self.record.attach(model, optimizer)
        if self.output is not None and _is_first_process():
            self.output.mkdir(parents=True, exist_ok=True)
            if not (self.output / CANARIES).exists():
                self.canaries.save(self.output / CANARIES)

    def end(self, model: Any) -> None:
        """Score the canaries after training and write the folder.

        An error is a warning here, so that the trained model can still be saved; `result` tries again and raises it.
        """
        self._stop_recording()
        self.gather()
        self._trained_model = model
        try:
            self._score()
        except Exception as err:  # memory, disk or arguments: the caller's training is worth more
            warnings.warn(f"the canaries could not be scored; audit.result tries again: {err}", stacklevel=2)

    def gather(self) -> None:
        """Add the records of all processes of a distributed training; all of them must call it."""
        self._whole = gathered(self.record)

    @property
    def state(self) -> dict[str, Any]:
        """Record and log-probabilities before training as plain values for JSON; empty before the training began."""
        if self.base is None:
            return {}
        base = {name: getattr(self.base, name).tolist() for name in BEFORE}
        return {"record": (self._whole or self.record).state, "base": base}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from the `state` of a checkpoint, in place of the losses recorded here.

        Raises: InputError if it was saved with other canaries.
        """
        record, base = (state.get(name) for name in ("record", "base"))
        arrays = [_values(base, name) for name in BEFORE] if isinstance(base, Mapping) else []
        shape = (len(self.canaries.all_texts),)
        require(
            isinstance(record, Mapping) and bool(arrays) and all(part.shape[:1] == shape for part in arrays),
            "state must be that of a TextAudit of these canaries",
            do="take it from a checkpoint of this training",
        )
        assert isinstance(record, Mapping)
        require(
            record.get("canaries") == self.canaries.digest,
            "a training must be resumed with the canaries it began with",
            do=f"load them with `dpaudit.Canaries.load`; the output folder has them in {CANARIES}",
        )
        self.record = LossRecord(self.canaries, sampling_rate=self._sampling_rate)
        if _is_first_process():  # the state is that of all processes
            self.record.merge(record)
        log_probability, mean, deviation = arrays
        self.base = TokenStatistics(log_probability, mean, deviation)

    def callback(self) -> Any:
        """Return a `TrainerCallback` for the trainers of transformers and TRL, also of PEFT models.

        Raises: InputError without transformers.
        """
        return trainer_callback(self)

    def _stop_recording(self) -> None:
        if self._handle is not None:
            self._handle.remove()
            self._handle = None

    def _require_free_output(self, resumed: bool) -> None:
        if self.output is None or not self.output.exists():
            return
        advice = "name a new folder, or resume from a checkpoint"
        if not resumed and self._handle is None and self.base is None:
            free = self.output.is_dir() and not any(self.output.iterdir())
            require(free, "output must be a new or empty folder", do=advice, output=str(self.output))
        elif (self.output / CANARIES).exists():
            saved = Canaries.load(self.output / CANARIES)
            same = saved.digest == self.canaries.digest
            require(same, "output must hold the same canaries", do=advice, output=str(self.output))

    def _require_trained_on(self, batches: Any, tokenizer: Any) -> None:
        """Raise InputError if one pass over the data would not train on all planted canaries."""
        from torch.utils.data import DataLoader, IterableDataset

        require(
            isinstance(batches, DataLoader) or hasattr(batches, "collate_fn"),
            "batches must be a data loader of torch",
            given=type(batches).__name__,
        )
        dataset = batches.dataset
        if isinstance(dataset, IterableDataset):
            return  # a stream is read once
        with _unchanged_random_state():
            loader = DataLoader(dataset, PREFLIGHT_BATCH, collate_fn=batches.collate_fn, num_workers=0)
            blind = preflight(self.canaries, loader, tokenizer=tokenizer).blind
        if blind:
            raise InputError(
                "every planted canary must receive loss in one pass over the data, and no other one: "
                f"{blind}. Nothing was trained yet; mend the data, or pass check_data=False"
            )

    def _rehearse(self, base: TokenStatistics) -> None:
        """Raise the error of an unsuitable option now, not after hours of training.

        Attacks on the change of the weights are left out: there is none yet.
        """
        parts = [(build("text-attack", attack), attack) for attack in self._options.get("attacks", ATTACKS)]
        usable = [attack for part, attack in parts if "update" not in part.needs]
        later = {part.registered_name for part, _ in parts if "update" in part.needs}
        order = self._options.get("order")
        if usable:
            self._estimate(base, replace(base), attacks=usable, order=None if order in later else order, sampling=None)

    def _statistics(self, model: Any) -> TokenStatistics:
        if isinstance(model, TokenStatistics):
            return model
        return text_statistics(model, self.canaries, batch_tokens=self._options.get("batch_tokens", BATCH_TOKENS))

    def _estimate(self, model: Any, base: Any, training: LossRecord | None = None, **changes: Any) -> TextEstimate:
        options = {**self._options, **changes}
        return estimate_text(model, base, self.canaries, claim=self._claim, training=training, **options)

    def _score(self) -> None:
        """Score the trained model, and write the folder in the first process."""
        record = self._whole or self.record
        result = self._estimate(self._trained_model, self.base, record)
        if self._late:
            result = replace(result, notes=(*result.notes, self._late))
        if self.output is not None and _is_first_process():
            replace(result, scores=_scores(result, record)).write(self.output)
        self._result, self._trained_model = result, None


def _scores(result: TextEstimate, record: LossRecord) -> pa.Table:
    """Return the score table with the score of each attack, and how often each canary received loss."""
    table = result.scores
    canaries = table["canary"].to_numpy()
    for name, values in {"received": record.received, **result.attack_scores}.items():
        table = table.append_column(name, pa.array(values[canaries]))
    return table


def _values(base: Mapping[str, Any], name: str) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return log-probabilities of a checkpoint, shape (texts, longest span)."""
    with refused_if_failing(f"reading {name} of the state"):
        values = np.array(base[name], np.float64)
    require(values.ndim == 2, f"{name} of the state must have the shape (texts, tokens)", shape=values.shape)
    return values


def from_all_processes(value: Any) -> list[Any]:
    """Return the values of all processes of a distributed training, in the order of their ranks."""
    import torch.distributed as processes

    if not (processes.is_available() and processes.is_initialized()):
        return [value]
    values: list[Any] = [None] * processes.get_world_size()
    processes.all_gather_object(values, value)
    return values


def gathered(record: LossRecord) -> LossRecord:
    """Return the record of all processes of a distributed training; the record itself if there is one process."""
    states = from_all_processes(record.state)
    return record if len(states) == 1 else record.joined(states)


def _is_first_process() -> bool:
    import torch.distributed as processes

    return not (processes.is_available() and processes.is_initialized()) or processes.get_rank() == 0


@contextlib.contextmanager
def _unchanged_random_state() -> Iterator[None]:
    """Restore the random states that data sets and collators draw from, so that the check changes no training."""
    import torch

    python, numpy = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)


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
