"""State that audited code keeps between calls: the same data with two seeds, in this process and in a fresh one.

A release that is cached and returned again is as private as one release, but looks like missing noise. Before repeated
calls may reject a claim, equal releases are therefore requested in a fresh process too. Equal in both processes means a
fixed seed or no randomness; equal within each process only means state.
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

SCREENED = 8
"""Data sets released twice in this process first, to see whether any two releases are equal."""
DATA_SETS = 40
"""Further data sets released twice in each process."""
ROWS = 64
"""Fewest rows of a data set. Each has one row more than the one before, so that a cache by size keeps every one."""
SIGNIFICANCE = 1e-6
"""Probability of reporting state for code that keeps none."""


@dataclass(frozen=True)
class StateBetweenCalls:
    """Result of releasing the same data twice."""

    share_equal: float  # share of pairs of calls with equal releases, in the process of the audit
    always_equal: bool = False  # True if all four releases of every data set were equal, two of them in a fresh process
    p_value: float = 1.0  # probability that equal releases lie in one process this often if no state is kept
    failure: str = ""  # why this could not be decided; "" if it was

    @property
    def possible(self) -> bool:
        """True if the code keeps state between calls, or if that could not be decided."""
        return self.p_value < SIGNIFICANCE or bool(self.failure)

    @property
    def words(self) -> str:
        """Consequence for the audit, in a sentence; "" if there is none."""
        if self.failure:
            return f"dpaudit could not find out whether your code keeps state between calls: {self.failure}"
        if self.possible:
            return (
                "your code keeps state between calls: with another seed it returned the same release in this process "
                "and a different one in a fresh process, so repeated calls cannot test the claim"
            )
        if self.always_equal:
            return (
                "the same data gave the same release with every seed, in a fresh process too: the code has a fixed "
                "seed or no randomness"
            )
        return ""


@dataclass(frozen=True, eq=False)
class ReleaseDigests:
    """Digests of releases, two of each data set; shape (data sets, 2)."""

    digests: NDArray[np.int64]


@unit
def detect_state(mechanism: Any, pickled: bytes, target: Rows, compute: Compute, *, seed: Seed) -> StateBetweenCalls:
    """Release data twice in this process and, if any two releases are equal, other data in a fresh process and here.

    The fresh process comes first: it must get data that this process has not seen, whose cache is pickled along.
    """
    first = _release_digests(mechanism, target, compute, range(SCREENED), seed.child("here")).digests
    share_equal = float((first[:, 0] == first[:, 1]).mean())
    if not share_equal:
        return StateBetweenCalls(share_equal)
    try:
        fresh_process = _digests_of_fresh_process(pickled, target, seed)
    except RunError as err:
        problem = "the same data gave the same release again, and the call in a fresh process failed"
        return StateBetweenCalls(
            share_equal, failure=f"{problem} ({shortened(err)}). Put the code into a module that can be imported"
        )
    data_sets = range(SCREENED, SCREENED + DATA_SETS)
    same_process = _release_digests(mechanism, target, compute, data_sets, seed.child("here"))
    digests = np.hstack([same_process.digests, fresh_process.digests])
    return StateBetweenCalls(share_equal, bool((digests == digests[:, :1]).all()), p_value_without_state(digests))


def p_value_without_state(digests: NDArray[np.int64]) -> float:
    """Return the probability of at least this many equal pairs within one process if no state is kept.

    Without state, the four releases of a data set are exchangeable. If exactly two of them are equal, or two pairs are,
    the partner of a release is any of the other three with equal probability. It then lies in the same process in a
    third of the data sets. Releases that are equal by nature or by chance, with few symbols, follow the same law.

    Args:
        digests: Shape (data sets, 4); columns 0 and 1 are of one process, 2 and 3 of the other.
    """
    from scipy.stats import binom  # slow to import

    within = (digests[:, 0] == digests[:, 1]).astype(int) + (digests[:, 2] == digests[:, 3])
    across = sum((digests[:, i] == digests[:, j]).astype(int) for i in (0, 1) for j in (2, 3))
    paired = (within + across > 0) & (within + across < 3)
    return float(binom.sf(np.count_nonzero(within[paired]) - 1, np.count_nonzero(paired), 1 / 3))


def _digests_of_fresh_process(pickled: bytes, target: Rows, seed: Seed) -> ReleaseDigests:
    """Return the digests of releases by a process that has made no call; RunError if it failed."""
    from dpaudit.actors.children import ChildProcesses  # few audits need it

    if not pickled:
        raise RunError("the mechanism cannot be pickled")
    call = make_call(release_twice, pickled, target, seed=seed.child("fresh"))
    work = Unit(call, "the same data in a fresh process", key="afresh")
    with contextlib.closing(ChildProcesses({}, None, EventStream(), Deadlines())) as children:
        children.submit(work, (), needed=True)
        (result,) = children.wait()
    if result.attempt.error:
        raise RunError(last_line(result.attempt.error))
    digests: ReleaseDigests = value_of(work, result.table)
    return digests


@unit
def release_twice(pickled: bytes, target: Rows, compute: Compute, *, seed: Seed) -> ReleaseDigests:
    """Release each data set twice with a mechanism that was pickled before its first call."""
    return _release_digests(cloudpickle.loads(pickled), target, compute, range(SCREENED, SCREENED + DATA_SETS), seed)


def pickled_mechanism(mechanism: Any) -> bytes:
    """Return the pickled mechanism before any call; empty if it cannot be pickled."""
    try:
        return bytes(cloudpickle.dumps(mechanism))
    except Exception:  # pickling user objects may raise anything
        return b""


def _release_digests(
    mechanism: Any, target: Rows, compute: Compute, data_sets: Sequence[int], seed: Seed
) -> ReleaseDigests:
    call = _release_function(mechanism, compute)
    digests = []
    for number in data_sets:  # each data set is the same in every process
        rng = np.random.default_rng([number, ROWS])
        if isinstance(target, Examples):
            rows = rng.permutation(len(target))[: max(ROWS, len(target) // 2) + number]
            data: Any = target.take(rows).with_(labels=rng.permutation(target.labels[rows])).writable()
        else:  # a small table: rows may repeat
            data = target.take(rng.integers(0, len(target), ROWS + number))
        digests.append([_digest(call, data, seed.child(number, repetition)) for repetition in (0, 1)])
    return ReleaseDigests(np.array(digests, np.int64))


def _digest(call: Callable[[Any, Seed], Any], data: Any, seed: Seed) -> int:
    """Return a 64-bit digest of the release; a failed call gets a digest that equals no other one."""
    try:
        content = np.ascontiguousarray(call(data, seed)).tobytes()
    except BaseException as err:  # user code may raise anything
        if raised_externally(err):
            raise
        content = repr(seed).encode()
    return int.from_bytes(hashlib.sha256(content).digest()[:8], "little", signed=True)


def _release_function(mechanism: Any, compute: Compute) -> Callable[[Any, Seed], Any]:
    """Return the function that makes one release as the games do; their modules are imported only if needed."""
    if isinstance(mechanism, LabelMechanism):
        return lambda data, seed: _labels(mechanism, data, seed)
    from dpaudit.mechanisms.queries.row_function import RowFunction

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
    from dpaudit.engine.games.labels.label_designs import form_code, release_labels

    release = release_labels(mechanism, data.labels, data.classes, seed)
    if release.fault:
        raise RunError(release.fault)
    return np.append(release.numbers, form_code(release.ending)).astype(np.int64)


def _outcome(mechanism: RowFunction, data: Any, seed: Seed) -> Any:
    from dpaudit.mechanisms.queries.row_function import CallLimits

    number = int(seed.rng().integers(0, 2**31))
    settings = mechanism.alternatives()[0]
    (outcome,) = mechanism.outcomes(data.cells, [number], settings, CallLimits(10.0, 1, time_limit, raised_externally))
    if outcome.fault:
        raise RunError(outcome.fault)
    return np.frombuffer(outcome.ending.encode() + outcome.numbers.tobytes(), np.uint8)


def _summary(mechanism: Any, data: Examples, seed: np.random.SeedSequence, compute: Compute) -> Any:
    points = np.asarray(data.features)[:ROWS]
    if isinstance(mechanism, SampledLearner):
        return mechanism.sample_summaries(data, points, 1, seed=seed, compute=compute)
    return mechanism.summarise(data.writable(), points, seed=seed, compute=compute)
