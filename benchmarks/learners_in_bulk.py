"""Duration of ML-Audit's trainings on adult: ours in bulk, against diffprivlib's.

    python -m benchmarks.learners_in_bulk ADULT [--each 10000] [--own 4] [--learners TEXT ...]

ADULT is the folder with UCI's files. Two data sets differ in one record (`corner-flip`). Search and fresh samples with
`--each` trainings on either data set make 4 times as many trainings, in units of 2,500 on two cores, as in an audit. If
DPAUDIT_DIFFPRIVLIB_PYTHON names a Python with diffprivlib, its models train `--own` times on the same rows, excluding
start-up. Prints a Markdown table of processor seconds, wall seconds and the load at the end.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import resource
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from dpaudit.engine.data.adult import Adult
from dpaudit.engine.games.neighbours.game import Scale, as_numbers
from dpaudit.engine.games.neighbours.poisonings.protocol import Worlds
from dpaudit.engine.games.neighbours.poisonings.rows import CornerFlip
from dpaudit.mechanisms.adapters.diffprivlib import PYTHON, Diffprivlib
from dpaudit.mechanisms.compute import Compute
from dpaudit.mechanisms.examples import Examples
from dpaudit.mechanisms.learners.gaussian_naive_bayes import GaussianNaiveBayes
from dpaudit.mechanisms.learners.logistic_regression import LogisticObjectivePerturbation, LogisticOutputPerturbation
from dpaudit.mechanisms.learners.random_forest import PrivateForest

UNIT = 2_500
PENALTY = 0.01
DEPTH = 5
TREES = 10


@dataclass(frozen=True)
class Row:
    """Our learner and its counterpart in diffprivlib.

    Attributes:
        ours: Our learner, trained in bulk.
        scale: Range of the features.
        theirs: The library's learner; None if it has none.
        goal_s: Goal in wall seconds on two cores.
    """

    ours: Any
    scale: Scale
    theirs: Diffprivlib | None
    goal_s: float


def rows(n: int) -> dict[str, Row]:
    """Return the learners by name, with epsilon 1, for n records."""
    objective = {"C": 1 / (n * PENALTY)}
    forest = {"n_estimators": TREES, "max_depth": DEPTH}
    return {
        "naive Bayes": Row(GaussianNaiveBayes(1.0), "box", Diffprivlib("gaussian-nb", 1.0), 10),
        "output perturbation": Row(LogisticOutputPerturbation(1.0, penalty=PENALTY), "ball", None, 10),
        "objective perturbation": Row(
            LogisticObjectivePerturbation(1.0, penalty=PENALTY),
            "ball",
            Diffprivlib("logistic-regression", 1.0, settings=objective),
            180,
        ),
        f"random forest, {TREES} trees of depth {DEPTH}": Row(
            PrivateForest(1.0, trees=TREES, depth=DEPTH),
            "box",
            Diffprivlib("random-forest", 1.0, settings=forest),
            120,
        ),
    }


def main() -> None:
    """Print each row of the table when it is finished."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("adult")
    parser.add_argument("--each", type=int, default=10_000, help="trainings of a part on either data set")
    parser.add_argument("--own", type=int, default=4, help="trainings of diffprivlib's")
    parser.add_argument("--learners", nargs="*", default=(), help="those whose name contains one of these")
    options = parser.parse_args()
    data = Adult(options.adult).load()
    print("| learner | trainings | processor s | clock, two cores | goal | diffprivlib, a training | ratio | load |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |", flush=True)
    for name, row in rows(len(data)).items():
        if options.learners and not any(text in name for text in options.learners):
            continue
        worlds = CornerFlip().worlds(as_numbers(data, row.scale), 1, np.random.default_rng(0))
        processor, clock = in_bulk(row.ours, worlds, options.each)
        trainings = 4 * options.each
        cells = [name, f"{trainings:,}", f"{processor:.1f}", f"{clock:.1f}", f"{row.goal_s:g}"]
        if row.theirs is not None and os.environ.get(PYTHON):
            their_seconds = one_by_one(row.theirs, worlds.world_zero, options.own)
            cells += [f"{their_seconds:.3f}", f"{their_seconds * trainings / processor:,.0f}"]
        else:
            cells += ["-", "-"]
        print(f"| {' | '.join(cells)} | {os.getloadavg()[0]:.1f} |", flush=True)


def in_bulk(learner: Any, worlds: Worlds, each: int) -> tuple[float, float]:
    """Return processor and wall seconds of `each` search and fresh trainings in both worlds."""
    before, began = _children_s(), time.perf_counter()
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("fork")) as pool:
        futures = [
            pool.submit(_draw, learner, worlds, world, min(UNIT, each - first), (part, world, first))
            for part in (0, 1)
            for world in (False, True)
            for first in range(0, each, UNIT)
        ]
        vectors = sum(future.result() for future in futures)
    assert vectors == 4 * each
    return _children_s() - before, time.perf_counter() - began


def _draw(learner: Any, worlds: Worlds, world: bool, count: int, seed: tuple[int, ...]) -> int:
    vectors = learner.sample_summaries(
        worlds.world(world), worlds.points, count, seed=np.random.SeedSequence(seed), compute=Compute(threads=1)
    )
    return int(np.isfinite(vectors).all(1).sum())


def one_by_one(learner: Diffprivlib, train: Examples, count: int) -> float:
    """Return the processor seconds that each of `count` further trainings of the library adds."""
    points, spent = train.features[:1], []
    for trainings in (1, count + 1):
        before = _children_s()
        learner.sample_summaries(train, points, trainings, seed=np.random.SeedSequence(0), compute=Compute())
        spent.append(_children_s() - before)
    return (spent[1] - spent[0]) / count


def _children_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main()
