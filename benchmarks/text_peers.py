"""Bounds from the same scores of canaries by other packages and by ours: bound, false bounds at the truth, seconds.

    make .peers/.installed
    PYTHONPATH=.peers python -m benchmarks.text_peers RUNS.jsonl [--seeds 200] [--write]

The first games draw scores from mechanisms whose privacy is known exactly: a fair coin for each of 500 canaries,
and a score that randomised response or Gaussian noise makes of it. Canaries leak independently, as all methods allow.
The last games are the scores of fine-tunings of a small transformer (`text_defects`). Every method is called as its
documentation shows, with delta = 1e-5 and an error of 5 %. Seconds are those of the processor.
"""

from __future__ import annotations

import logging
import math
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

import dpaudit
from benchmarks.campaign import campaign
from benchmarks.compare import jax_auditing
from benchmarks.text_defects import CANARIES as TRAINED
from benchmarks.text_defects import CASES, HONEST, Training, planted_canaries, play
from dpaudit.claims import GaussianDP

CANARIES, DELTA, ERROR = 500, 1e-5, 0.05
WITH_DP, WITHOUT = "fine-tuning, epsilon 2", "fine-tuning without privacy"
Floats = NDArray[np.float64]
Bits = NDArray[np.bool_]
Rng = np.random.Generator


@dataclass(frozen=True)
class Leak:
    """A law of scores with known privacy.

    Attributes:
        truth: The smallest epsilon at `DELTA`.
        score: Function of the coins and a generator that returns the scores.
    """

    truth: float
    score: Callable[[Bits, Rng], Floats]


def responses(epsilon: float) -> Callable[[Bits, Rng], Floats]:
    """Return randomised response to each coin."""
    keep = 1 / (1 + math.exp(-epsilon))
    return lambda coins, rng: np.where(rng.random(coins.size) < keep, coins, ~coins).astype(np.float64)


def gaussian(mu: float) -> Callable[[Bits, Rng], Floats]:
    """Return each coin times mu with standard normal noise."""
    return lambda coins, rng: mu * coins + rng.normal(size=coins.size)


def leaks() -> dict[str, Leak]:
    """Return the laws by name."""
    # Randomised response of epsilon 1 is (e, delta)-private at the e with exp(1) - exp(e) = delta (1 + exp(1)).
    response = math.log(math.exp(1) - DELTA * (1 + math.exp(1)))
    gaussians = {mu: GaussianDP(mu).epsilon(DELTA) for mu in (0.5, 2.0)}
    return {
        "nothing": Leak(0.0, gaussian(0.0)),
        "randomised response, epsilon 1": Leak(response, responses(1.0)),
        **{f"Gaussian, mu {mu:g}": Leak(truth, gaussian(mu)) for mu, truth in gaussians.items()},
    }


Method = Callable[[Floats, Bits], Mapping[str, float]]
"""Function of scores and coins that returns bounds by name."""


def methods() -> dict[str, Method]:
    """Return the methods by name of their package."""
    auditing = jax_auditing()

    def jax(name: str) -> Method:
        def bound(scores: Floats, coins: Bits) -> Mapping[str, float]:
            auditor = auditing.CanaryScoreAuditor(scores[coins], scores[~coins])
            return {name: float(getattr(auditor, name)(ERROR, DELTA))}

        return bound

    return {
        "dpaudit": lambda scores, coins: {"estimate": dpaudit.estimate(scores, coins, delta=DELTA).lower},
        "jax_privacy": jax("epsilon_one_run"),
        "jax_privacy, f-DP": jax("epsilon_one_run_fdp"),
        "jax_privacy, two samples": jax("epsilon_clopper_pearson"),
        "PrivacyGuard": privacy_guard,
    }


def privacy_guard(scores: Floats, coins: Bits) -> Mapping[str, float]:
    """Return the epsilons of PrivacyGuard's analysis of membership scores."""
    import pandas as pd
    from privacy_guard.analysis.mia.aggregate_analysis_input import AggregateAnalysisInput, AggregationType
    from privacy_guard.analysis.mia.analysis_node import AnalysisNode

    inside, outside = (pd.DataFrame({"score": scores[rows], "user": np.flatnonzero(rows)}) for rows in (coins, ~coins))
    scores_by_user = AggregateAnalysisInput(AggregationType.NONE, inside, outside, "user")
    result = AnalysisNode(scores_by_user, delta=DELTA, n_users_for_eval=len(coins)).run_analysis()
    return {"eps": float(result.eps), "eps_lb": float(result.eps_lb), "eps_cp": float(result.eps_cp)}


def training_scores(name: str, seed: int) -> tuple[Floats, Bits]:
    """Return scores and coins of a fine-tuning by DP-SGD, or without privacy."""
    training = CASES[HONEST]["own DP-SGD"] if name == WITH_DP else Training(clip="none")
    estimate = play(training, seed)
    return np.asarray(estimate.attack_scores["calibrated-loss"]), planted_canaries(TRAINED, seed).planted


GAMES = {"nothing": 200, "randomised response, epsilon 1": 200, "Gaussian, mu 0.5": 20, "Gaussian, mu 2": 20}
"""Games of each law: many where bounds come close to the truth."""
SLOW, SLOW_GAMES = "PrivacyGuard", 8
"""Package that takes seconds a game, and its games of each law."""
FINE_TUNINGS = (WITH_DP, WITHOUT)


def cases(seeds: int) -> Iterator[dict[str, Any]]:
    """Yield scores, method and seed of each game, at most so many of each."""
    for name, count in {**GAMES, **dict.fromkeys(FINE_TUNINGS, 1)}.items():
        for seed in range(min(count, seeds)):
            for method in methods():
                if method != SLOW or seed < SLOW_GAMES:
                    yield {"scores": name, "method": method, "seed": seed}


@lru_cache(maxsize=1)
def scores_of(name: str, seed: int) -> tuple[Floats, Bits]:
    """Return scores and coins of a game."""
    if name in FINE_TUNINGS:
        return training_scores(name, 100 + seed)
    laws = leaks()
    rng = np.random.default_rng([seed, list(laws).index(name)])
    coins = rng.random(CANARIES) < 0.5
    return laws[name].score(coins, rng), coins


def run(scores: str, method: str, seed: int) -> dict[str, Any]:
    """Return the bounds of a method on the scores of a game, and its processor seconds."""
    values, coins = scores_of(scores, seed)
    began = time.process_time()
    return {"bounds": methods()[method](values, coins), "seconds": time.process_time() - began}


def groups(line: Mapping[str, Any]) -> Iterator[tuple[dict[str, str], tuple[str, float, float]]]:
    """Yield a row for each bound of a game."""
    for name, bound in line["bounds"].items():
        method = f"{line['method'].partition(',')[0]} {name}"
        yield {"scores": line["scores"], "method": method}, (line["scores"], bound, line["seconds"])


def columns(games: Sequence[tuple[str, float, float]]) -> dict[str, str]:
    """Return mean bound, bounds above the truth, and seconds."""
    laws, (name, *_) = leaks(), games[0]
    truth = laws[name].truth if name in laws else 2.0 if name == WITH_DP else math.inf
    bounds, seconds = (np.array(values) for values in list(zip(*games, strict=True))[1:])
    return {
        "truth" if name in laws else "claim": "no limit" if math.isinf(truth) else f"{truth:.2f}",
        "mean bound": f"{bounds.mean():.2f}",
        "above the truth": f"{np.count_nonzero(bounds > truth)} of {len(games)}",
        "seconds": f"{seconds.mean():.2g}",
    }


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    campaign(cases, run, columns, groups=groups, seeds=200)
