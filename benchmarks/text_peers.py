"""Bounds from the same scores of canaries by other packages and by ours: bound, false bounds at the truth, seconds.

    make .peers/.installed
    PYTHONPATH=.peers python -m benchmarks.text_peers OUTPUT.jsonl [--games 200] [--small]

Games that OUTPUT.jsonl holds are not played again; the table of all of them is written to `docs/data/text-peers.csv`.

The first games draw scores from mechanisms whose privacy is known exactly: a fair coin for each of 500 canaries,
and a score that randomised response or Gaussian noise makes of it. Canaries leak independently, as all methods allow.
The last games are the scores of fine-tunings of a small transformer (`text_defects`). Every method is called as its
documentation shows, with delta = 1e-5 and an error of 5 %. Seconds are those of the processor.
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import dpaudit
from benchmarks.compare import jax_auditing
from benchmarks.text_defects import CANARIES as TRAINED
from benchmarks.text_defects import CASES, HONEST, Training, planted_canaries, play
from dpaudit.claims import GaussianDP
from tools.rows import DATA, Row, measured_here, note_origin, setting, write

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


def games(small: bool) -> Iterator[tuple[str, str, int]]:
    """Yield name of the scores, name of the method and number of each game."""
    for name, count in {**GAMES, **dict.fromkeys(FINE_TUNINGS, 1)}.items():
        for number in range(min(count, 2) if small else count):
            for method in methods():
                if method != SLOW or number < SLOW_GAMES:
                    yield name, method, number


def main() -> None:
    """Play the missing games, and write the table of all of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path, help="one JSON object a line for each game")
    parser.add_argument("--small", action="store_true", help="two games of each law; no data file is written")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    lines = [json.loads(line) for line in options.output.read_text().splitlines()] if options.output.exists() else []
    played = {(line["scores"], line["method"], line["number"]) for line in lines}
    laws, bounds, cache = leaks(), methods(), dict[tuple[str, int], tuple[Floats, Bits]]()
    for name, method, number in games(options.small):
        if (name, method, number) in played:
            continue
        if (name, number) not in cache:
            cache = {(name, number): scores_of(name, laws, number)}
        scores, coins = cache[name, number]
        began = time.process_time()
        values = bounds[method](scores, coins)
        line = {"scores": name, "method": method, "number": number, "bounds": values}
        lines.append(line | {"seconds": time.process_time() - began})
        with options.output.open("a") as file:
            file.write(json.dumps(lines[-1]) + "\n")
    data = rows(lines, laws)
    print(*data, sep="\n")
    if not options.small:
        write(DATA / "text-peers.csv", data)
        note_origin(measured_here("text-peers.csv", "python -m benchmarks.text_peers OUTPUT.jsonl"))


def scores_of(name: str, laws: Mapping[str, Leak], number: int) -> tuple[Floats, Bits]:
    """Return scores and coins of a game."""
    if name in FINE_TUNINGS:
        return training_scores(name, 100 + number)
    rng = np.random.default_rng([number, list(laws).index(name)])
    coins = rng.random(CANARIES) < 0.5
    return laws[name].score(coins, rng), coins


def rows(lines: Sequence[Mapping[str, Any]], laws: Mapping[str, Leak]) -> list[Row]:
    """Return the rows of the data file: mean bound, bounds above the truth, and seconds."""
    by_case: dict[tuple[str, str, str], list[tuple[float, float]]] = {}
    for line in lines:
        for name, bound in line["bounds"].items():
            package = f"{line['method'].partition(',')[0]} {name}"
            by_case.setdefault((line["scores"], package, line["method"]), []).append((bound, line["seconds"]))
    result = []
    for (name, method, _), games_of_case in by_case.items():
        truth = laws[name].truth if name in laws else 2.0 if name == WITH_DP else math.inf
        conditions, trials = setting({"scores": name, "method": method}), str(len(games_of_case))
        bounds, seconds = np.array(games_of_case).T
        truth_text = "no limit" if math.isinf(truth) else f"{truth:.2f}"
        result.append(Row(conditions, "truth" if name in laws else "claim", truth_text, trials=trials))
        result.append(Row(conditions, "mean bound", f"{bounds.mean():.2f}", trials=trials))
        above = f"{np.count_nonzero(bounds > truth)} of {trials}"
        result.append(Row(conditions, "above the truth", above, trials=trials))
        result.append(Row(conditions, "seconds", f"{seconds.mean():.2g}", trials=trials))
    return result


if __name__ == "__main__":
    main()
