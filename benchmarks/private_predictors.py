"""How long an audit of private predictors takes: one query, 250 teachers, a thousand queries.

python -m benchmarks.private_predictors [FASHION_MNIST_FOLDER]
"""

from __future__ import annotations

import os
import sys
import tempfile
from typing import Any

import numpy as np
from numpy.random import SeedSequence

from dpaudit import Audit, AuditSpec, RunOptions, audit
from dpaudit.actors.seed import Seed
from dpaudit.engine.data.bundled import Digits
from dpaudit.engine.data.partition import Partition
from dpaudit.engine.games.predictions.answer_laws import Worlds, answer_laws, counted
from dpaudit.engine.games.predictions.answer_set import AnswerSet, chosen_set
from dpaudit.engine.request.build import build
from dpaudit.estimators.answered_queries import AnsweredQuery
from dpaudit.estimators.private_prediction.answers_estimator import Answers
from dpaudit.mechanisms.compute import Compute
from dpaudit.mechanisms.models.networks import LeNet5, Mlp, WideResNet16x4
from dpaudit.mechanisms.predictors.ensemble import PatePredictor
from dpaudit.mechanisms.predictors.releases import GaussianArgmax
from dpaudit.mechanisms.predictors.vote_laws import AlikeTeachers
from dpaudit.mechanisms.protocols import Trainer

THREADS = 1
"""More help on idle cores alone."""
SHARES = np.array([0.3, 0.25, 0.2, 0.1, 0.05, 0.04, 0.03, 0.01, 0.01, 0.01])
"""All ten classes are voted for: most queries have two or three."""


def one_query() -> None:
    """Laws, a search, 10^8 answers in both worlds, all orders and directions."""
    moved = np.full(10, 0.03) + 0.7 * np.eye(10)[1]
    worlds = Worlds(AlikeTeachers(249, SHARES, moved[None]), AlikeTeachers(249, SHARES, SHARES[None]))
    estimator = Answers()
    laws = answer_laws(worlds, GaussianArgmax(40.0), Seed(0))
    assert laws is not None
    draws = [[counted(law, many, Seed(many).rng()) for law in (laws.one, laws.zero)] for many in (10**7, 10**8)]
    chosen = chosen_set(AnswerSet(), *draws[0])
    finding = estimator.find(
        [estimator.tally(AnsweredQuery(0, *draws[1], chosen=chosen, law_1=laws.one, law_0=laws.zero))]
    )
    assert finding.bound.larger.max() > 0


def teachers(data: Any, model: Trainer, count: int) -> None:
    """So many teachers on 40 records each, or on what there is, asked 100 queries."""
    predictor = PatePredictor(teachers=count, model=model)
    some, asked = data.take(np.arange(min(len(data), 40 * count))), data.take(np.arange(100)).features
    predictor.votes(some, asked, seed=SeedSequence(0), compute=Compute(threads=THREADS))


def thousand_queries(data: Any) -> None:
    """A whole audit with units on two Ray workers, for natural queries."""
    asked = {"queries": 1000, "adversary": "pois-nat-q-unconfident"}
    game = {"name": "private-prediction", **asked, "runs": 2, "moved_runs": 20, "resamples": 0}
    model = Mlp(hidden=(32,), epochs=10, learning_rate=0.1, batch_size=16)
    mechanism = PatePredictor(teachers=100, sigma=20.0, model=model)
    entry = Audit(mechanism=mechanism, data=data, game=game, split=Partition(0.42, 0.0, 0.58))
    spec = AuditSpec((entry,), run=RunOptions(workers=2, figures=False))
    with tempfile.TemporaryDirectory() as folder:
        print(audit(spec, output=folder).results[0])


def timed(what: str, work: Any, *arguments: Any, repeats: int = 1) -> None:
    """The least of several times, with the CPU time of this process and of those it has waited for, and the load."""
    taken = []
    for _ in range(repeats):
        before = os.times()
        work(*arguments)
        after = os.times()
        taken.append((after.elapsed - before.elapsed, sum(after[:4]) - sum(before[:4])))
    wall, cpu = min(taken)
    print(f"{what}: {wall:.3g} s, CPU {cpu:.3g} s, load {os.getloadavg()[0]:.1f}", flush=True)


if __name__ == "__main__":
    one_query()
    timed("one query, 10^8 answers a world", one_query, repeats=5)
    digits = Digits(flat=True)
    mlp = Mlp(hidden=(64,), epochs=30, learning_rate=0.1, batch_size=16)
    timed("250 teachers on digits", teachers, digits.load(), mlp, 250)
    if sys.argv[1:]:
        fashion = build("data", {"name": "fashion-mnist", "path": sys.argv[1], "rows": 10_000}).load(seed=0)
        timed("250 teachers on 10,000 of Fashion-MNIST", teachers, fashion, mlp, 250)
        pictures = fashion.with_(features=fashion.features.reshape(-1, 1, 28, 28))
        lenet = LeNet5(epochs=30, learning_rate=0.05, batch_size=16)
        timed("25 teachers that are LeNet-5, on 1,000", teachers, pictures, lenet, 25)
        wide = WideResNet16x4(epochs=1, learning_rate=0.05, batch_size=16)
        timed("2 teachers that are WRN-16-4, on 80, one epoch", teachers, pictures, wide, 2)
    timed("1,000 queries as units", thousand_queries, digits)
