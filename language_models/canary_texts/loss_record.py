"""The loss that canaries received in training: a record of the batches that reached the model.

A canary that receives no loss is the commonest cause of a false comfort: its tokens are masked, cut off, packed away,
dropped as a duplicate, or changed by a chat template. `LossRecord` looks for the secret tokens in every batch, and at
the labels on them. It sees batches through the model itself (`of`), a data loader (`around`), a collator
(`collating`), or one by one (`add`).
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest
from types import MethodType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpaudit.engine.observer.batch_sampling import BatchSampling, by_step
from dpaudit.errors import InputError, require
from dpaudit.field_checks import checked_argument, checked_methods, refused_if_failing, whole_numbers
from dpaudit.language_models.canary_texts.canaries import Canaries
from dpaudit.language_models.canary_texts.weight_changes import WeightChanges
from dpaudit.language_models.mechanisms.fine_tuning.records import NO_LOSS

MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)  # odd, so that it mixes all bits
SHORTEST_CUT = 3
"""Number of first tokens of a text by which a sequence that ends inside the text is recognised."""
LISTED = 5  # canaries named in a sentence


@dataclass(frozen=True)
class NoLoss:
    """A planted canary that was not trained on as planned, or another one that was trained on.

    Attributes:
        canary: Number of the canary.
        reason: A key of `REASONS`.
    """

    canary: int
    reason: str


REASONS: Mapping[str, str] = {
    "masked": "the labels of the secret were masked (a mask of prompts, or of tokens that are also padding)",
    "first": "the secret began at the first token of a sequence, which receives no loss (packing)",
    "labels": "the labels on the secret were other tokens",
    "cut": "a sequence ended before the end of the secret (truncation or packing)",
    "retokenised": "the text arrived as other tokens (chat template, or another tokenizer)",
    "absent": "the text never arrived (filtered, removed as a duplicate, or training ended before it)",
    "rare": "fewer copies than `repeat` received loss (duplicates were removed)",
    "not planted": "a canary that was kept out was trained on (the training data are not those of `into`)",
}
"""Explanations of the reasons, in the order in which they are looked for."""
EVENTS = ("masked", "first", "labels", "cut", "retokenised")
"""Reasons that are seen in a batch."""


@checked_methods
class LossRecord:
    """Counts how often each canary received loss on all tokens of its secret.

    record = LossRecord(canaries)
    with record.of(model):
        trainer.train()
    dpaudit.estimate_text(model, base, canaries, training=record)
    """

    def __init__(
        self,
        canaries: Canaries,
        *,
        tokenizer: Any = None,
        shifted: bool = False,
        sampling_rate: float | None = None,
    ) -> None:
        """Start an empty record.

        Args:
            canaries: The canaries.
            tokenizer: Tokenizer of the batches; with it, texts that arrive as other tokens are recognised.
            shifted: True if the label at a place is the next token; False if it is the token at this place, as in
                transformers, whose models shift the labels.
            sampling_rate: Probability with which a record joins a step, as the accountant assumes it, in (0, 1]; with
                it, a training that uses records more or less often is reported. None: not stated.
        """
        require(
            sampling_rate is None or 0 < sampling_rate <= 1,
            "sampling_rate must be in (0, 1]",
            do="give the rate of a step",
            sampling_rate=sampling_rate,
        )
        self.canaries = canaries
        self.batches = 0
        self.tokens = 0
        """Tokens that received loss."""
        self._tokenizer = tokenizer
        self._shifted = shifted
        self._owner = np.array([canary for canary, _ in canaries.all_texts])
        self._texts = [text for _, text in canaries.all_texts]
        secrets = [text.secret_tokens for text in self._texts]
        self._secrets = _Sequences.by_length(secrets)
        self._starts: dict[tuple[int, ...], list[int]] = {}
        self._planted = canaries.planted[self._owner]
        for row in np.flatnonzero(self._planted).tolist():
            text = self._texts[row]
            # A cut is recognised by so many first tokens of the text.
            for end in range(min(max(SHORTEST_CUT, text.start // 2), text.stop - 1), text.stop):
                self._starts.setdefault(text.tokens[:end], []).append(row)
        self._start_lengths = sorted({len(start) for start in self._starts})
        self._received = np.zeros(len(self._texts), dtype=np.int64)
        self._events: dict[str, NDArray[np.bool_]] = {
            reason: np.zeros(len(self._texts), dtype=np.bool_) for reason in EVENTS
        }
        self._without_labels = False
        self._sampling_rate = sampling_rate
        self._sizes: list[int] = []
        self._times: list[tuple[int, int]] = []
        self._known_sampling: BatchSampling | None = None
        self._weights: WeightChanges | None = None
        self._first_step = 0

    @property
    def steps(self) -> int:
        """Number of steps with a batch: those of the optimizer, if it was given; else of batches."""
        return len(self._sizes)

    @property
    def received(self) -> NDArray[np.int64]:
        """Number of times that each canary received loss on its whole secret, shape (canaries,).

        Of several texts the one with the smallest number counts.
        """
        smallest = np.full(len(self.canaries), np.iinfo(np.int64).max)
        np.minimum.at(smallest, self._owner, self._received)
        return smallest

    @property
    def epochs(self) -> float:
        """Median number of times that each copy of a planted canary received loss."""
        by_copy = (self.received / self.canaries.repeat)[self.canaries.planted]
        return float(np.median(by_copy)) if by_copy.size else 0.0

    def add(self, batch: Any, labels: Any = None) -> None:
        """Add a batch: a mapping with "input_ids" and "labels", or arrays of tokens and of labels.

        Arrays have the shape (sequences, tokens), or (tokens,) for one sequence; lists may have different lengths.
        """
        if isinstance(batch, Mapping) or isinstance(getattr(batch, "keys", None), MethodType):
            require(
                "input_ids" in batch,
                "a batch must have input_ids",
                do="record the batches of the tokenized data set",
                columns=", ".join(map(str, batch.keys())),
            )
            labels = batch["labels"] if labels is None and "labels" in batch else labels
            batch = batch["input_ids"]
        rows, label_rows = _rows("tokens", batch), None if labels is None else _rows("labels", labels)
        require(
            label_rows is None or len(rows) == len(label_rows),
            "a batch must have labels for each sequence",
            sequences=len(rows),
            labels=len(label_rows or ()),
        )
        self._without_labels |= label_rows is None
        # Number of the step to which the batch belongs.
        watched = self._weights if self._weights is not None and self._weights.has_optimizer else None
        step = len(self._sizes) if watched is None else self._first_step + watched.steps
        self._sizes += [0] * (step + 1 - len(self._sizes))
        self._known_sampling = None
        self.batches += 1
        for place, tokens in enumerate(rows):
            row_labels = tokens if label_rows is None else label_rows[place]
            if len(tokens) != len(row_labels):
                raise InputError(f"labels must have the shape of the tokens, got {len(row_labels)} of {len(tokens)}")
            if label_rows is not None and self._shifted:  # labels at the place of their own token
                row_labels = np.append(NO_LOSS, row_labels[:-1])
            self._add_sequence(tokens, row_labels, step)
        if self._tokenizer is not None:
            self._find_text(rows)

    def _add_sequence(self, tokens: NDArray[np.int64], labels: NDArray[np.int64], step: int) -> None:
        with_loss = int(np.count_nonzero(labels[1:] != NO_LOSS))
        self.tokens += with_loss
        self._sizes[step] += with_loss > 0
        for sequences in self._secrets:
            for row, place in sequences.occurrences(tokens):
                span = slice(place, place + sequences.length)
                if (labels[span] == NO_LOSS).any():
                    self._events["masked"][row] = True
                elif place == 0:
                    self._events["first"][row] = True
                elif (labels[span] != tokens[span]).any():
                    self._events["labels"][row] = True
                else:
                    self._received[row] += 1
                    self._times.append((step, row))
        used = np.flatnonzero(labels != NO_LOSS)
        for tail in {len(tokens), int(used[-1]) + 1 if used.size else 0}:  # with and without padding
            last = tuple(tokens[max(0, tail - self._start_lengths[-1]) : tail].tolist())
            for length in self._start_lengths:
                if rows := self._starts.get(last[-length:]):
                    self._events["cut"][rows] = True

    def _find_text(self, rows: Sequence[NDArray[np.int64]]) -> None:
        """Look for secrets whose tokens did not arrive in the text of the batch."""
        with refused_if_failing("`decode` of the tokenizer"):
            written = "\n".join(str(self._tokenizer.decode(row[row >= 0].tolist())) for row in rows)
        for row in np.flatnonzero(self._planted & (self._received == 0)):
            if self._texts[row].secret.strip() in written:
                self._events["retokenised"][row] = True

    @contextlib.contextmanager
    def of(self, model: Any, optimizer: Any = None) -> Iterator[LossRecord]:
        """Record every batch that a torch module receives in training mode, until the block ends.

            with record.of(model, optimizer):
                train(model, dataset)

        The labels must be arguments of the model, as in transformers. Batches in evaluation mode or without gradients
        are not recorded. The parameters at the end of the block are compared with those at its beginning.

        Args:
            model: The model that the training calls.
            optimizer: The optimizer that clips and adds noise, of torch or Opacus. With it, parameters that change
                outside of it, gradients without noise, and steps of several batches are seen.
        """
        handle = self.attach(model, optimizer)
        try:
            yield self
        finally:
            handle.remove()

    def attach(self, model: Any, optimizer: Any = None) -> Any:
        """Start recording the batches of a torch module, as `of`; return a handle whose `remove` ends it."""
        import torch

        require(isinstance(model, torch.nn.Module), "model must be a torch module", given=type(model).__name__)

        def hook(module: Any, positional: tuple[Any, ...], named: dict[str, Any]) -> None:
            if module.training and torch.is_grad_enabled():
                tokens = named.get("input_ids", positional[0] if positional else None)
                if tokens is not None:
                    self.add(tokens, named.get("labels"))

        self._first_step = len(self._sizes)
        self._weights = WeightChanges(model, optimizer)
        return _Handles(model.register_forward_pre_hook(hook, with_kwargs=True), self._weights)

    def around(self, batches: Iterable[Any]) -> Iterator[Any]:
        """Yield the batches unchanged and record each."""
        for batch in _iterated(batches):
            self.add(batch)
            yield batch

    def collating(self, collate: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Return a collator that records each batch it makes; it must run in this process (`num_workers=0`)."""

        require(callable(collate), "collate must be a function", given=type(collate).__name__)

        def collate_and_record(examples: Any) -> Any:
            batch = collate(examples)
            self.add(batch)
            return batch

        return collate_and_record

    @property
    def state(self) -> dict[str, Any]:
        """Counts as plain values for JSON; `merge` adds them to a record."""
        return {
            "canaries": self.canaries.digest,
            "batches": self.batches,
            "tokens": self.tokens,
            "received": self._received.tolist(),
            "without_labels": self._without_labels,
            "events": {reason: np.flatnonzero(rows).tolist() for reason, rows in self._events.items()},
            "sizes": self._sizes,
            "times": self._times,
        }

    def merge(self, other: LossRecord | Mapping[str, Any]) -> None:
        """Add a record of the same training, or its `state`: that of another process, or of the part before a resume.

        Steps with the same number are one step. So the part before a resume must be added before the next batch.

        Raises: InputError if it is about other canaries.
        """
        state = other.state if isinstance(other, LossRecord) else _checked_state(other, len(self._texts))
        require(state["canaries"] == self.canaries.digest, "the records must be about the same canaries")
        self.batches += state["batches"]
        self.tokens += state["tokens"]
        self._received += np.array(state["received"], dtype=np.int64)
        self._without_labels |= state["without_labels"]
        for reason, rows in state["events"].items():
            self._events[reason][list(rows)] = True
        self._sizes = [sum(sizes) for sizes in zip_longest(self._sizes, state["sizes"], fillvalue=0)]
        self._times += [(step, row) for step, row in state["times"]]
        self._known_sampling = None

    def joined(self, states: Iterable[Mapping[str, Any]]) -> LossRecord:
        """Return the record of all processes of a training from their `state`, with the weights watched in this one."""
        whole = LossRecord(self.canaries, sampling_rate=self._sampling_rate)
        whole._weights = self._weights
        for state in _iterated(states):
            whole.merge(state)
        return whole

    @property
    def problems(self) -> list[NoLoss]:
        """Canaries that were not trained on as planned, one reason each.

        Canaries that Poisson sampling never drew are no problem.
        """
        received, problems, sampling = self.received, [], self._sampling()
        without_loss = {reason: self._owner[rows & (self._received == 0)] for reason, rows in self._events.items()}
        for canary, (planted, count) in enumerate(zip(self.canaries.planted, received.tolist(), strict=True)):
            if planted and count == 0:
                reason = next((name for name, owners in without_loss.items() if canary in owners), "absent")
                if reason != "absent" or not sampling.explains_missing_texts:
                    problems.append(NoLoss(canary, reason))
            elif planted and count < self.canaries.repeat[canary]:
                if not sampling.explains_missing_texts:
                    problems.append(NoLoss(canary, "rare"))
            elif not planted and self._received[self._owner == canary].any():
                problems.append(NoLoss(canary, "not planted"))
        return problems

    def _sampling(self) -> BatchSampling:
        """Return the steps in which the texts of planted canaries received loss."""
        if self._known_sampling is None:
            copies = np.where(self.canaries.planted, self.canaries.repeat, 0)[self._owner]
            self._known_sampling = by_step(self._times, self._sizes, copies)
        return self._known_sampling

    @property
    def remarks(self) -> list[str]:
        """Sentences on batches and parameters that a claim of differential privacy may not allow.

        They are no part of the verdict: the record does not know what the accountant assumed.
        """
        sampling = self._sampling()
        absent = self.canaries.planted & (self.received == 0)
        absent[[problem.canary for problem in self.problems]] = False
        missed = np.count_nonzero(absent)
        by_chance = (
            [f"{missed} planted canaries were never drawn, as Poisson sampling leaves out some"] if missed else []
        )
        weights = [] if self._weights is None else self._weights.remarks
        return [*by_chance, *sampling.remarks(self._sampling_rate), *weights]

    @property
    def without_noise(self) -> str:
        """Sentences on steps whose gradients held no noise, which no finite epsilon allows; "" if none was seen."""
        return "" if self._weights is None else "; ".join(self._weights.without_noise)

    def remarks_on(self, model: Any) -> list[str]:
        """Return the remarks, and whether a torch module has other weights than those at the end of the training."""
        unlike = "" if self._weights is None else self._weights.unlike(model)
        return [*self.remarks, *([unlike] if unlike else [])]

    @property
    def blind(self) -> str:
        """Reason why the training cannot be judged by these canaries; "" if every planted canary received loss."""
        if self.batches == 0:
            return "the record of the training holds no batch: record the batches that reach the model"
        if self._without_labels:
            return "batches without labels were recorded, so masks cannot be seen: record tokens with their labels"
        problems = self.problems
        by_reason = Counter(problem.reason for problem in problems)
        sentences = []
        for reason in REASONS:
            if reason in by_reason:
                numbers = [str(problem.canary) for problem in problems if problem.reason == reason]
                listed = ", ".join(numbers[:LISTED]) + (", ..." if len(numbers) > LISTED else "")
                sentences.append(f"{len(numbers)} of {len(self.canaries)} canaries ({listed}): {REASONS[reason]}")
        if not sentences and self._weights is not None and self._weights.nothing_changed:
            return "no parameter of the recorded model changed: the training changed another model, or none"
        return "; ".join(sentences)

    def blind_to(self, model: Any) -> str:
        """Return the reason why the training cannot be judged by the scores of this model; "" if it can be."""
        if not self.blind and self._weights is not None and self._weights.is_untrained(model):
            return "the scored model has the weights from before the training: score the model that was trained"
        return self.blind

    @property
    def summary(self) -> str:
        """Number of planted canaries that received loss, and the reasons of those that did not."""
        planted = int(self.canaries.planted.sum())
        trained = int(np.count_nonzero(self.received[self.canaries.planted]))
        has_optimizer = self._weights is not None and self._weights.has_optimizer
        in_steps = f" in {self.steps} steps" if has_optimizer else ""
        first = (
            f"{trained} of {planted} planted canaries received loss on their whole secret, {self.epochs:g} time(s) a "
            f"copy (median); {self.batches} batches{in_steps}"
        )
        return f"{first}. {self.blind}" if self.blind else first

    def __str__(self) -> str:
        return "\n".join([self.summary, *self.remarks])


@dataclass(frozen=True)
class _Handles:
    """Ends a recording."""

    batches: Any
    weights: WeightChanges

    def remove(self) -> None:
        """Stop recording batches, and compare the parameters."""
        self.batches.remove()
        self.weights.end()


def preflight(canaries: Canaries, batches: Iterable[Any], *, tokenizer: Any = None) -> LossRecord:
    """Return the record of the loss that one pass over the batches gives to the canaries, before any training.

        print(dpaudit.preflight(canaries, loader, tokenizer=tokenizer))

    Args:
        canaries: The canaries.
        batches: Batches as the model receives them, such as the data loader of the training.
        tokenizer: Tokenizer of the batches; with it, texts that arrive as other tokens are recognised.
    """
    record = LossRecord(canaries, tokenizer=tokenizer)
    for batch in _iterated(batches):
        record.add(batch)
    return record


def _iterated(batches: Iterable[Any]) -> Iterator[Any]:
    with refused_if_failing("reading batches or states one after another"):
        return iter(batches)


def _rows(name: str, values: Any) -> list[NDArray[np.int64]]:
    """Return the sequences of a batch. Raises: InputError unless they are whole numbers in one or two dimensions."""
    ragged = isinstance(values, Sequence) and len(values) > 0 and all(hasattr(row, "__len__") for row in values)
    rows = [whole_numbers(name, row) for row in values] if ragged else [*np.atleast_2d(whole_numbers(name, values))]
    require(all(row.ndim == 1 for row in rows), f"{name} must have the shape (sequences, tokens) or (tokens,)")
    return rows


_STATE: Mapping[str, Any] = {
    "canaries": str,
    "batches": int,
    "tokens": int,
    "received": tuple[int, ...],
    "without_labels": bool,
    "events": dict[str, tuple[int, ...]],
    "sizes": tuple[int, ...],
    "times": tuple[tuple[int, int], ...],
}
"""Types of the values of `LossRecord.state`."""


def _checked_state(state: Mapping[str, Any], texts: int) -> dict[str, Any]:
    """Return the `state` of a record about so many texts. Raises: InputError if it cannot be one."""
    missing = [name for name in _STATE if name not in state]
    require(not missing, "state must be that of a LossRecord", missing=missing)
    values = {name: checked_argument(f"state[{name!r}]", state[name], hint) for name, hint in _STATE.items()}
    rows = [*chain.from_iterable(values["events"].values()), *(row for _, row in values["times"])]
    steps = [step for step, _ in values["times"]]
    right = len(values["received"]) == texts and all(0 <= row < texts for row in rows)
    right &= values["events"].keys() <= set(EVENTS) and all(0 <= step < len(values["sizes"]) for step in steps)
    require(right, f"state must be that of a record about {texts} texts", do="it is damaged: record the training again")
    return values


@dataclass(frozen=True, eq=False)
class _Sequences:
    """Sequences of tokens of one length, found by a hash.

    Attributes:
        length: Number of tokens.
        hashes: Hashes in ascending order, shape (sequences,).
        tokens: The sequences in the order of their hashes, shape (sequences, length).
        numbers: Numbers of the sequences in this order.
    """

    length: int
    hashes: NDArray[np.uint64]
    tokens: NDArray[np.int64]
    numbers: NDArray[np.int64]

    @classmethod
    def by_length(cls, sequences: Sequence[Sequence[int]]) -> list[_Sequences]:
        """Return the sequences grouped by their length; they are numbered in their order."""
        lengths = np.array([len(sequence) for sequence in sequences])
        groups = []
        for length in np.unique(lengths).tolist():
            rows = np.flatnonzero(lengths == length)
            tokens = np.array([sequences[row] for row in rows.tolist()], dtype=np.int64)
            hashes = _window_hashes(tokens, length)[:, 0]
            order = np.argsort(hashes, kind="stable")
            groups.append(cls(length, hashes[order], tokens[order], rows[order]))
        return groups

    def occurrences(self, tokens: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
        """Yield number and place of each sequence that occurs in `tokens`."""
        if tokens.size < self.length:
            return
        hashes = _window_hashes(tokens[None], self.length)[0]
        first = np.searchsorted(self.hashes, hashes)
        for place in np.flatnonzero(self.hashes[np.minimum(first, self.hashes.size - 1)] == hashes).tolist():
            window = tokens[place : place + self.length]
            number = int(first[place])
            while number < self.hashes.size and self.hashes[number] == hashes[place]:
                if (self.tokens[number] == window).all():
                    yield int(self.numbers[number]), place
                number += 1


def _window_hashes(tokens: NDArray[np.int64], length: int) -> NDArray[np.uint64]:
    """Return the hash of each window of `length` tokens, shape (rows, tokens - length + 1)."""
    words, windows = tokens.astype(np.uint64) + np.uint64(1), tokens.shape[1] - length + 1
    hashes = np.zeros((tokens.shape[0], windows), np.uint64)
    with np.errstate(over="ignore"):
        for place in range(length):
            hashes = (hashes * MULTIPLIER) ^ words[:, place : place + windows]
    return hashes
