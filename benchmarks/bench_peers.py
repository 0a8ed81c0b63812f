"""The same questions put to other packages, beside ours; each peer only where it is installed.

pip install --no-deps privacy-estimates privacyguard-platform jax-privacy dp-accounting
"""

from __future__ import annotations

import importlib.util
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from dpaudit.estimators.one_run.f_dp import f_dp_epsilon
from dpaudit.estimators.one_run.guesses import one_run_epsilon
from dpaudit.estimators.two_world.confusion import epsilon_interval

Row = tuple[str, float, str]


def run() -> list[Row]:
    """What, seconds, answer."""
    return [row for rows in (_joint_interval(), _f_dp(), _one_run()) for row in rows]


def _joint_interval() -> Iterator[Row]:
    """Bayesian 90 % interval at delta = 1e-5."""
    for half in (100, 10_000):
        wrong = round(0.4 * half)
        right = half - wrong
        ends, seconds = timed(
            lambda right=right, wrong=wrong: epsilon_interval(right, wrong, right, wrong, delta=1e-5, confidence=0.9)
        )
        yield f"joint interval, {half:,} trials a world", seconds, f"({ends.lower:.4f}, {ends.upper:.4f})"
        if importlib.util.find_spec("privacy_estimates"):
            from privacy_estimates import AttackResults, compute_eps_lo_hi

            count = AttackResults(FN=wrong, FP=wrong, TN=right, TP=right)
            yield peer(
                f"privacy-estimates, joint-beta, {half:,} trials a world",
                lambda count=count: compute_eps_lo_hi(count, 1e-5, 0.1, "joint-beta"),
            )


def _f_dp() -> Iterator[Row]:
    """Gaussian family, all of 10,000 canaries guessed, 52 % right, delta = 1e-5."""
    answer, seconds = timed(lambda: f_dp_epsilon(10_000, 5_200, canaries=10_000, delta=1e-5, confidence=0.95))
    yield "f-DP, 10,000 guesses of 10,000", seconds, f"{answer:.4f}"
    auditing = _jax_auditing()
    if auditing:
        yield peer(
            "jax-privacy, one-run f-DP, the same",
            lambda: auditing._epsilon_one_run_fdp(0.0, 10_000, 10_000, 5_200, 0.05, 1e-5),
        )
    if importlib.util.find_spec("privacy_guard"):
        from privacy_guard.analysis.mia.fdp_analysis_node import FDPAnalysisNode

        yield peer(
            "privacyguard, f-DP, the same with 100 guesses",
            lambda: FDPAnalysisNode(m=10_000, c=70, c_cap=100, delta=1e-5).run_analysis(),
        )


def _one_run() -> Iterator[Row]:
    """A million guesses with delta = 1e-5."""
    answer, seconds = timed(lambda: one_run_epsilon(10**6, 600_000, canaries=10**6, delta=1e-5, confidence=0.95))
    yield "one run with delta, a million guesses", seconds, f"{answer:.4f}"
    auditing = _jax_auditing()
    if auditing:
        yield peer(
            "jax-privacy, one run, the same",
            lambda: auditing._epsilon_one_run(0.0, 10**6, 10**6, 600_000, 0.05, 1e-5),
        )


def _jax_auditing() -> Any:
    """The one module that is asked, without the package around it, which needs JAX."""
    package = importlib.util.find_spec("jax_privacy")
    if package is None or not package.submodule_search_locations:
        return None
    path = Path(package.submodule_search_locations[0]) / "auditing.py"
    spec = importlib.util.spec_from_file_location("jax_privacy_auditing", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def timed(call: Callable[[], Any]) -> tuple[Any, float]:
    """Answer and seconds of the second call: compilation is not counted."""
    call()
    began = time.perf_counter()
    answer = call()
    return answer, time.perf_counter() - began


def peer(what: str, call: Callable[[], Any]) -> Row:
    """One call of somebody else's code; an error is its answer."""
    began = time.perf_counter()
    try:
        answer = str(call())
    except Exception as err:
        answer = f"{type(err).__name__}: {err}"
    return what, time.perf_counter() - began, answer[:120]


if __name__ == "__main__":
    for row in run():
        print(row)
