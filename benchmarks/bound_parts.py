"""Bounds in parts: processor time of each unit, and how long four workers take for what one piece takes.

    python -m benchmarks.bound_parts [--write]
    python -m benchmarks.bound_parts --costs     # constants of the cost model, next to those in the code
    python -m benchmarks.bound_parts --wall      # wall time of the first bound on one and on two child processes

The parts are the units of a plan: they read tallies from Arrow tables and return Arrow tables. Four workers take the
longest unit first. Their time includes that of the driver, which reads all parts and states the finding, and is
compared with the time of the finding in one piece. Each part runs without results cached by earlier ones. The
benchmark ends with an error if a finding from parts differs in a digit.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import math
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import GenericAlias
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.bench_one_run import gaussian_scores
from benchmarks.campaign import measurement, rows_about
from dpaudit.actors.backend import Deadlines
from dpaudit.actors.children import ChildProcesses
from dpaudit.actors.events import EventStream
from dpaudit.actors.schedule import run_units
from dpaudit.actors.storage.store import UnitStore, encode_unit
from dpaudit.actors.unit import Inputs, Resources, Unit
from dpaudit.actors.values import decode, encode
from dpaudit.actors.work import make_call, unit, value_of
from dpaudit.engine.games.protocol import Played, Reading
from dpaudit.engine.games.reference import PairedLabels, Reference
from dpaudit.engine.planning.plan import bound_units
from dpaudit.estimators.label_reconstruction.bags import LabelAdvantage, Posteriors
from dpaudit.estimators.one_run import bernoulli_walk, guess_band, order_statistics
from dpaudit.estimators.one_run.guess_band import SimultaneousGuessCount
from dpaudit.estimators.one_run.order_statistics import OneRunOrderStatistics
from dpaudit.estimators.one_run.signed_scores import OneRun, OneRunTheorem16
from dpaudit.estimators.one_run.step_martingale import StepMartingale
from dpaudit.estimators.private_prediction.answers_estimator import AnsweredQuery, Answers
from dpaudit.estimators.scores import StepScores
from dpaudit.estimators.selection import AsPublished, Bonferroni
from dpaudit.estimators.two_world import two_sample
from dpaudit.estimators.two_world.betting import Betting
from dpaudit.estimators.two_world.confusion_tables import Bayesian, ClopperPearson, Jeffreys
from dpaudit.estimators.two_world.fair_coins import FairCoins, TwoSamples
from dpaudit.estimators.two_world.family import BandFamily
from dpaudit.estimators.two_world.ratio import KatzLog
from dpaudit.estimators.two_world.two_sample import Band
from dpaudit.mechanisms.compute import Compute
from tools.rows import Row

WORKERS = 4


@dataclass(frozen=True)
class Case:
    """A bound to divide.

    Attributes:
        name: What is bounded, in words.
        estimator: The estimator.
        pieces: Number of pieces of evidence.
        rows: Rows of each piece; 0 for queries.
        units: Number of units that counted them.
    """

    name: str
    estimator: Any
    pieces: int
    rows: int
    units: int

    def tables(self) -> list[pa.Table]:
        """Return the stored tallies of each unit."""
        cuts = [self.pieces * cut // self.units for cut in range(self.units + 1)]
        return [
            encode([self.estimator.tally(self._evidence(piece)) for piece in range(*ends)], self.estimator.tally_type)
            for ends in itertools.pairwise(cuts)
        ]

    def _evidence(self, piece: int) -> Any:
        rng = np.random.default_rng(piece)
        if self.rows:
            return gaussian_scores(self.rows, rng, replay=piece)
        law = rng.dirichlet(np.ones(10))
        other = law * np.exp(rng.normal(0, 0.1, law.size))
        worlds = (rng.multinomial(1_000_000, each / each.sum()) for each in (law, other))
        return AnsweredQuery(piece, *worlds, np.arange(law.size) == 0)

    @property
    def reference(self) -> Reference | None:
        return Reference(PairedLabels(2), self.rows, "rows") if self.rows else None


ONE_RUN = 1_000, 2_000, 2
"""Replays, canaries and units, as the game `label-inference` divides them."""
TWO_WORLDS = 1, 1_000_000, 1
CASES = (
    *(
        Case("1,000,000 two-world scores", kind(1e-5, selection=Bonferroni()), *TWO_WORLDS)
        for kind in (Bayesian, ClopperPearson, Jeffreys)
    ),
    Case("1,000 one-run replays of 2,000 canaries", SimultaneousGuessCount(), *ONE_RUN),
    Case("1,000 one-run replays of 2,000 canaries", SimultaneousGuessCount(guess="any-tail"), *ONE_RUN),
    Case("1,000 one-run replays of 2,000 canaries", OneRunOrderStatistics(), *ONE_RUN),
    Case("1,000 one-run replays of 2,000 canaries", OneRunTheorem16(1e-5, selection=AsPublished()), *ONE_RUN),
    Case("1,000 one-run replays of 2,000 canaries", OneRun(1e-5, selection=AsPublished(), tau=0.01), *ONE_RUN),
    Case("1,000 queries of 10 answers", Answers(cut="clopper-pearson"), 1_000, 0, 2),
    Case("200 queries of 10 answers", Answers(cut="sison-glaz"), 200, 0, 2),
)


def undivided() -> Iterator[tuple[str, Any, Any]]:
    """Yield evidence in words, the estimator without parts that reads it, and its tally."""
    rng = np.random.default_rng(0)
    rows = TWO_WORLDS[1]
    scores = gaussian_scores(rows, rng)
    for estimator in (
        Band(1e-5),
        BandFamily(),
        BandFamily(family="dp-sgd", sample_rate=0.01, steps=1_000),
        FairCoins(),
        TwoSamples(),
        Betting(),
        KatzLog(1e-5, selection=Bonferroni()),
        KatzLog(1e-5, selection=Bonferroni(), group=4),
    ):
        yield CASES[0].name, estimator, estimator.tally(scores)
    steps = StepMartingale()
    yield "1,000,000 steps", steps, steps.tally(StepScores(scores.score, scores.truth))
    labels, prior = LabelAdvantage(), rng.random(rows)
    posteriors = Posteriors(prior, rng.random(rows), np.arange(rows) // 8)
    yield "1,000,000 posteriors", labels, labels.tally(posteriors)


@unit
def counted() -> Iterator[Any]:
    """Stand in for a unit that counts."""
    return iter(())


def forget() -> None:
    """Forget the results that bounds have cached, as another worker has none of them."""
    for cached in (
        guess_band.cached_epsilon,
        guess_band._step_levels,
        bernoulli_walk._binomial_terms,
        order_statistics._largest_rejected,
    ):
        cached.cache_clear()


def makespan(seconds: Sequence[float], workers: int) -> float:
    """Return when the last of these units ends if each free worker takes the longest one left."""
    ends = [0.0] * workers
    for each in sorted(seconds, reverse=True):
        heapq.heapreplace(ends, ends[0] + each)
    return max(ends)


def processor_s(work: Callable[[], Any]) -> tuple[Any, float]:
    """Return the result of a call and its seconds of processor time."""
    began = time.process_time()
    result = work()
    return result, time.process_time() - began


@dataclass(frozen=True)
class Measured:
    """Seconds of processor time of one case."""

    whole: float  # finding in one piece, from the stored tallies
    parts: tuple[float, ...]  # each part
    driver: float  # finding from the parts

    def with_workers(self, workers: int) -> float:
        return makespan(self.parts, workers) + self.driver


def planned_units(case: Case) -> tuple[tuple[Unit, ...], tuple[Unit, ...]]:
    """Return the units that counted, and those that compute the bound."""
    call = make_call(counted, returns=GenericAlias(list, case.estimator.tally_type))
    units = tuple(Unit(call, f"counting {at}", key=f"counted-{at}") for at in range(case.units))
    game = Played(units, reference=case.reference, replays=case.pieces)
    return units, bound_units(case.estimator, game, units, Reading.PER_REPLAY, "audit", Resources())


def measured(case: Case) -> Measured:
    """Measure a case and compare the digits of both findings."""
    estimator, kind = case.estimator, case.estimator.tally_type
    tables = case.tables()
    units, planned = planned_units(case)
    stored = dict(zip((unit.key for unit in units), tables, strict=True))
    planned[0].task.run(Inputs({}, {key: stored[key] for key in planned[0].needs}), Compute(threads=1))  # compiles

    def tallies() -> list[Any]:
        return [tally for table in tables for tally in decode(table, kind)]

    forget()
    whole, whole_s = processor_s(lambda: estimator.find(tallies()))
    results, seconds = {}, []
    for part in planned:
        forget()
        inputs = Inputs({}, {key: stored[key] for key in part.needs})
        results[part.key], part_s = processor_s(
            lambda task=part.task, inputs=inputs: task.run(inputs, Compute(threads=1))
        )
        seconds.append(part_s)
    forget()
    joined, driver_s = processor_s(
        lambda: estimator.find(tallies(), parts=[value_of(part, results[part.key]) for part in planned])
    )
    if digits(joined) != digits(whole):
        raise AssertionError(f"{case.name}, {estimator.registered_name}: parts change a digit")
    return Measured(whole_s, tuple(seconds), driver_s)


def digits(finding: Any) -> str:
    """Return all numbers of a finding with all their digits."""
    with np.printoptions(threshold=10**7, precision=17, floatmode="unique"):
        return repr((finding, dict(finding.series)))


def divided(_: int) -> Iterator[Row]:
    """Yield the numbers of each case."""
    for case in CASES:
        result = measured(case)
        single, four = result.with_workers(1), result.with_workers(WORKERS)
        values = {
            "one piece, s": f"{result.whole:.2f}",
            "parts": str(len(result.parts)),
            "longest part, s": f"{max(result.parts):.2f}",
            "one worker, s": f"{single:.2f}",
            "four workers, s": f"{four:.2f}",
            "share": f"{100 * four / result.whole:.0f} %",
        }
        yield from rows_about({"evidence": case.name, "estimator": name_of(case.estimator)}, values)
    for name, estimator, tally in undivided():
        # The first call compiles; a curve of DP-SGD is composed once in a process, so that of other steps is.
        dp_sgd = getattr(estimator, "family", "") == "dp-sgd"
        (replace(estimator, steps=estimator.steps - 1) if dp_sgd else estimator).find([tally])
        forget()
        two_sample._informative_rates.cache_clear()
        _, seconds = processor_s(lambda estimator=estimator, tally=tally: estimator.find([tally]))
        yield from rows_about({"evidence": name, "estimator": name_of(estimator)}, {"one piece, s": f"{seconds:.2f}"})


def name_of(estimator: Any) -> str:
    """Return the registered name and what the time depends on."""
    more = getattr(estimator, "guess", "signed"), getattr(estimator, "cut", "signed")
    words = [word for word in more if word != "signed"]
    words += [f"groups of {estimator.group}"] if getattr(estimator, "group", 1) > 1 else []
    words += ["with a shift"] if getattr(estimator, "tau", 0) else []
    words += [estimator.family] if hasattr(estimator, "family") else []
    if isinstance(getattr(estimator, "selection", None), AsPublished):
        words.append("100 fractions")
    return " ".join([estimator.registered_name, *words])


def costs() -> Iterator[str]:
    """Yield the measured time of each bound and the time that its estimator states."""
    more = (
        Case("1,000,000 two-world scores", KatzLog(1e-5, selection=Bonferroni(), group=4), *TWO_WORLDS),
        Case("1,000,000 two-world scores", KatzLog(1e-5, selection=Bonferroni()), *TWO_WORLDS),
        *(Case("100 queries of 10 answers", Answers(cut=cut), 100, 0, 1) for cut in Answers.query_s),
    )
    yield f"{'measured s':>12}{'stated s':>12}  bound"
    for case in (*CASES[:-2], *more):
        estimator = case.estimator
        small = [estimator.tally(case._evidence(10**6 + at)) for at in range(2)] if case.pieces > 1 else None
        tallies = [tally for stored in case.tables() for tally in decode(stored, estimator.tally_type)]
        estimator.find(small or [estimator.tally(gaussian_scores(2_000, np.random.default_rng(1)))])  # compiles
        forget()
        _, seconds = processor_s(lambda estimator=estimator, tallies=tallies: estimator.find(tallies))
        stated = estimator.seconds(case.pieces, case.rows)
        ratio = math.inf if not seconds else stated / seconds
        yield f"{seconds:12.3f}{stated:12.3f}  {case.name}, {name_of(estimator)}: stated {ratio:.1f} times the measured"


def wall() -> Iterator[str]:
    """Yield the wall time of all units of the first bound on one and on two child processes that have run before."""
    case = CASES[0]
    units, planned = planned_units(case)
    tables = dict(zip((unit.key for unit in units), case.tables(), strict=True))
    for count in (1, 2):
        children = ChildProcesses({}, None, EventStream(), Deadlines(), count)
        with contextlib.closing(children), tempfile.TemporaryDirectory() as folder:
            for attempt in ("the first, with imports", "the second"):
                store = UnitStore(Path(folder) / attempt)
                for key, stored in tables.items():
                    store.write(key, encode_unit(key, stored))
                began = time.perf_counter()
                run_units([*units, *planned], children, store, EventStream())
                yield f"{time.perf_counter() - began:8.2f} s  {count} processes, {attempt}: {len(planned)} parts"


if __name__ == "__main__":
    other = {"--costs": costs, "--wall": wall}.get(sys.argv[1] if sys.argv[1:] else "")
    if other is None:
        measurement(divided, file="bounds-in-parts.csv")
    else:
        for line in other():
            print(line, flush=True)
