"""Runs of audited code that a game asks for, and what they gave.

The ending of a run is part of its release: exceptions, timeouts, odd shapes and non-finite numbers have endings of
their own, from which an attack can learn.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpaudit.actors.audited.signals import TimeLimitExceeded, raised_externally, time_limit
from dpaudit.actors.seed import Seed
from dpaudit.errors import described
from dpaudit.mechanisms.compute import Compute, TrainingError
from dpaudit.mechanisms.queries.row_function import ALIKE, CallOutcome

MAX_NUMBER = float(np.finfo(np.float32).max)
"""Largest absolute number of a stored result."""
MAX_DOUBLE_WIDTH = 4_096
"""Largest width of results that are converted to double precision; bounds the memory."""
MAX_EXACT_WIDTH = 500
"""Largest width of results of which single values matter."""
MAX_NAMED_PLACES = 8
"""Largest number of positions of non-finite numbers that are named; further ones are counted."""
MIN_FAILED_BATCH = 8
"""Smallest number of runs whose uniform failure in both worlds shows that the code does not run at all."""


@dataclass(frozen=True, eq=False)
class Outcomes:
    """Results of n runs, in their order."""

    number: NDArray[np.int64] = field(metadata={"stored": "int32"})  # number of the run in the plan, shape (n,)
    truth: NDArray[np.bool_]  # coins, shape (n,); True for world 1 (with the record, D')
    ending: NDArray[np.str_]  # form of the result: "3 numbers", class of an exception, an answer; shape (n,)
    width: NDArray[np.int64]  # number of finite numbers, shape (n,)
    # finite numbers of all runs, concatenated; in double precision, or in single precision if digits are not known
    vector: NDArray[Any]
    name: NDArray[np.str_]  # name of the run in messages, with its seed, shape (n,)
    low_bits: NDArray[np.int64]  # number of last numbers that hold low bits of earlier numbers, shape (n,)
    fault: NDArray[np.str_]  # description of a failure, "" if there is none, shape (n,)
    subject: NDArray[np.int64]  # what the run was about, where it differs from run to run, shape (n,)

    @classmethod
    def of(
        cls,
        results: Sequence[CallOutcome],
        truth: NDArray[np.bool_],
        *,
        number: NDArray[np.int64] | None = None,
        name: Sequence[str] = (),
        dtype: type[Any] = np.float64,
    ) -> Outcomes:
        """Return the results of runs with these coins; runs are numbered from 0 unless `number` is given."""
        count = len(truth)
        vectors = [np.clip(result.numbers, -MAX_NUMBER, MAX_NUMBER).astype(dtype) for result in results]
        return cls(
            np.arange(count) if number is None else number,
            truth,
            np.array([result.ending for result in results], np.str_),
            np.array([len(vector) for vector in vectors], np.int64),
            np.concatenate([np.empty(0, dtype), *vectors]),
            np.array(name or [""] * count, np.str_),
            np.array([result.low_bits for result in results], np.int64),
            np.array([result.fault for result in results], np.str_),
            np.zeros(count, np.int64),
        )

    @classmethod
    def of_numbers(
        cls, numbers: NDArray[Any], truth: NDArray[np.bool_], *, dtype: type[Any] = np.float32, **names: Any
    ) -> Outcomes:
        """Return runs that gave numbers, shape (n, width), with these coins."""
        results = [CallOutcome(f"{len(row)} numbers", row) for row in numbers]
        return cls.of(results, truth, dtype=dtype, **names)

    @classmethod
    def joined(cls, parts: Sequence[Outcomes]) -> Outcomes:
        if len(parts) == 1:
            return parts[0]
        return cls(*(np.concatenate([getattr(part, column.name) for part in parts]) for column in fields(cls)))

    def where(self, chosen: NDArray[np.bool_]) -> Outcomes:
        if chosen.all():
            return self
        names = [column.name for column in fields(self) if column.name != "vector"]
        columns = {name: getattr(self, name)[chosen] for name in names}
        return replace(self, **columns, vector=self.vector[np.repeat(chosen, self.width)])

    def renumbered(self) -> Outcomes:
        """Return the outcomes with the numbers 0 to n - 1."""
        return replace(self, number=np.arange(len(self.truth)))

    def without_low_bits(self) -> Outcomes:
        """Return the outcomes without the numbers that hold low bits of other numbers."""
        if not self.low_bits.any():
            return self
        ends = np.cumsum(self.width)
        low_bit = np.zeros(len(self.vector) + 1, np.int64)
        np.add.at(low_bit, ends - self.low_bits, 1)
        np.add.at(low_bit, ends, -1)
        retained = np.cumsum(low_bit[:-1]) == 0
        width = self.width - self.low_bits
        return replace(self, width=width, low_bits=np.zeros_like(width), vector=self.vector[retained])

    def matrix(self) -> NDArray[Any]:
        """Return the numbers of runs with one ending as they are stored, shape (n, width)."""
        return self.vector.reshape(len(self.truth), -1 if len(self.vector) else 0)

    def exact(self) -> NDArray[np.float64]:
        """Return the numbers of runs with one ending in double precision.

        The matrix has no columns if double precision is not known, or if the results are long.
        """
        matrix = self.matrix()
        if matrix.dtype != np.float64 or matrix.shape[1] > MAX_EXACT_WIDTH:
            return np.empty((len(self.truth), 0))
        return matrix

    def summaries(self) -> NDArray[Any]:
        """Return the numbers of runs with one ending, rounded to single precision, shape (n, width).

        The type is float64, or float32 if the results are long.
        """
        matrix = self.matrix().astype(np.float32)
        return matrix if matrix.shape[1] > MAX_DOUBLE_WIDTH else matrix.astype(np.float64)

    @property
    def usual_ending(self) -> str:
        """Most frequent ending."""
        endings, counts = np.unique(self.ending, return_counts=True)
        return str(endings[counts.argmax()])

    @property
    def failures(self) -> tuple[str, ...]:
        """One sentence for each failed run."""
        return tuple(f"{self.name[place]}: {self.fault[place]}" for place in np.flatnonzero(self.fault != ""))

    def require_some_success(self) -> None:
        """Raise TrainingError if many runs of both worlds all failed alike: the code does not run at all."""
        alike = bool((self.fault != "").all()) and len(np.unique(self.ending)) == len(np.unique(self.width)) == 1
        alike = alike and not np.ptp(self.matrix(), axis=0).any()
        if alike and len(self.truth) >= MIN_FAILED_BATCH and len(np.unique(self.truth)) == 2:
            raise TrainingError(f"all {len(self.truth)} runs failed in the same way. The first: {self.failures[0]}")


@dataclass(frozen=True, eq=False)
class Observed:
    """Runs on one pair, from which an attack learns and which it scores.

    Attributes:
        mechanism: The mechanism that ran.
        pair: The two inputs.
        learned: Search runs, whose coins the attack knows.
        fresh: Runs to score.
        shadows: Results of the units of `TwoWorlds.shadow_models`.
        compute: Devices and threads.
    """

    mechanism: Any
    pair: Any
    learned: Outcomes
    fresh: Outcomes
    shadows: tuple[Any, ...]
    compute: Compute


@dataclass(frozen=True, eq=False)
class Runs:
    """Runs that a game asks for: one for each coin, in the order of the coins.

    Attributes:
        truth: Coins, shape (n,); True for world 1.
        number: Numbers of the runs, shape (n,).
        seed: Seed of all these runs.
        rows: The parts of the data that the game names, in that order.
        compute: Devices and threads.
        limit_s: Time limit of one run in seconds; None for no limit except that of the unit.
        paired: True if two runs, one in each world, share a seed.
    """

    truth: NDArray[np.bool_]
    number: NDArray[np.int64]
    seed: Seed
    rows: tuple[Any, ...]
    compute: Compute
    limit_s: float | None = None
    paired: bool = False

    def parts(self, size: int) -> Iterator[Runs]:
        """Yield these runs in parts of at most `size` runs."""
        for first in range(0, len(self.truth), size):
            part = slice(first, first + size)
            yield replace(self, truth=self.truth[part], number=self.number[part])

    def seeds(self) -> list[Seed]:
        """Return the seed of each run."""
        return [self.seed.child(number // 2 if self.paired else number) for number in self.number.tolist()]

    def seed_numbers(self) -> list[int]:
        """Return an integer below 2^31 for each run, for code that takes no `Seed`."""
        number = self.number // 2 if self.paired else self.number
        seeds: list[int] = self.seed.rng().integers(0, 2**31, int(number.max(initial=0)) + 1)[number].tolist()
        return seeds

    def each(self, run: Callable[[bool, Seed], Any], *, dtype: type[Any] = np.float64) -> Outcomes:
        """Make the runs one by one, from their coin and seed; see `result_of` for what they may give."""
        results = [
            result_of(lambda: run(world, seed), self.limit_s)  # noqa: B023
            for world, seed in zip(self.truth.tolist(), self.seeds(), strict=True)
        ]
        return self.gave(results, dtype=dtype)

    def gave(self, results: Sequence[Any], *, dtype: type[Any] = np.float64) -> Outcomes:
        """Return what these runs gave, from one result each; see `result_of` for what it may be."""
        outcomes = [each if isinstance(each, CallOutcome) else result_of(lambda: each) for each in results]  # noqa: B023
        names = [f"run {number} (seed {seed})" for number, seed in zip(self.number, self.seeds(), strict=True)]
        return Outcomes.of(outcomes, self.truth, number=self.number, name=names, dtype=dtype)


def alike_note(outcomes: Sequence[CallOutcome]) -> tuple[str, ...]:
    """Return the note on calls that all have the same ending and numbers, in single precision; () for others.

    Equal results show no leak, and no leak would show in them. If some part of the results, the printed text or the
    files was not read and differs, nothing is known about the claim.
    """
    numbers = (outcome.numbers.clip(-MAX_NUMBER, MAX_NUMBER).astype("f4") for outcome in outcomes)
    kinds = {(outcome.ending, values.tobytes()) for outcome, values in zip(outcomes, numbers, strict=True)}
    if len(kinds) != 1:
        return ()
    ending, content = kinds.pop()
    parts = [dict(outcome.unread) for outcome in outcomes]
    names = sorted(set().union(*parts))
    unread = {what: sorted({part.get(what, "") for part in parts})[:2] for what in names}  # two show a difference
    digest = hashlib.sha256(ending.encode("utf-8", "backslashreplace") + content).hexdigest()
    return (ALIKE + json.dumps({"result": digest, "unread": unread}),)


def result_of(call: Callable[[], Any], limit_s: float | None = None) -> CallOutcome:
    """Return what a call gives: a vector of numbers, text as its ending, or a `CallOutcome`; else a failure.

    The call may raise an exception or return it.

    Args:
        limit_s: Time limit in seconds, after which the call has failed; None for no limit except that of the unit.
    """
    try:
        with time_limit(limit_s):
            result = call()
        if isinstance(result, CallOutcome):
            return result
        if isinstance(result, str):
            return CallOutcome(result, np.empty(0))
        if isinstance(result, BaseException):
            return failure(result)
        return checked(np.asarray(result).astype(np.float64, casting="same_kind"))  # no complex numbers, no text
    except TimeLimitExceeded:
        if limit_s is None:  # time limit of the whole unit
            raise
        return CallOutcome("out of time", np.empty(0), f"still running after {limit_s:g} s")
    except BaseException as err:  # audited code may raise anything; the exception is the outcome of the run
        return failure(err)


def failure(err: BaseException) -> CallOutcome:
    """Return the outcome of a run that raised; an exception from outside, such as an interrupt, is raised again."""
    if raised_externally(err):
        raise err
    return CallOutcome(type(err).__name__, np.empty(0), described(err))


def checked(vector: NDArray[np.float64]) -> CallOutcome:
    """Return the outcome of a run that returned a vector."""
    if vector.ndim != 1:
        fault = f"it returned an array of shape {vector.shape}, not a vector"
        return CallOutcome(f"shape {vector.shape}", np.empty(0), fault)
    if not len(vector):
        return CallOutcome("no numbers", vector, "it returned no numbers")
    valid = np.isfinite(vector) & (np.abs(vector) <= MAX_NUMBER)
    if valid.all():
        return CallOutcome(f"{len(vector)} numbers", vector)
    places = np.flatnonzero(~valid)
    where = ", ".join(map(str, places[:MAX_NAMED_PLACES])) + (
        f" and {len(places) - MAX_NAMED_PLACES} more" if len(places) > MAX_NAMED_PLACES else ""
    )
    words = "that are not finite" if not np.isfinite(vector).all() else f"above {MAX_NUMBER:.2g}"
    return CallOutcome(f"{len(vector)} numbers, not finite at {where}", vector[valid], f"it returned numbers {words}")
