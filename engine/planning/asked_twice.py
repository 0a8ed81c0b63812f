"""Memory between calls: the same data given twice with two seeds, here and in a process that has made no call before.

A release that is kept in the process and given out again is as private as one release, and looks like noise that is
missing. So before a claim is said to be violated by calls that were made again and again, equal releases are asked for
in a fresh process too: equal again is a seed in the code, or no randomness; different is memory.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import cloudpickle  # type: ignore[import-untyped]
import numpy as np
from numpy.typing import NDArray

from dpaudit.actors.audited.signals import raised_externally, time_limit
from dpaudit.actors.backend import Deadlines
from dpaudit.actors.events import EventStream, last_line
from dpaudit.actors.seed import Seed
from dpaudit.actors.unit import Unit
from dpaudit.actors.work import make_call, unit, value_of
from dpaudit.errors import RunError, shortened
from dpaudit.mechanisms.compute import Compute
from dpaudit.mechanisms.examples import Examples, Rows
from dpaudit.mechanisms.protocols import LabelMechanism, SampledLearner, SummarisedLearner

if TYPE_CHECKING:
    from dpaudit.mechanisms.queries.row_function import RowFunction

FIRST = 8
"""Data sets that are given twice here, to see whether anything is equal at all."""
DATA_SETS = 40
"""Data sets that are then given twice in either process."""
ROWS = 64
"""Of the smallest, at least; each has one more than the one before, so that what is kept by size is kept for each."""
BY_CHANCE = 1e-6
"""Probability at which equal releases are held to be memory though nothing is carried from one call to the next."""


@dataclass(frozen=True)
class Memory:
    """What was found by giving the same data twice."""

    alike: float  # share of pairs of calls that gave the same, in the process of the audit
    everywhere: bool = False  # whether all four calls on every data set gave the same, two of them in a fresh process
    by_chance: float = 1.0  # how likely equal releases would lie so within processes if nothing were carried
    trouble: str = ""  # why that could not be told; "" where it was

    @property
    def carried(self) -> bool:
        """Whether something is carried from one call to the next, or that cannot be told."""
        return self.by_chance < BY_CHANCE or bool(self.trouble)

    @property
    def words(self) -> str:
        """What follows, for a reader; "" where nothing does."""
        if self.trouble:
            return f"whether the code keeps state between calls could not be found out: {self.trouble}"
        if self.carried:
            return (
                "your code keeps state between calls: with another seed it returned the same release in this process "
                "and a different one in a fresh process, so repeated calls cannot test the claim"
            )
        if self.everywhere:
            return (
                "the same data gave the same release whatever the seed, in a fresh process too: a seed in the code, or "
                "no randomness"
            )
        return ""


@dataclass(frozen=True, eq=False)
class Outputs:
    """What calls gave, each named by a number that depends on all of it: two of each data set, shape (data sets, 2)."""

    names: NDArray[np.int64]


@unit
def look_for_memory(mechanism: Any, as_given: bytes, target: Rows, compute: Compute, *, seed: Seed) -> Memory:
    """Gives data twice here; where any two releases are equal, others in a fresh process and then here.

    The fresh process comes first, with data that nobody has seen: what is kept here and goes there with the code cannot
    be of these data.
    """
    first = _named(mechanism, target, compute, range(FIRST), seed.child("here")).names
    alike = float((first[:, 0] == first[:, 1]).mean())
    if not alike:
        return Memory(alike)
    try:
        fresh = _afresh(as_given, target, seed)
    except RunError as err:
        told = "the same data gave the same release again, and no fresh process could be asked for it"
        return Memory(alike, trouble=f"{told} ({shortened(err)}); put the code into a module that can be imported")
    here = _named(mechanism, target, compute, range(FIRST, FIRST + DATA_SETS), seed.child("here"))
    four = np.hstack([here.names, fresh.names])
    return Memory(alike, bool((four == four[:, :1]).all()), by_chance(four))


def by_chance(four: NDArray[np.int64]) -> float:
    """How likely so many equal releases would be of one process if all four of a data set were drawn alike.

    Where two of four are equal and the others are not, or equal each other alone, the partner of the first of them is
    any of the other three calls, alike: the one of its own process in a third of the data sets. What is equal by nature
    or by chance, of few symbols, follows the same law. Names have shape (data sets, 4), two of each process.
    """
    from scipy.stats import binom  # takes long to load

    within = (four[:, 0] == four[:, 1]).astype(int) + (four[:, 2] == four[:, 3])
    across = sum((four[:, i] == four[:, j]).astype(int) for i in (0, 1) for j in (2, 3))
    paired = (within + across > 0) & (within + across < 3)
    return float(binom.sf(np.count_nonzero(within[paired]) - 1, np.count_nonzero(paired), 1 / 3))


def _afresh(as_given: bytes, target: Rows, seed: Seed) -> Outputs:
    """The same in a process that has made no call.

    Raises: RunError when it failed.
    """
    from dpaudit.actors.children import ChildProcesses  # needed by few audits

    if not as_given:
        raise RunError("the mechanism cannot be sent to another process")
    call = make_call(ask_twice, as_given, target, seed=seed.child("fresh"))
    asked = Unit(call, "the same data in a fresh process", key="afresh")
    with contextlib.closing(ChildProcesses({}, None, EventStream(), Deadlines())) as fresh:
        fresh.submit(asked, (), needed=True)
        (done,) = fresh.wait()
    if done.attempt.error:
        raise RunError(last_line(done.attempt.error))
    found: Outputs = value_of(asked, done.table)
    return found


@unit
def ask_twice(as_given: bytes, target: Rows, compute: Compute, *, seed: Seed) -> Outputs:
    """Two calls on each data set by a mechanism that was pickled before any call was made."""
    return _named(cloudpickle.loads(as_given), target, compute, range(FIRST, FIRST + DATA_SETS), seed)


def as_given(mechanism: Any) -> bytes:
    """A mechanism as it is before any call; empty where it cannot be sent to another process."""
    try:
        return bytes(cloudpickle.dumps(mechanism))
    except Exception:  # whatever it holds may raise anything
        return b""


def _named(mechanism: Any, target: Rows, compute: Compute, data_sets: Sequence[int], seed: Seed) -> Outputs:
    call = _call(mechanism, compute)
    names = []
    for number in data_sets:
        data = _data_set(target, number)
        names.append([_name(call, data, seed.child(number, again)) for again in (0, 1)])
    return Outputs(np.array(names, np.int64))


def _data_set(target: Rows, number: int) -> Any:
    """The same data whoever asks."""
    rng = np.random.default_rng([number, ROWS])
    if not isinstance(target, Examples):  # a few rows of a table, which may come several times
        return target.take(rng.integers(0, len(target), ROWS + number))
    rows = rng.permutation(len(target))[: max(ROWS, len(target) // 2) + number]
    return target.take(rows).with_(labels=rng.permutation(target.labels[rows])).writable()


def _name(call: Callable[[Any, Seed], Any], data: Any, seed: Seed) -> int:
    """A call that fails tells nothing: it is equal to no other one."""
    try:
        given = np.ascontiguousarray(call(data, seed)).tobytes()
    except BaseException as err:  # other people's code may raise anything
        if raised_externally(err):
            raise
        given = repr(seed).encode()
    return int.from_bytes(hashlib.sha256(given).digest()[:8], "little", signed=True)


def _call(mechanism: Any, compute: Compute) -> Callable[[Any, Seed], Any]:
    """What one call of a mechanism gives, by the face that games play; their rooms are loaded where they are played."""
    if isinstance(mechanism, LabelMechanism):
        return lambda data, seed: _labels(mechanism, data, seed)
    from dpaudit.mechanisms.queries.row_function import RowFunction  # most audits have none

    if isinstance(mechanism, RowFunction):
        return lambda data, seed: _outcome(mechanism, data, seed)
    from dpaudit.mechanisms.predictors.protocol import AnsweringPredictor, VotingPredictor

    if isinstance(mechanism, AnsweringPredictor | VotingPredictor):
        from dpaudit.engine.games.predictions.game import answers_of

        return lambda data, seed: answers_of(mechanism, data, data.features[:ROWS], seed, compute)
    if isinstance(mechanism, SampledLearner | SummarisedLearner):
        from dpaudit.engine.games.neighbours.game import as_numbers

        return lambda data, seed: _summary(mechanism, as_numbers(data, "box"), seed.sequence(), compute)
    return lambda data, seed: mechanism.fit(data, seed=seed.sequence(), compute=compute).probabilities(data.features)


def _labels(mechanism: LabelMechanism, data: Examples, seed: Seed) -> NDArray[np.int64]:
    from dpaudit.engine.games.labels.label_releases import released_anew

    made = released_anew(mechanism, data.labels, data.classes, seed)
    if made.failure:
        raise RunError(made.failure)
    return np.append(made.symbols, made.form)


def _outcome(mechanism: RowFunction, data: Any, seed: Seed) -> Any:
    from dpaudit.mechanisms.queries.row_function import CallLimits

    number = int(seed.rng().integers(0, 2**31))
    settings = mechanism.alternatives()[0]
    (one,) = mechanism.outcomes(data.cells, [number], settings, CallLimits(10.0, 1, time_limit, raised_externally))
    if one.fault:
        raise RunError(one.fault)
    return np.frombuffer(one.ending.encode() + one.numbers.tobytes(), np.uint8)


def _summary(mechanism: Any, data: Examples, seed: np.random.SeedSequence, compute: Compute) -> Any:
    points = np.asarray(data.features)[:ROWS]
    if isinstance(mechanism, SampledLearner):
        return mechanism.sample_summaries(data, points, 1, seed=seed, compute=compute)
    return mechanism.summarise(data.writable(), points, seed=seed, compute=compute)
