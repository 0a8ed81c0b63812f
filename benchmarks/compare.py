"""Processor seconds and answers of other packages with unmodified code, and of ours, for identical work.

    make compare

The table omits packages that are not installed and prints an error as the answer. Our time excludes compilation; the
time of a peer does so too if it answers within ten seconds.
"""

from __future__ import annotations

import importlib.util
import itertools
import math
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.random import SeedSequence

from benchmarks.campaign import measurement, rows_about
from dpaudit.claims import SubsampledGaussian
from dpaudit.engine.data.bundled import Digits
from dpaudit.engine.estimate.estimating import estimate
from dpaudit.estimators.measures import pairs_above
from dpaudit.estimators.one_run.f_dp import f_dp_epsilon
from dpaudit.estimators.one_run.guesses import one_run_epsilon
from dpaudit.estimators.two_world.confusion import epsilon_interval
from dpaudit.mechanisms.compute import Compute
from dpaudit.mechanisms.models.networks import Mlp
from tools.rows import Row

AGAIN_S = 10.0
Answer = tuple[float, ...]


class Work(NamedTuple):
    """One piece of work, by our code and by a peer."""

    what: str
    ours: Callable[[], Answer]
    package: str  # name in the package index
    theirs: Callable[[], Answer]


def works() -> Iterator[Work]:
    """Yield the work for each installed peer."""
    if _installed("privacy_estimates"):
        from privacy_estimates import AttackResults, compute_eps_lo_hi

        for half in (100, 1_000, 10_000):
            wrong, right = round(0.4 * half), half - round(0.4 * half)
            count = AttackResults(FN=wrong, FP=wrong, TN=right, TP=right)
            yield Work(
                f"joint 90 % interval at delta = 1e-5, {half:,} trials a world",
                partial(_interval, right, wrong),
                "privacy-estimates",
                lambda count=count: compute_eps_lo_hi(count, 1e-5, 0.1, "joint-beta"),
            )
    if _installed("jax_privacy"):
        yield from _of_jax_privacy(jax_auditing())
    if _installed("privacy_guard"):
        from privacy_guard.analysis.mia.fdp_analysis_node import FDPAnalysisNode

        guard = FDPAnalysisNode(m=10_000, c=70, c_cap=100, delta=1e-5)
        yield Work(
            "f-DP, 70 of 100 guesses right, 10,000 canaries",
            lambda: (f_dp_epsilon(100, 70, canaries=10_000, delta=1e-5, confidence=0.95),),
            "privacyguard-platform",
            lambda: (guard.run_analysis().eps,),
        )
    if _installed("dp_accounting"):
        fresh = itertools.count()  # ours caches results
        yield Work(
            "epsilon of 1,000 steps, q = 0.01, sigma = 1, delta = 1e-5",
            lambda: (SubsampledGaussian(1 + 1e-9 * next(fresh), 0.01, 1_000).epsilon(1e-5),),
            "dp-accounting",
            _accounted,
        )
    if _installed("opacus"):
        ours, theirs = _trainings()
        yield Work("DP-SGD, digits, 64-64-10, 20 epochs of 15 steps (accuracy)", ours, "opacus", theirs)


def _of_jax_privacy(auditing: Any) -> Iterator[Work]:
    rng = np.random.default_rng(0)
    members, others = rng.normal(1, 1, 10_000), rng.normal(0, 1, 10_000)
    yield Work(
        "f-DP, 5,200 of 10,000 guesses right",
        lambda: (f_dp_epsilon(10_000, 5_200, canaries=10_000, delta=1e-5, confidence=0.95),),
        "jax-privacy",
        lambda: (auditing._epsilon_one_run_fdp(0.0, 10_000, 10_000, 5_200, 0.05, 1e-5),),
    )
    yield Work(
        "one run with delta, 600,000 of a million guesses right",
        lambda: (one_run_epsilon(10**6, 600_000, canaries=10**6, delta=1e-5, confidence=0.95),),
        "jax-privacy",
        lambda: (auditing._epsilon_one_run(0.0, 10**6, 10**6, 600_000, 0.05, 1e-5),),
    )
    yield Work(
        "bound of the best threshold, 10,000 scores a world, 95 %, delta = 0 (true: without limit)",
        lambda: (estimate(in_scores=members, out_scores=others).lower,),
        "jax-privacy",
        lambda: (auditing.CanaryScoreAuditor(members, others).epsilon_clopper_pearson(0.05),),
    )
    low, high = np.sort(others), np.sort(members)
    yield Work(
        "AUC, 10,000 scores a world",
        lambda: (pairs_above(high, low) / 10**8,),
        "jax-privacy",
        lambda: (auditing.CanaryScoreAuditor(members, others).attack_auroc(),),
    )


def _interval(right: int, wrong: int) -> Answer:
    ends = epsilon_interval(right, wrong, right, wrong, delta=1e-5, confidence=0.9)
    return ends.lower, ends.upper


def _accounted() -> Answer:
    from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent
    from dp_accounting.pld import PLDAccountant

    event = SelfComposedDpEvent(PoissonSampledDpEvent(0.01, GaussianDpEvent(1.0)), 1_000)
    return (float(PLDAccountant().compose(event).get_epsilon(1e-5)),)


def _trainings() -> tuple[Callable[[], Answer], Callable[[], Answer]]:
    """Return two trainings with equal network, epsilon and passes over 1,500 rows; noise is calibrated beforehand."""
    from dpaudit.mechanisms.adapters.opacus_dp_sgd import OpacusDpSgd
    from dpaudit.mechanisms.learners.dp_sgd import DpSgd

    rows = Digits(flat=True).load(seed=0)
    train, test = rows.take(np.arange(1_500)), rows.take(np.arange(1_500, len(rows)))
    model = Mlp(hidden=(64,), epochs=20, batch_size=100, learning_rate=0.5, momentum=0.0)

    def trained(learner: Any) -> Answer:
        model = learner.fit(train, seed=SeedSequence(0), compute=Compute())
        return (float((model.probabilities(test.features).argmax(1) == test.labels).mean()),)

    ours = DpSgd(8.0, sample_rate=1 / 15, model=model)
    return partial(trained, ours), partial(trained, OpacusDpSgd(8.0, accountant="rdp", model=model))


def jax_auditing() -> Any:
    """Return the required module alone, without its package, which needs JAX."""
    package = importlib.util.find_spec("jax_privacy")
    assert package is not None
    assert package.submodule_search_locations
    path = Path(package.submodule_search_locations[0]) / "auditing.py"
    spec = importlib.util.spec_from_file_location("jax_privacy_auditing", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def _installed(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


def timed(call: Callable[[], Answer], *, always_again: bool) -> tuple[float, str, Answer]:
    """Return processor seconds, the answer in words and the answer; of a second call if the first was short."""
    seconds, answer = math.inf, ()
    for _ in range(2):
        began = time.process_time()
        try:
            answer = tuple(float(each) for each in call())
        except Exception as err:
            return time.process_time() - began, f"{type(err).__name__}: {err}"[:100], ()
        seconds = time.process_time() - began
        if seconds > AGAIN_S and not always_again:
            break
    return seconds, ", ".join(f"{each:.4f}" for each in answer), answer


def compared(_: int) -> Iterator[Row]:
    """Yield the numbers of each piece of work."""
    for work in works():
        ours, our_words, mine = timed(work.ours, always_again=True)
        theirs, their_words, other = timed(work.theirs, always_again=False)
        values = {
            "ours s": f"{ours:.3g}",
            "theirs s": f"{theirs:.3g}",
            "ours faster, times": f"{theirs / max(ours, 1e-9):.3g}",
            "ours": our_words,
            "theirs": their_words,
            "apart": f"{max(abs(a - b) for a, b in zip(mine, other, strict=True)):.4f}" if mine and other else "–",
        }
        yield from rows_about(
            {"work": work.what, "package": f"{work.package} {metadata.version(work.package)}"}, values
        )


if __name__ == "__main__":
    measurement(compared, file="peers.csv")
