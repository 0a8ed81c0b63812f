"""Planning: what an audit of 100,000 canaries could show; the promise is 2 s."""

from __future__ import annotations

import time

from dpaudit.engine.games.reference import FairCoins, Reference
from dpaudit.engine.planning.power import expected_bound, outlook
from dpaudit.estimators.one_run.signed_scores import OneRun
from dpaudit.estimators.two_world.two_sample import Band

CANARIES, REPLAYS, RUNS = 100_000, 100, 3


def run() -> list[tuple[str, float, str]]:
    """(what, processor seconds, note)."""
    reference = Reference(FairCoins(), CANARIES, "canaries", REPLAYS)
    rows = []
    for what, estimator in (("one-run", OneRun()), ("one-run, delta 1e-5", OneRun(delta=1e-5)), ("band", Band())):
        expected_bound(estimator, reference, 1.0)  # compiles
        taken = []
        for _ in range(RUNS):
            began = time.process_time()
            outlook(estimator, reference, 1.0)
            taken.append(time.process_time() - began)
        rows.append((what, min(taken), f"claim 1, {CANARIES:,} canaries, {REPLAYS} replays"))
    return rows
